# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

STRATEGIES = ("SPLIT_THEN_STACK", "STACK_THEN_SPLIT")

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile("deterministic")


def features(batches, num_sc, combiner="sum"):
  """A feature of each batch size, all in one stack."""
  specs = []
  for i, batch in enumerate(batches):
    table = two_table_model.table(
        f"t{i}", vocabulary_size=20 + i, embedding_dim=8, combiner=combiner
    )
    specs.append(two_table_model.feature(f"f{i}", table, batch=batch))
  embedding.auto_stack_tables(specs, 1, num_sc)
  return specs


class NameTest(parameterized.TestCase):

  @parameterized.parameters(
      "STACK_THEN_SPLIT",
      "stack_then_split",
      _feature_stacking.FeatureStackingStrategy.STACK_THEN_SPLIT,
  )
  def test_any_letter_case(self, name):
    self.assertEqual(
        embedding.feature_stacking_strategy_to_enum(name),
        _feature_stacking.FeatureStackingStrategy.STACK_THEN_SPLIT,
    )

  def test_unknown_name_lists_the_choices(self):
    with self.assertRaisesRegex(
        ValueError, "'STACKED'.*'SPLIT_THEN_STACK', 'STACK_THEN_SPLIT'"
    ):
      embedding.feature_stacking_strategy_to_enum("STACKED")

  def test_other_types_list_the_choices(self):
    with self.assertRaisesRegex(
        TypeError,
        "feature_stacking_strategy must be one of 'SPLIT_THEN_STACK',"
        " 'STACK_THEN_SPLIT', got 3",
    ):
      embedding.feature_stacking_strategy_to_enum(3)


class StackAndUnstackTest(parameterized.TestCase):

  # The picture of the module's docstring.
  @parameterized.product(
      (
          dict(
              strategy="SPLIT_THEN_STACK",
              expected=[0, 1, 10, 11, 12, 2, 3, 13, 14, 15],
          ),
          dict(
              strategy="STACK_THEN_SPLIT",
              expected=[0, 1, 2, 3, 10, 11, 12, 13, 14, 15],
          ),
      ),
      use_primitives=(False, True),
  )
  def test_order_of_samples(self, strategy, expected, use_primitives):
    specs = features((4, 6), num_sc=2)
    gradients = [
        np.tile(np.arange(first, first + spec.output_shape[0]), (8, 1)).T
        for first, spec in zip((0.0, 10.0), specs)
    ]
    stacked = embedding.stack_embedding_gradients(
        gradients,
        specs,
        2,
        1,
        use_gradient_stacking_primitive=use_primitives,
        feature_stacking_strategy=strategy,
    )
    self.assertEqual(stacked["t0_t1"][:, 0].tolist(), expected)
    unstacked = embedding.unstack_embedding_activations(
        stacked,
        specs,
        1,
        2,
        use_activation_unstack_primitive=use_primitives,
        feature_stacking_strategy=strategy,
    )
    for got, want in zip(unstacked, gradients):
      np.testing.assert_array_equal(got, want)

  def test_gradients_tell_the_number_of_devices(self):
    specs = features((8, 12), num_sc=2)
    for num_devices in (1, 2):
      gradients = [
          np.random.default_rng(0).normal(size=(size // num_devices, 8))
          for size in (8, 12)
      ]
      np.testing.assert_array_equal(
          embedding.stack_embedding_gradients(gradients, specs, 2)["t0_t1"],
          embedding.stack_embedding_gradients(gradients, specs, 2, num_devices)[
              "t0_t1"
          ],
      )
    for wrong in (np.zeros(()), np.zeros((9, 8)), np.zeros((0, 8))):
      with self.assertRaisesRegex(ValueError, "'f0': the activation gradient"):
        embedding.stack_embedding_gradients([wrong, wrong], specs, 2)

  def test_only_devices_must_divide_the_batch_of_a_feature(self):
    specs = features((3, 5), num_sc=2)
    stacked = {"t0_t1": np.zeros((8, 8), np.float32)}
    embedding.unstack_embedding_activations(
        stacked, specs, 1, 2, feature_stacking_strategy="STACK_THEN_SPLIT"
    )
    with self.assertRaisesRegex(
        ValueError, r"'f0': the 3 samples.*divisible by 2 \(1 devices x 2"
    ):
      embedding.unstack_embedding_activations(stacked, specs, 1, 2)
    with self.assertRaisesRegex(
        ValueError, "'f0': the 3 samples.*divisible by 2, the number of devices"
    ):
      embedding.unstack_embedding_activations(
          stacked, specs, 2, 2, feature_stacking_strategy="STACK_THEN_SPLIT"
      )


class BothStrategiesTest(parameterized.TestCase):

  def run_step(self, specs, num_sc, ids, weights, strategy):
    """Activations, and tables after an update with the activations."""
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids,
        weights,
        specs,
        1,
        1,
        num_sc_per_device=num_sc,
        feature_stacking_strategy=strategy,
    )
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        two_table_model.one_device_sharding(),
        num_sc,
    )
    activations = embedding.tpu_sparse_dense_matmul(
        inputs, variables, specs, feature_stacking_strategy=strategy
    )
    updated = embedding.tpu_sparse_dense_matmul_grad(
        activations,
        inputs,
        variables,
        specs,
        feature_stacking_strategy=strategy,
    )
    return activations, updated

  @hypothesis.settings(max_examples=12)
  @hypothesis.given(
      num_sc=st.sampled_from([1, 2, 3, 4]),
      parts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
      combiner=st.sampled_from(["sum", "mean", "sqrtn"]),
      weighted=st.booleans(),
      seed=st.integers(0, 2**16),
  )
  def test_activations_and_updates_are_the_same(
      self, num_sc, parts, combiner, weighted, seed
  ):
    rng = np.random.default_rng(seed)
    specs = features([num_sc * p for p in parts], num_sc, combiner)
    ids = [
        rng.integers(0, spec.table_spec.vocabulary_size, spec.input_shape)
        for spec in specs
    ]
    weights = [rng.uniform(0.5, 2, i.shape) for i in ids] if weighted else None
    (split, split_new), (stack, stack_new) = (
        self.run_step(specs, num_sc, ids, weights, strategy)
        for strategy in STRATEGIES
    )
    jax.tree.map(np.testing.assert_array_equal, split, stack)
    # The gradient of a row is summed in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        split_new,
        stack_new,
    )

  def test_batches_that_one_sparsecore_shares_with_the_next(self):
    specs = features((3, 5), num_sc=2)
    ids = [np.arange(3)[:, None], np.arange(5)[:, None]]
    activations, _ = self.run_step(specs, 2, ids, None, "STACK_THEN_SPLIT")
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        two_table_model.one_device_sharding(),
        2,
    )
    (stack,) = variables.values()
    for f, spec in enumerate(specs):
      setting = spec.table_spec.setting_in_stack
      # Row i is in shard (i + rotation) % 2, at its offset + i // 2.
      for i in range(spec.output_shape[0]):
        shard = (i + setting.shard_rotation) % 2
        row = setting.row_offset_in_shard + i // 2
        np.testing.assert_array_equal(
            activations[f][i],
            stack.table[shard * stack.table.shape[0] // 2 + row],
        )


class SpecTest(absltest.TestCase):

  def test_default_is_split_then_stack(self):
    specs = features((4, 6), num_sc=2)
    ids = [np.arange(4)[:, None], np.arange(4, 10)[:, None]]
    by_default, split, stack = (
        embedding.preprocess_sparse_dense_matmul_input(
            ids, None, specs, 1, 1, num_sc_per_device=2, **keywords
        )[0]
        for keywords in (
            {},
            dict(feature_stacking_strategy="SPLIT_THEN_STACK"),
            dict(feature_stacking_strategy="STACK_THEN_SPLIT"),
        )
    )
    default_ids = by_default.lhs_embedding_ids["t0_t1"]
    split_ids = split.lhs_embedding_ids["t0_t1"]
    stack_ids = stack.lhs_embedding_ids["t0_t1"]
    np.testing.assert_array_equal(default_ids, split_ids)
    self.assertFalse(np.array_equal(default_ids, stack_ids))


if __name__ == "__main__":
  absltest.main()
