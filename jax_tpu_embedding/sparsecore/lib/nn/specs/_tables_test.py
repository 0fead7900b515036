# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
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
          "name_not_utf8",
          dict(name="caf\udce9"),
          ValueError,
          r"UTF-8 can hold, got 'caf.udce9', with '.udce9' at position 3",
      ),
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
          "placement",
          dict(placement="host"),
          ValueError,
          "Table 'item': placement must be one of sparsecore, tensorcore, got"
          " 'host'",
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
      (
          "dtype",
          dict(dtype="int32"),
          ValueError,
          "Table 'item': dtype must be one of float32, bfloat16, float16, got"
          " 'int32'",
      ),
      (
          "not_a_dtype",
          dict(dtype="quarter"),
          TypeError,
          "dtype must be one of float32, bfloat16, float16, got 'quarter'",
      ),
      ("no_dtype", dict(dtype=None), ValueError, "float16, got None"),
      (
          "limit_beyond_int32",
          dict(max_ids_per_partition=2**31),
          ValueError,
          "max_ids_per_partition must be at most 2147483647, got 2147483648",
      ),
      (
          "bool",
          dict(embedding_dim=True),
          TypeError,
          "embedding_dim must be an integer, got True",
      ),
      (
          "initializer",
          dict(initializer=0.5),
          TypeError,
          "Table 'item': initializer must be callable, got 0.5",
      ),
      (
          "optimizer",
          dict(optimizer="sgd"),
          TypeError,
          "optimizer must be of type OptimizerSpec, got 'sgd'",
      ),
      (
          "quantization",
          dict(quantization_config=(0, 1, 2)),
          TypeError,
          "quantization_config must be of type QuantizationConfig, got",
      ),
  )
  def test_invalid_field_raises(self, changes, error, message):
    with self.assertRaisesRegex(error, message):
      _table(**changes)
    # Also when it is set later.
    table = _table()
    ((field, value),) = changes.items()
    with self.assertRaisesRegex(error, message):
      setattr(table, field, value)
    self.assertEqual(table, _table())

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
      dict(dtype="bfloat16"),
      dict(placement="tensorcore"),
      dict(
          quantization_config=embedding_spec.QuantizationConfig(
              min_value=0, max_value=1, num_buckets=2
          )
      ),
  )
  def test_every_field_takes_part_in_equality(self, **change):
    self.assertNotEqual(_table(**change), _table())

  @parameterized.parameters("bfloat16", jnp.bfloat16, jnp.dtype("bfloat16"))
  def test_dtype_may_be_given_in_any_form(self, dtype):
    self.assertEqual(_table(dtype=dtype), _table(dtype="bfloat16"))
    self.assertEqual(_table(dtype=dtype).dtype, jnp.bfloat16)

  def test_plan_takes_no_part_in_equality(self):
    table = _table()
    table.stacked_table_spec = _stack()
    self.assertEqual(table, _table())
    self.assertEqual(hash(table), hash(_table()))

  def test_default_initializer_makes_rows_of_length_one(self):
    rows = _table().initializer(jax.random.key(0), (4000, 64))
    np.testing.assert_allclose(np.std(rows), 1 / math.sqrt(64), rtol=0.01)

  @parameterized.parameters(None, "float32", "bfloat16")
  def test_default_initializer_has_the_numbers_of_jax(self, dtype):
    plain = jax.nn.initializers.variance_scaling(
        1.0, "fan_out", "truncated_normal"
    )
    for shape in ((100, 16), (1, 7), (33, 128)):
      arguments = jax.random.key(3), shape, dtype
      rows = _table().initializer(*arguments)
      np.testing.assert_array_equal(rows, plain(*arguments))
      self.assertEqual(rows.dtype, plain(*arguments).dtype)

  def test_can_be_handed_to_another_process(self):
    for stack in (None, _stack()):
      table = _table()
      if stack is not None:
        table.stacked_table_spec = stack
      specs = {"f": _feature(table_spec=table), "g": _feature(table_spec=table)}
      copies = pickle.loads(pickle.dumps(specs))
      self.assertEqual(copies, specs)
      self.assertEqual(repr(copies), repr(specs))
      self.assertIs(copies["f"].table_spec, copies["g"].table_spec)

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
    unstacked = dataclasses.replace(
        table,
        embedding_dim=8,
        _stacked_table_spec=None,
        _setting_in_stack=None,
    )
    self.assertFalse(unstacked.is_stacked())
    self.assertEqual(unstacked.setting_in_stack.padded_embedding_dim, 8)

  def test_setting_does_not_follow_later_changes(self):
    table = _table()
    table.vocabulary_size = 20
    self.assertEqual(table.setting_in_stack.padded_vocab_size, 10)

  def test_given_setting_is_kept(self):
    setting = embedding_spec.TableSettingInStack(
        stack_name="s", padded_vocab_size=16, padded_embedding_dim=8
    )
    self.assertIs(_table(_setting_in_stack=setting).setting_in_stack, setting)

  def test_missing_setting_raises(self):
    table = _table()
    table.setting_in_stack = None
    with self.assertRaisesRegex(AssertionError, "item has no setting_in_stack"):
      _ = table.setting_in_stack

  @parameterized.named_parameters(
      ("copy", copy.copy),
      ("deepcopy", copy.deepcopy),
      ("pickle", lambda table: pickle.loads(pickle.dumps(table))),
      ("replace", dataclasses.replace),
  )
  def test_copies_keep_the_plan(self, copied):
    # This initializer can be pickled; the default is a closure.
    table = _table(initializer=jax.nn.initializers.zeros)
    table.stacked_table_spec = _stack()
    table.setting_in_stack = dataclasses.replace(
        table.setting_in_stack, stack_name="item_user"
    )
    result = copied(table)
    self.assertEqual(result, table)
    self.assertEqual(result.stacked_table_spec, _stack())
    self.assertEqual(result.setting_in_stack, table.setting_in_stack)
    with self.assertRaisesRegex(AttributeError, "'item' is stacked"):
      result.name = "user"

  def test_initialized_takes_no_part_in_constructor_equality_and_repr(self):
    with self.assertRaisesRegex(TypeError, "_initialized"):
      _table(_initialized=True)
    self.assertTrue(_table()._initialized)
    self.assertNotIn("_initialized", repr(_table()))


class FeatureSpecTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(name="g"),
      dict(table_spec=_table(name="user")),
      dict(input_shape=(16, 2)),
      dict(output_shape=(16, 3)),
      dict(out_of_range_ids="drop"),
      dict(non_finite_weights="keep"),
  )
  def test_every_field_takes_part_in_equality(self, **change):
    self.assertNotEqual(_feature(**change), _feature())
    self.assertEqual(_feature(**change), _feature(**change))
    self.assertEqual(hash(_feature(**change)), hash(_feature(**change)))

  @parameterized.parameters(
      (dict(name=""), ValueError, "Feature: name must not be empty"),
      (dict(name=None), TypeError, "Feature: name must be a str, got None"),
      (
          dict(input_shape=()),
          ValueError,
          r"'f': input_shape must be \(batch, ids per sample\) or \(batch,\)",
      ),
      (dict(input_shape="16"), TypeError, "must be a tuple of integers"),
      (dict(input_shape=16), TypeError, "must be a tuple of integers, got 16"),
      (
          dict(input_shape=(16, 0)),
          ValueError,
          "every entry of input_shape must be positive, got 0",
      ),
      (
          dict(output_shape=(16, 4.0)),
          TypeError,
          "every entry of output_shape must be an integer, got 4.0",
      ),
      (dict(output_shape=(16,)), ValueError, r"must be \(batch, ..., embeddi"),
      (
          dict(output_shape=(None, None)),
          TypeError,
          "every entry of output_shape must be an integer, got None",
      ),
      (
          dict(out_of_range_ids="wrap"),
          ValueError,
          "'f': out_of_range_ids must be one of error, drop, clamp, modulo, got"
          " 'wrap'",
      ),
      (
          dict(non_finite_weights="modulo"),
          ValueError,
          "non_finite_weights must be one of error, drop, clamp, keep, got",
      ),
      (dict(table_spec="item"), TypeError, "must be of type TableSpec, got"),
  )
  def test_invalid_field_raises(self, changes, error, message):
    with self.assertRaisesRegex(error, message):
      _feature(**changes)
    feature = _feature()
    ((field, value),) = changes.items()
    with self.assertRaisesRegex(error, message):
      setattr(feature, field, value)
    self.assertEqual(feature, _feature())

  def test_outputs_wider_than_the_table_are_an_error(self):
    with self.assertRaisesRegex(
        ValueError,
        r"'f': output_shape \(16, 5\) is wider than the embedding_dim 4 of table"
        " 'item'. End output_shape with 4, or make the table wider.",
    ):
      _feature(output_shape=[16, 5])
    self.assertLen(_feature(output_shape=(16, 3)).output_shape, 2)

  def test_all_sizes_but_the_width_may_be_unknown(self):
    feature = _feature(input_shape=(None, None), output_shape=(None, None, 4))
    self.assertEqual(feature.output_shape, (None, None, 4))

  def test_shapes_are_kept_as_they_are_given(self):
    feature = _feature(input_shape=[16, 1])
    self.assertEqual(feature.input_shape, [16, 1])
    self.assertNotEqual(feature, _feature(input_shape=(16, 1)))
    with self.assertRaisesRegex(TypeError, "unhashable type: 'list'"):
      hash(feature)
    self.assertLen(_feature(input_shape=(16,)).input_shape, 1)
    self.assertLen(_feature(output_shape=(16, 5, 4)).output_shape, 3)

  def test_policies_are_strict_by_default(self):
    self.assertEqual(_feature().out_of_range_ids, "error")
    self.assertEqual(_feature().non_finite_weights, "error")

  def test_equality_and_hash_leave_out_the_plan(self):
    feature = _feature()
    feature.id_transformation = embedding_spec.FeatureIdTransformation(16)
    self.assertEqual(feature, _feature())
    self.assertEqual(hash(feature), hash(_feature()))
    self.assertNotEqual(feature, _feature(output_shape=(16, 3)))

  def test_unprepared_feature_has_no_transformation(self):
    with self.assertRaisesRegex(AssertionError, "Feature f has no id_trans"):
      _ = _feature().id_transformation


class StampsTest(absltest.TestCase):

  def test_each_time_an_attribute_is_set_has_stamps_of_its_own(self):
    stamps = []

    class Feature(embedding_spec.FeatureSpec):

      @property
      def color(self):
        return "red"

      @color.setter
      def color(self, unused_color):
        stamps.append(self._stamp)

    table = _table()
    feature = Feature(
        name="f", table_spec=table, input_shape=(8, 1), output_shape=(8, 4)
    )
    stamps.append(feature._stamp)
    feature.color = "blue"
    stamps.append(feature._stamp)
    self.assertLen(set(stamps), 3)
    before = table._stamp
    table.max_ids_per_partition = 7
    self.assertIsNot(table._stamp, before)
    before = feature._stamp
    feature.out_of_range_ids = "drop"
    self.assertIsNot(feature._stamp, before)
    before = feature._stamp
    del feature.out_of_range_ids
    self.assertIsNot(feature._stamp, before)

  def test_stamps_are_no_part_of_a_value(self):
    table = _table()
    self.assertEqual(table, dataclasses.replace(table))
    self.assertEqual(hash(table), hash(dataclasses.replace(table)))
    self.assertNotIn("stamp", repr(table))
    self.assertIs(copy.copy(table)._stamp, table._stamp)
    for other in (
        dataclasses.replace(table),
        copy.deepcopy(table),
        pickle.loads(pickle.dumps(table)),
    ):
      self.assertIsNot(other._stamp, table._stamp)
      self.assertEqual(other, table)


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
    # Thirteen fields; two of them are None, and two are no leaf.
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
      (1, 1, 1, "num_buckets must be at least 2, got 1"),
      (float("nan"), 1, 2, "min_value must be less"),
      (0, float("inf"), 2, "must be finite, got 0 and inf"),
      (float("-inf"), 0, 2, "must be finite, got -inf and 0"),
  )
  def test_invalid_raises(self, min_value, max_value, num_buckets, message):
    with self.assertRaisesRegex(ValueError, message):
      embedding_spec.QuantizationConfig(
          min_value=min_value, max_value=max_value, num_buckets=num_buckets
      )

  def test_levels_are_counted(self):
    with self.assertRaisesRegex(TypeError, "num_buckets must be an integer"):
      embedding_spec.QuantizationConfig(
          min_value=0, max_value=1, num_buckets=2.5
      )

  def test_is_frozen_and_has_no_other_attributes(self):
    config = embedding_spec.QuantizationConfig(
        min_value=0, max_value=1, num_buckets=2
    )
    with self.assertRaises(dataclasses.FrozenInstanceError):
      config.num_buckets = 3
    self.assertFalse(hasattr(config, "__dict__"))


class PlacementTest(absltest.TestCase):

  def test_transformation_is_a_value_with_positions(self):
    transformation = embedding_spec.FeatureIdTransformation(16, 64, 4)
    self.assertEqual(
        dataclasses.asdict(transformation),
        dict(row_offset=16, col_offset=64, col_shift=4),
    )
    self.assertEqual(
        embedding_spec.FeatureIdTransformation(),
        embedding_spec.FeatureIdTransformation(0, 0, 0),
    )
    self.assertLen({transformation, dataclasses.replace(transformation)}, 1)
    with self.assertRaises(dataclasses.FrozenInstanceError):
      transformation.row_offset = 0

  def test_setting_is_a_value_of_keywords(self):
    with self.assertRaises(TypeError):
      embedding_spec.TableSettingInStack("s", 16, 8)
    setting = embedding_spec.TableSettingInStack(
        stack_name="s", padded_vocab_size=16, padded_embedding_dim=8
    )
    self.assertEqual(setting.row_offset_in_shard, 0)
    self.assertEqual(setting.shard_rotation, 0)
    self.assertLen({setting, dataclasses.replace(setting)}, 1)
    # Not one of the promised fields.
    self.assertEqual(setting, dataclasses.replace(setting, num_shards=4))
    with self.assertRaises(dataclasses.FrozenInstanceError):
      setting.shard_rotation = 1


if __name__ == "__main__":
  absltest.main()
