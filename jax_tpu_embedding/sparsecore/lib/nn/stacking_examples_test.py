# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Worked examples of stacking, through the public API, one row each."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan

_QUANTIZATION = embedding_spec.QuantizationConfig(
    min_value=-1.0, max_value=1.0, num_buckets=256
)


def _table(name, rows, columns, learning_rate=0.1, **kwargs):
  return embedding_spec.TableSpec(
      name=name,
      vocabulary_size=rows,
      embedding_dim=columns,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate),
      **kwargs,
  )


def _feature(name, table, batch):
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=(batch, 1),
      output_shape=(batch, table.embedding_dim),
  )


def _abc():
  """Tables a: 33 x 6, b: 100 x 8, c: 20 x 5; batches of 16, 16 and 32."""
  return {
      "fa": _feature("fa", _table("a", 33, 6), 16),
      "fb": _feature("fb", _table("b", 100, 8), 16),
      "fc": _feature("fc", _table("c", 20, 5), 32),
  }


def _settings(features):
  """Table name -> padded rows, row_offset_in_shard, rotation."""
  return {
      f.table_spec.name: (
          f.table_spec.setting_in_stack.padded_vocab_size,
          f.table_spec.setting_in_stack.row_offset_in_shard,
          f.table_spec.setting_in_stack.shard_rotation,
      )
      for f in features.values()
      if f.table_spec.is_stacked()
  }


def _transformations(features):
  """Feature name -> row_offset, col_offset, col_shift."""
  return {
      f.name: (
          f.id_transformation.row_offset,
          f.id_transformation.col_offset,
          f.id_transformation.col_shift,
      )
      for f in features.values()
      if f.table_spec.is_stacked()
  }


def _stacks(features):
  """Stack name -> rows, columns, samples, limits."""
  return {
      name: (
          stack.stack_vocab_size,
          stack.stack_embedding_dim,
          stack.total_sample_count,
          stack.max_ids_per_partition,
          stack.max_unique_ids_per_partition,
      )
      for feature in features.values()
      if feature.table_spec.is_stacked()
      for stack in (feature.table_spec.stacked_table_spec,)
      for name in (stack.stack_name,)
  }


class StackTablesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      dict(
          testcase_name="in_the_order_of_features",
          names=["a", "b", "c"],
          settings={"a": (64, 0, 0), "b": (128, 8, 4), "c": (64, 24, 0)},
          transformations={
              "fa": (0, 0, 0),
              "fb": (16, 64, 4),
              "fc": (32, 192, 0),
          },
          stacks={"a_b_c": (256, 8, 64, 256, 256)},
      ),
      dict(
          testcase_name="in_another_order",
          names=["c", "a", "b"],
          settings={"a": (64, 8, 4), "b": (128, 16, 0), "c": (64, 0, 0)},
          transformations={
              "fa": (0, 64, 4),
              "fb": (16, 128, 0),
              "fc": (32, 0, 0),
          },
          stacks={"c_a_b": (256, 8, 64, 256, 256)},
      ),
      dict(
          testcase_name="rotation_1",
          names=["a", "b", "c"],
          rotation=1,
          settings={"a": (64, 0, 0), "b": (128, 8, 1), "c": (64, 24, 2)},
          transformations={
              "fa": (0, 0, 0),
              "fb": (16, 64, 1),
              "fc": (32, 192, 2),
          },
          stacks={"a_b_c": (256, 8, 64, 256, 256)},
      ),
      dict(
          testcase_name="rotation_0",
          names=["a", "b", "c"],
          rotation=0,
          settings={"a": (64, 0, 0), "b": (128, 8, 0), "c": (64, 24, 0)},
          transformations={
              "fa": (0, 0, 0),
              "fb": (16, 64, 0),
              "fc": (32, 192, 0),
          },
          stacks={"a_b_c": (256, 8, 64, 256, 256)},
      ),
      dict(
          testcase_name="rotation_3",
          names=["a", "b", "c"],
          rotation=3,
          settings={"a": (64, 0, 0), "b": (128, 8, 3), "c": (64, 24, 6)},
          transformations={
              "fa": (0, 0, 0),
              "fb": (16, 64, 3),
              "fc": (32, 192, 6),
          },
          stacks={"a_b_c": (256, 8, 64, 256, 256)},
      ),
      dict(
          testcase_name="two_of_three",
          names=["a", "b"],
          settings={"a": (64, 0, 0), "b": (128, 8, 4)},
          transformations={"fa": (0, 0, 0), "fb": (16, 64, 4)},
          stacks={"a_b": (192, 8, 32, 256, 256)},
      ),
      dict(
          testcase_name="one",
          names=["a"],
          settings={"a": (64, 0, 0)},
          transformations={"fa": (0, 0, 0)},
          stacks={"a": (64, 8, 16, 256, 256)},
      ),
  )
  def test_places_tables_and_features(
      self, names, settings, transformations, stacks, rotation=None
  ):
    features = _abc()
    table_stacking.stack_tables(features, names, 2, 4, rotation)
    self.assertEqual(_settings(features), settings)
    self.assertEqual(_transformations(features), transformations)
    self.assertEqual(_stacks(features), stacks)

  def test_other_tables_are_left_alone(self):
    features = _abc()
    table_stacking.stack_tables(features, ["a", "b"], 2, 4)
    setting = features["fc"].table_spec.setting_in_stack
    self.assertEqual(
        (setting.padded_vocab_size, setting.padded_embedding_dim), (20, 5)
    )
    with self.assertRaisesRegex(AssertionError, "fc has no id_transformation"):
      _ = features["fc"].id_transformation

  def test_limits_are_asked_once_with_the_samples_of_the_stack(self):
    asked = []

    def limit(factor):
      def get(name, samples):
        asked.append((name, samples))
        return factor * samples

      return get

    features = _abc()
    table_stacking.stack_tables(
        features, ["a", "b", "c"], 2, 4, None, limit(2), limit(1)
    )
    self.assertEqual(asked, [("a_b_c", 64)] * 2)
    self.assertEqual(_stacks(features), {"a_b_c": (256, 8, 64, 128, 64)})

  def test_tables_are_padded_to_the_widest(self):
    features = [
        _feature("f", _table("t", 33, 6), 16),
        _feature("g", _table("u", 100, 12), 16),
    ]
    with self.assertRaisesRegex(ValueError, "adds 512 values"):
      table_stacking.stack_tables(
          features, ["t", "u"], 2, 4, fail_on_excess_padding=True
      )
    table_stacking.stack_tables(features, ["t", "u"], 2, 4)
    for feature in features:
      self.assertEqual(
          feature.table_spec.setting_in_stack.padded_embedding_dim, 16
      )

  @parameterized.parameters(
      (False, {"f1": 16, "f2": 0, "f3": 48}),
      (True, {"f1": 0, "f2": 32, "f3": 48}),
  )
  def test_features_that_share_a_table(self, is_dict, row_offsets):
    a, b = _table("a", 33, 8), _table("b", 33, 8)
    features = [
        _feature("f2", a, 16),
        _feature("f1", a, 32),
        _feature("f3", b, 16),
    ]
    tree = {f.name: f for f in features} if is_dict else features
    table_stacking.stack_tables(tree, ["b", "a"], 2, 2)
    self.assertEqual(
        {f.name: f.id_transformation.row_offset for f in features}, row_offsets
    )
    self.assertEqual(a.setting_in_stack.row_offset_in_shard, 16)
    self.assertEqual(features[0].id_transformation.col_offset, 64)

  def test_any_topology(self):
    features = _abc()
    table_stacking.stack_tables(features, ["a", "b", "c"], 3, 5)
    # 15 shards: multiples of 120 rows, of which each shard has 8.
    self.assertEqual(
        _settings(features),
        {"a": (120, 0, 0), "b": (120, 8, 5), "c": (120, 16, 10)},
    )
    self.assertEqual(
        _transformations(features),
        {"fa": (0, 0, 0), "fb": (16, 120, 5), "fc": (32, 240, 10)},
    )


class AutoStackTablesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("dict_with_sorted_keys", dict(fc="c", fa="a", fb="b"), ["a_b_c"]),
      ("list", ["c", "a", "b"], ["c_a_b"]),
      ("dict_whose_keys_are_no_tables", dict(z="a", m="c", b="b"), ["b_c_a"]),
  )
  def test_order(self, names, expected):
    make = lambda name: _feature(f"f{name}", _table(name, 33, 8), 16)
    if isinstance(names, dict):
      features = {key: make(name) for key, name in names.items()}
      leaves = list(features.values())
    else:
      features = leaves = [make(name) for name in names]
    table_stacking.auto_stack_tables(features, 2, 4)
    stacks = table_stacking.get_table_stacks([f.table_spec for f in leaves])
    self.assertEqual(list(stacks), expected)

  def test_groups(self):
    features = [
        _feature(f"f{table.name}", table, 16)
        for table in (
            _table("t1", 33, 8),
            _table("t2", 33, 16),
            _table("t3", 33, 8, learning_rate=0.5),
            _table("t4", 33, 8, combiner="mean"),
            _table("t5", 33, 7),
            _table("t6", 33, 8, quantization_config=_QUANTIZATION),
            _table("t7", 33, 1, quantization_config=_QUANTIZATION),
        )
    ]
    table_stacking.auto_stack_tables(features, 2, 4)
    stacks = table_stacking.get_table_stacks([f.table_spec for f in features])
    self.assertEqual(list(stacks), ["t1_t5", "t2", "t3", "t4", "t6_t7"])

  @parameterized.parameters(
      # Eight samples per SparseCore of 8 floats are 256 bytes.
      ([64] * 5, 512, ["t0_t1", "t2_t3", "t4"]),
      ([64, 128, 64, 128], 768, ["t0_t1", "t2_t3"]),
      ([64, 64], 0, ["t0", "t1"]),
  )
  def test_splits_at_the_limit_of_activation_memory(
      self, batches, limit, expected
  ):
    features = [
        _feature(f"f{i}", _table(f"t{i}", 33, 6), batch)
        for i, batch in enumerate(batches)
    ]
    table_stacking.auto_stack_tables(
        features, 2, 4, activation_mem_bytes_limit=limit
    )
    stacks = table_stacking.get_table_stacks([f.table_spec for f in features])
    self.assertEqual(list(stacks), expected)


class PrepareTest(absltest.TestCase):

  def test_features_of_a_table_are_in_the_order_of_their_names(self):
    t0 = _table(
        "t0",
        33,
        6,
        max_ids_per_partition=33,
        suggested_coo_buffer_size_per_device=640,
    )
    features = {
        "x": _feature("fb", t0, 16),
        "y": _feature("fa", t0, 32),
        "z": _feature("fc", _table("t1", 10, 12), 16),
    }
    _plan.prepare_feature_specs_for_training(features, 2, 4)
    self.assertEqual(
        _stacks(features),
        {"t0": (64, 8, 48, 33, 256), "t1": (64, 16, 16, 256, 256)},
    )
    self.assertEqual(
        t0.stacked_table_spec.suggested_coo_buffer_size_per_device, 640
    )
    self.assertEqual(
        _transformations(features),
        {"fa": (0, 0, 0), "fb": (32, 0, 0), "fc": (0, 0, 0)},
    )


if __name__ == "__main__":
  absltest.main()
