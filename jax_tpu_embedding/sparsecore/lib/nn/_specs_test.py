# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import math

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

_TABLE = dict(
    name="item",
    vocabulary_size=10,
    embedding_dim=4,
    optimizer=embedding_spec.SGDOptimizerSpec(),
)
_STACK = dict(
    stack_name="item_user",
    stack_vocab_size=64,
    stack_embedding_dim=8,
    optimizer=embedding_spec.SGDOptimizerSpec(),
    combiner="sum",
    total_sample_count=32,
)


def _table(**changes):
  return embedding_spec.TableSpec(**{**_TABLE, **changes})


def _feature(**changes):
  return embedding_spec.FeatureSpec(
      **{
          "name": "f",
          "table_spec": _table(),
          "input_shape": (16, 1),
          "output_shape": (16, 4),
          **changes,
      }
  )


def _stack(**changes):
  return embedding_spec.StackedTableSpec(**{**_STACK, **changes})


class TableSpecTest(parameterized.TestCase):

  def test_baseline_is_valid_and_hashable(self):
    self.assertEqual(_table(), _table())
    self.assertEqual(hash(_table()), hash(_table()))

  @parameterized.named_parameters(
      ("no_name", dict(name=""), ValueError, "name must not be empty"),
      ("name_not_text", dict(name=3), TypeError, "must be a str, got 3"),
      (
          "no_rows",
          dict(vocabulary_size=0),
          ValueError,
          "Table 'item': vocabulary_size must be positive, got 0",
      ),
      (
          "fractional_rows",
          dict(vocabulary_size=1.5),
          TypeError,
          "Table 'item': vocabulary_size must be an integer, got 1.5",
      ),
      (
          "columns",
          dict(embedding_dim=-1),
          ValueError,
          "embedding_dim must be positive, got -1",
      ),
      (
          "combiner",
          dict(combiner="max"),
          ValueError,
          "combiner must be one of sum, mean, sqrtn, got 'max'",
      ),
      (
          "ids_limit",
          dict(max_ids_per_partition=0),
          ValueError,
          "max_ids_per_partition must be positive, got 0",
      ),
      (
          "unique_ids_limit",
          dict(max_unique_ids_per_partition=0),
          ValueError,
          "max_unique_ids_per_partition must be positive, got 0",
      ),
      (
          "buffer",
          dict(suggested_coo_buffer_size_per_device=0),
          ValueError,
          "suggested_coo_buffer_size_per_device must be positive, got 0",
      ),
  )
  def test_invalid_field_raises(self, changes, error, message):
    with self.assertRaisesRegex(error, message):
      _table(**changes)

  def test_numpy_sizes_are_integers(self):
    self.assertEqual(_table(vocabulary_size=np.int64(10)), _table())

  @parameterized.parameters(
      dict(name="user"),
      dict(vocabulary_size=11),
      dict(embedding_dim=5),
      dict(initializer=jax.nn.initializers.zeros),
      dict(optimizer=embedding_spec.SGDOptimizerSpec(0.5)),
      dict(combiner="mean"),
      dict(max_ids_per_partition=8),
      dict(max_unique_ids_per_partition=8),
      dict(suggested_coo_buffer_size_per_device=64),
      dict(
          quantization_config=embedding_spec.QuantizationConfig(
              min_value=0, max_value=1, num_buckets=2
          )
      ),
  )
  def test_every_field_takes_part_in_equality(self, **change):
    self.assertNotEqual(_table(**change), _table())

  def test_plan_takes_no_part_in_equality(self):
    table = _table()
    table.stacked_table_spec = _stack()
    self.assertEqual(table, _table())
    self.assertEqual(hash(table), hash(_table()))

  def test_default_initializer_makes_rows_of_length_one(self):
    rows = _table().initializer(jax.random.key(0), (4000, 64))
    np.testing.assert_allclose(np.std(rows), 1 / math.sqrt(64), rtol=0.01)

  def test_unprepared_table_is_alone_without_padding(self):
    table = _table()
    self.assertFalse(table.is_stacked())
    self.assertEqual(
        table.setting_in_stack,
        embedding_spec.TableSettingInStack(
            stack_name="item", padded_vocab_size=10, padded_embedding_dim=4
        ),
    )
    with self.assertRaisesRegex(AssertionError, "Table item is not stacked."):
      _ = table.stacked_table_spec

  def test_can_be_changed_until_it_is_stacked(self):
    table = _table()
    table.vocabulary_size = 20
    self.assertEqual(table.vocabulary_size, 20)

  @parameterized.parameters(
      ("max_ids_per_partition", "update_preprocessing_parameters"),
      ("max_unique_ids_per_partition", "update_preprocessing_parameters"),
      ("suggested_coo_buffer_size_per_device", "update_preprocessing_param"),
      ("embedding_dim", "dataclasses.replace"),
      ("name", "dataclasses.replace"),
  )
  def test_is_frozen_once_stacked(self, attribute, remedy):
    table = _table()
    table.stacked_table_spec = _stack()
    with self.assertRaisesRegex(
        AttributeError, f"'item' is stacked, so {attribute} cannot .*{remedy}"
    ):
      setattr(table, attribute, 8)

  def test_plan_can_be_replaced_and_removed(self):
    table = _table(_stacked_table_spec=_stack())
    table.stacked_table_spec = _stack(max_ids_per_partition=8)
    table.setting_in_stack = table.setting_in_stack
    self.assertEqual(table.stacked_table_spec.max_ids_per_partition, 8)
    table._stacked_table_spec = None
    table.embedding_dim = 8
    self.assertEqual(table.embedding_dim, 8)

  def test_remedy_of_the_message_makes_an_unstacked_copy(self):
    table = _table(_stacked_table_spec=_stack())
    copy = dataclasses.replace(
        table,
        embedding_dim=8,
        _stacked_table_spec=None,
        _setting_in_stack=None,
    )
    self.assertFalse(copy.is_stacked())
    self.assertEqual(copy.setting_in_stack.padded_embedding_dim, 8)


class FeatureSpecTest(absltest.TestCase):

  def test_equality_and_hash_leave_out_the_plan(self):
    feature = _feature()
    feature.id_transformation = embedding_spec.FeatureIdTransformation(16)
    self.assertEqual(feature, _feature())
    self.assertEqual(hash(feature), hash(_feature()))
    self.assertNotEqual(feature, _feature(output_shape=(16, 5)))

  def test_unprepared_feature_has_no_transformation(self):
    with self.assertRaisesRegex(AssertionError, "Feature f has no id_trans"):
      _ = _feature().id_transformation

  def test_output_shape_has_a_batch_and_a_width(self):
    with self.assertRaisesRegex(ValueError, r"must be \(batch, ..., embedding"):
      _feature(output_shape=(16,))
    self.assertLen(_feature(output_shape=(16, 5, 4)).output_shape, 3)

  def test_table_must_be_a_table(self):
    with self.assertRaisesRegex(TypeError, "must be a TableSpec, got 'item'"):
      _feature(table_spec="item")


class StackedTableSpecTest(absltest.TestCase):

  def test_is_a_frozen_value(self):
    stack = _stack()
    self.assertEqual(stack, _stack())
    self.assertEqual(hash(stack), hash(_stack()))
    self.assertEqual(
        stack.replace(combiner="mean"),
        dataclasses.replace(stack, combiner="mean"),
    )
    with self.assertRaises(dataclasses.FrozenInstanceError):
      stack.combiner = "mean"

  def test_is_a_pytree_of_its_fields(self):
    stack = _stack()
    leaves, structure = jax.tree.flatten(stack)
    # Eleven fields; two of them are None.
    self.assertLen(leaves, 9)
    self.assertEqual(jax.tree.unflatten(structure, leaves), stack)


class QuantizationConfigTest(parameterized.TestCase):

  def test_is_a_hashable_value(self):
    config = embedding_spec.QuantizationConfig(
        min_value=-1, max_value=1, num_buckets=2
    )
    self.assertEqual(config.as_tuple(), (-1, 1, 2))
    self.assertEqual(hash(config), hash(dataclasses.replace(config)))

  @parameterized.parameters(
      (3, 1, 1, "num_buckets must be at least 2, got 1"),
      (1, 1, 2, "min_value must be less than max_value, got 1 and 1"),
      (float("nan"), 1, 2, "min_value must be less"),
  )
  def test_invalid_raises(self, min_value, max_value, num_buckets, message):
    with self.assertRaisesRegex(ValueError, message):
      embedding_spec.QuantizationConfig(
          min_value=min_value, max_value=max_value, num_buckets=num_buckets
      )


if __name__ == "__main__":
  absltest.main()
