# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Damaged files, processes that die, memory, and readers without this package."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import __main__ as command
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import one_run
from jax_tpu_embedding.sparsecore.lib.core.testing import unread_output
import numpy as np

_TOPOLOGY = any_tables.Topology(1, 2, "auto")
_DAMAGES = 500
# By hand: 100.
_KILLS = int(os.environ.get("KILLS", "25"))


def _save(path: pathlib.Path, seed: int = 0):
  specs = any_tables.feature_specs(_TOPOLOGY)
  values = any_tables.values(seed=seed)
  variables = any_tables.random_variables(_TOPOLOGY, specs, values)
  any_tables.save(path, variables, specs, step=seed)
  return values


def _is_same(path: pathlib.Path, values) -> bool:
  """Whether a checkpoint has these values; raises if it is damaged."""
  saved = checkpoint.describe(path)
  return saved.tables.keys() == values.keys() and all(
      np.array_equal(checkpoint.read_table(path, name, slot), rows)
      for name, slots in values.items()
      for slot, rows in slots.items()
  )


def _damage(file: pathlib.Path, rng: random.Random) -> str:
  content = bytearray(file.read_bytes())
  kinds = ("delete", "append", "flip", "cut", "zero")
  kind = rng.choice(kinds if content else kinds[:2])
  if kind == "flip":
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
  elif kind == "cut":
    del content[rng.randrange(len(content)) :]
  elif kind == "append":
    content += b"\0"
  elif kind == "zero":
    at = rng.randrange(len(content))
    content[at : at + 8] = bytes(len(content[at : at + 8]))
  file.unlink()
  if kind != "delete":
    file.write_bytes(content)
  return kind


class DamageTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(self.create_tempdir().full_path)

  def test_damaged_files_are_noticed(self):
    path = self.directory / "saved"
    values = _save(path)
    specs = any_tables.feature_specs(_TOPOLOGY)
    files = sorted(x for x in path.rglob("*") if x.is_file())
    self.assertGreater(len(files), 30)
    rng = random.Random(0)
    noticed = 0
    for i in range(_DAMAGES):
      file = files[i % len(files)]
      intact = file.read_bytes()
      what = f"{_damage(file, rng)} {file.name} (damage {i})"
      try:
        self.assertTrue(_is_same(path, values), what)
        if i % 10 == 0:
          restored = checkpoint.restore(
              path, specs, any_tables.sharding(_TOPOLOGY), num_sc_per_device=2
          )
          found = any_tables.read(restored, specs, _TOPOLOGY)
          for name, slots in values.items():
            for slot, rows in slots.items():
              np.testing.assert_array_equal(found[name][slot], rows, what)
      except checkpoint.CheckpointError as error:
        noticed += 1
        # The file, and whose rows are in it.
        self.assertRegex(str(error), re.escape(str(path)), what)
        table = file.parent.name.split(".")[0]
        if table in values:
          self.assertIn(repr(table), str(error), what)
        with self.assertRaises(checkpoint.CheckpointError, msg=what):
          checkpoint.verify(path)
      file.write_bytes(intact)
    # What only orbax reads, and what is behind the end of a chunk, does no harm.
    self.assertGreater(noticed, _DAMAGES * 0.6)
    self.assertTrue(_is_same(path, values))

  def test_other_versions_name_the_library_that_wrote_them(self):
    path = self.directory / "saved"
    _save(path)
    file = path / "tables" / "tables.json"
    content = json.loads(file.read_text()) | {
        "version": 2, "writer": "jax_tpu_embedding 99"
    }  # fmt: skip
    del content["crc32"]
    content["crc32"] = _tables_json.checksum_of(content)
    file.write_text(json.dumps(content))
    with self.assertRaisesRegex(
        checkpoint.CheckpointError,
        "has version 2 of the format.*jax_tpu_embedding 99 wrote it",
    ):
      checkpoint.describe(path)

  def test_commands_describe_and_verify(self):
    path = self.directory / "saved"
    _save(path)
    with contextlib.redirect_stdout(io.StringIO()) as output:
      self.assertEqual(command.main(["describe", str(path)]), 0)
      self.assertEqual(command.main(["verify", str(path)]), 0)
    self.assertRegex(
        output.getvalue(), r"(?s)3 tables,.*items +1,003 x 12.*All files are"
    )
    chunks = sorted((path / "tables" / "items.table").glob("c.*"))
    for chunk in chunks[:2]:
      chunk.unlink()
    with contextlib.redirect_stderr(io.StringIO()) as output:
      self.assertEqual(command.main(["verify", str(path)]), 1)
    # All that is damaged, not the first of it.
    self.assertRegex(output.getvalue(), r"(?s)c\.0\.0.*c\.1\.0")

  def test_a_command_that_nobody_reads_ends_quietly(self):
    path = self.directory / "saved"
    _save(path)
    self.assertEqual(
        unread_output.run(command.__package__, "describe", path), (141, "")
    )

  @parameterized.parameters(
      (None, "There is no checkpoint in"),
      ("_METADATA", "is a checkpoint of orbax, but not one of tables.*convert"),
      ("x.orbax-checkpoint-tmp", "was not finished"),
  )
  def test_other_directories_are_no_checkpoints(self, name, error):
    path = self.directory
    if name is not None:
      (path / name).touch()
    if name and "tmp" in name:
      path /= name
    with self.assertRaisesRegex(checkpoint.CheckpointError, error):
      checkpoint.describe(path)

  @parameterized.parameters("tables.json", "items.table/zarr.json")
  def test_a_pipe_is_named_and_not_waited_for(self, name):
    path = self.directory / "saved"
    specs = any_tables.feature_specs(_TOPOLOGY)
    checkpoint.save(path, any_tables.new_variables(_TOPOLOGY, specs), specs)
    (path / "tables" / name).unlink()
    os.mkfifo(path / "tables" / name)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, f"{name} is no regular file"
    ):
      checkpoint.verify(path)

  @parameterized.parameters("foo://x", "://", "gs://UPPER/x")
  def test_no_checkpoint_is_at_a_url_that_nothing_can_read(self, url):
    specs = any_tables.feature_specs(_TOPOLOGY)
    variables = any_tables.new_variables(_TOPOLOGY, specs)
    for call in (
        lambda: checkpoint.describe(url),
        lambda: checkpoint.save(url, variables, specs),
        lambda: checkpoint.restore_into(variables, url, specs),
    ):
      with self.assertRaisesRegex(
          checkpoint.CheckpointError, f"can be no checkpoint at {url}: "
      ):
        call()

  def test_damage_found_while_restoring_into_names_what_was_overwritten(self):
    path = self.directory / "saved"
    _save(path)
    chunk = sorted((path / "tables" / "items.table").glob("c.*"))[-1]
    chunk.write_bytes(chunk.read_bytes()[:-1])
    specs = any_tables.feature_specs(_TOPOLOGY)
    variables = any_tables.new_variables(_TOPOLOGY, specs)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError,
        r"(?s)table 'items': rows from \d+ on in .*items.table are damaged.*"
        "Overwritten, wholly or in part: table 'hours'.*table 'items'",
    ):
      checkpoint.restore_into(variables, path, specs)

  def test_killed_while_saving_leaves_what_was_complete(self):
    rng = random.Random(1)
    server = one_run.start("save_forever", self.directory)
    for i in range(_KILLS):
      directory = self.directory / str(i)
      directory.mkdir()
      print(directory, file=server.stdin, flush=True)
      process, done = map(int, server.stdout.readline().split())
      # Somewhere in the next ones.
      time.sleep(rng.uniform(0, 0.3))
      os.kill(process, signal.SIGKILL)
      while (line := server.stdout.readline()) != "killed\n":
        done = int(line.split()[1])
      found = [
          int(path.name) for path in directory.iterdir() if path.name.isdigit()
      ]
      # What was said to be there is, and what is there is whole.
      self.assertIn(max(found) - done, (0, 1))
      for step in sorted(found)[-2:]:
        self.assertTrue(
            _is_same(directory / str(step), one_run.values_of_step(step))
        )
      shutil.rmtree(directory)
    server.communicate()

  def test_a_full_disk_is_an_error_and_leaves_earlier_checkpoints(self):
    path = self.directory / "saved"
    values = _save(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
      with self.assertRaisesRegex(
          checkpoint.CheckpointError,
          rf"(?s)Cannot write .*{re.escape(str(self.directory))}",
      ):
        _save(self.directory / "second", 1)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
      signal.signal(signal.SIGXFSZ, before)
    self.assertFalse((self.directory / "second").exists())
    self.assertTrue(_is_same(path, values))

  @parameterized.parameters(1, 4)
  def test_memory_beyond_the_tables_is_bounded(self, num_devices):
    child = one_run.start("memory", self.directory, num_devices)
    output, _ = child.communicate()
    peaks = json.loads(output)
    for task, mebibytes in peaks.items():
      self.assertLess(mebibytes, 64, f"{task}: {peaks}")

  @parameterized.parameters(1, 2)
  def test_memory_of_each_of_two_processes_is_bounded(self, num_devices):
    with socket.socket() as listener:
      listener.bind(("localhost", 0))
      port = listener.getsockname()[1]
    children = [
        one_run.start("memory_of_two", self.directory, i, port, num_devices)
        for i in range(2)
    ]
    for child in children:
      peaks = json.loads(child.communicate()[0].splitlines()[-1])
      for task, mebibytes in peaks.items():
        self.assertLess(mebibytes, 64, f"{task}: {peaks}")

  def test_memory_of_converting_is_bounded(self):
    one_run.start("write_stacked", self.directory).communicate()
    output, _ = one_run.start("convert_memory", self.directory).communicate()
    peaks = json.loads(output.splitlines()[-1])
    for task, mebibytes in peaks.items():
      self.assertLess(mebibytes, 64, f"{task}: {peaks}")

  def test_orbax_reads_tables_without_this_package(self):
    path = self.directory / "saved"
    values = _save(path)
    child = one_run.start("plain_orbax", path)
    output, _ = child.communicate()
    self.assertEqual(json.loads(output), [sorted(values)] * 2)
    for i in range(2):
      for name, slots in values.items():
        for slot, rows in slots.items():
          found = np.load(self.directory / f"{i} {name} {slot or 'table'}.npy")
          np.testing.assert_array_equal(found, rows)


if __name__ == "__main__":
  jax.config.update("jax_num_cpu_devices", 1)
  absltest.main()
