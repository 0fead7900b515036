# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_activation_unstack
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_gradient_stack
import numpy as np

_unstack = (
    sparse_dense_matmul_activation_unstack.tpu_sparse_dense_matmul_activation_unstack_primitive.bind
)
_stack = (
    sparse_dense_matmul_gradient_stack.tpu_sparse_dense_matmul_gradient_stack_primitive.bind
)


def _numbered(num_rows, dim, first=0):
  """Row i has the value first + i."""
  values = np.arange(first, first + num_rows, dtype=np.float32)
  return np.repeat(values[:, None], dim, axis=1)


class StackingTest(parameterized.TestCase):

  def test_unstacks_runs_of_each_sparsecore(self):
    first, second = _unstack(
        _numbered(12, 8),
        per_feature_batch_sizes=(4, 8),
        per_feature_dims=(6, 8),
        num_sc_per_device=2,
    )
    self.assertEqual(first.shape, (4, 6))
    self.assertEqual(second.shape, (8, 8))
    np.testing.assert_array_equal(first[:, 0], [0, 1, 6, 7])
    np.testing.assert_array_equal(second[:, 7], [2, 3, 4, 5, 8, 9, 10, 11])

  def test_stacks_and_fills_columns_with_zeros(self):
    actual = _stack(
        _numbered(4, 6),
        _numbered(8, 8, first=100),
        stacked_batch_size=12,
        stacked_feature_dim=8,
        num_sc_per_device=2,
    )
    rows = [0, 1, 100, 101, 102, 103, 2, 3, 104, 105, 106, 107]
    np.testing.assert_array_equal(actual[:, 0], rows)
    np.testing.assert_array_equal(
        actual[:, 7], [row if row >= 100 else 0 for row in rows]
    )

  @parameterized.parameters(1, 2, 3)
  def test_are_inverses(self, num_scs):
    stacked = np.random.default_rng(0).normal(size=(18, 8)).astype(np.float32)
    features = _unstack(
        stacked,
        per_feature_batch_sizes=(6, 12),
        per_feature_dims=(8, 8),
        num_sc_per_device=num_scs,
    )
    actual = _stack(
        *features,
        stacked_batch_size=18,
        stacked_feature_dim=8,
        num_sc_per_device=num_scs,
    )
    np.testing.assert_array_equal(actual, stacked)

  def test_default_is_the_number_of_the_device(self):
    unstack = functools.partial(
        _unstack,
        _numbered(12, 8),
        per_feature_batch_sizes=(4, 8),
        per_feature_dims=(6, 8),
    )
    np.testing.assert_array_equal(unstack()[0][:, 0], [0, 1, 2, 3])
    with mock.patch.dict("os.environ", {hardware.NUM_SC_ENV: "4"}):
      jax.clear_caches()
      np.testing.assert_array_equal(unstack()[0][:, 0], [0, 3, 6, 9])
    jax.clear_caches()

  def test_device_is_the_one_that_is_compiled_for(self):
    mesh = jax.sharding.AbstractMesh(
        (1,),
        ("x",),
        axis_types=(jax.sharding.AxisType.Auto,),
        abstract_device=jax.sharding.AbstractDevice(
            device_kind="TPU v5", num_cores=2, platform="tpu"
        ),
    )
    unstack = jax.shard_map(
        functools.partial(
            _unstack, per_feature_batch_sizes=(4, 8), per_feature_dims=(6, 8)
        ),
        mesh=mesh,
        in_specs=jax.P("x"),
        out_specs=jax.P("x"),
        check_vma=False,
    )
    stacked = jax.ShapeDtypeStruct((12, 8), np.float32)
    lowered = jax.jit(unstack).trace(stacked).lower(lowering_platforms=("tpu",))
    self.assertIn("tensor<4x3x8xf32>", lowered.as_text())

  def test_mapped_they_run_once_for_each(self):
    stacked = np.stack([_numbered(12, 8), _numbered(12, 8, first=50)])
    unstack = functools.partial(
        _unstack,
        per_feature_batch_sizes=(4, 8),
        per_feature_dims=(6, 8),
        num_sc_per_device=2,
    )
    actual = jax.vmap(unstack)(stacked)
    for i in range(2):
      for mapped, alone in zip(actual, unstack(stacked[i]), strict=True):
        np.testing.assert_array_equal(mapped[i], alone)

  @parameterized.named_parameters(
      (
          "rows",
          dict(per_feature_batch_sizes=(4, 9)),
          r"stack has 12 samples, and its features 4 \+ 9 = 13",
      ),
      (
          "negative",
          dict(per_feature_batch_sizes=(-4, 16)),
          "feature 0 has -4 samples, which must not be negative",
      ),
      (
          "lengths",
          dict(per_feature_dims=(6,)),
          "one number for each feature, got 2 and 1",
      ),
      (
          "width",
          dict(per_feature_dims=(6, 9)),
          "Feature 1 has 9 columns, which must be 1 to 8",
      ),
      (
          "sparsecores",
          dict(num_sc_per_device=0),
          "num_sc_per_device must be positive, got 0",
      ),
      (
          "shares",
          dict(num_sc_per_device=8),
          "feature 0 has 4 samples on a device, which 8 SparseCores cannot",
      ),
  )
  def test_unstack_checks(self, change, message):
    params = dict(per_feature_batch_sizes=(4, 8), per_feature_dims=(6, 8))
    with self.assertRaisesRegex(ValueError, message):
      _unstack(_numbered(12, 8), **(params | change))

  @parameterized.named_parameters(
      ("none", [], "at least one gradient, got none"),
      ("width", [(12, 9)], "Feature 0 has 9 columns, which must be 1 to 8"),
      ("rows", [(4, 8), (4, 8)], "12 samples, and its features"),
      ("rank", [(12,)], "gradient 0 must have dim 2, got 1"),
      ("shares", [(5, 8), (7, 8)], "feature 0 has 5 samples on a device"),
  )
  def test_stack_checks(self, shapes, message):
    with self.assertRaisesRegex(ValueError, message):
      _stack(
          *(np.zeros(shape, np.float32) for shape in shapes),
          stacked_batch_size=12,
          stacked_feature_dim=8,
          num_sc_per_device=2,
      )

  def test_types_are_checked(self):
    with self.assertRaisesRegex(ValueError, "gradient 0 must have type float3"):
      _stack(
          np.zeros((4, 8), np.int32),
          stacked_batch_size=4,
          stacked_feature_dim=8,
      )
    with self.assertRaisesRegex(ValueError, "activations must have type float"):
      _unstack(
          np.zeros((4, 8), np.int32),
          per_feature_batch_sizes=(4,),
          per_feature_dims=(8,),
      )


if __name__ == "__main__":
  absltest.main()
