# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import local_sparse_dense_matmul
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
import numpy as np

_primitive = local_sparse_dense_matmul.tpu_local_sparse_dense_matmul_primitive
_bind = functools.partial(_primitive.bind, device_batch_size=12)
_IMPLEMENTATIONS = {
    "cpu": _bind,
    "reference": jax.jit(
        functools.partial(local_lookup.reference, device_batch_size=12)
    ),
    "gpu": jax.jit(
        functools.partial(
            every_lowering.as_on("cuda", "local_lookup", _primitive).bind,
            device_batch_size=12,
        )
    ),
}
# jaxlib raises the first if the call ran at once, the second if it ran later.
_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)


def _operands(num_ids=37):
  """embedding_ids, sample_ids, gains and a table of 10 rows; 12 samples."""
  rng = np.random.default_rng(num_ids)
  return [
      rng.integers(10, size=num_ids, dtype=np.int32),
      rng.integers(12, size=num_ids, dtype=np.int32),
      rng.normal(size=num_ids).astype(np.float32),
      rng.normal(size=(10, 24)).astype(np.float32),
  ]


class LocalLookupTest(parameterized.TestCase):

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS), num_ids=[0, 1, 8, 37]
  )
  def test_is_the_matrix_product(self, implementation, num_ids):
    embedding_ids, sample_ids, gains, table = _operands(num_ids)
    weights = np.zeros((12, 10))
    np.add.at(weights, (sample_ids, embedding_ids), gains)
    actual = _IMPLEMENTATIONS[implementation](
        embedding_ids, sample_ids, gains, table
    )
    self.assertEqual(actual.dtype, np.float32)
    np.testing.assert_allclose(actual, weights @ table, atol=1e-5)
    if implementation == "gpu":
      expected = _bind(embedding_ids, sample_ids, gains, table)
      np.testing.assert_array_equal(actual, expected)

  @parameterized.parameters((0, -1), (0, 10), (1, -1), (1, 12))
  def test_what_is_out_of_range_shows(self, position, value):
    operands = _operands(8)  # some samples have none
    operands[position][5] = value
    name = ("embedding_ids", "sample_ids")[position]
    with self.assertRaisesRegex(_NATIVE_ERRORS, rf"{name}\[5\] is {value}"):
      _bind(*operands).block_until_ready()
    for other in ("reference", "gpu"):
      self.assertTrue(np.isnan(_IMPLEMENTATIONS[other](*operands)).all())

  @parameterized.parameters(
      (0, np.float32, "embedding_ids must have type int32, got float32"),
      (1, np.int64, "sample_ids must have type int32, got int64"),
      (2, np.float16, "gains must have type float32, got float16"),
      (3, np.float16, "table must have type float32, got float16"),
  )
  def test_types_are_checked(self, position, dtype, message):
    operands = _operands()
    operands[position] = operands[position].astype(dtype)
    with jax.enable_x64(True), self.assertRaisesRegex(ValueError, message):
      _bind(*operands)

  @parameterized.parameters(
      (0, (5,), r"embedding_ids must have shape \(37,\), got \(5,\)"),
      (1, (37, 1), "sample_ids must have dim 1, got 2"),
      (2, (5,), r"gains must have shape \(37,\), got \(5,\)"),
      (3, (10,), "table must have dim 2, got 1"),
  )
  def test_shapes_are_checked(self, position, shape, message):
    operands = _operands()
    operands[position] = np.zeros(shape, operands[position].dtype)
    with self.assertRaisesRegex(ValueError, message):
      _bind(*operands)

  def test_batch_must_have_samples(self):
    with self.assertRaisesRegex(
        ValueError, "device_batch_size must be positive, got 0"
    ):
      _primitive.bind(*_operands(), device_batch_size=0)

  def test_mapped_it_runs_once_for_each(self):
    embedding_ids, sample_ids, _, table = _operands()
    gains = np.random.default_rng(0).normal(size=(3, 37)).astype(np.float32)
    actual = jax.vmap(_bind, (None, None, 0, None))(
        embedding_ids, sample_ids, gains, table
    )
    for i in range(3):
      np.testing.assert_array_equal(
          actual[i], _bind(embedding_ids, sample_ids, gains[i], table)
      )


if __name__ == "__main__":
  absltest.main()
