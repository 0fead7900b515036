# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import doctest

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.plan import _planner
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.plan import _row_ids
import numpy as np


def _table(name, vocabulary_size=33, embedding_dim=6):
  return embedding_spec.TableSpec(
      name=name,
      vocabulary_size=vocabulary_size,
      embedding_dim=embedding_dim,
      optimizer=embedding_spec.SGDOptimizerSpec(),
  )


def _features(*names):
  return [
      embedding_spec.FeatureSpec(
          name=f"f{name}",
          table_spec=_table(name),
          input_shape=(16, 1),
          output_shape=(16, 6),
      )
      for name in names
  ]


class SizesTest(parameterized.TestCase):

  def test_next_largest_multiple_of_numbers_and_arrays(self):
    np.testing.assert_array_equal(
        table_stacking._next_largest_multiple(
            np.array([0, 1, 7, 8, 9, 16, 17]), 8
        ),
        [0, 8, 8, 8, 16, 16, 24],
    )
    self.assertEqual(table_stacking._next_largest_multiple(9, 8), 16)

  def test_round_up_dim_and_vocab_size(self):
    tables = {"a": _table("a", 33, 6), "b": _table("b", 64, 16)}
    self.assertEqual(
        table_stacking.round_up_dim_and_vocab_size(tables, 8),
        ({"a": 8, "b": 16}, {"a": 64, "b": 64}),
    )

  def test_default_limits(self):
    self.assertEqual(table_stacking.get_default_limits("s", 7), 256)


class SettingsTest(parameterized.TestCase):

  @parameterized.parameters(
      ({"a": 64, "b": 128, "c": 64}, 3, [(0, 0), (8, 3), (24, 6)]),
      ({"a": 64, "b": 64, "c": 64}, -1, [(0, 0), (8, 7), (16, 6)]),
  )
  def test_tables_follow_each_other(self, sizes, rotation, expected):
    settings = table_stacking.compute_table_to_setting_in_stack(
        "s", list(sizes), 16, sizes, 8, rotation
    )
    self.assertEqual(
        settings,
        {
            name: embedding_spec.TableSettingInStack(
                stack_name="s",
                padded_vocab_size=size,
                padded_embedding_dim=16,
                row_offset_in_shard=row_offset,
                shard_rotation=shard_rotation,
            )
            for (name, size), (row_offset, shard_rotation) in zip(
                sizes.items(), expected, strict=True
            )
        },
    )

  def test_missing_size_raises(self):
    with self.assertRaisesRegex(ValueError, "'s': .* lacks b"):
      table_stacking.compute_table_to_setting_in_stack(
          "s", ["a", "b"], 8, {"a": 64}, 8, 0
      )

  def test_no_shards_raises(self):
    with self.assertRaisesRegex(ValueError, "num_shards must be positive"):
      table_stacking.compute_table_to_setting_in_stack(
          "s", ["a"], 8, {"a": 64}, 0, 0
      )


class PhysicalRowIdsTest(parameterized.TestCase):

  @parameterized.parameters(
      (4, 32, 0, 0, range(10), [0, 8, 16, 24, 1, 9, 17, 25, 2, 10]),
      (4, 32, 1, 2, range(10), [10, 18, 26, 2, 11, 19, 27, 3, 12, 20]),
      (4, 100, 1, 10, range(5), [35, 60, 85, 10, 36]),
  )
  def test_of_arrays(self, num_scs, rows, rotation, offset, ids, expected):
    for array in (np.array(ids), jnp.array(ids)):
      np.testing.assert_array_equal(
          table_stacking.compute_physical_row_ids(
              num_scs, rows, rotation, offset, array
          ),
          expected,
      )

  def test_of_an_int_and_inside_jit(self):
    self.assertEqual(
        table_stacking.compute_physical_row_ids(4, 100, 1, 10, 5), 61
    )
    traced = jax.jit(table_stacking.compute_physical_row_ids)
    self.assertEqual(traced(4, 100, 1, 10, 5), 61)

  def test_finds_the_rows_that_stack_and_shard_tables_wrote(self):
    features = _features("a", "b")
    table_stacking.stack_tables(features, ["a", "b"], 2, 3)
    specs = _prepared.get_table_specs(features)
    tables = {
        name: np.random.default_rng(0).standard_normal((33, 6)) for name in "ab"
    }
    (stack,) = table_stacking.stack_and_shard_tables(specs, tables, 6).values()
    setting = specs["b"].setting_in_stack
    rows = table_stacking.compute_physical_row_ids(
        6,
        specs["b"].stacked_table_spec.stack_vocab_size,
        setting.shard_rotation,
        setting.row_offset_in_shard,
        np.arange(33),
    )
    np.testing.assert_array_equal(
        stack.reshape(-1, 8)[rows, :6], tables["b"].astype(np.float32)
    )


class RowIdsOfMessagesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Tables a: 10 x 2 and b: 17 x 3 on one device with two SparseCores.
    features = _features("a", "b")
    for feature, (rows, columns) in zip(features, ((10, 2), (17, 3))):
      feature.table_spec.vocabulary_size = rows
      feature.table_spec.embedding_dim = columns
    table_stacking.stack_tables(features, ["a", "b"], 1, 2)
    self.message = embedding_proto_utils.create_proto_from_feature_specs(
        features, 1, 2
    )

  def test_of_one_table(self):
    (stack,) = self.message.stacked_table_specs
    self.assertEqual(
        table_stacking.get_row_ids_in_stacked_table(
            stack, stack.table_specs[1], [0, 1, 2, 16]
        ),
        [8, 32, 9, 16],
    )

  def test_of_several_tables(self):
    self.assertEqual(
        table_stacking.get_row_ids_in_stacked_tables(
            self.message, {"b": [0, 1], "a": [9], "z": [5]}
        ),
        {"a_b": [28, 8, 32]},
    )
    self.assertEqual(
        table_stacking.get_row_ids_in_stacked_tables(self.message, {}), {}
    )

  @parameterized.parameters(17, -1)
  def test_rows_that_a_table_lacks_raise(self, row):
    with self.assertRaisesRegex(
        ValueError, f"'b': there is no row {row}, rows .* from 0 to 16"
    ):
      table_stacking.get_row_ids_in_stacked_tables(
          self.message, {"a": [0], "b": [3, row]}
      )

  def test_unstacks_one_stack(self):
    (stack,) = self.message.stacked_table_specs
    tables = table_stacking._unstack_and_unshard_stacked_table(
        jnp.arange(48.0)[:, None] * jnp.ones(8), stack
    )
    self.assertEqual(tables["a"].shape, (10, 2))
    np.testing.assert_array_equal(tables["b"][:3, 0], [8, 32, 9])


class StackingTest(parameterized.TestCase):

  def test_auto_stack_tables_takes_a_rotation(self):
    features = _features("a", "b", "c")
    table_stacking.auto_stack_tables(features, 2, 4, 3)
    self.assertEqual(
        [f.id_transformation.col_shift for f in features], [0, 3, 6]
    )

  def test_auto_stack_tables_takes_none_as_the_default_limit(self):
    features = _features("a", "b")
    table_stacking.auto_stack_tables(
        features, 2, 4, activation_mem_bytes_limit=None
    )
    self.assertEqual(
        features[0].table_spec.stacked_table_spec.activation_mem_bytes_limit,
        table_stacking.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT,
    )

  def test_get_table_stacks(self):
    features = _features("a", "b", "c")
    tables = {f.table_spec.name: f.table_spec for f in features}
    table_stacking.stack_tables(features, ["c", "a"], 2, 4)
    with self.assertRaisesRegex(AssertionError, "Table b is not stacked"):
      table_stacking.get_table_stacks(tables)
    _plan.prepare_feature_specs_for_training(features, 2, 4)
    self.assertEqual(
        table_stacking.get_table_stacks(tables),
        {"c_a": [tables["a"], tables["c"]], "b": [tables["b"]]},
    )

  @parameterized.parameters(
      ([["a", "b", "c"]], 40, [["a", "b"], ["c"]]),
      ([["c", "a"], ["b"]], 40, [["c", "a"], ["b"]]),
      ([["a", "b", "c"]], 0, [["a"], ["b"], ["c"]]),
  )
  def test_split_groups_by_memory_limit(self, groups, limit, expected):
    self.assertEqual(
        table_stacking._split_groups_by_memory_limit(
            groups, {"a": 10, "b": 20, "c": 30}, limit
        ),
        expected,
    )

  def test_examples_in_docstrings(self):
    for module in (_row_ids, _planner):
      result = doctest.testmod(module)
      self.assertGreater(result.attempted, 0)
      self.assertEqual(result.failed, 0)

  def test_get_stack_name(self):
    self.assertEqual(table_stacking._get_stack_name(["a", "b"]), "a_b")


if __name__ == "__main__":
  absltest.main()
