# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is written, when, and under which names."""

from __future__ import annotations

from concurrent import futures
import contextlib
import gc
import os
import re
import shutil
import threading
import time
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _path_lock
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _stack_rows
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import checkpoint_case
import numpy as np

jax.config.update("jax_num_cpu_devices", 6)

_ONE = checkpoint_case.ONE


def _write_on(disk: futures.Executor, moves: threading.Event):
  """ZarrRows.write for a disk that does nothing until it moves."""
  write = _zarr_rows.ZarrRows.write

  def write_later(self, first, values):
    def wait_and_write():
      # A test that fails is not to wait as long for each block.
      if not moves.wait(60):
        moves.set()
      write(self, first, values).result()

    return disk.submit(wait_and_write)

  return write_later


def _on_devices(num_devices: int, *spec: str | None):
  return jax.sharding.NamedSharding(
      jax.sharding.Mesh(jax.devices()[:num_devices], ("x",)),
      jax.sharding.PartitionSpec(*spec),
  )


class SavingTest(checkpoint_case.CheckpointCase):

  def test_steps_after_save_async_do_not_change_files(self):
    specs = any_tables.feature_specs(_ONE)
    values = any_tables.values()
    variables = any_tables.random_variables(_ONE, specs, values)
    variables = jax.tree.map(jax.new_ref, variables)
    pending = checkpoint.save_async(
        self.path, variables, specs, host_buffer_bytes=None
    )
    for ref in jax.tree.leaves(variables):
      ref[...] = np.zeros(ref.shape, ref.dtype)
    pending.wait()
    self.assertTrue(pending.done())
    for name, slots in values.items():
      for slot, rows in slots.items():
        np.testing.assert_array_equal(
            checkpoint.read_table(self.path, name, slot), rows
        )

  @parameterized.named_parameters(
      ("have_numbers_of_64_bits", lambda: jax.enable_x64(True)),
      ("forbid_transfers", lambda: jax.transfer_guard("disallow")),
  )
  def test_programs_may(self, setting):
    topology = any_tables.Topology(4, 2, "rotated")
    specs = any_tables.feature_specs(topology)
    values = any_tables.values()
    variables = any_tables.random_variables(topology, specs, values)
    others = any_tables.new_variables(topology, specs)
    items = values["items"][None] + 1
    with setting():
      checkpoint.save(self.path, variables, specs)
      others = checkpoint.restore_into(others, self.path, specs)
      others = checkpoint.load_tables(others, specs, {"items": items})
    values["items"][None] = items
    self.assert_same_values(any_tables.read(others, specs, topology), values)

  def test_memory_of_blocks_is_used_again_when_nothing_has_it(self):
    buffers = _row_blocks.Buffers()
    block = buffers.take((16, 8), np.float32)
    place = block.ctypes.data
    self.assertEqual(place % 64, 0)
    block[...] = 1
    # A part of it, and an array of JAX, which copies nothing.
    holders = [block[3:], jax.device_put(block)]
    del block
    others = []
    while holders:
      others.append(buffers.take((16, 8), np.float32))
      self.assertNotEqual(others[-1].ctypes.data, place)
      others[-1][...] = 0
      np.testing.assert_array_equal(holders.pop(), 1)
    gc.collect()
    smaller = buffers.take((4, 2), np.float32)
    self.assertEqual(smaller.ctypes.data, place)
    del others, smaller
    # One that is too small is not taken.
    larger = buffers.take((32, 8), np.float32)
    self.assertNotEqual(larger.ctypes.data, place)

  @parameterized.parameters((1, [3456] * 5 + [1536]), (4, [1152] * 15 + [1536]))
  def test_several_devices_cut_large_blocks_in_pieces(self, devices, expected):
    # Of 72 rows, and the other table as large as a piece may be.
    tables = (("large", 352, 12), ("small", 32, 12))
    self.assertEqual(any_tables.PIECE_BYTES, 1536)
    make_program = _stack_rows._cut_program
    found = []

    def make_noted(num_shards, height, columns, *args):
      program = make_program(num_shards, height, columns, *args)

      def noted(*operands):
        found.append(num_shards * height * columns * 4)
        return program(*operands)

      return noted

    with mock.patch.object(_stack_rows, "_cut_program", make_noted):
      topology = any_tables.Topology(devices, 8 // devices, "auto")
      values = self.save(topology, tables, of="sgd")
    self.assertCountEqual(found, expected)
    for name, slots in values.items():
      np.testing.assert_array_equal(
          checkpoint.read_table(self.path, name), slots[None]
      )

  def test_training_goes_on_while_a_disk_is_slow(self):
    specs = any_tables.feature_specs(_ONE)
    values = any_tables.values()
    variables = any_tables.random_variables(_ONE, specs, values)
    variables = jax.tree.map(jax.new_ref, variables)
    moves = threading.Event()
    with (
        futures.ThreadPoolExecutor(1) as disk,
        mock.patch.object(_zarr_rows.ZarrRows, "write", _write_on(disk, moves)),
    ):
      pending = checkpoint.save_async(
          self.path, variables, specs, host_buffer_bytes=None
      )
      arrays = jax.tree.map(lambda ref: ref[...], variables)
      for _ in range(5):
        arrays = any_tables.step(arrays, specs, _ONE)
        for ref, array in zip(
            jax.tree.leaves(variables), jax.tree.leaves(arrays)
        ):
          ref[...] = array
      # Nothing is there yet, and no step had to wait for it.
      self.assertFalse(pending.done())
      with self.assertRaises(TimeoutError):
        pending.wait(timeout=0.01)
      self.assertEmpty(list(self.path.parent.rglob("c.*")))
      moves.set()
      pending.wait()
    for name, slots in values.items():
      for slot, rows in slots.items():
        np.testing.assert_array_equal(
            checkpoint.read_table(self.path, name, slot), rows
        )

  def test_the_disk_has_the_names_of_files_before_there_is_a_checkpoint(self):
    synced = []
    with mock.patch.object(
        os,
        "fsync",
        side_effect=lambda fd: synced.append(
            os.readlink(f"/proc/self/fd/{fd}")
        ),
    ):
      self.save(tables=(("a/b", 40, 3),))
    synced = {path.partition("/tables/")[2] for path in synced}
    self.assertContainsSubset(
        {"a", "a/b.table", "a/b.slot.accumulator"}, synced
    )

  def test_unknown_compression_is_an_error(self):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    with self.assertRaisesRegex(ValueError, "compression must be .*'lz4'"):
      checkpoint.save(self.path, variables, specs, compression="lz4")
    self.assertFalse(self.path.exists())

  def test_variables_that_were_not_saved_cannot_be_read(self):
    self.save()
    for names in (("item",), ("items", "momentum")):
      with self.assertRaisesRegex(
          ValueError, f"has no .*{names[-1]}.*, only: .*items"
      ):
        checkpoint.read_table(self.path, *names)

  def test_nothing_is_overwritten(self):
    self.save()
    before = checkpoint_case.file_hashes(self.path)
    with self.assertRaisesRegex(ValueError, "already exists"):
      self.save()
    self.assertEqual(checkpoint_case.file_hashes(self.path), before)

  def test_a_path_has_one_save_at_a_time(self):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.random_variables(_ONE, specs, any_tables.values())
    moves = threading.Event()
    link = self.path.parent / "link"
    link.symlink_to(self.path.parent)
    with (
        futures.ThreadPoolExecutor(1) as disk,
        mock.patch.object(_zarr_rows.ZarrRows, "write", _write_on(disk, moves)),
    ):
      first = checkpoint.save_async(
          self.path, variables, specs, step=1, host_buffer_bytes=None
      )
      for path in (self.path, link / self.path.name):
        with self.assertRaisesRegex(
            ValueError, f"{self.path} is being saved to. wait.. for that save"
        ):
          checkpoint.save(path, variables, specs, step=2)
      moves.set()
      first.wait()
    self.assertEqual(checkpoint.verify(self.path).step, 1)
    with self.assertRaisesRegex(ValueError, "already exists"):
      checkpoint.save(self.path, variables, specs)
    shutil.rmtree(self.path)
    checkpoint.save(self.path, variables, specs, step=3)
    self.assertEqual(checkpoint.verify(self.path).step, 3)

  def test_a_path_has_one_save_at_a_time_of_all_processes(self):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.random_variables(_ONE, specs, any_tables.values())
    # As another process has it: a lock is of the file that it was opened by.
    with _path_lock.locked(str(self.path)):
      with self.assertRaisesRegex(
          ValueError, f"{self.path} is being saved to by process {os.getpid()}"
      ):
        checkpoint.save(self.path, variables, specs)
    pending = checkpoint.save_async(self.path, variables, specs)
    with self.assertRaisesRegex(ValueError, "is being saved to by process"):
      with _path_lock.locked(str(self.path)):
        pass
    pending.wait()
    with _path_lock.locked(str(self.path)):
      pass
    checkpoint.verify(self.path)
    self.assertEqual(os.listdir(self.path.parent), ["saved"])

  def test_a_lock_file_of_a_process_that_died_keeps_nobody_out(self):
    lock = self.path.parent / ".saved.lock"
    lock.write_text("elsewhere 1\n")
    specs = any_tables.feature_specs(_ONE)
    checkpoint.save(self.path, any_tables.new_variables(_ONE, specs), specs)
    checkpoint.verify(self.path)
    self.assertFalse(lock.exists())

  def test_a_save_for_which_there_is_no_thread_is_waited_for(self):
    start = threading.Thread.start

    def refuse(thread):
      if "_wait_for" in thread.name:
        raise RuntimeError("can't start new thread")
      start(thread)

    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    with mock.patch.object(threading.Thread, "start", refuse):
      checkpoint.save(self.path, variables, specs)
    checkpoint.verify(self.path)
    with self.assertRaisesRegex(ValueError, "already exists"):
      checkpoint.save(self.path, variables, specs)

  def test_a_file_of_others_with_the_name_of_a_lock_stays(self):
    lock = self.path.parent / ".saved.lock"
    lock.write_text("Notes of mine\nabout locks")
    with self.assertRaisesRegex(ValueError, "saved.lock.* is not a lock"):
      with _path_lock.locked(str(self.path)):
        pass
    self.assertEqual(lock.read_text(), "Notes of mine\nabout locks")

  def test_what_a_link_with_the_name_of_a_lock_leads_to_stays(self):
    notes = self.path.parent / "notes"
    notes.write_text("")
    (self.path.parent / ".saved.lock").symlink_to(notes)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, "Cannot write to .*saved.lock"
    ):
      with _path_lock.locked(str(self.path)):
        pass
    self.assertEqual(notes.read_text(), "")

  def test_a_lock_that_others_took_meanwhile_stays(self):
    lock = self.path.parent / ".saved.lock"
    with _path_lock.locked(str(self.path)):
      lock.unlink()
      lock.write_text("other_host 1\n")
    self.assertTrue(lock.exists())

  def test_a_path_where_nothing_can_be_written_is_a_checkpoint_error(self):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.random_variables(_ONE, specs, any_tables.values())
    file = self.path.parent / "file"
    file.touch()
    # The last one is too long with what orbax adds to it.
    for path in (file / "saved", self.path.parent / ("x" * 240)):
      with self.assertRaisesRegex(
          checkpoint.CheckpointError, f"Cannot write .*{path}"
      ):
        checkpoint.save(path, variables, specs)

  def test_what_orbax_could_not_write_is_a_checkpoint_error(self):
    response = mock.Mock()
    response.result.side_effect = OSError(28, "No space left on device")
    left = mock.Mock()
    until_saved = contextlib.ExitStack()
    until_saved.callback(left)
    pending = checkpoint.PendingSave("/a", response, until_saved)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, "Cannot write /a: .*No space left"
    ):
      pending.wait()
    left.assert_called_once()

  def test_a_save_that_nobody_waits_for_ends(self):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.random_variables(_ONE, specs, any_tables.values())
    checkpoint.save_async(self.path, variables, specs)
    deadline = time.monotonic() + 60
    # Without any call: the next one may be of another process.
    while os.listdir(self.path.parent) != ["saved"]:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.01)
    message = "is being saved to"
    while "is being saved to" in message and time.monotonic() < deadline:
      with self.assertRaises(ValueError) as raised:
        checkpoint.save(self.path, variables, specs)
      message = str(raised.exception)
    self.assertIn("already exists", message)
    checkpoint.verify(self.path)

  @parameterized.parameters("create_array", "sync")
  def test_a_save_that_failed_keeps_no_other_out(self, method):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.random_variables(_ONE, specs, any_tables.values())
    error = checkpoint.CheckpointError("disk is gone")
    with mock.patch.object(_zarr_rows.Directory, method, side_effect=error):
      with self.assertRaisesRegex(checkpoint.CheckpointError, "disk is gone"):
        checkpoint.save(self.path, variables, specs)
    checkpoint.save(self.path, variables, specs)
    checkpoint.verify(self.path)

  @parameterized.parameters(
      (3, 3),
      (np.int64(3), 3),
      (np.uint8(3), 3),
      (jax.numpy.int32(3), 3),
      (0, 0),
      (2**60, 2**60),
      (None, None),
  )
  def test_steps_are_integers_of_any_kind(self, step, expected):
    self.save(tables=(("items", 8, 3),), step=step)
    found = checkpoint.describe(self.path).step
    self.assertEqual((type(found), found), (type(expected), expected))

  @parameterized.parameters(
      (dict(step=-1), ValueError, "step must be an .* 0 to 2.60, got -1"),
      (dict(step=2**60 + 1), ValueError, "step must be .*got 1152921504606846"),
      (dict(step=1.5), TypeError, "step must be an integer .*got 1.5"),
      (dict(step="7"), TypeError, "step must be an integer .*got '7'"),
      (dict(step=True), TypeError, "step must be an integer .*got True"),
      (
          dict(host_buffer_bytes=-1),
          ValueError,
          "host_buffer_bytes must be None or at least 0, got -1",
      ),
  )
  def test_options_are_checked(self, options, kind, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    with self.assertRaisesRegex(kind, error):
      checkpoint.save(self.path, variables, specs, **options)
    self.assertFalse(self.path.exists())
    checkpoint.save(self.path, variables, specs, host_buffer_bytes=0)

  @parameterized.parameters(
      *(
          (
              path,
              TypeError,
              f"path must be a str or a pathlib.Path, got {path!r}",
          )
          for path in (b"path", None, 3)
      ),
      *(
          (
              path,
              ValueError,
              re.escape(f"path {path!r} is no name of a directory"),
          )
          for path in ("a\0b", "\ud800", "gs://a\0b")
      ),
  )
  def test_a_path_is_a_name_of_a_directory(self, path, kind, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    for call in (
        lambda: checkpoint.save(path, variables, specs),
        lambda: checkpoint.save_async(path, variables, specs),
        lambda: checkpoint.restore(path, specs, _on_devices(1, "x")),
        lambda: checkpoint.restore_into(variables, path, specs),
        lambda: checkpoint.describe(path),
        lambda: checkpoint.verify(path),
        lambda: checkpoint.read_table(path, "items"),
    ):
      with self.assertRaisesRegex(kind, error):
        call()

  @parameterized.parameters(
      (None, "variables must be {stack name: .*, got a NoneType"),
      ([1], "variables must be {stack name: .*, got a list"),
      ({"items": (1, 2)}, "Stack 'items': is a tuple, not EmbeddingVar"),
  )
  def test_variables_of_another_kind_are_not_saved(self, change, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    if isinstance(change, dict):
      change = {**variables, **change}
    for call in (
        lambda: checkpoint.save(self.path, change, specs),
        lambda: checkpoint.load_tables(change, specs, {}),
    ):
      with self.assertRaisesRegex(TypeError, error):
        call()
    self.assertFalse(self.path.exists())

  @parameterized.parameters(
      ((("a/../b", 8, 3),), "'a/../b': the name has"),
      ((("a\nb", 8, 3),), "not printable"),
      ((("a\\b", 8, 3),), "the name has a backslash"),
      ((("a", 8, 3), ("a.table/b", 8, 3)), "inside of that of table 'a'"),
  )
  def test_names_that_files_cannot_have_are_refused(self, tables, error):
    specs = any_tables.feature_specs(_ONE, tables)
    variables = any_tables.new_variables(_ONE, specs)
    with self.assertRaisesRegex(ValueError, error):
      checkpoint.save(self.path, variables, specs)
    self.assertFalse(self.path.exists())

  @parameterized.parameters("a b", "é", "a%20b", "a?x#y", "a/b", "a.b")
  def test_names_of_tables_are_kept(self, name):
    tables = ((name, 40, 3), ("a", 8, 3))
    values = self.save(tables=tables)
    self.assertCountEqual(checkpoint.describe(self.path).tables, [name, "a"])
    np.testing.assert_array_equal(
        checkpoint.read_table(self.path, name), values[name][None]
    )

  def test_variables_of_other_specs_are_not_saved(self):
    specs = any_tables.feature_specs(any_tables.Topology(4, 1, "alone"))
    variables = any_tables.new_variables(_ONE, any_tables.feature_specs(_ONE))
    with self.assertRaisesRegex(ValueError, "has shape .*, and the specs say"):
      checkpoint.save(self.path, variables, specs)
    with self.assertRaisesRegex(ValueError, "of the stacks .*'items'.*'all'"):
      checkpoint.save(
          self.path,
          variables,
          any_tables.feature_specs(any_tables.Topology(1, 2, "rotated")),
      )
    with self.assertRaisesRegex(ValueError, "has 0 slots, and .*accumulator"):
      checkpoint.save(
          self.path,
          {k: v._replace(slot=()) for k, v in variables.items()},
          any_tables.feature_specs(_ONE),
      )
    self.assertFalse(self.path.exists())

  @parameterized.parameters(
      (np.asarray, "a ndarray, not an array or jax.Ref on devices"),
      (
          lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype),
          "a ShapeDtypeStruct, not an array or jax.Ref",
      ),
  )
  def test_what_is_on_no_device_is_not_saved(self, change, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    items = variables["items"]
    for wrong, name in (
        (items._replace(table=change(items.table)), "table"),
        (items._replace(slot=jax.tree.map(change, items.slot)), "accumulator"),
    ):
      with self.assertRaisesRegex(TypeError, f"'items', {name}: is {error}"):
        # The number of devices is that of the table's sharding then.
        checkpoint.save(
            self.path,
            {**variables, "items": wrong},
            specs,
            num_sc_per_device=_ONE.num_sc_per_device,
        )

    @jax.jit
    def step(variables):
      checkpoint.save(self.path, variables, specs)

    with self.assertRaisesRegex(TypeError, "Stack .* table: .*outside of jit"):
      step(variables)
    self.assertFalse(self.path.exists())

  def test_what_was_donated_is_not_saved(self):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    jax.tree.leaves(variables["items"].slot)[0].delete()
    with self.assertRaisesRegex(
        ValueError, "'items', accumulator: is an array that was deleted"
    ):
      checkpoint.save(self.path, variables, specs)
    self.assertFalse(self.path.exists())
    checkpoint.save(self.path, variables, specs, slots=False)

  @parameterized.parameters(
      (lambda array: array, None),
      (
          lambda array: array.astype("bfloat16"),
          "'items', table: is bfloat16, and the specs say float32",
      ),
      (
          lambda array: jax.device_put(array, _on_devices(2, None, "x")),
          "'items', table: is sharded as .*'x'.*Only rows may be",
      ),
      (
          lambda array: jax.device_put(array, _on_devices(4, "x")),
          "'items', table: is on 4 devices, .*not a divisor of its 2 Sparse",
      ),
      (
          lambda array: types.SimpleNamespace(
              shape=array.shape,
              ndim=array.ndim,
              dtype=array.dtype,
              sharding=types.SimpleNamespace(device_set=jax.devices()[:2]),
          ),
          "'items', table: has a sharding .*not a NamedSharding by rows",
      ),
  )
  def test_arrays_that_are_not_of_the_specs_are_not_saved(self, change, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    items = variables["items"]
    variables["items"] = items._replace(table=change(items.table))
    if error is None:
      checkpoint.save(self.path, variables, specs)
      return
    with self.assertRaisesRegex(ValueError, error):
      checkpoint.save(self.path, variables, specs)
    self.assertFalse(self.path.exists())


if __name__ == "__main__":
  absltest.main()
