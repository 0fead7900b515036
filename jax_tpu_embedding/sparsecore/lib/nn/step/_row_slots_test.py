# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Slots with one number per row: made, updated, and moved to tables and back.

How they are updated is in _update_optimizers_test.py, but for what they do with
the padding of tables.
"""

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

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
    features = _prepared((6, 6), devices)
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
  @parameterized.product(dims=[(6, 6), (1, 1)], put=[np.asarray, jnp.asarray])
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
    features = _prepared((6, 6), 1)
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
    features = _prepared((6, 6), 1)
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


class PaddingTest(parameterized.TestCase):
  """All tables take 8 columns, whatever their width."""

  def step(self, features, devices):
    """The tables after a step from 0 with learning rate 0.5, gradients of 2."""
    ids = {f.name: np.zeros(f.input_shape, np.int32) for f in features}
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        [ids[f.name] for f in features],
        None,
        features,
        devices,
        devices,
        num_sc_per_device=2,
    )
    mesh = jax.sharding.Mesh(jax.devices()[:devices], ("x",))
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(features),
        jax.sharding.NamedSharding(mesh, jax.P("x", None)),
        2,
        bypass_mesh_check=True,
    )
    # Only one sample has a gradient.
    gradients = []
    for feature in features:
      gradient = np.zeros(feature.output_shape, np.float32)
      gradient[0] = 2
      gradients.append(gradient)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=jax.P("x"),
        out_specs=jax.P("x"),
        check_vma=False,
    )
    def update(gradients, inputs, variables):
      return embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, features
      )

    updated = update(gradients, inputs, variables)
    return table_stacking.unshard_and_unstack_tables(
        embedding.get_table_specs(features),
        {name: np.asarray(x.table) for name, x in updated.items()},
        2 * devices,
    )

  @parameterized.product(dim=[8, 6, 2, 1], devices=[1, 4])
  def test_does_not_count(self, dim, devices):
    table = two_table_model.table(
        "a", 40, dim, optimizer=_SPEC, initializer=jax.nn.initializers.zeros
    )
    features = [two_table_model.feature("f", table, valency=1)]
    embedding.prepare_feature_specs_for_training(features, devices, 2)
    expected = np.zeros((40, dim), np.float32)
    # The mean of the squares is 4, and the accumulator begins with 0.1.
    expected[0] = -0.5 * 2 / np.sqrt(4.1)
    actual = self.step(features, devices)["a"]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)

  def test_of_tables_that_an_earlier_version_stacked_raises(self):
    sgd = two_table_model.sgd()
    features = [
        two_table_model.feature(
            f"f{name}", two_table_model.table(name, 40, dim, optimizer=sgd)
        )
        for name, dim in (("a", 6), ("b", 8))
    ]
    embedding.auto_stack_tables(features, 1, 2)
    self.step(features, 1)
    message = embedding_proto_utils.create_proto_from_feature_specs(
        features, 1, 2
    )
    for stack in message.stacked_table_specs:
      for table in stack.table_specs:
        table.optimizer.CopyFrom(
            embedding_proto_utils.optimizer_spec_to_proto(_SPEC)
        )
    # They can be read, for their rows to be moved elsewhere.
    features = embedding_proto_utils.feature_specs_from_proto(message)
    with self.assertRaisesRegex(
        ValueError,
        r"Stack 'a_b': with RowwiseAdagrad.* the same embedding_dim, got"
        r" {'a': 6, 'b': 8}. Stack new specs",
    ):
      self.step(features, 1)


if __name__ == "__main__":
  absltest.main()
