# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from concurrent import futures
import gc
import hashlib
import itertools
import json
import os
import pathlib
import random
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.core import free_memory
import numpy as np
import safetensors
import safetensors.numpy

jax.config.update("jax_num_cpu_devices", 6)

Topology = any_tables.Topology
Policy = checkpoint.RestorePolicy

_TOPOLOGIES = ((1, 1), (1, 4), (4, 2), (3, 1), (6, 1), (2, 3))
_STACKINGS = ("alone", "auto", "rotated")
_EVERY = tuple(
    Topology(*sizes, stacking)
    for sizes, stacking in itertools.product(_TOPOLOGIES, _STACKINGS)
)
_ONE = Topology(1, 2, "alone")
# Of all topologies, and of pairs of them. By hand: 40.
_SAMPLES = int(os.environ.get("SAMPLES", "6"))


def _hashes(path: pathlib.Path) -> dict[str, str]:
  """What must not depend on the writer's devices."""
  hashes = {}
  for file in sorted((path / "tables").rglob("*")):
    if file.is_dir():
      continue
    content = file.read_bytes()
    if file.name == "tables.json":
      fields = json.loads(content)
      del fields["embedding_spec"], fields["crc32"]
      content = json.dumps(fields, sort_keys=True).encode()
    name = str(file.relative_to(path))
    hashes[name] = hashlib.sha256(content).hexdigest()
  return hashes


def _write_on(disk: futures.Executor, moves: threading.Event):
  """ZarrRows.write for a disk that does nothing until it moves."""
  write = _zarr_rows.ZarrRows.write

  def write_later(self, first, values):
    def wait_and_write():
      moves.wait(60)
      write(self, first, values).result()

    return disk.submit(wait_and_write)

  return write_later


class CheckpointTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / "saved"

  def assert_same_values(self, found, expected):
    self.assertEqual(found.keys(), expected.keys())
    for table, slots in expected.items():
      self.assertEqual(found[table].keys(), slots.keys(), table)
      for slot, array in slots.items():
        self.assertEqual(found[table][slot].dtype, array.dtype)
        np.testing.assert_array_equal(
            found[table][slot], array, f"{table} {slot}", strict=True
        )

  def save(self, topology=_ONE, tables=any_tables.TABLES, **kwargs):
    """Saves random values; returns them."""
    kinds = {
        name: kwargs.pop(name) for name in ("of", "dtype") if name in kwargs
    }
    specs = any_tables.feature_specs(topology, tables, **kinds)
    values = any_tables.values(tables, **kinds)
    variables = any_tables.random_variables(topology, specs, values)
    any_tables.save(self.path, variables, specs, **kwargs)
    return values

  @parameterized.parameters(
      ("adagrad", "float32"),
      ("adam", "bfloat16"),
      ("sgd", "float16"),
      ("rowwise_adagrad", "float32"),
  )
  def test_files_do_not_depend_on_devices_or_stacks(self, of, dtype):
    values = any_tables.values(of=of, dtype=dtype)
    written = {}
    every = [
        topology
        for topology in _EVERY
        # Slots of rows are stacked with tables of equal width only.
        if of != "rowwise_adagrad" or topology.stacking != "rotated"
    ]
    for topology in random.Random(of).sample(every, min(_SAMPLES, len(every))):
      specs = any_tables.feature_specs(topology, of=of, dtype=dtype)
      variables = any_tables.random_variables(topology, specs, values)
      path = self.path / str(topology)
      any_tables.save(path, variables, specs, step=7)
      written[str(topology)] = _hashes(path)

    first, *others = written.items()
    self.assertGreater(len(first[1]), 12)  # tables are cut into chunks
    for topology, hashes in others:
      self.assertEqual(hashes, first[1], f"{topology} and {first[0]}")

  def test_any_topology_restores_what_any_other_saved(self):
    values = any_tables.values()
    pairs = list(itertools.permutations(_EVERY, 2))
    for i, (source, target) in enumerate(
        random.Random(0).sample(pairs, _SAMPLES)
    ):
      with self.subTest(f"{source} to {target}"):
        specs = any_tables.feature_specs(source)
        path = self.path / str(i)
        any_tables.save(
            path, any_tables.random_variables(source, specs, values), specs
        )
        specs = any_tables.feature_specs(target)
        restored = checkpoint.restore(
            path,
            specs,
            any_tables.sharding(target),
            num_sc_per_device=target.num_sc_per_device,
        )
        self.assert_same_values(
            any_tables.read(restored, specs, target), values
        )
        # Padding as in new variables: zero, slots their initial value.
        fresh = any_tables.new_variables(target, specs)
        zeros = {
            name: {slot: np.zeros_like(rows) for slot, rows in slots.items()}
            for name, slots in values.items()
        }
        jax.tree.map(
            np.testing.assert_array_equal,
            any_tables.fill(restored, specs, target, zeros),
            any_tables.fill(fresh, specs, target, zeros),
        )

  @parameterized.parameters(
      (Topology(6, 1, "alone"), Topology(2, 3, "rotated")),
      (Topology(2, 3, "auto"), Topology(6, 1, "auto")),
  )
  def test_the_next_step_has_equal_bits_on_as_many_sparsecores(
      self, source, target
  ):
    specs = any_tables.feature_specs(source)
    values = any_tables.values()
    variables = any_tables.random_variables(source, specs, values)
    any_tables.save(self.path, variables, specs)
    expected = any_tables.read(
        any_tables.step(variables, specs, source), specs, source
    )
    specs = any_tables.feature_specs(target)
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(target),
        num_sc_per_device=target.num_sc_per_device,
    )
    found = any_tables.read(
        any_tables.step(restored, specs, target), specs, target
    )
    self.assertFalse(
        np.array_equal(found["items"][None], values["items"][None])
    )
    self.assert_same_values(found, expected)

  @parameterized.product(is_ref=(False, True), ndim=(2, 3))
  def test_restores_into_variables_of_every_form(self, is_ref, ndim):
    topology = Topology(4, 1, "rotated")
    values = self.save(Topology(3, 1, "auto"))
    specs = any_tables.feature_specs(topology)
    variables = any_tables.new_variables(topology, specs, ndim=ndim)
    if is_ref:
      variables = jax.tree.map(jax.new_ref, variables)

    restored = checkpoint.restore_into(variables, self.path, specs)

    self.assert_same_values(any_tables.read(restored, specs, topology), values)
    if is_ref:
      self.assertIs(restored["all"].table, variables["all"].table)
    again = self.path.parent / "again"
    any_tables.save(again, restored, specs)
    self.assertEqual(_hashes(again), _hashes(self.path))

  def test_slots_have_the_initial_value_in_padding_of_every_shard(self):
    self.save(Topology(1, 1, "alone"))
    topology = Topology(1, 4, "alone")
    specs = any_tables.feature_specs(topology)
    restored = checkpoint.restore(
        self.path, specs, any_tables.sharding(topology), num_sc_per_device=4
    )
    slots = np.asarray(restored["hours"].slot.accumulator)
    _, places = any_tables.place_of(
        restored, specs, topology, "hours", "accumulator"
    )
    padding = np.delete(slots, places, axis=0)
    self.assertNotEmpty(padding)
    np.testing.assert_array_equal(padding, np.float32(0.1))

  def test_programs_are_compiled_once(self):
    tables = tuple((f"t{i}", 1003, 12) for i in range(4))
    topology = Topology(2, 3, "rotated")
    specs = any_tables.feature_specs(topology, tables)
    variables = any_tables.new_variables(topology, specs)

    def save_and_restore(name):
      any_tables.save(self.path / name, variables, specs)
      jax.block_until_ready(
          checkpoint.restore(
              self.path / name,
              specs,
              any_tables.sharding(topology),
              num_sc_per_device=3,
          )
      )

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, fun_name="", **__: compiled.append(fun_name)
        if event == "/jax/core/compile/backend_compile_duration"
        else None
    )
    save_and_restore("first")
    # Blocks of all tables and slots: whole ones, those with other rows around
    # them, and the last one.
    self.assertBetween(len(compiled), 1, 10, compiled)
    del compiled[:]
    save_and_restore("second")
    self.assertEmpty(compiled)

  def test_describes_what_was_saved(self):
    self.save(step=12, of="rowwise_adagrad", dtype="bfloat16")
    saved = checkpoint.describe(self.path)
    self.assertEqual(saved.step, 12)
    items = saved.tables["items"]
    self.assertEqual((items.rows, items.columns), (1003, 12))
    self.assertEqual(items.dtype, "bfloat16")
    self.assertEqual(items.slots, {"accumulator": 1})
    self.assertEqual(items.optimizer["type"], "CUSTOM")
    self.assertRegex(
        str(saved), r"(?s)3 tables, .* step 12.*items +1,003 x 12 +bfloat16"
    )
    self.assertEqual(checkpoint.verify(self.path), saved)

  def test_tables_without_slots(self):
    values = self.save(slots=False)
    specs = any_tables.feature_specs(_ONE)
    target = any_tables.sharding(_ONE)
    with self.assertRaisesRegex(
        ValueError, "(?s)'items': the checkpoint has slots none.*'reset'"
    ):
      checkpoint.restore(self.path, specs, target, num_sc_per_device=2)
    restored = checkpoint.restore(
        self.path,
        specs,
        target,
        num_sc_per_device=2,
        policy=Policy(slots="reset"),
    )
    found = any_tables.read(restored, specs, _ONE)
    for name, of_table in found.items():
      np.testing.assert_array_equal(of_table[None], values[name][None])
      np.testing.assert_array_equal(of_table["accumulator"], np.float32(0.1))

  @parameterized.named_parameters(
      dict(
          testcase_name="columns",
          tables=(("items", 1003, 16), *any_tables.TABLES[1:]),
          error="Table 'items': the checkpoint has 12 columns, the spec 16. No"
          " policy changes columns; load_tables takes an array you made.",
      ),
      dict(
          testcase_name="more rows",
          tables=(("items", 1200, 12), *any_tables.TABLES[1:]),
          error="'items': the checkpoint has 1003 rows, the spec 1200.*'grow'",
      ),
      dict(
          testcase_name="fewer rows",
          tables=(("items", 1000, 12), *any_tables.TABLES[1:]),
          error="'items': the checkpoint has 1003 rows, the spec 1000.*'crop'",
      ),
      dict(
          testcase_name="optimizer",
          of="adam",
          error=r"'items': the checkpoint has slots accumulator \(12 columns\),"
          r" and AdamOptimizerSpec has momentum \(12 .*slots='reset'",
      ),
      dict(
          testcase_name="slots of rows",
          of="rowwise_adagrad",
          error=r"accumulator \(12 columns\).* has accumulator \(1 columns\)",
      ),
      dict(
          testcase_name="missing table",
          tables=(*any_tables.TABLES, ("days", 7, 3)),
          error="Table 'days': the checkpoint has no table 'days', only .*"
          "missing_tables='initialize'",
      ),
      dict(
          testcase_name="unused table",
          tables=any_tables.TABLES[:2],
          error=r"tables \['hours'\], which the specs do not",
      ),
      dict(
          testcase_name="several",
          tables=(("items", 1003, 16), ("users", 131, 9), ("hours", 5, 12)),
          error="(?s)'items'.*16.*'users'.*131",
      ),
      dict(
          testcase_name="no key",
          tables=(*any_tables.TABLES, ("days", 7, 3)),
          restoring=dict(policy=Policy(missing_tables="initialize")),
          error=r"Tables \['days'\] get initial values.*Pass key",
      ),
      dict(
          testcase_name="unknown table",
          restoring=dict(tables=["item"]),
          error="tables has 'item', and the specs have .*'items'",
      ),
      dict(
          testcase_name="unknown name",
          restoring=dict(names={"items": "things"}),
          error="the checkpoint has no table 'things'",
      ),
      dict(
          testcase_name="policy of unknown table",
          restoring=dict(policy={"item": Policy()}),
          error="policy has 'item'",
      ),
  )
  def test_what_does_not_fit_is_an_error(
      self, error, tables=any_tables.TABLES, of="adagrad", restoring=None
  ):
    self.save()
    specs = any_tables.feature_specs(_ONE, tables, of=of)
    with self.assertRaisesRegex(ValueError, error):
      checkpoint.restore(
          self.path,
          specs,
          any_tables.sharding(_ONE),
          num_sc_per_device=2,
          **(restoring or {}),
      )

  @parameterized.parameters("missing_tables", "unused_tables", "rows", "slots")
  def test_policies_are_checked(self, field):
    with self.assertRaisesRegex(ValueError, f"{field} must be one of .*'mabe'"):
      Policy(**{field: "mabe"})

  def test_what_cannot_fit_is_not_restored(self):
    self.save()
    specs = any_tables.feature_specs(_ONE)
    with (
        mock.patch.object(free_memory, "free_bytes", return_value=99_000),
        self.assertRaisesRegex(
            MemoryError, "96.7 KiB are free.*Largest, per device: items"
        ),
    ):
      checkpoint.restore(
          self.path, specs, any_tables.sharding(_ONE), num_sc_per_device=2
      )

  def test_grown_tables_have_new_rows_as_those_of_new_tables(self):
    tables = (("items", 1003, 12), ("users", 150, 9), ("hours", 5, 12))
    values = self.save(Topology(3, 1, "auto"))
    topology = Topology(2, 3, "rotated")
    specs = any_tables.feature_specs(topology, tables)
    restored = any_tables.read(
        checkpoint.restore(
            self.path,
            specs,
            any_tables.sharding(topology),
            num_sc_per_device=3,
            key=jax.random.key(0),
            policy={"users": Policy(rows="grow")},
        ),
        specs,
        topology,
    )
    fresh = any_tables.read(
        any_tables.new_variables(topology, specs), specs, topology
    )
    for slot, rows in restored["users"].items():
      np.testing.assert_array_equal(rows[:130], values["users"][slot])
      np.testing.assert_array_equal(rows[130:], fresh["users"][slot][130:])
    del restored["users"], values["users"]
    self.assert_same_values(restored, values)

  def test_cropped_tables_have_the_first_rows(self):
    values = self.save()
    topology = Topology(4, 1, "auto")
    tables = (("items", 700, 12), *any_tables.TABLES[1:])
    specs = any_tables.feature_specs(topology, tables)
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(topology),
        num_sc_per_device=1,
        policy=Policy(rows="crop"),
    )
    values["items"] = {
        slot: rows[:700] for slot, rows in values["items"].items()
    }
    self.assert_same_values(any_tables.read(restored, specs, topology), values)

  def test_adds_renames_and_leaves_out_tables(self):
    values = self.save()
    tables = (("items_v2", 1003, 12), ("days", 7, 3))
    specs = any_tables.feature_specs(_ONE, tables)
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(_ONE),
        num_sc_per_device=2,
        key=jax.random.key(0),
        names={"items_v2": "items"},
        policy=Policy(missing_tables="initialize", unused_tables="ignore"),
    )
    found = any_tables.read(restored, specs, _ONE)
    fresh = any_tables.read(any_tables.new_variables(_ONE, specs), specs, _ONE)
    self.assert_same_values(
        found, {"items_v2": values["items"], "days": fresh["days"]}
    )

  def test_restores_some_tables_into_variables(self):
    values = self.save()
    specs = any_tables.feature_specs(_ONE)
    before = any_tables.values(seed=1)
    variables = any_tables.random_variables(_ONE, specs, before)
    restored = checkpoint.restore_into(
        variables, self.path, specs, tables=["users"]
    )
    self.assert_same_values(
        any_tables.read(restored, specs, _ONE),
        before | {"users": values["users"]},
    )

  def test_types_are_converted_to_nearest(self):
    values = self.save(of="sgd")
    specs = any_tables.feature_specs(_ONE, of="sgd", dtype="bfloat16")
    restored = checkpoint.restore(
        self.path, specs, any_tables.sharding(_ONE), num_sc_per_device=2
    )
    for name, found in any_tables.read(restored, specs, _ONE).items():
      expected = values[name][None].astype(jax.numpy.bfloat16)
      np.testing.assert_array_equal(found[None], expected, strict=True)

  def test_numbers_beyond_the_type_are_an_error(self):
    values = any_tables.values(of="sgd")
    values["users"][None][129, 2] = 70000
    specs = any_tables.feature_specs(_ONE, of="sgd")
    variables = any_tables.random_variables(_ONE, specs, values)
    any_tables.save(self.path, variables, specs)
    with self.assertRaisesRegex(
        ValueError, "'users': row 129 has 70000.0 in column 2.*not a float16"
    ):
      checkpoint.restore(
          self.path,
          any_tables.feature_specs(_ONE, of="sgd", dtype="float16"),
          any_tables.sharding(_ONE),
          num_sc_per_device=2,
      )

  def test_infinities_are_kept(self):
    values = any_tables.values(of="sgd")
    values["users"][None][3, 2] = np.inf
    specs = any_tables.feature_specs(_ONE, of="sgd")
    variables = any_tables.random_variables(_ONE, specs, values)
    any_tables.save(self.path, variables, specs)
    specs = any_tables.feature_specs(_ONE, of="sgd", dtype="float16")
    restored = checkpoint.restore(
        self.path, specs, any_tables.sharding(_ONE), num_sc_per_device=2
    )
    found = any_tables.read(restored, specs, _ONE)["users"][None]
    self.assertEqual(found[3, 2], np.inf)

  def test_loads_rows_and_leaves_slots(self):
    topology = Topology(4, 2, "rotated")
    specs = any_tables.feature_specs(topology)
    before = any_tables.values()
    variables = any_tables.random_variables(topology, specs, before)
    rows = np.random.default_rng(5).normal(size=(1003, 12))
    file = self.create_tempfile("rows.npy").full_path
    np.save(file, rows)

    loaded = checkpoint.load_tables(
        variables, specs, {"items": np.load(file, mmap_mode="r")}
    )

    expected = before | {
        "items": before["items"] | {None: rows.astype(np.float32)}
    }
    self.assert_same_values(any_tables.read(loaded, specs, topology), expected)

  def load_slice(self, rows, array):
    """Loads a slice of a file of safetensors, which has `rows`."""
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    loaded = checkpoint.load_tables(variables, specs, {"items": array})
    found = any_tables.read(loaded, specs, _ONE)["items"][None]
    np.testing.assert_array_equal(found, rows)

  def test_loads_what_has_the_methods_of_a_slice_of_safetensors(self):
    rows = np.random.default_rng(5).normal(size=(1003, 12)).astype(np.float32)
    read = []

    class Slice:

      def get_shape(self):
        return [1003, 12]

      def __getitem__(self, index):
        read.append(index)
        return rows[index]

    with mock.patch.object(_row_blocks, "BLOCK_BYTES", any_tables.BLOCK_BYTES):
      self.load_slice(rows, Slice())
    # In blocks, never as a whole.
    self.assertGreater(len(read), 10)
    self.assertLess(max(index.stop - index.start for index in read), 100)

  def test_loads_slices_of_safetensors(self):
    rows = np.random.default_rng(5).normal(size=(1003, 12)).astype(np.float32)
    file = self.create_tempfile("rows.safetensors").full_path
    safetensors.numpy.save_file({"rows": rows}, file)
    with safetensors.safe_open(file, "np") as opened:
      self.load_slice(rows, opened.get_slice("rows"))

  @parameterized.parameters(
      (np.zeros((1003, 16), np.float32), "16 columns, the spec 12"),
      (np.zeros((1000, 12), np.float32), "1000 rows, the spec 1003"),
      (np.zeros((1003,), np.float32), r"shape \(1003,\), not"),
      (np.zeros((1003, 12), np.int32), "int32, not of floating point"),
  )
  def test_arrays_that_do_not_fit_are_not_loaded(self, array, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    with self.assertRaisesRegex(ValueError, f"'items': .*{error}"):
      checkpoint.load_tables(variables, specs, {"items": array})

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
      self.assertEmpty(list(self.path.parent.rglob("c.*")))
      moves.set()
      pending.wait()
    for name, slots in values.items():
      for slot, rows in slots.items():
        np.testing.assert_array_equal(
            checkpoint.read_table(self.path, name, slot), rows
        )

  def test_compressed_files_are_restored(self):
    values = self.save(compression="zstd")
    specs = any_tables.feature_specs(_ONE)
    restored = checkpoint.restore(
        self.path, specs, any_tables.sharding(_ONE), num_sc_per_device=2
    )
    self.assert_same_values(any_tables.read(restored, specs, _ONE), values)

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

  def test_nothing_is_overwritten(self):
    self.save()
    before = _hashes(self.path)
    with self.assertRaisesRegex(ValueError, "already exists"):
      self.save()
    self.assertEqual(_hashes(self.path), before)

  @parameterized.parameters(
      ((("a/../b", 8, 3),), "'a/../b': the name has"),
      ((("a\nb", 8, 3),), "not printable"),
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
    specs = any_tables.feature_specs(Topology(4, 1, "alone"))
    variables = any_tables.new_variables(_ONE, any_tables.feature_specs(_ONE))
    with self.assertRaisesRegex(ValueError, "has shape .*, and the specs say"):
      checkpoint.save(self.path, variables, specs)
    with self.assertRaisesRegex(ValueError, "of the stacks .*'items'.*'all'"):
      checkpoint.save(
          self.path,
          variables,
          any_tables.feature_specs(Topology(1, 2, "rotated")),
      )
    with self.assertRaisesRegex(ValueError, "has 0 slots, and .*accumulator"):
      checkpoint.save(
          self.path,
          {k: v._replace(slot=()) for k, v in variables.items()},
          any_tables.feature_specs(_ONE),
      )
    self.assertFalse(self.path.exists())


if __name__ == "__main__":
  absltest.main()
