# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.values import _reshard
import numpy as np

# Few examples: every new shape compiles its own operations.
hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, max_examples=10
)
hypothesis.settings.load_profile("deterministic")

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec


def _features(shapes, optimizer=embedding_spec.AdagradOptimizerSpec()):
  """One feature per table; shapes: table name -> (rows, columns)."""
  return [
      embedding_spec.FeatureSpec(
          name=f"f{name}",
          table_spec=embedding_spec.TableSpec(
              name=name,
              vocabulary_size=rows,
              embedding_dim=columns,
              optimizer=optimizer,
          ),
          input_shape=(16, 1),
          output_shape=(16, columns),
      )
      for name, (rows, columns) in shapes.items()
  ]


def _stacked(shapes, devices, num_sc_per_device, **optimizer):
  """Table specs, all in one stack."""
  features = _features(shapes, **optimizer)
  _plan.stack_tables(features, list(shapes), devices, num_sc_per_device)
  return _prepared.get_table_specs(features)


def _rows(first, shape):
  """A table whose row i is filled with first + i."""
  return np.repeat(first + np.arange(shape[0])[:, None], shape[1], axis=1)


def _mesh(axis_type):
  """Two devices by two."""
  axis_type = getattr(jax.sharding.AxisType, axis_type)
  return jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis_type,) * 2)


def _put(array, mesh, spec):
  return jax.device_put(array, jax.sharding.NamedSharding(mesh, spec))


class StackAndShardTest(parameterized.TestCase):

  def test_places_rows_by_mod_sharding(self):
    specs = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)
    tables = {"a": _rows(0, (10, 2)), "b": _rows(100, (17, 3))}
    stacked = _reshard.stack_and_shard_tables(specs, tables, 2, pad_value=-1)
    self.assertEqual(list(stacked), ["a_b"])
    self.assertEqual(stacked["a_b"].dtype, jnp.float32)
    self.assertEqual(stacked["a_b"].shape, (2, 24, 8))
    np.testing.assert_array_equal(
        stacked["a_b"][:, :, 0],
        [
            [0, 2, 4, 6, 8] + 3 * [-1] + list(range(100, 117, 2)) + 7 * [-1],
            [1, 3, 5, 7, 9] + 3 * [-1] + list(range(101, 117, 2)) + 8 * [-1],
        ],
    )
    # Columns beyond a table's are padding too.
    np.testing.assert_array_equal(stacked["a_b"][0, 0], [0, 0] + 6 * [-1])

  def test_rotates_tables(self):
    specs = _stacked({"a": (40, 8), "b": (33, 8)}, 2, 2)
    tables = {"a": _rows(0, (40, 8)), "b": _rows(100, (33, 8))}
    stacked = _reshard.stack_and_shard_tables(specs, tables, 4)["a_b"]
    self.assertEqual(stacked.shape, (4, 32, 8))
    np.testing.assert_array_equal(stacked[:, 0, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(stacked[:, 16, 0], [102, 103, 100, 101])
    self.assertTrue(np.isnan(stacked[0, 10, 0]))

  def test_rows_of_absent_tables_are_zero(self):
    specs = _stacked({"a": (8, 8), "b": (8, 8), "c": (8, 8)}, 1, 1)
    stacked = _reshard.stack_and_shard_tables(
        {"b": specs["b"]}, {"b": _rows(1, (8, 8))}, 1
    )
    np.testing.assert_array_equal(
        stacked["a_b_c"][0, :, 0], [0] * 8 + list(range(1, 9)) + [0] * 8
    )

  @parameterized.parameters(
      (embedding_spec.AdagradOptimizerSpec(), np.nan),
      (embedding_spec.RowwiseAdagradOptimizerSpec(), 0),
      (embedding_spec.CustomOptimizerSpec(), 0),
  )
  def test_padding_that_a_step_may_read_is_a_number(self, optimizer, expected):
    specs = _stacked({"a": (8, 6)}, 1, 1, optimizer=optimizer)
    tables = {"a": _rows(1, (8, 6))}
    stacked = _reshard.stack_and_shard_tables(specs, tables, 1)["a"]
    np.testing.assert_array_equal(stacked[0, 2], 6 * [3] + 2 * [expected])
    stacked = _reshard.stack_and_shard_tables(specs, tables, 1, -1)["a"]
    np.testing.assert_array_equal(stacked[0, 2], 6 * [3] + 2 * [-1])

  def test_entries_may_be_trees(self):
    specs = _stacked({"a": (8, 8), "b": (8, 8)}, 1, 1)
    slots = embedding_spec.AdagradSlotVariables
    tables = {
        name: (_rows(0, (8, 8)), slots(accumulator=_rows(100, (8, 8))))
        for name in specs
    }
    table, slot = _reshard.stack_and_shard_tables(specs, tables, 1)["a_b"]
    self.assertEqual(table[0, 9, 0], 1)
    self.assertEqual(slot.accumulator[0, 9, 0], 101)
    back = _reshard.unshard_and_unstack_tables(specs, {"a_b": (table, slot)}, 1)
    jax.tree.map(np.testing.assert_array_equal, back, tables)

  @parameterized.named_parameters(
      ("missing_table", {"a": np.zeros((10, 2))}, 2, "b"),
      (
          "wrong_shape",
          {"a": np.zeros((10, 2)), "b": np.zeros((16, 3))},
          2,
          r"Table 'b': expected an array of shape \(17, 3\), got \(16, 3\)",
      ),
      (
          "other_number_of_shards",
          {"a": np.zeros((10, 2)), "b": np.zeros((17, 3))},
          4,
          "'a' was prepared for 2 SparseCores in all, and is used with 4",
      ),
  )
  def test_tables_that_do_not_fit_raise(self, tables, num_shards, message):
    specs = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)
    with self.assertRaisesRegex(ValueError, message):
      _reshard.stack_and_shard_tables(specs, tables, num_shards)

  def test_table_given_twice_raises(self):
    spec = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)["b"]
    with self.assertRaisesRegex(
        ValueError, "'b' in .* starts at row 8 of each shard, where table 'b'"
    ):
      _reshard.stack_and_shard_tables([spec, spec], [np.zeros((17, 3))] * 2, 2)

  def test_unprepared_tables_raise(self):
    specs = _prepared.get_table_specs(_features({"a": (10, 2)}))
    with self.assertRaisesRegex(AssertionError, "Table a is not stacked"):
      _reshard.stack_and_shard_tables(specs, {"a": np.zeros((10, 2))}, 2)


class UnshardAndUnstackTest(parameterized.TestCase):

  def test_missing_stack_raises(self):
    specs = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)
    with self.assertRaisesRegex(ValueError, "lacks its stack 'a_b'"):
      _reshard.unshard_and_unstack_tables(specs, {}, 2)

  def test_stack_of_another_shape_raises(self):
    specs = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)
    with self.assertRaisesRegex(
        ValueError, r"shape \(2, 24, 8\) or \(48, 8\), got \(2, 23, 8\)"
    ):
      _reshard.unshard_and_unstack_tables(
          specs, {"a_b": np.zeros((2, 23, 8))}, 2
      )

  def test_tables_planned_for_other_shards_raise(self):
    specs = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)
    with self.assertRaisesRegex(
        ValueError, "was prepared for 2 .* used with 3"
    ):
      _reshard.unshard_and_unstack_tables(
          specs, {"a_b": np.zeros((3, 16, 8))}, 3
      )

  def test_what_layers_keep_beside_rows_is_left_out(self):
    class TableVariables(NamedTuple):
      table: np.ndarray
      slot: tuple[np.ndarray, ...]
      state: np.ndarray

    specs = _stacked({"a": (8, 8)}, 1, 1)
    table = _rows(0, (8, 8))
    result = _reshard.unshard_and_unstack_tables(
        specs, {"a": TableVariables(table, (table + 9,), np.arange(2))}, 1
    )["a"]
    self.assertEqual(result._fields, ("table", "slot"))
    np.testing.assert_array_equal(result.table, table)
    np.testing.assert_array_equal(*result.slot, table + 9)

  def test_tables_without_slots_have_trees_without_slots(self):
    specs = _stacked({"a": (8, 8)}, 1, 1)
    self.assertEqual(
        _reshard.unshard_and_unstack_tables(specs, {"a": ()}, 1), {"a": ()}
    )

  @parameterized.named_parameters(
      ("numpy", lambda array, columns: array),
      ("one_device", lambda array, columns: jnp.asarray(array)),
      (
          "another_device",
          lambda array, columns: jax.device_put(array, jax.devices()[2]),
      ),
      (
          "mesh",
          lambda array, columns: _put(array, _mesh("Auto"), P("x", columns)),
      ),
      (
          "explicit_mesh",
          lambda array, columns: _put(
              array, _mesh("Explicit"), P("x", columns)
          ),
      ),
      (
          "replicated",
          lambda array, columns: _put(array, _mesh("Auto"), P()),
      ),
  )
  def test_arrays_may_be_anywhere(self, put):
    shapes = {"a": (40, 6), "b": (24, 8), "c": (16, 2)}
    specs = _stacked(shapes, 2, 3)
    tables = {
        name: np.random.default_rng(0).standard_normal(shape, np.float32)
        for name, shape in shapes.items()
    }
    expected = _reshard.stack_and_shard_tables(specs, tables, 6)["a_b_c"]
    # Columns over the second axis of the mesh: 2 divides all of them.
    given = {name: put(table, "y") for name, table in tables.items()}
    (stack,) = _reshard.stack_and_shard_tables(specs, given, 6).values()
    np.testing.assert_array_equal(stack, expected)
    back = _reshard.unshard_and_unstack_tables(specs, {"a_b_c": stack}, 6)
    jax.tree.map(np.testing.assert_array_equal, back, tables)
    if isinstance(given["a"], jax.Array):
      self.assertEqual(stack.devices(), given["a"].devices())
      for name in shapes:
        self.assertTrue(
            back[name].sharding.is_equivalent_to(given[name].sharding, 2)
        )

  def test_arrays_that_jax_may_move_give_arrays_that_it_may_move(self):
    specs = _stacked({"a": (40, 8)}, 2, 2)
    rows = jnp.asarray(_rows(0, (40, 8)))
    stack = _reshard.stack_and_shard_tables(specs, {"a": rows}, 4)["a"]
    self.assertFalse(stack.committed)
    back = _reshard.unshard_and_unstack_tables(specs, {"a": stack}, 4)["a"]
    self.assertFalse(back.committed)
    np.testing.assert_array_equal(back, rows)

  def test_one_table_that_is_put_somewhere_takes_the_stack_there(self):
    specs = _stacked({"a": (40, 8), "b": (24, 8)}, 2, 2)
    tables = {
        "a": jnp.asarray(_rows(0, (40, 8))),
        "b": jax.device_put(_rows(100, (24, 8)), jax.devices()[2]),
    }
    stack = _reshard.stack_and_shard_tables(specs, tables, 4)["a_b"]
    self.assertEqual(stack.devices(), {jax.devices()[2]})

  @parameterized.parameters("Auto", "Explicit")
  def test_meshes_set_by_the_user_do_not_matter(self, axis_type):
    specs = _stacked({"a": (40, 8), "b": (24, 8)}, 2, 2)
    tables = {"a": _rows(0, (40, 8)), "b": _rows(100, (24, 8))}
    expected = _reshard.stack_and_shard_tables(specs, tables, 4)["a_b"]
    with jax.set_mesh(_mesh("Explicit")):
      given = jax.tree.map(
          lambda table: _put(table, _mesh(axis_type), P("x")), tables
      )
      stack = _reshard.stack_and_shard_tables(specs, given, 4)["a_b"]
      back = _reshard.unshard_and_unstack_tables(specs, {"a_b": stack}, 4)
    np.testing.assert_array_equal(stack, expected)
    self.assertEqual(stack.sharding.spec, P("x", None, None))
    jax.tree.map(np.testing.assert_array_equal, back, tables)

  def test_rows_that_devices_cannot_share_are_on_all_of_them(self):
    specs = _stacked({"a": (17, 8)}, 1, 2)
    stack = _put(np.zeros((32, 8)), _mesh("Auto"), P("x"))
    back = _reshard.unshard_and_unstack_tables(specs, {"a": stack}, 2)["a"]
    self.assertEqual(back.shape, (17, 8))
    self.assertTrue(back.sharding.is_fully_replicated)

  def test_order_of_the_tree_does_not_matter(self):
    specs = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)
    tables = {"a": _rows(0, (10, 2)), "b": _rows(100, (17, 3))}
    expected = _reshard.stack_and_shard_tables(specs, tables, 2)
    # Stacks begin with a.
    reverse = [specs["b"], specs["a"]]
    got = _reshard.stack_and_shard_tables(
        reverse, [tables["b"], tables["a"]], 2
    )
    np.testing.assert_array_equal(got["a_b"], expected["a_b"])
    back = _reshard.unshard_and_unstack_tables(reverse, got, 2)
    np.testing.assert_array_equal(back[0], tables["b"])
    np.testing.assert_array_equal(back[1], tables["a"])

  def test_can_be_traced(self):
    specs = _stacked({"a": (10, 2), "b": (17, 3)}, 1, 2)
    tables = {"a": _rows(0, (10, 2)), "b": _rows(100, (17, 3))}

    @jax.jit
    def there_and_back(tables):
      stacks = _reshard.stack_and_shard_tables(specs, tables, 2)
      return _reshard.unshard_and_unstack_tables(specs, stacks, 2)

    jax.tree.map(np.testing.assert_array_equal, there_and_back(tables), tables)

  @hypothesis.given(
      st.lists(
          st.tuples(st.integers(1, 100), st.integers(1, 16)),
          min_size=1,
          max_size=4,
      ),
      st.integers(1, 3),
      st.integers(1, 5),
      st.booleans(),
      st.booleans(),
      st.sampled_from((np.float32, np.float64, np.float16, np.int64)),
      st.booleans(),
  )
  def test_undoes_stacking(
      self,
      shapes,
      devices,
      num_sc_per_device,
      is_flat,
      is_list,
      dtype,
      on_device,
  ):
    shapes = {f"t{i}": shape for i, shape in enumerate(shapes)}
    specs = _stacked(shapes, devices, num_sc_per_device)
    rng = np.random.default_rng(0)
    tables = {
        # Every other row and column of a larger array: not contiguous.
        name: (100 * rng.standard_normal((2 * shape[0], 2 * shape[1]))).astype(
            dtype
        )[::2, ::2]
        for name, shape in shapes.items()
    }
    if on_device:
      tables = jax.tree.map(jnp.asarray, tables)
    if is_list:
      specs, tables = list(specs.values()), list(tables.values())
    num_shards = devices * num_sc_per_device
    stacks = _reshard.stack_and_shard_tables(specs, tables, num_shards)
    if is_flat:
      stacks = {
          name: stack.reshape(-1, stack.shape[-1])
          for name, stack in stacks.items()
      }
    if not on_device:
      stacks = jax.tree.map(np.asarray, stacks)
    back = _reshard.unshard_and_unstack_tables(specs, stacks, num_shards)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b.astype(np.float32)),
        back,
        tables,
    )
    # Nothing but the tables is in the stacks.
    (stack,) = stacks.values()
    self.assertEqual(
        np.count_nonzero(~np.isnan(stack)),
        sum(math.prod(shape) for shape in shapes.values()),
    )


if __name__ == "__main__":
  absltest.main()
