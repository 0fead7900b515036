# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Slots with one number per row: made, updated, and moved to tables and back.

How they are updated is in _update_optimizers_test.py.
"""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn import two_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_SPEC = embedding_spec.RowwiseAdagradOptimizerSpec(0.5)


def _prepared(dims, devices):
  """One feature for each of two tables in one stack."""
  features = [
      two_table_model.feature(
          f"f{name}",
          two_table_model.table(name, rows, dim, optimizer=_SPEC),
      )
      for name, rows, dim in zip("ab", (40, 33), dims)
  ]
  embedding.auto_stack_tables(features, devices, 2)
  return features


def _tables(features):
  """Table name -> (table, slots), every row and column with its own values."""
  result = {}
  for name, spec in embedding.get_table_specs(features).items():
    rows, columns = spec.vocabulary_size, spec.embedding_dim
    slots = embedding_spec.RowwiseAdagradSlotVariables(
        100 + np.arange(rows, dtype=np.float32)[:, None]
    )
    table = np.arange(rows * columns, dtype=np.float32)
    result[name] = embedding.EmbeddingVariables(
        table.reshape(rows, columns), slots
    )
  return result


class RowSlotsTest(parameterized.TestCase):

  @parameterized.parameters(1, 2)
  def test_are_made_with_one_column(self, devices):
    features = _prepared((6, 8), devices)
    mesh = jax.make_mesh((devices,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.P("x", None))
    (stack,) = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(features),
        sharding,
        2,
        bypass_mesh_check=True,
    ).values()
    (accumulator,) = stack.slot
    self.assertEqual(accumulator.shape, (stack.table.shape[0], 1))
    self.assertEqual(accumulator.sharding, sharding)
    np.testing.assert_array_equal(accumulator, np.float32(0.1))

  # A table of one column is padded to 8; the slots of its rows are not.
  @parameterized.product(dims=[(6, 8), (1, 1)], put=[np.asarray, jnp.asarray])
  def test_go_to_stacks_and_back(self, dims, put):
    features = _prepared(dims, 1)
    specs = embedding.get_table_specs(features)
    tables = jax.tree.map(put, _tables(features))
    stacked = table_stacking.stack_and_shard_tables(specs, tables, 2)
    table, slots = stacked["a_b"]
    self.assertEqual(table.shape[2], 8)
    self.assertEqual(slots.accumulator.shape, (*table.shape[:2], 1))
    self.assertEqual(slots.accumulator[1, 0, 0], 101)  # row 1, in shard 1
    back = table_stacking.unshard_and_unstack_tables(specs, stacked, 2)
    jax.tree.map(np.testing.assert_array_equal, back, tables)

  def test_with_another_number_of_columns_raise(self):
    features = _prepared((6, 8), 1)
    tables = _tables(features)
    wide = embedding_spec.RowwiseAdagradSlotVariables(np.ones((40, 6)))
    tables["a"] = tables["a"]._replace(slot=wide)
    with self.assertRaisesRegex(
        ValueError, r"Table 'a': expected an array of shape \(40, 1\), got"
    ):
      table_stacking.stack_and_shard_tables(
          embedding.get_table_specs(features), tables, 2
      )

  def test_go_to_stacks_and_back_by_message(self):
    features = _prepared((6, 8), 1)
    message = embedding_proto_utils.create_proto_from_feature_specs(
        features, 1, 2
    )
    slots = {
        name: tables.slot.accumulator
        for name, tables in _tables(features).items()
    }
    stacked = table_stacking.stack_and_shard_feature_tables(slots, message)
    self.assertEqual(stacked["a_b"].shape[1:], (1,))
    back = table_stacking.unstack_and_unshard_stacked_tables(stacked, message)
    jax.tree.map(np.testing.assert_array_equal, back, slots)


if __name__ == "__main__":
  absltest.main()
