# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of bfloat16 and float16: from the spec to new tables."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_DTYPES = ("bfloat16", "float16")


def _ones(key, shape):
  del key
  return jnp.ones(shape)


class _Model:
  """One table of ones, looked up by a feature, with Adagrad or SGD."""

  def __init__(self, dtype, optimizer=None):
    table = two_table_model.table(
        dtype=dtype,
        initializer=_ones,
        optimizer=optimizer or embedding_spec.AdagradOptimizerSpec(0.5),
    )
    self.specs = {"f": two_table_model.feature("f", table)}
    embedding.prepare_feature_specs_for_training(self.specs, 1, 2)
    ids = np.random.default_rng(0).integers(0, 30, (24, 3), np.int32)
    self.counts = np.bincount(ids.ravel(), minlength=40)
    self.inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"f": ids}, None, self.specs, 1, 1, num_sc_per_device=2
    )
    self.variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(self.specs),
        two_table_model.one_device_sharding(),
        2,
    )

  def update(self, gradient, **kwargs):
    return embedding.tpu_sparse_dense_matmul_grad(
        {"f": np.full((24, 6), gradient, np.float32)},
        self.inputs,
        self.variables,
        self.specs,
        **kwargs,
    )

  def rows(self, variables):
    """f64[40, 6]."""
    tables = table_stacking.unshard_and_unstack_tables(
        embedding.get_table_specs(self.specs), variables, 2
    )
    return np.float64(tables["t"].table)


class LowPrecisionTest(parameterized.TestCase):

  @parameterized.parameters(*_DTYPES)
  def test_only_the_table_has_the_type(self, dtype):
    model = _Model(dtype)
    new = model.update(1.0)
    for variables in (model.variables["t"], new["t"]):
      self.assertEqual(variables.table.dtype, dtype)
      self.assertEqual(variables.slot.accumulator.dtype, jnp.float32)
    activations = embedding.tpu_sparse_dense_matmul(
        model.inputs, model.variables, model.specs
    )["f"]
    self.assertEqual(activations.dtype, jnp.float32)
    np.testing.assert_array_equal(activations, np.full((24, 6), 3.0))

  @parameterized.parameters(*_DTYPES)
  def test_go_to_tables_and_back_with_their_types(self, dtype):
    model = _Model(dtype)
    specs = embedding.get_table_specs(model.specs)
    tables = table_stacking.unshard_and_unstack_tables(
        specs, model.variables, 2
    )
    self.assertEqual(tables["t"].table.dtype, dtype)
    self.assertEqual(tables["t"].slot.accumulator.dtype, jnp.float32)
    for put in (jnp.asarray, np.asarray):
      stacked = table_stacking.stack_and_shard_tables(
          specs, jax.tree.map(put, tables), 2
      )
      back = table_stacking.unshard_and_unstack_tables(specs, stacked, 2)
      self.assertEqual(stacked["t"].table.dtype, dtype)
      jax.tree.map(np.testing.assert_array_equal, back, tables)

  @parameterized.parameters(("bfloat16", 2.0**-7), ("float16", 2.0**-10))
  def test_small_steps_are_lost_unless_rounded_at_random(self, dtype, unit):
    step = unit / 32
    model = _Model(dtype, embedding_spec.SGDOptimizerSpec(step))
    self.assertLess(model.counts.max(), 16)
    np.testing.assert_array_equal(model.rows(model.update(-1.0)), 1.0)

    update = jax.jit(lambda seed: model.update(-1.0, rounding_seed=seed))
    results = [model.rows(update(seed)) for seed in range(64)]
    np.testing.assert_array_equal(np.unique(results), [1.0, 1.0 + unit])
    is_touched = model.counts > 0
    np.testing.assert_array_equal(np.array(results)[:, ~is_touched], 1.0)
    # Each of n numbers goes up by one unit with probability p, on average.
    p = np.mean(model.counts[is_touched]) * step / unit
    n = 64 * np.sum(is_touched) * 6
    mean = np.mean(np.array(results)[:, is_touched] - 1.0) / unit
    self.assertAlmostEqual(mean, p, delta=4 * np.sqrt(p / n))

    np.testing.assert_array_equal(model.rows(update(1)), results[1])
    self.assertTrue(np.any(results[1] != results[0]))

  def test_seeds_have_32_bits(self):
    model = _Model("bfloat16")
    last = model.update(1.0, rounding_seed=2**32 - 1)
    jax.tree.map(
        np.testing.assert_array_equal,
        last,
        model.update(1.0, rounding_seed=jnp.uint32(2**32 - 1)),
    )
    for seed in (-1, 2**32):
      with self.assertRaisesRegex(ValueError, f"rounding_seed .* got {seed}"):
        model.update(1.0, rounding_seed=seed)

  def test_float32_tables_need_no_seed(self):
    model = _Model("float32")
    jax.tree.map(
        np.testing.assert_array_equal,
        model.update(1.0, rounding_seed=3),
        model.update(1.0),
    )


if __name__ == "__main__":
  absltest.main()
