# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import dataclasses
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared

_TOPOLOGY = dict(global_device_count=2, num_sc_per_device=4)


def _features():
  """Tables a: 33 x 6, b: 100 x 8, c: 20 x 5, each with one feature."""
  features = {}
  for name, rows, columns in (("a", 33, 6), ("b", 100, 8), ("c", 20, 5)):
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=rows,
        embedding_dim=columns,
        optimizer=embedding_spec.SGDOptimizerSpec(),
        max_ids_per_partition=32,
    )
    features[f"f{name}"] = embedding_spec.FeatureSpec(
        name=f"f{name}",
        table_spec=table,
        input_shape=(16, 1),
        output_shape=(16, columns),
    )
  return features


def _stack_names(features):
  return {
      name: feature.table_spec.stacked_table_spec.stack_name
      for name, feature in features.items()
      if feature.table_spec.is_stacked()
  }


class StackTablesTest(parameterized.TestCase):

  def test_stores_the_plan_on_the_named_tables(self):
    features = _features()
    _plan.stack_tables(
        features, ["c", "a"], **_TOPOLOGY, stack_name="s", rotation=1
    )
    self.assertEqual(_stack_names(features), {"fa": "s", "fc": "s"})
    self.assertEqual(
        features["fa"].table_spec.setting_in_stack,
        embedding_spec.TableSettingInStack(
            stack_name="s",
            padded_vocab_size=64,
            padded_embedding_dim=8,
            row_offset_in_shard=8,
            shard_rotation=1,
        ),
    )
    self.assertEqual(
        features["fa"].id_transformation,
        embedding_spec.FeatureIdTransformation(0, 64, 1),
    )
    self.assertEqual(features["fb"].table_spec.setting_in_stack.stack_name, "b")

  def test_passes_limits_and_records_the_activation_limit(self):
    features = _features()
    _plan.stack_tables(
        features,
        ["a", "b"],
        **_TOPOLOGY,
        stack_to_max_ids_per_partition=lambda name, samples: samples,
        stack_to_max_unique_ids_per_partition=lambda name, samples: 7,
        activation_mem_bytes_limit=99,
    )
    stack = features["fa"].table_spec.stacked_table_spec
    self.assertEqual(stack.max_ids_per_partition, 32)
    self.assertEqual(stack.max_unique_ids_per_partition, 7)
    self.assertEqual(stack.activation_mem_bytes_limit, 99)

  def test_tables_that_share_an_object_agree(self):
    features = _features()
    features["fb"].table_spec = features["fa"].table_spec
    _plan.stack_tables(features, ["a", "c"], **_TOPOLOGY)
    self.assertEqual(features["fb"].id_transformation.row_offset, 16)
    self.assertIs(
        features["fa"].table_spec.stacked_table_spec,
        features["fc"].table_spec.stacked_table_spec,
    )

  def test_logs_warnings(self):
    features = _features()
    features["fb"].table_spec.embedding_dim = 12
    with self.assertLogs(level="WARNING") as logs:
      _plan.stack_tables(features, ["a", "b"], **_TOPOLOGY)
    self.assertRegex("".join(logs.output), "adds 512 values")

  def test_can_refuse_padding(self):
    features = _features()
    features["fb"].table_spec.embedding_dim = 12
    with self.assertRaisesRegex(ValueError, "adds 512 values"):
      _plan.stack_tables(
          features, ["a", "b"], **_TOPOLOGY, fail_on_excess_padding=True
      )

  def test_changes_nothing_on_error(self):
    features = _features()
    _plan.stack_tables(features, ["a", "b"], **_TOPOLOGY)
    before = copy.deepcopy(features)
    with self.assertRaisesRegex(ValueError, "b is already stacked in .* a_b"):
      _plan.stack_tables(features, ["c", "b"], **_TOPOLOGY)
    self.assertEqual(repr(features), repr(before))


class AutoStackTablesTest(parameterized.TestCase):

  def test_stacks_all_and_can_be_repeated_for_singletons(self):
    features = _features()
    for _ in range(2):
      _plan.auto_stack_tables(
          features, **_TOPOLOGY, activation_mem_bytes_limit=0
      )
      self.assertEqual(
          _stack_names(features), {"fa": "a", "fb": "b", "fc": "c"}
      )

  def test_refuses_tables_that_are_stacked(self):
    features = _features()
    _plan.auto_stack_tables(features, **_TOPOLOGY)
    with self.assertRaisesRegex(ValueError, "already stacked"):
      _plan.auto_stack_tables(features, **_TOPOLOGY)

  def test_default_limit_is_two_mebibytes(self):
    features = _features()
    _plan.auto_stack_tables(features, **_TOPOLOGY)
    stack = features["fa"].table_spec.stacked_table_spec
    self.assertEqual(stack.stack_name, "a_b_c")
    self.assertEqual(stack.activation_mem_bytes_limit, 2 * 1024 * 1024)

  @mock.patch.dict(os.environ, JAX_TPU_EMBEDDING_NUM_SC_PER_DEVICE="3")
  def test_default_sparsecores_are_those_of_the_device(self):
    features = _features()
    _plan.auto_stack_tables(features, 2)
    setting = features["fa"].table_spec.setting_in_stack
    self.assertEqual(setting.padded_vocab_size, 48)  # 33 up to 8 * 2 * 3


class PrepareTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          dict(output_shape=(16, 7)),
          r"'fa': output_shape \(16, 7\) is wider than the embedding_dim 6",
      ),
      (
          dict(input_shape=(8, 1)),
          r"'fa': input_shape \(8, 1\) is of a batch of 8, and .* of one of 16",
      ),
      (dict(output_shape=(4, 4, 6), input_shape=(4, 4)), None),
      (dict(output_shape=(4, 4, 6), input_shape=(16, 1)), None),
      (dict(input_shape=(None, 1)), None),
  )
  def test_shapes_of_a_feature_must_agree(self, changes, message):
    specs = _features()
    for field, value in changes.items():
      setattr(specs["fa"], field, value)
    if message is None:
      _plan.prepare_feature_specs_for_training(specs, **_TOPOLOGY)
      return
    with self.assertRaisesRegex(ValueError, message):
      _plan.prepare_feature_specs_for_training(specs, **_TOPOLOGY)

  @parameterized.parameters(
      _prepared.get_table_specs,
      lambda specs: _plan.auto_stack_tables(specs, **_TOPOLOGY),
      lambda specs: _plan.prepare_feature_specs_for_training(
          specs, **_TOPOLOGY
      ),
  )
  def test_what_is_no_feature_raises(self, use):
    specs = _features()
    specs["fb"] = specs["fb"].table_spec
    with self.assertRaisesRegex(
        TypeError,
        r"feature_specs\['fb'\] must be a FeatureSpec, got TableSpec\(name='b'",
    ):
      use(specs)

  def test_prepares_only_what_is_not_stacked(self):
    features = _features()
    _plan.stack_tables(features, ["a", "b"], **_TOPOLOGY)
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    self.assertEqual(
        _stack_names(features), {"fa": "a_b", "fb": "a_b", "fc": "c"}
    )
    self.assertEqual(
        features["fc"].table_spec.stacked_table_spec.max_ids_per_partition, 32
    )

  def test_second_call_changes_nothing(self):
    features = _features()
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    before = copy.deepcopy(features)
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    self.assertEqual(repr(features), repr(before))

  def test_stacks_of_another_topology_raise(self):
    features = _features()
    _plan.stack_tables(features, ["a", "b"], 2, 2)
    with self.assertRaisesRegex(
        ValueError, "'a' was prepared for 4 SparseCores in all, .* with 8"
    ):
      _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    self.assertFalse(features["fc"].table_spec.is_stacked())

  @parameterized.parameters(
      (dict(vocabulary_size=65), "has vocabulary_size 65, and its plan 64"),
      (dict(combiner="mean"), "has combiner 'mean', but its stack 's' has 'su"),
      (
          dict(optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5)),
          "has optimizer SGDOptimizerSpec.learning_rate=0.5., but its stack",
      ),
      (dict(dtype="bfloat16"), "has dtype .*bfloat16.*, but its stack"),
      (dict(placement="tensorcore"), "has placement 'tensorcore', but its st"),
  )
  def test_copies_that_are_not_as_their_stack_raise(self, changes, message):
    features = _features()
    _plan.stack_tables(features, ["a", "b"], **_TOPOLOGY, stack_name="s")
    feature = features["fa"]
    table = dataclasses.replace(feature.table_spec)
    features["fa"] = dataclasses.replace(feature, table_spec=table)
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    table = dataclasses.replace(table, **changes)
    features["fa"] = dataclasses.replace(feature, table_spec=table)
    with self.assertRaisesRegex(ValueError, f"Table 'a' {message}"):
      _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)

  def test_batches_of_tables_with_more_rows_than_planned_raise(self):
    features = _features()
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    _prepared.check_prepared(list(features.values()), 8)
    table = dataclasses.replace(features["fa"].table_spec, vocabulary_size=65)
    features["fa"] = dataclasses.replace(features["fa"], table_spec=table)
    with self.assertRaisesRegex(ValueError, "'a' has vocabulary_size 65, and"):
      _prepared.check_prepared(list(features.values()), 8)

  def test_features_that_come_later_raise(self):
    features = _features()
    _plan.stack_tables(features, ["a", "b"], **_TOPOLOGY)
    features["late"] = dataclasses.replace(
        features["fa"], name="late", _id_transformation=None
    )
    with self.assertRaisesRegex(
        ValueError, "'late' was not there when its table 'a' was stacked"
    ):
      _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    self.assertFalse(features["fc"].table_spec.is_stacked())

  def test_copies_of_other_names_raise(self):
    features = _features()
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    feature = features["fa"]
    table = dataclasses.replace(feature.table_spec, name="copy")
    # By itself it has its place for itself.
    alone = dataclasses.replace(feature, table_spec=table)
    _plan.prepare_feature_specs_for_training(alone, **_TOPOLOGY)

    features["copy"] = dataclasses.replace(alone, name="fcopy")
    with self.assertRaisesRegex(
        ValueError, "Tables 'copy' and 'a' have the same rows of stack 'a', as"
    ):
      _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    features["copy"] = dataclasses.replace(feature, name="fcopy")
    with self.assertRaisesRegex(
        ValueError,
        "Features 'fcopy' and 'fa' have the same samples of stack 'a', .*'a'",
    ):
      _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)

    # As the messages say.
    of_none = dict(_stacked_table_spec=None, _setting_in_stack=None)
    features["copy"] = dataclasses.replace(
        feature,
        name="fcopy",
        _id_transformation=None,
        table_spec=dataclasses.replace(table, **of_none),
    )
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    self.assertEqual(_stack_names(features)["copy"], "copy")

  @mock.patch.dict(os.environ, JAX_TPU_EMBEDDING_NUM_SC_PER_DEVICE="3")
  def test_default_sparsecores_are_those_of_the_device(self):
    features = _features()
    _plan.prepare_feature_specs_for_training(features, 2)
    setting = features["fa"].table_spec.setting_in_stack
    self.assertEqual(setting.padded_vocab_size, 48)

  def test_table_of_a_forgotten_stack_raises(self):
    features = _features()
    _plan.stack_tables(features, ["a", "b"], **_TOPOLOGY)
    features["fa"].table_spec._stacked_table_spec = None
    with self.assertRaisesRegex(ValueError, "Invalid stacking: table a"):
      _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)


class GetSpecsTest(absltest.TestCase):

  def test_specs_by_name(self):
    features = _features()
    _plan.auto_stack_tables(features, **_TOPOLOGY)
    self.assertEqual(list(_prepared.get_table_specs(features)), ["a", "b", "c"])
    self.assertEqual(
        _prepared.get_stacked_table_specs(features),
        {"a_b_c": features["fa"].table_spec.stacked_table_spec},
    )

  def test_features_of_one_name_raise(self):
    features = _features()
    features["fb"].name = "fa"
    for get in (_prepared.get_table_specs, _prepared.get_stacked_table_specs):
      with self.assertRaisesRegex(
          ValueError, "Feature spec fa is already defined."
      ):
        get(features)

  def test_unprepared_specs_have_no_stacks(self):
    with self.assertRaisesRegex(
        ValueError, "prepare_feature_specs_for_training was not called"
    ):
      _prepared.get_stacked_table_specs(_features())


if __name__ == "__main__":
  absltest.main()
