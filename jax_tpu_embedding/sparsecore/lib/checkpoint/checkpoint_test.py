# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Any topology restores what any other saved."""

from __future__ import annotations

import itertools
import os
import random

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import checkpoint_case
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import huge_pages
import numpy as np

jax.config.update("jax_num_cpu_devices", 6)

_ONE = checkpoint_case.ONE
_TOPOLOGIES = ((1, 1), (1, 4), (4, 2), (3, 1), (6, 1), (2, 3))
_STACKINGS = ("alone", "auto", "rotated", "mixed")
_EVERY = tuple(
    any_tables.Topology(*sizes, stacking)
    for sizes, stacking in itertools.product(_TOPOLOGIES, _STACKINGS)
)
# Of all topologies, and of pairs of them. By hand: 40.
_SAMPLES = int(os.environ.get("SAMPLES", "6"))


class CheckpointTest(checkpoint_case.CheckpointCase):

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
      written[str(topology)] = checkpoint_case.file_hashes(path)

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
        restored = self.restore_same_values(path, specs, target, values)
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

  def restore_same_values(self, path, specs, target, values):
    """The variables that a checkpoint becomes, which have these values."""
    restored = checkpoint.restore(
        path,
        specs,
        any_tables.sharding(target),
        num_sc_per_device=target.num_sc_per_device,
    )
    self.assert_same_values(any_tables.read(restored, specs, target), values)
    return restored

  @parameterized.product(
      of=("adagrad", "rowwise_adagrad"),
      columns=((1,), (1, 3), (3, 1)),
  )
  def test_tables_of_one_column(self, of, columns):
    tables = [(f"table{i}", 40, size) for i, size in enumerate(columns)]
    values = any_tables.values(tables, of=of)
    topologies = [
        any_tables.Topology(1, 2, "alone"),
        any_tables.Topology(2, 2, "auto"),
    ]
    for source, target in itertools.product(topologies, repeat=2):
      with self.subTest(f"{source} to {target}"):
        path = self.path / f"{source} to {target}"
        specs = any_tables.feature_specs(source, tables, of=of)
        variables = any_tables.random_variables(source, specs, values)
        checkpoint.save(path, variables, specs)
        specs = any_tables.feature_specs(target, tables, of=of)
        self.restore_same_values(path, specs, target, values)

  @parameterized.parameters(1, 2)
  def test_what_is_restored_is_in_huge_pages(self, num_devices):
    table = embedding_spec.TableSpec(
        name="large",
        # Of each device more than malloc keeps of what was freed.
        vocabulary_size=600_000,
        embedding_dim=16 * num_devices,
        initializer=jax.nn.initializers.ones,
        optimizer=embedding_spec.AdagradOptimizerSpec(
            initial_accumulator_value=0.5
        ),
    )
    feature = embedding_spec.FeatureSpec(
        name="large",
        table_spec=table,
        input_shape=(8, 1),
        output_shape=(8, table.embedding_dim),
    )
    embedding.prepare_feature_specs_for_training([feature], num_devices, 1)
    topology = any_tables.Topology(num_devices, 1, "alone")
    sharding = any_tables.sharding(topology)
    variables = embedding.init_embedding_variables(
        jax.random.key(0), [table], sharding, 1
    )
    checkpoint.save(self.path, variables, [feature])
    restored = checkpoint.restore(
        self.path, [feature], sharding, num_sc_per_device=1
    )
    table, slots = restored["large"]
    np.testing.assert_array_equal(table, 1)
    np.testing.assert_array_equal(slots.accumulator, 0.5)
    for array in (table, slots.accumulator):
      huge_pages.assert_are_under(self, array)

  @parameterized.parameters(
      (
          any_tables.Topology(6, 1, "alone"),
          any_tables.Topology(2, 3, "rotated"),
      ),
      (any_tables.Topology(2, 3, "auto"), any_tables.Topology(6, 1, "auto")),
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

  @parameterized.product(
      stackings=[("auto", "mixed"), ("mixed", "rotated"), ("mixed", "mixed")],
      is_ref=(False, True),
  )
  def test_tables_may_change_their_placement(self, stackings, is_ref):
    source = any_tables.Topology(4, 1, stackings[0])
    target = any_tables.Topology(3, 2, stackings[1])
    values = self.save(source)
    hashes = checkpoint_case.file_hashes(self.path)
    specs = any_tables.feature_specs(target)
    restored = checkpoint.restore(
        self.path, specs, any_tables.sharding(target), num_sc_per_device=2
    )
    self.assert_same_values(any_tables.read(restored, specs, target), values)
    fresh = any_tables.new_variables(target, specs)
    self.assertEqual(
        jax.tree.map(lambda x: x.sharding.spec, restored),
        jax.tree.map(lambda x: x.sharding.spec, fresh),
    )
    if is_ref:
      fresh = jax.tree.map(jax.new_ref, fresh)
    restored = checkpoint.restore_into(fresh, self.path, specs)
    self.assert_same_values(any_tables.read(restored, specs, target), values)
    again = self.path.parent / "again"
    any_tables.save(again, restored, specs)
    self.assertEqual(checkpoint_case.file_hashes(again), hashes)
    for name, of_stack in restored.items():
      if specs.get(name) and specs[name].table_spec.is_replicated:
        copies = [s.data for s in of_stack.table[...].addressable_shards]
        self.assertLen(copies, 3)
        for copy in copies:
          np.testing.assert_array_equal(copy, copies[0])

  @parameterized.product(is_ref=(False, True), ndim=(2, 3))
  def test_restores_into_variables_of_every_form(self, is_ref, ndim):
    topology = any_tables.Topology(4, 1, "rotated")
    values = self.save(any_tables.Topology(3, 1, "auto"))
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
    self.assertEqual(
        checkpoint_case.file_hashes(again),
        checkpoint_case.file_hashes(self.path),
    )

  def test_slots_have_the_initial_value_in_padding_of_every_shard(self):
    self.save(any_tables.Topology(1, 1, "alone"))
    topology = any_tables.Topology(1, 4, "alone")
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
    topology = any_tables.Topology(2, 3, "rotated")
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

  @parameterized.named_parameters(
      ("rows_over_both", (2, 2), ("x", "y")),
      ("each_row_on_two_devices", (2, 2), "y"),
  )
  def test_meshes_of_two_axes(self, shape, axes):
    mesh = jax.make_mesh(shape, ("x", "y"), devices=jax.devices()[:4])
    target = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axes))
    num_parts = 4 if axes == ("x", "y") else 2
    topology = any_tables.Topology(num_parts, 2, "auto")
    specs = any_tables.feature_specs(topology)
    values = self.save()
    restored = checkpoint.restore(self.path, specs, target, num_sc_per_device=2)
    self.assert_same_values(any_tables.read(restored, specs, topology), values)
    hashes = checkpoint_case.file_hashes(self.path)
    self.path = self.path.parent / "again"
    any_tables.save(self.path, restored, specs)
    self.assertEqual(checkpoint_case.file_hashes(self.path), hashes)

  def test_compressed_files_are_restored(self):
    values = self.save(compression="zstd")
    specs = any_tables.feature_specs(_ONE)
    restored = checkpoint.restore(
        self.path,
        specs,
        any_tables.sharding(_ONE),
        num_sc_per_device=2,
    )
    self.assert_same_values(any_tables.read(restored, specs, _ONE), values)


if __name__ == "__main__":
  absltest.main()
