# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
from google.protobuf import text_format
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import _plan
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2
import numpy as np

_Proto = embedding_spec_pb2.OptimizerSpecProto


class Custom(embedding_spec.SGDOptimizerSpec):
  """An optimizer that the wire format does not know."""


class Tagged:
  tag = "warm-up"

  def __call__(self, step):
    return step


def schedule(step):
  return step


class OptimizerProtoTest(parameterized.TestCase):

  @parameterized.parameters(
      (embedding_spec.SGDOptimizerSpec, _Proto.SGD),
      (embedding_spec.AdagradOptimizerSpec, _Proto.ADAGRAD),
      (embedding_spec.AdamOptimizerSpec, _Proto.ADAM),
  )
  def test_types_of_classes(self, optimizer_class, optimizer_type):
    self.assertEqual(
        embedding_proto_utils.get_optimizer_type(optimizer_class),
        optimizer_type,
    )
    self.assertIs(
        embedding_proto_utils.get_optimizer_class(optimizer_type),
        optimizer_class,
    )

  def test_class_without_a_type_is_custom(self):
    self.assertEqual(
        embedding_proto_utils.get_optimizer_type(Custom), _Proto.CUSTOM
    )
    self.assertIsNone(embedding_proto_utils.get_optimizer_class(_Proto.CUSTOM))
    self.assertIsNone(embedding_proto_utils.get_optimizer_class(0))

  @parameterized.parameters(
      embedding_spec.SGDOptimizerSpec(0.001),
      embedding_spec.SGDOptimizerSpec(jnp.float32(0.5)),
      embedding_spec.SGDOptimizerSpec(np.float32(0.5)),
      embedding_spec.AdagradOptimizerSpec(1, initial_accumulator_value=0.3),
      embedding_spec.AdamOptimizerSpec(beta_1=0.8, beta_2=0.7, epsilon=1e-6),
      embedding_spec.SGDOptimizerSpec(
          embedding_spec.CallablePlaceholder("warm-up")
      ),
  )
  def test_round_trip_loses_nothing(self, spec):
    message = embedding_proto_utils.optimizer_spec_to_proto(spec)
    self.assertEqual(
        embedding_proto_utils.proto_to_optimizer_spec(message), spec
    )

  @parameterized.parameters(
      (Tagged(), "warm-up"),
      (schedule, f"{__name__}.schedule"),
      (Tagged().__call__, f"{__name__}.Tagged.__call__"),
  )
  def test_functions_are_named(self, rate, tag):
    message = embedding_proto_utils.optimizer_spec_to_proto(
        embedding_spec.SGDOptimizerSpec(rate)
    )
    self.assertEqual(message.learning_rate_tag, tag)
    spec = embedding_proto_utils.proto_to_optimizer_spec(message)
    self.assertEqual(
        spec.learning_rate, embedding_spec.CallablePlaceholder(tag)
    )

  def test_nameless_functions_are_told_apart_by_identity(self):
    rate = functools.partial(schedule)
    message = embedding_proto_utils.optimizer_spec_to_proto(
        embedding_spec.SGDOptimizerSpec(rate)
    )
    self.assertEqual(message.learning_rate_tag, f"partial_{id(rate)}")

  def test_nothing_becomes_sgd(self):
    self.assertIsNone(embedding_proto_utils.optimizer_spec_to_proto(None))
    self.assertEqual(
        embedding_proto_utils.proto_to_optimizer_spec(None),
        embedding_spec.SGDOptimizerSpec(0.0),
    )

  @parameterized.parameters(_Proto.CUSTOM, _Proto.OPTIMIZER_TYPE_UNSPECIFIED)
  def test_unspecified_types_become_sgd(self, optimizer_type):
    self.assertEqual(
        embedding_proto_utils.proto_to_optimizer_spec(
            _Proto(type=optimizer_type, learning_rate=0.5)
        ),
        embedding_spec.SGDOptimizerSpec(0.5),
    )

  def test_unknown_types_raise(self):
    with self.assertRaisesRegex(ValueError, "type 99 is not .*SGD, ADAGRAD"):
      embedding_proto_utils.proto_to_optimizer_spec(_Proto(type=99))


def _feature(name, table_name, vocabulary_size, embedding_dim):
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=embedding_spec.TableSpec(
          name=table_name,
          vocabulary_size=vocabulary_size,
          embedding_dim=embedding_dim,
          optimizer=embedding_spec.SGDOptimizerSpec(),
      ),
      input_shape=(16, 1),
      output_shape=(16, embedding_dim),
  )


class CreateProtoTest(absltest.TestCase):

  def test_describes_stacks_tables_and_features(self):
    features = [_feature("fa", "a", 10, 2), _feature("fb", "b", 17, 3)]
    table_stacking.stack_tables(features, ["a", "b"], 1, 2)
    expected = text_format.Parse(
        """
        stacked_table_specs {
          stack_name: "a_b"
          stack_vocab_size: 48
          stack_embedding_dim: 8
          total_sample_count: 32
          max_ids_per_partition: 256
          max_unique_ids_per_partition: 256
          num_sparsecores: 2
          activation_mem_bytes_limit: 2097152
          table_specs {
            table_name: "a" vocab_size: 10 embedding_dim: 2
            padded_vocab_size: 16 padded_embedding_dim: 8
            combiner: "sum" optimizer { type: SGD learning_rate: 0.001 }
            feature_specs {
              feature_name: "fa"
              input_shape: 16 input_shape: 1 output_shape: 16 output_shape: 2
            }
          }
          table_specs {
            table_name: "b" vocab_size: 17 embedding_dim: 3
            padded_vocab_size: 32 padded_embedding_dim: 8
            row_offset_in_shard: 8
            combiner: "sum" optimizer { type: SGD learning_rate: 0.001 }
            feature_specs {
              feature_name: "fb"
              input_shape: 16 input_shape: 1 output_shape: 16 output_shape: 3
              row_offset: 16 col_offset: 16
            }
          }
        }
        """,
        embedding_spec_pb2.EmbeddingSpecProto(),
    )
    self.assertEqual(
        embedding_proto_utils.create_proto_from_feature_specs(features, 1, 2),
        expected,
    )

  def test_tables_are_in_the_order_of_features(self):
    features = [_feature("f1", "b", 10, 2), _feature("f2", "a", 10, 2)]
    table_stacking.stack_tables(features, ["a", "b"], 1, 2)
    (stack,) = embedding_proto_utils.create_proto_from_feature_specs(
        features, 1, 2
    ).stacked_table_specs
    self.assertEqual([t.table_name for t in stack.table_specs], ["b", "a"])
    self.assertEqual([t.row_offset_in_shard for t in stack.table_specs], [8, 0])

  def test_counts_default_to_those_of_jax(self):
    features = [_feature("f", "t", 10, 2)]
    _plan.prepare_feature_specs_for_training(features, 1, 1)
    proto = embedding_proto_utils.create_proto_from_feature_specs(
        features, None
    )
    self.assertEqual(proto.stacked_table_specs[0].num_sparsecores, 1)

  def test_unprepared_specs_raise(self):
    with self.assertRaisesRegex(AssertionError, "Table t is not stacked"):
      embedding_proto_utils.create_proto_from_feature_specs(
          [_feature("f", "t", 10, 2)], 1, 2
      )


if __name__ == "__main__":
  absltest.main()
