# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of a message, stacked for other devices."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _target_specs
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2
import numpy as np

# As all files here that share a process.
jax.config.update("jax_num_cpu_devices", 6)


class TargetSpecsTest(parameterized.TestCase):

  def wide(self, num_devices, num_sc, batch=2048):
    specs = []
    for i in range(4):
      table = embedding_spec.TableSpec(
          name=f"t{i}",
          vocabulary_size=2048,
          embedding_dim=640,
          optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
          combiner="sum",
      )
      specs.append(
          embedding_spec.FeatureSpec(
              name=f"f{i}",
              table_spec=table,
              input_shape=(batch, 1),
              output_shape=(batch, 640),
          )
      )
    embedding.auto_stack_tables(specs, num_devices, num_sc)
    return embedding.create_proto_from_feature_specs(specs, num_devices, num_sc)

  @parameterized.parameters(
      (8, 2, None, 1), (4, 2, None, 2), (4, 4, None, 1), (4, 2, 1024, 1)
  )
  def test_tables_are_stacked_as_memory_allows(
      self, num_devices, num_sc, batch, num_stacks
  ):
    message, specs = _target_specs.plan(
        self.wide(8, 2), num_devices, num_sc, batch
    )
    self.assertLen(message.stacked_table_specs, num_stacks)
    self.assertLen({s.stacked_table_spec.stack_name for s in specs.values()},
                   num_stacks)  # fmt: skip

  def _first_version(self, num_scs=2, **fields):
    stack = embedding_spec_pb2.StackedTableSpecProto(
        stack_name="a_b",
        stack_vocab_size=800,
        stack_embedding_dim=16,
        total_sample_count=32,
        max_ids_per_partition=16,
        max_unique_ids_per_partition=16,
        num_sparsecores=num_scs,
        **fields,
    )
    # In the order of features, which is not that of rows.
    for name, rows, padded, offset in (
        ("b", 390, 400, 192),
        ("a", 384, 384, 0),
    ):
      stack.table_specs.add(
          table_name=name,
          vocab_size=rows,
          embedding_dim=16,
          padded_vocab_size=padded,
          padded_embedding_dim=16,
          row_offset_in_shard=offset,
          shard_rotation=0,
      )
    return embedding_spec_pb2.EmbeddingSpecProto(stacked_table_specs=[stack])

  def test_messages_of_the_first_version_keep_their_stacks(self):
    message, specs = _target_specs.plan(self._first_version(), 4, 1)
    (stack,) = message.stacked_table_specs
    self.assertEqual(stack.stack_vocab_size, 800)
    self.assertEqual(stack.num_sparsecores, 4)
    self.assertEqual(specs["a"].setting_in_stack.row_offset_in_shard, 0)
    self.assertEqual(specs["b"].setting_in_stack.row_offset_in_shard, 96)
    self.assertEqual(specs["b"].setting_in_stack.shard_rotation, 1)
    tables = {
        name: np.arange(s.vocabulary_size * 16, dtype=np.float32).reshape(
            -1, 16
        )
        for name, s in specs.items()
    }
    stacked = table_stacking.stack_and_shard_tables(specs, tables, 4, 0.0)
    self.assertEqual(stacked["a_b"].shape, (4, 200, 16))

  def test_a_stack_of_the_first_version_may_not_fit(self):
    with self.assertRaisesRegex(
        ValueError, "'a_b': its activations take 1024 bytes on each of 2 Spar.*"
        "limit is 1000.*target_feature_specs",
    ):  # fmt: skip
      _target_specs.plan(
          self._first_version(activation_mem_bytes_limit=1000), 2, 1
      )

  def test_tables_without_features_are_planned(self):
    message = self.wide(1, 2, 16)
    del message.stacked_table_specs[0].table_specs[1].feature_specs[:]
    message, specs = _target_specs.plan(message, 2, 2)
    self.assertCountEqual(specs, ["t0", "t1", "t2", "t3"])
    names = [
        feature.feature_name
        for stack in message.stacked_table_specs
        for table in stack.table_specs
        for feature in table.feature_specs
    ]
    self.assertIn("feature_t1", names)


if __name__ == "__main__":
  absltest.main()
