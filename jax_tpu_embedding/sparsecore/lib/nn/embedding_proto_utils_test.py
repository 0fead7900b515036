# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
from google.protobuf import text_format
import hypothesis
from hypothesis import strategies as st
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2
import optax

_FIRST_VERSION = (
    pathlib.Path(__file__).parent
    / "testdata"
    / "embedding_spec_first_version.textproto"
)
_to_proto = embedding_proto_utils.create_proto_from_feature_specs
_from_proto = embedding_proto_utils.feature_specs_from_proto
_zeros = jax.nn.initializers.zeros


def _first_version():
  return text_format.Parse(
      _FIRST_VERSION.read_text(), embedding_spec_pb2.EmbeddingSpecProto()
  )


def _table(name, **changes):
  return embedding_spec.TableSpec(
      **dict(
          name=name,
          vocabulary_size=10,
          embedding_dim=2,
          optimizer=embedding_spec.SGDOptimizerSpec(),
          initializer=_zeros,
      )
      | changes
  )


def _feature(name, table, **changes):
  return embedding_spec.FeatureSpec(
      **dict(
          name=name,
          table_spec=table,
          input_shape=(16, 1),
          output_shape=(16, table.embedding_dim),
      )
      | changes
  )


def _example():
  """The features of the message of the first version."""
  features = [
      _feature("fa", _table("a")),
      _feature("fb", _table("b", vocabulary_size=17, embedding_dim=3)),
  ]
  table_stacking.stack_tables(features, ["a", "b"], 1, 2)
  return features


def _everything(feature):
  """A feature with its plan, which equality leaves out."""
  table = feature.table_spec
  return (
      feature,
      feature.id_transformation,
      table.setting_in_stack,
      table.setting_in_stack.num_shards,
      table.stacked_table_spec,
  )


_numbers = st.integers(1, 300)


@st.composite
def _feature_specs(draw):
  """Prepared features in a tree, their counts of devices and SparseCores."""
  quantizations = st.builds(
      lambda low, span, n: embedding_spec.QuantizationConfig(
          min_value=low, max_value=low + span, num_buckets=n
      ),
      st.floats(-8, 8),
      st.floats(0.125, 8),
      st.integers(2, 512),
  )
  rates = st.floats(0.0625, 1)
  tables = [
      _table(
          f"t{i}",
          vocabulary_size=draw(_numbers),
          embedding_dim=draw(st.integers(1, 20)),
          combiner=draw(st.sampled_from(["sum", "mean", "sqrtn"])),
          optimizer=draw(
              st.one_of(
                  st.builds(embedding_spec.LaPropOptimizerSpec, rates),
                  st.builds(embedding_spec.AdagradOptimizerSpec, rates, rates),
              )
          ),
          max_ids_per_partition=draw(_numbers),
          max_unique_ids_per_partition=draw(_numbers),
          suggested_coo_buffer_size_per_device=draw(st.none() | _numbers),
          quantization_config=draw(st.none() | quantizations),
          dtype=draw(st.sampled_from(["float32", "bfloat16", "float16"])),
          placement=draw(st.sampled_from(["sparsecore", "tensorcore"])),
      )
      for i in range(draw(st.integers(1, 4)))
  ]
  features = []
  for i in range(draw(st.integers(1, 6))):
    table = draw(st.sampled_from(tables))
    batch = 8 * draw(st.integers(1, 4))
    features.append(
        _feature(
            f"f{i}",
            table,
            input_shape=draw(st.sampled_from([(batch,), (batch, 3)])),
            output_shape=draw(
                st.sampled_from(
                    [
                        (batch, table.embedding_dim),
                        (batch, 5, table.embedding_dim),
                    ]
                )
            ),
            out_of_range_ids=draw(st.sampled_from(["error", "drop", "modulo"])),
            non_finite_weights=draw(st.sampled_from(["error", "keep"])),
        )
    )
  topology = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (3, 2)]))
  if draw(st.booleans()):
    limits = lambda name, batch: 7 + batch
    _plan.auto_stack_tables(
        features, *topology, limits, activation_mem_bytes_limit=draw(_numbers)
    )
  _plan.prepare_feature_specs_for_training(features, *topology)
  if draw(st.booleans()):
    stack = features[0].table_spec.stacked_table_spec
    for feature in features:
      if feature.table_spec.stacked_table_spec == stack:
        feature.table_spec.stacked_table_spec = stack.replace(
            suggested_coo_buffer_size_per_device=640
        )
  return features, topology


class RoundTripTest(parameterized.TestCase):

  @hypothesis.settings(
      derandomize=True, deadline=None, database=None, max_examples=60
  )
  @hypothesis.given(_feature_specs())
  def test_specs_to_proto_to_specs_loses_nothing(self, case):
    features, topology = case
    message = _to_proto(features, *topology)
    restored = _from_proto(
        type(message).FromString(message.SerializeToString()),
        initializers={f.table_spec.name: _zeros for f in features},
    )
    self.assertEqual(
        list(map(_everything, restored)), list(map(_everything, features))
    )
    self.assertEqual(_to_proto(restored, *topology), message)

  def test_features_of_one_table_share_its_spec(self):
    table = _table("t")
    features = [_feature("f", table), _feature("g", table)]
    _plan.prepare_feature_specs_for_training(features, 1, 2)
    f, g = _from_proto(_to_proto(features, 1, 2))
    self.assertIs(f.table_spec, g.table_spec)

  def test_programs_run_only_if_the_reader_trusts_the_message(self):
    optimizer = embedding_spec.CustomOptimizerSpec(stablehlo="module {}")
    features = [_feature("f", _table("t", optimizer=optimizer))]
    _plan.prepare_feature_specs_for_training(features, 1, 2)
    message = _to_proto(features, 1, 2)
    (trusted,) = _from_proto(message, trust_programs=True)
    self.assertEqual(trusted.table_spec.optimizer, optimizer)
    (untrusted,) = _from_proto(message)
    self.assertEqual(
        untrusted.table_spec.setting_in_stack,
        trusted.table_spec.setting_in_stack,
    )
    with self.assertRaisesRegex(ValueError, "trust_programs=True"):
      untrusted.table_spec.stacked_table_spec.optimizer.get_static_params()

  def test_order_of_features_across_tables(self):
    a, b = _table("a"), _table("b")
    features = [_feature("z", a), _feature("y", b), _feature("x", a)]
    _plan.prepare_feature_specs_for_training(features, 1, 2)
    message = _to_proto(features, 1, 2)
    self.assertEqual([f.name for f in _from_proto(message)], ["z", "y", "x"])

  def test_custom_stack_name(self):
    features = [_feature("f", _table("a")), _feature("g", _table("b"))]
    table_stacking.stack_tables(features, ["b", "a"], 2, 2, stack_name="mine")
    restored = _from_proto(
        _to_proto(features, 2, 2), initializers={"a": _zeros, "b": _zeros}
    )
    self.assertEqual(
        list(map(_everything, restored)), list(map(_everything, features))
    )

  def test_distinct_schedules_stay_distinct(self):
    schedules = [lambda step: 0.1, lambda step: 0.1]
    schedules += [optax.linear_schedule(x, 0.0, 9) for x in (1.0, 2.0)]
    features = [
        _feature(
            f"f{i}",
            _table(f"t{i}", optimizer=embedding_spec.SGDOptimizerSpec(rate)),
        )
        for i, rate in enumerate(schedules)
    ]
    _plan.prepare_feature_specs_for_training(features, 1, 1)
    message = _to_proto(features, 1, 1)
    tags = [
        table.optimizer.learning_rate_tag
        for stack in message.stacked_table_specs
        for table in stack.table_specs
    ]
    self.assertLen(set(tags), 4)
    restored = _from_proto(message, callables=dict(zip(tags, schedules)))
    self.assertEqual(
        [f.table_spec.optimizer.learning_rate for f in restored], schedules
    )

  def test_initializers_default_to_that_of_the_spec(self):
    feature, _ = _from_proto(_first_version(), initializers={"b": _zeros})
    self.assertEqual(
        feature.table_spec,
        embedding_spec.TableSpec(
            name="a",
            vocabulary_size=10,
            embedding_dim=2,
            optimizer=embedding_spec.SGDOptimizerSpec(),
        ),
    )


class FirstVersionTest(absltest.TestCase):

  def test_reads_as_what_it_meant(self):
    restored = _from_proto(
        _first_version(), initializers={"a": _zeros, "b": _zeros}
    )
    self.assertEqual(
        list(map(_everything, restored)), list(map(_everything, _example()))
    )

  def test_specs_that_it_could_hold_are_written_as_before(self):
    self.assertEqual(_to_proto(_example(), 1, 2), _first_version())

  def test_tables_by_name(self):
    tables = embedding_proto_utils.table_specs_from_proto(_first_version())
    self.assertEqual(list(tables), ["a", "b"])
    self.assertEqual(tables["b"].setting_in_stack.row_offset_in_shard, 8)

  def test_without_activation_limit_reads_the_default(self):
    message = _first_version()
    message.stacked_table_specs[0].ClearField("activation_mem_bytes_limit")
    feature, _ = _from_proto(message)
    self.assertEqual(
        feature.table_spec.stacked_table_spec.activation_mem_bytes_limit,
        embedding_spec.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT,
    )


class CreateProtoTest(absltest.TestCase):

  def test_tables_are_in_the_order_of_features(self):
    features = [_feature("f1", _table("b")), _feature("f2", _table("a"))]
    table_stacking.stack_tables(features, ["a", "b"], 1, 2)
    (stack,) = _to_proto(features, 1, 2).stacked_table_specs
    self.assertEqual([t.table_name for t in stack.table_specs], ["b", "a"])
    self.assertEqual([t.row_offset_in_shard for t in stack.table_specs], [8, 0])

  def test_counts_default_to_those_of_jax(self):
    features = [_feature("f", _table("t"))]
    _plan.prepare_feature_specs_for_training(features, 1, 1)
    proto = _to_proto(features, None)
    self.assertEqual(proto.stacked_table_specs[0].num_sparsecores, 1)

  def test_unprepared_specs_raise(self):
    with self.assertRaisesRegex(AssertionError, "Table t is not stacked"):
      _to_proto([_feature("f", _table("t"))], 1, 2)

  def test_other_number_of_sparsecores_raises(self):
    with self.assertRaisesRegex(
        ValueError, "'a' was prepared for 2 SparseCores in all, not for 8"
    ):
      _to_proto(_example(), 4, 2)

  def test_features_of_one_name_raise(self):
    features = _example()
    features[1].name = "fa"
    with self.assertRaisesRegex(ValueError, "fa is already defined"):
      _to_proto(features, 1, 2)

  def test_tables_of_one_name_that_differ_raise(self):
    features = [
        *_example(),
        _feature("fc", _table("a", vocabulary_size=11)),
    ]
    table = features[0].table_spec
    features[2].table_spec.stacked_table_spec = table.stacked_table_spec
    features[2].table_spec.setting_in_stack = table.setting_in_stack
    features[2].id_transformation = features[0].id_transformation
    with self.assertRaisesRegex(
        ValueError, "(?s)Table 'a' has two specs that differ.*size: 11"
    ):
      _to_proto(features, 1, 2)

  def test_stacks_of_one_name_that_differ_raise(self):
    features = _example()
    table = features[1].table_spec
    table.stacked_table_spec = table.stacked_table_spec.replace(
        max_ids_per_partition=7
    )
    with self.assertRaisesRegex(ValueError, "Stack 'a_b' has two specs that"):
      _to_proto(features, 1, 2)

  def test_table_that_differs_from_its_stack_raises(self):
    features = _example()
    for feature in features:
      table = feature.table_spec
      table.stacked_table_spec = table.stacked_table_spec.replace(
          combiner="mean"
      )
    with self.assertRaisesRegex(
        ValueError, "'a' has combiner 'sum', but its stack 'a_b' has 'mean'"
    ):
      _to_proto(features, 1, 2)


class FeatureSpecsFromProtoTest(parameterized.TestCase):

  def test_unknown_tables_raise(self):
    with self.assertRaisesRegex(
        ValueError, r"tables \['c'\], .* It has \['a', 'b'\]"
    ):
      _from_proto(_first_version(), initializers={"a": _zeros, "c": _zeros})

  @parameterized.named_parameters(
      ("vocabulary", "vocab_size: 10", "", "vocabulary_size must be positive"),
      ("combiner", 'combiner: "sum"', 'combiner: "max"', "must be one of sum"),
      ("table", 'table_name: "b"', 'table_name: "a"', "has two tables 'a'"),
      ("feature", '_name: "fb"', '_name: "fa"', "has two features 'fa'"),
      (
          "policy",
          "row_offset: 16",
          'row_offset: 16 out_of_range_ids: "wrap"',
          "out_of_range_ids must be one of error, drop",
      ),
      (
          "sparsecores",
          "num_sparsecores: 2",
          "",
          r"Stack 'a_b': num_sparsecores must be in \[1, 268435455\], got 0",
      ),
      (
          "more_sparsecores",
          "num_sparsecores: 2",
          "num_sparsecores: 3",
          "'a' in stack 'a_b': its 10 rows are padded to 16, .* for 3 shards",
      ),
      (
          "fewer_sparsecores",
          "num_sparsecores: 2",
          "num_sparsecores: 1",
          "'b' in stack 'a_b': starts at row 8 of each shard, where table 'a'",
      ),
      ("stack_rows", "size: 48", "size: 46", "'b' in stack 'a_b': ends at row"),
      ("stack_rows_odd", "size: 48", "size: 47", "stack_vocab_size is 47"),
      ("no_stack_rows", "size: 48", "size: -48", "stack_vocab_size must be in"),
      ("samples", "_count: 32", "_count: 31", "'fb' .* end at 32, .* is 31"),
      ("no_samples", "_count: 32", "_count: -1", "total_sample_count must be"),
      (
          "ids",
          "max_ids_per_partition: 256",
          "max_ids_per_partition: 0",
          "'a_b': max_ids_per_partition must be in .* got 0",
      ),
      (
          "unique_ids",
          "max_unique_ids_per_partition: 256",
          "max_unique_ids_per_partition: -7",
          "'a_b': max_unique_ids_per_partition must be in .* got -7",
      ),
      (
          "activation",
          "limit: 2097152",
          "limit: -1",
          "'a_b': activation_mem_bytes_limit must be in .* got -1",
      ),
      (
          "buffer",
          "limit: 2097152",
          "limit: 1 suggested_coo_buffer_size_per_device: 0",
          "'a_b': suggested_coo_buffer_size_per_device must be in .* got 0",
      ),
      (
          "rows",
          "padded_vocab_size: 16",
          "padded_vocab_size: 12",
          "Table 'a': padded_vocab_size must be a multiple of 16, got 12",
      ),
      (
          "columns",
          "stack_embedding_dim: 8",
          "stack_embedding_dim: 16",
          "padded_embedding_dim is 8, and the stack_embedding_dim 16",
      ),
      (
          "all_columns",
          "embedding_dim: 8",
          "embedding_dim: 12",
          "'a_b': stack_embedding_dim must be a multiple of 8, got 12",
      ),
      (
          "overlap",
          "row_offset_in_shard: 8",
          "row_offset_in_shard: 7",
          "starts at row 7 of each shard, where table 'a' is",
      ),
      (
          "before_the_stack",
          "row_offset_in_shard: 8",
          "row_offset_in_shard: -8",
          "row_offset_in_shard must not be negative, got -8",
      ),
      (
          "rotation",
          "row_offset_in_shard: 8",
          "row_offset_in_shard: 8 shard_rotation: 2",
          r"shard_rotation must be in \[0, 2\).* got 2",
      ),
      ("offset", "col_offset: 16", "col_offset: 8", "'fb' .* must be 16, .* 8"),
      (
          "shift",
          "col_offset: 16",
          "col_offset: 16 col_shift: 1",
          "'fb' of table 'b': col_shift must be 0, .* got 1",
      ),
      (
          "placement",
          "row_offset_in_shard: 8",
          'row_offset_in_shard: 8 placement: "tensorcore"',
          "Table 'b': its placement is 'tensorcore', and stack 'a_b' has 2"
          " num_sparsecores and 2 tables, expected 1 of each",
      ),
      (
          "unknown_placement",
          "row_offset_in_shard: 8",
          'row_offset_in_shard: 8 placement: "host"',
          "Table 'b': placement must be one of sparsecore, tensorcore",
      ),
      (
          "same_samples",
          "row_offset: 16",
          "row_offset: 15",
          "'fb' .* samples of other features,.* got 15",
      ),
  )
  def test_invalid_messages_raise(self, old, new, message):
    text = _FIRST_VERSION.read_text()
    self.assertIn(old, text)
    proto = text_format.Parse(
        text.replace(old, new), embedding_spec_pb2.EmbeddingSpecProto()
    )
    with self.assertRaisesRegex(ValueError, message):
      _from_proto(proto)

  def test_stacks_of_one_name_raise(self):
    message = _first_version()
    stack = message.stacked_table_specs.add()
    stack.CopyFrom(message.stacked_table_specs[0])
    stack.ClearField("table_specs")
    with self.assertRaisesRegex(ValueError, "has two stacks 'a_b'"):
      _from_proto(message)


if __name__ == "__main__":
  absltest.main()
