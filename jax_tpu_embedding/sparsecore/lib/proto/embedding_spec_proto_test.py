# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The wire format does not change: names, numbers and types of every field."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2

_MESSAGES = {
    "EmbeddingSpecProto": {1: "stacked_table_specs"},
    "StackedTableSpecProto": {
        1: "stack_name",
        2: "stack_vocab_size",
        3: "stack_embedding_dim",
        6: "total_sample_count",
        7: "max_ids_per_partition",
        8: "max_unique_ids_per_partition",
        9: "num_sparsecores",
        10: "table_specs",
        11: "activation_mem_bytes_limit",
        12: "suggested_coo_buffer_size_per_device",
    },
    "TableSpecProto": {
        1: "table_name",
        2: "vocab_size",
        3: "embedding_dim",
        5: "max_ids_per_partition",
        6: "max_unique_ids_per_partition",
        7: "padded_vocab_size",
        8: "padded_embedding_dim",
        9: "row_offset_in_shard",
        10: "shard_rotation",
        11: "feature_specs",
        12: "combiner",
        13: "optimizer",
        14: "suggested_coo_buffer_size_per_device",
        15: "quantization",
        16: "dtype",
        17: "placement",
    },
    "QuantizationProto": {1: "min_value", 2: "max_value", 3: "num_buckets"},
    "FeatureSpecProto": {
        1: "feature_name",
        2: "input_shape",
        3: "output_shape",
        4: "row_offset",
        5: "col_offset",
        6: "col_shift",
        7: "out_of_range_ids",
        8: "non_finite_weights",
        9: "position",
    },
    "OptimizerSpecProto": {
        1: "type",
        2: "learning_rate",
        3: "learning_rate_tag",
        4: "float_params",
        5: "bool_params",
        6: "exact_learning_rate",
        7: "exact_float_params",
        8: "custom_type",
        9: "custom",
    },
    "CustomOptimizerProto": {
        1: "computation_tag",
        2: "stablehlo_text",
        3: "stablehlo_bytes",
        4: "slot_initializer_tags",
        5: "short_name",
        6: "stablehlo_sha256",
    },
}

# A stack, encoded by hand: each field is its key (number << 3 | wire type) and
# its value, so 10 30 is field 2 = 48.
_STACK_BYTES = bytes.fromhex("0a03615f62" "1030" "1808" "3020" "388002" "4802")


class EmbeddingSpecProtoTest(parameterized.TestCase):

  @parameterized.parameters(*_MESSAGES)
  def test_fields_keep_their_numbers(self, message):
    descriptor = getattr(embedding_spec_pb2, message).DESCRIPTOR
    self.assertEqual(
        {field.number: field.name for field in descriptor.fields},
        _MESSAGES[message],
    )

  def test_package_keeps_its_name(self):
    self.assertEqual(
        embedding_spec_pb2.DESCRIPTOR.package,
        "third_party.py.jax_tpu_embedding.sparsecore_lib_proto",
    )

  def test_optimizer_types_keep_their_numbers(self):
    self.assertEqual(
        dict(embedding_spec_pb2.OptimizerSpecProto.OptimizerType.items()),
        {
            "OPTIMIZER_TYPE_UNSPECIFIED": 0,
            "SGD": 1,
            "ADAGRAD": 2,
            "ADAM": 3,
            "FTRL": 4,
            "F2A": 5,
            "ADAGRAD_MOMENTUM": 6,
            "CUSTOM": 7,
        },
    )

  def test_reads_bytes_of_the_wire_format(self):
    stack = embedding_spec_pb2.StackedTableSpecProto.FromString(_STACK_BYTES)
    self.assertEqual(
        (
            stack.stack_name,
            stack.stack_vocab_size,
            stack.stack_embedding_dim,
            stack.total_sample_count,
            stack.max_ids_per_partition,
            stack.num_sparsecores,
        ),
        ("a_b", 48, 8, 32, 256, 2),
    )
    self.assertFalse(stack.HasField("activation_mem_bytes_limit"))


if __name__ == "__main__":
  absltest.main()
