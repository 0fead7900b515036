# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Versions that follow one another, and a publisher that dies."""

from __future__ import annotations

from concurrent import futures
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.export import _delta_version
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _fingerprints
from jax_tpu_embedding.sparsecore.lib.export import _served_directory
from jax_tpu_embedding.sparsecore.lib.export import export
from jax_tpu_embedding.sparsecore.lib.export.testing import plain_reader
from jax_tpu_embedding.sparsecore.lib.export.testing import publish_forever
from jax_tpu_embedding.sparsecore.serving import _files
from jax_tpu_embedding.sparsecore.serving import _versions
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

# By hand: 1000 and 100.
_HISTORIES = int(os.environ.get("HISTORIES", "12"))
_KILLS = int(os.environ.get("KILLS", "10"))

_TOPOLOGY = any_tables.Topology(2, 2, "auto")

# Ends without closing a publisher, which a process that it forked has closed.
_PUBLISHER_THAT_NOBODY_CLOSES = """
import os, pathlib, sys
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.export import export
specs = any_tables.feature_specs(any_tables.Topology(1, 1, "alone"))
publisher = export.Publisher(sys.argv[1], specs)
if os.fork() == 0:
  publisher.close()
  os._exit(0)
os.wait()
print(pathlib.Path(sys.argv[1], "LOCK").read_text())
"""


def _encoded(encoding, values):
  return {
      name: _encodings.encode(
          _encodings.ENCODINGS[encoding], by_slot[None]
      ).rows
      for name, by_slot in values.items()
  }


def _assert_same(found, expected):
  assert found.keys() == expected.keys(), (found.keys(), expected.keys())
  for name, rows in expected.items():
    np.testing.assert_array_equal(found[name], rows, name)


class FingerprintsTest(absltest.TestCase):

  def test_every_bit_counts(self):
    row = np.random.default_rng(0).integers(256, size=(1, 43), dtype=np.uint8)
    flipped = np.repeat(row, 8 * 43, axis=0)
    for bit in range(8 * 43):
      flipped[bit, bit // 8] ^= 1 << bit % 8
    found = _fingerprints.of_rows(np.concatenate([row, flipped]))
    self.assertLen(set(found.tolist()), 1 + 8 * 43)
    # So do those of the fingerprint.
    ones = np.unpackbits((found[1:] ^ found[0]).view(np.uint8)).mean()
    self.assertBetween(ones, 0.45, 0.55)

  def test_rows_that_hardly_differ_have_other_fingerprints(self):
    # All 2^16 rows of two bytes in two words, and signs of 16 floats.
    count = 1 << 16
    numbers = np.arange(count, dtype=np.uint32)
    rows = np.zeros((count, 16), np.uint8)
    rows[:, 7], rows[:, 15] = numbers & 255, numbers >> 8
    self.assertEqual(len(np.unique(_fingerprints.of_rows(rows))), count)
    signs = (numbers[:, None] >> np.arange(16)) & 1
    rows = np.where(signs, np.float32(-1), np.float32(1)).view(np.uint8)
    self.assertEqual(len(np.unique(_fingerprints.of_rows(rows))), count)

  def test_a_row_has_one_fingerprint_wherever_it_is(self):
    rows = np.random.default_rng(0).integers(
        256, size=(6000, 20), dtype=np.uint8
    )
    whole = _fingerprints.of_rows(rows)
    # Also those at the ends of tiles of 128 KiB, of 24 bytes a row.
    for i in (0, 1023, 2499, 5460, 5461, 5999):
      self.assertEqual(_fingerprints.of_rows(rows[i : i + 1])[0], whole[i])

  def test_of_published_rows_are_those_that_readers_have(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    rows = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    tables = {"t": written_tables.WrittenTable(rows, "int8", num_files=2)}
    checksum = written_tables.write_full(directory, tables)
    change = written_tables.WrittenChange([2, 7], rows[:2] + 1, deleted=[5])
    written_tables.write_delta(
        directory, tables, {"t": change}, 1, (0, checksum)
    )
    found = _delta_version.read_fingerprints(_versions.read_chain(directory))

    int8 = _encodings.ENCODINGS["int8"]
    rows[[2, 7]] = rows[:2] + 1
    encoded = _encodings.encode(int8, rows).rows
    encoded[5] = 0
    np.testing.assert_array_equal(
        found["t"], _fingerprints.of_rows(encoded), strict=True
    )
    written_tables.write_delta(
        directory, tables, {"t": change}, 1, (0, checksum), run="6b" * 16
    )
    with self.assertRaisesRegex(_files.ServedFileError, "is of run 6b6b"):
      _delta_version.read_fingerprints(_versions.read_chain(directory))
    # Of which readers say the same.
    for wrong, deleted, kind in (
        ([7, 2], [], "changed"),
        ([-1, 2], [], "changed"),
        ([2, 50], [], "changed"),
        ([2, 7], [5, 5], "deleted"),
    ):
      written_tables.write_delta(
          directory,
          tables,
          {"t": written_tables.WrittenChange(wrong, rows[:2] + 1, deleted)},
          1,
          (0, checksum),
      )
      with self.assertRaisesRegex(
          _files.ServedFileError, f"'t': {kind} rows .*expected ascending"
      ):
        _delta_version.read_fingerprints(_versions.read_chain(directory))


class PublisherTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.served = pathlib.Path(self.create_tempdir().full_path) / "served"
    self.values = any_tables.values()
    self.specs = any_tables.feature_specs(_TOPOLOGY)

  def publisher(self, **options):
    return export.Publisher(self.served, self.specs, **options)

  def variables(self):
    return any_tables.random_variables(_TOPOLOGY, self.specs, self.values)

  def test_a_delta_has_the_rows_that_changed_and_nothing_else(self):
    with self.publisher() as publisher:
      full = publisher.publish(self.variables(), 5)
      self.assertEqual((full.number, full.kind, full.step), (0, "full", 5))
      before = _encoded("int8", self.values)
      self.values["items"][None][[900, 3]] += 1
      # Too little for another code of int8.
      self.values["users"][None][7] *= 1 + 1e-8
      delta = publisher.publish(self.variables(), 6)
    self.assertEqual((delta.number, delta.kind, delta.step), (1, "delta", 6))
    self.assertEqual(delta.tables["items"].written_rows, 2)
    self.assertEqual(delta.tables["users"].written_rows, 0)
    self.assertEqual(delta.tables["users"].num_bytes, 0)
    tensors = plain_reader.read_safetensors(
        pathlib.Path(delta.path) / "items.delta.safetensors"
    )
    self.assertEqual(tensors["items.rows"].tolist(), [3, 900])
    found = plain_reader.read(self.served)
    _assert_same(found, _encoded("int8", self.values))
    lost = np.abs(
        _encodings.ENCODINGS["int8"].decode(found["items"], 12)
        - self.values["items"][None]
    )[[3, 900]]
    self.assertEqual(delta.tables["items"].max_error, lost.max())
    np.testing.assert_allclose(
        delta.tables["items"].rms_error, np.sqrt((lost**2).mean()), rtol=1e-5
    )
    self.assertFalse((before["items"] == found["items"]).all())

  def test_random_histories(self):
    variables = any_tables.new_variables(_TOPOLOGY, self.specs)
    for case in range(_HISTORIES):
      self.served = self.served.with_name(f"history {case}")
      self.check_history(np.random.default_rng(case), variables)

  def check_history(self, rng, variables):
    """Any changes, restarts and errors: readers have what was published."""
    encoding = rng.choice(list(_encodings.ENCODINGS))
    full_every, keep_full = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    options = dict(
        encoding=str(encoding), full_every=full_every, keep_full=keep_full
    )
    publisher = self.publisher(**options)
    published, fulls = None, []
    for step in range(8):
      self.change(rng)
      if rng.random() < 0.3:
        publisher.close()
        publisher = self.publisher(**options)
      if rng.random() < 0.2:
        users = self.values["users"][None]
        kept = users[5, 0]
        users[5, 0] = np.nan
        with self.assertRaisesRegex(ValueError, "1 of 130 rows cannot be"):
          publisher.publish(self.filled(variables), step)
        users[5, 0] = kept
      version = publisher.publish(self.filled(variables), step)
      self.assertEqual(version.number, step)
      if version.kind == "full":
        fulls.append(step)
      expected = _encoded(encoding, self.values)
      _assert_same(plain_reader.read(self.served), expected)
      if published is not None and version.kind == "delta":
        self.check_delta(version, published, expected)
      published = expected
      kept = range(fulls[-keep_full:][0], step + 1)
      self.assertCountEqual(
          os.listdir(self.served),
          ["CURRENT", "LOCK", *(f"v{number:06}" for number in kept)],
      )
    self.assertEqual(fulls, list(range(0, 8, full_every)))
    publisher.close()

  def change(self, rng):
    """Some rows of some tables: a lot, a little, or back to what they were."""
    for by_slot in self.values.values():
      rows = by_slot[None]
      count = int(rng.choice([0, 0, 1, len(rows) // 10, len(rows)]))
      chosen = rng.choice(len(rows), count, replace=False)
      size = rng.choice([1e-9, 1e-3, 1.0])
      rows[chosen] += (size * rng.normal(size=(count, rows.shape[1]))).astype(
          np.float32
      )
      rows[chosen[::7]] = 0

  def filled(self, variables):
    return any_tables.fill(variables, self.specs, _TOPOLOGY, self.values)

  def check_delta(self, version, before, after):
    changed_bytes = 0
    for name, rows in after.items():
      expected = np.flatnonzero((rows != before[name]).any(axis=1))
      path = pathlib.Path(version.path) / f"{name}.delta.safetensors"
      self.assertEqual(path.exists(), len(expected) > 0)
      if len(expected):
        found = plain_reader.read_safetensors(path)[f"{name}.rows"]
        np.testing.assert_array_equal(found, expected)
      self.assertEqual(version.tables[name].written_rows, len(expected))
      changed_bytes += len(expected) * (rows.shape[1] + 8)
    size = sum(x.stat().st_size for x in pathlib.Path(version.path).iterdir())
    self.assertLessEqual(size, 1.05 * changed_bytes + 64 * 2**10)

  def test_a_publisher_that_is_started_again_goes_on(self):
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 1)
      self.values["hours"][None][2] = 9
      publisher.publish(self.variables(), 2)
    self.values["items"][None][4] = 9
    with self.publisher() as publisher:
      version = publisher.publish(self.variables(), 2)
    self.assertEqual((version.number, version.kind), (2, "delta"))
    written = {n: table.written_rows for n, table in version.tables.items()}
    self.assertEqual(written, {"hours": 0, "items": 1, "users": 0})
    runs = {manifest["run"] for manifest in plain_reader.versions(self.served)}
    self.assertLen(runs, 1)
    self.assertRegex(runs.pop(), "^[0-9a-f]{32}$")
    # Another directory is another run.
    self.served = self.served.with_name("other")
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 2)
    self.assertNotIn(plain_reader.versions(self.served)[0]["run"], runs)

  @parameterized.parameters(
      "v000000/items-00001-of-00001.safetensors",
      "v000001/hours.delta.safetensors",
      "v000001/manifest.json",
      "v000000/manifest.json",
      "CURRENT",
  )
  def test_after_damage_the_next_version_is_full(self, file):
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 1)
      self.values["hours"][None][2] = 9
      publisher.publish(self.variables(), 2)
    content = bytearray((self.served / file).read_bytes())
    content[len(content) // 2] ^= 1
    (self.served / file).write_bytes(content)
    with self.assertLogs(level="WARNING") as logs:
      with self.publisher() as publisher:
        version = publisher.publish(self.variables(), 3)
    self.assertRegex(logs.output[0], "will be full: ")
    self.assertEqual((version.number, version.kind), (2, "full"))
    _assert_same(plain_reader.read(self.served), _encoded("int8", self.values))

  @parameterized.parameters(
      (dict(encoding="int4"),),
      (dict(tables=["items"]),),
      (dict(rows=1100),),
      (dict(width=5),),
  )
  def test_what_is_no_change_of_rows_is_a_full_version(self, changes):
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 1)
    rows, width = changes.pop("rows", 1003), changes.pop("width", 12)
    tables = (("items", rows, 12), *any_tables.TABLES[1:])
    self.specs = any_tables.feature_specs(_TOPOLOGY, tables)
    self.specs["items"].output_shape = (48, width)
    self.values = any_tables.values(tables)
    with self.publisher(**changes) as publisher:
      version = publisher.publish(self.variables(), 2)
      self.assertEqual((version.number, version.kind), (1, "full"))
      self.assertEqual(publisher.publish(self.variables(), 2).kind, "delta")

  def test_goes_on_after_an_export(self):
    export.export_tables(
        self.served, self.variables(), self.specs, encoding="int8"
    )
    self.values["items"][None][4] = 9
    with self.publisher() as publisher:
      version = publisher.publish(self.variables(), 2)
    self.assertEqual((version.number, version.kind), (1, "delta"))
    self.assertEqual(version.tables["items"].written_rows, 1)
    _assert_same(plain_reader.read(self.served), _encoded("int8", self.values))

  def test_errors_before_any_file(self):
    for name in "full_every", "keep_full", "max_file_bytes":
      with self.assertRaisesRegex(
          ValueError, f"{name} must be positive, got 0"
      ):
        self.publisher(**{name: 0})
      with self.assertRaisesRegex(
          TypeError, f"{name} must be an integer, got 2.0"
      ):
        self.publisher(**{name: 2.0})
    with self.assertRaisesRegex(ValueError, "'items': the encoding must be"):
      self.publisher(encoding="int16")
    self.assertFalse(self.served.exists())
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 7)
      with self.assertRaisesRegex(RuntimeError, "is being written by process"):
        self.publisher()
      with self.assertRaisesRegex(
          ValueError, "step 6 is below 7, the step of version 0"
      ):
        publisher.publish(self.variables(), 6)
      for step, kind in (
          (-1, ValueError),
          (2**60 + 1, ValueError),
          (7.7, TypeError),
          ("8", TypeError),
          (True, TypeError),
          (None, TypeError),
      ):
        with self.assertRaisesRegex(
            kind, f"step must be an integer from 0 to .*, got {step!r}"
        ):
          publisher.publish(self.variables(), step)
    with self.assertRaisesRegex(RuntimeError, "was closed"):
      publisher.publish(self.variables(), 8)
    publisher.close()
    self.specs = any_tables.feature_specs(_TOPOLOGY, (("items", 1003, 16),))
    with self.assertRaisesRegex(
        ValueError,
        "'items': .* has 12 columns, the spec 16. Publish to another directory",
    ):
      self.publisher()
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000000"]
    )

  @parameterized.parameters((24, "delta", 1), (1, "full", 5))
  def test_a_full_disk_leaves_readers_with_the_version_before(
      self, full_every, kind, written
  ):
    options = dict(encoding="float32", full_every=full_every)
    with self.publisher(**options) as publisher:
      publisher.publish(self.variables(), 1)
      before = _encoded("float32", self.values)
      self.values["hours"][None][0] += 1  # is written before it fails
      self.values["items"][None][:] += 1
      limits = resource.getrlimit(resource.RLIMIT_FSIZE)
      handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
      resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
      try:
        with self.assertRaisesRegex(
            OSError, f"File too large: '{self.served}/v000001'"
        ):
          publisher.publish(self.variables(), 2)
      finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
      _assert_same(plain_reader.read(self.served), before)
      self.assertNotIn("v000001", os.listdir(self.served))
      version = publisher.publish(self.variables(), 2)
      self.assertEqual(version.kind, kind)
      self.assertEqual(version.tables["hours"].written_rows, written)
    _assert_same(
        plain_reader.read(self.served), _encoded("float32", self.values)
    )

  def test_an_error_after_a_version_became_current_leaves_it_current(self):
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 1)
      self.values["items"][None][4] = 9
      # Of the version, of the directory, and again when CURRENT was renamed.
      errors = [None, None, OSError("disk is gone")]
      with mock.patch.object(
          _served_directory, "sync_directory", side_effect=errors
      ):
        with self.assertRaisesRegex(OSError, "disk is gone"):
          publisher.publish(self.variables(), 2)
      expected = _encoded("int8", self.values)
      _assert_same(plain_reader.read(self.served), expected)
      version = publisher.publish(self.variables(), 3)
    self.assertEqual((version.number, version.kind), (2, "delta"))
    self.assertEqual(version.tables["items"].written_rows, 0)
    self.assertLen(plain_reader.versions(self.served), 3)

  def test_threads_publish_one_after_another(self):
    variables = self.variables()
    with self.publisher() as publisher:
      with futures.ThreadPoolExecutor(3) as pool:
        versions = list(
            pool.map(lambda _: publisher.publish(variables, 1), range(3))
        )
    self.assertCountEqual([v.number for v in versions], [0, 1, 2])
    self.assertCountEqual(
        [v.kind for v in versions], ["full", "delta", "delta"]
    )
    _assert_same(plain_reader.read(self.served), _encoded("int8", self.values))

  def test_what_was_interrupted_once_it_was_current_is_no_base(self):
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 1)
      self.values["items"][None][4] = 9
      # What the files have is read before, for the number, and after.
      with mock.patch.object(
          _versions,
          "read_chain",
          side_effect=[_versions.read_chain(self.served), KeyboardInterrupt],
      ):
        with self.assertRaises(KeyboardInterrupt):
          publisher.publish(self.variables(), 2)
      self.values["items"][None][5] = 9
      version = publisher.publish(self.variables(), 3)
    self.assertEqual((version.number, version.kind), (2, "delta"))
    self.assertEqual(version.tables["items"].written_rows, 2)
    _assert_same(plain_reader.read(self.served), _encoded("int8", self.values))

  def test_a_process_has_the_directory_until_it_ends(self):
    ended = subprocess.run(
        [sys.executable, "-c", _PUBLISHER_THAT_NOBODY_CLOSES, self.served],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    self.assertRegex(ended.stdout, r"^\S+ \d+\n")
    self.assertNotIn("Exception ignored", ended.stderr)
    # Another host would go by the name.
    self.assertEqual((self.served / "LOCK").read_text(), "")

  def test_programs_may_forbid_transfers(self):
    variables = self.variables()
    with self.publisher() as publisher, jax.transfer_guard("disallow"):
      publisher.publish(variables, 1)
    _assert_same(plain_reader.read(self.served), _encoded("int8", self.values))

  def test_steps_are_integers_of_any_kind(self):
    with self.publisher() as publisher:
      for i, step in enumerate((3, np.int64(4), jax.numpy.int32(5), 2**60)):
        version = publisher.publish(self.variables(), step)
        self.assertEqual((version.number, version.step), (i, step))
        self.assertEqual(_versions.read_chain(self.served)[-1].step, step)
    self.assertEqual(embedding_tables.open(self.served).version, version.number)

  @parameterized.parameters(False, True)
  def test_a_directory_that_was_removed_is_an_error(self, has_version):
    with self.publisher() as publisher:
      if has_version:
        publisher.publish(self.variables(), 1)
      shutil.rmtree(self.served)
      with self.assertRaisesRegex(
          FileNotFoundError, f"{self.served} was removed.*make another one"
      ):
        publisher.publish(self.variables(), 2)
      self.assertFalse(self.served.exists())
    with self.publisher() as publisher:
      self.assertEqual(publisher.publish(self.variables(), 2).number, 0)

  def test_what_a_publisher_left_half_done_is_removed(self):
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 1)
    for number in 1, 3:
      (self.served / f"v00000{number}").mkdir()
      (self.served / f"v00000{number}" / "items.delta.safetensors").touch()
    (self.served / "CURRENT.new").write_text("1 v0000")
    self.values["items"][None][4] = 9
    with self.publisher() as publisher:
      publisher.publish(self.variables(), 2)
    _assert_same(plain_reader.read(self.served), _encoded("int8", self.values))
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000000", "v000001"]
    )

  @parameterized.parameters("[]", "[" * 100_000, "{}", "?")
  def test_what_is_no_manifest_is_removed_as_half_done(self, text):
    with self.publisher(full_every=1, keep_full=1) as publisher:
      publisher.publish(self.variables(), 1)
      foreign = self.served / "v000900"
      foreign.mkdir()
      (foreign / "manifest.json").write_text(text)
      self.assertEqual(publisher.publish(self.variables(), 2).number, 1)
    self.assertFalse(foreign.exists())

  @parameterized.parameters(1, 2)
  def test_goes_on_from_an_older_version_that_was_made_current(self, keep_full):
    lines = []
    with self.publisher(full_every=1, keep_full=4) as publisher:
      for step in range(4):
        publisher.publish(self.variables(), step)
        lines.append((self.served / "CURRENT").read_text())
    # As people do who want readers to go back.
    (self.served / "CURRENT").write_text(lines[0])
    self.values["items"][None][4] = 9
    with self.publisher(keep_full=keep_full) as publisher:
      version = publisher.publish(self.variables(), 4)
    self.assertEqual((version.number, version.kind), (1, "delta"))
    _assert_same(plain_reader.read(self.served), _encoded("int8", self.values))
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000000", "v000001"]
    )

  def test_old_versions_that_cannot_be_removed_are_tried_again(self):
    with self.publisher(full_every=1, keep_full=1) as publisher:
      publisher.publish(self.variables(), 1)
      with mock.patch("shutil.rmtree", side_effect=OSError("busy")):
        with self.assertLogs(level="WARNING") as logs:
          self.assertEqual(publisher.publish(self.variables(), 2).number, 1)
      self.assertRegex(logs.output[0], "Old versions stay in .*: busy")
      publisher.publish(self.variables(), 3)
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000002"]
    )

  def test_killed_at_any_moment_current_opens(self):
    rng = random.Random(0)
    first_step = 0
    parent = subprocess.Popen(
        [sys.executable, publish_forever.__file__, self.served],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    kinds = set()
    for _ in range(_KILLS):
      print(first_step, file=parent.stdin, flush=True)
      child = int(parent.stdout.readline())
      done = first_step - 1
      # So that there are versions, however slow the machine is.
      for _ in range(rng.randrange(3)):
        done = int(parent.stdout.readline())
      time.sleep(rng.uniform(0, 0.4))
      os.kill(child, signal.SIGKILL)
      while (line := parent.stdout.readline())[:-1].isdigit():
        done = int(line)
      self.assertEqual(line, "killed\n")
      if done < 0 and not (self.served / "CURRENT").exists():
        continue
      manifest = plain_reader.versions(self.served)[-1]
      # What was said to be published is, and what is there is whole.
      self.assertIn(manifest["step"] - done, (0, 1))
      _assert_same(
          plain_reader.read(self.served),
          publish_forever.encoded_values_of_step(manifest["step"]),
      )
      kinds.add(manifest["kind"])
      first_step = manifest["step"] + 1
    parent.communicate()
    self.assertEqual(parent.returncode, 0)
    self.assertIn("delta", kinds)


if __name__ == "__main__":
  absltest.main()
