# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The calls of RecML: training, and tables taken out of stacks on devices."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.tests.clients import plain_model
from jax_tpu_embedding.sparsecore.tests.clients import recml_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_BATCH = 16
_FEATURES = {
    "age": recml_model.Feature(20),
    "clicks": recml_model.Feature(100, length=3, combiner="mean"),
    "country": recml_model.Feature(50, embedding_dim=5),
    "history": recml_model.Feature(70, length=4, combiner="none"),
    "wide": recml_model.Feature(40, embedding_dim=16, length=2),
}


def _engine(num_devices, num_sc):
  return recml_model.Engine(
      _FEATURES,
      _BATCH,
      recml_model.make_mesh(num_devices),
      num_sc_per_device=num_sc,
  )


def _batch(seed=0):
  """Ids of type int64, as data loaders have them."""
  rng = np.random.default_rng(seed)
  return {
      name: rng.integers(feature.vocabulary_size, size=(_BATCH, feature.length))
      for name, feature in _FEATURES.items()
  }


def _tables(engine, variables):
  tables = table_stacking.unstack_and_unshard_stacked_tables(
      stacked_tables={name: stack.table for name, stack in variables.items()},
      embedding_specs=engine.proto(),
      donate=False,
  )
  return {
      name.removesuffix("_table"): np.asarray(t) for name, t in tables.items()
  }


class TrainingTest(parameterized.TestCase):

  @parameterized.parameters((1, 1), (4, 2))
  def test_training_is_algebra(self, num_devices, num_sc):
    engine = _engine(num_devices, num_sc)
    variables = engine.init(jax.random.key(0))
    plain = {
        name: plain_model.Table(
            table.astype(np.float64),
            plain_model.adagrad,
            engine.learning_rate,
            [np.full(table.shape, 0.1)],
        )
        for name, table in _tables(engine, variables).items()
    }

    @jax.jit
    def step(processed, variables, targets):
      def loss(variables):
        activations = engine.lookup(processed, variables)
        return (
            sum(
                jnp.vdot(activations[name], targets[name])
                for name in activations
            ),
            activations,
        )

      return jax.grad(loss, has_aux=True)(variables)

    for number in range(3):
      ids = _batch(number)
      # Weights, as features without any have them: integers, all of them 1.
      processed = jax.device_put(
          engine.preprocess(ids, batch_number=number), engine.sharding
      )
      targets = {
          name: np.random.default_rng(number)
          .normal(size=spec.output_shape)
          .astype(np.float32)
          for name, spec in engine.feature_specs.items()
      }
      variables, activations = step(processed, variables, targets)
      for name, feature in _FEATURES.items():
        spec = engine.feature_specs[name]
        gains = plain_model.gains(
            ids[name].reshape(spec.input_shape),
            None,
            spec.table_spec.combiner,
            feature.vocabulary_size,
        )
        np.testing.assert_allclose(
            activations[name],
            gains @ plain[name].values,
            rtol=1e-4,
            atol=1e-4,
            err_msg=name,
        )
        plain[name].update(gains.T @ targets[name], gains.any(axis=0), number)

    for name, table in _tables(engine, variables).items():
      np.testing.assert_allclose(
          table, plain[name].values, rtol=1e-4, atol=1e-4, err_msg=name
      )

  @parameterized.parameters(1, 4)
  def test_the_number_of_sparsecores_is_known_when_a_config_is_made(
      self, num_devices
  ):
    mesh = recml_model.make_mesh(num_devices)
    engine = recml_model.Engine(_FEATURES, _BATCH, mesh)
    self.assertGreater(engine.num_sc_per_device, 0)

  @parameterized.parameters(1, 4)
  def test_limits_are_asked_for_by_stack_and_samples(self, num_devices):
    engine = _engine(num_devices, 1)
    stacks = embedding.get_stacked_table_specs(engine.feature_specs)
    # Of a sequence, each of the 4 positions is a sample.
    self.assertEqual(
        {name: stack.total_sample_count for name, stack in stacks.items()},
        {
            "age_table_country_table_history_table": 6 * _BATCH,
            "clicks_table": _BATCH,
            "wide_table": _BATCH,
        },
    )
    stack = stacks["age_table_country_table_history_table"]
    self.assertEqual(stack.max_ids_per_partition, 12 * _BATCH)
    self.assertEqual(stack.max_unique_ids_per_partition, 12 * _BATCH)


class PreprocessTest(parameterized.TestCase):

  @parameterized.parameters(1, 4)
  def test_all_leaves_have_a_part_for_every_device(self, num_devices):
    engine = _engine(num_devices, 2)
    processed = engine.preprocess(_batch())
    self.assertEqual(processed.num_minibatches.shape, (num_devices,))
    split = jax.device_put(processed, engine.sharding)
    for leaf in jax.tree.leaves(split):
      self.assertLen(leaf.sharding.device_set, num_devices)
      self.assertFalse(leaf.sharding.is_fully_replicated and num_devices > 1)
    again = jax.jit(lambda tree: tree)(split)
    self.assertIsInstance(again, embedding.PreprocessedInput)
    jax.tree.map(np.testing.assert_array_equal, again, processed)

  @parameterized.product(
      num_devices=(1, 4), dtype=(np.int32, np.int64, np.uint32)
  )
  def test_the_type_of_ids_and_weights_does_not_matter(
      self, num_devices, dtype
  ):
    engine = _engine(num_devices, 2)
    ids = _batch()
    weights = {name: np.ones(i.shape, np.float32) for name, i in ids.items()}
    expected = engine.preprocess(
        {name: i.astype(np.int32) for name, i in ids.items()}, weights
    )
    got = engine.preprocess({name: i.astype(dtype) for name, i in ids.items()})
    jax.tree.map(np.testing.assert_array_equal, got, expected)


class StackedLayoutTest(parameterized.TestCase):

  @parameterized.parameters((1, 4), (4, 1))
  def test_tables_can_be_computed_from_stacks_with_the_proto(
      self, num_devices, num_sc
  ):
    engine = _engine(num_devices, num_sc)
    variables = engine.init(jax.random.key(0))
    expected = _tables(engine, variables)
    self.assertLen(expected, len(_FEATURES))
    for stack in engine.proto().stacked_table_specs:
      self.assertEqual(stack.num_sparsecores, engine.num_sparsecores)
      for table in stack.table_specs:
        shards = variables[stack.stack_name].table.reshape(
            stack.num_sparsecores, -1, stack.stack_embedding_dim
        )
        start = table.row_offset_in_shard
        chunk = table.padded_vocab_size // stack.num_sparsecores
        shards = shards[:, start : start + chunk]
        shards = jnp.roll(shards, -table.shard_rotation, axis=0)
        rows = shards.transpose((1, 0, 2)).reshape(
            -1, stack.stack_embedding_dim
        )
        np.testing.assert_array_equal(
            rows[: table.vocab_size, : table.embedding_dim],
            expected[table.table_name.removesuffix("_table")],
        )


if __name__ == "__main__":
  absltest.main()
