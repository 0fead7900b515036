# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A new platform is its rules and their lines in the table: one in NumPy."""

from unittest import mock

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering import table as lowerings
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np


def _weights(pointers, rows, samples, gains):
  weights, is_entry = np.zeros((8, 16), np.float32), slice(pointers[0])
  np.add.at(weights, (samples[is_entry], rows[is_entry]), gains[is_entry])
  return weights


def _lookup(operands, params, unused_devices):
  shape = jax.ShapeDtypeStruct((params["device_batch_size"], 4), np.float32)
  run = lambda coo, table: [_weights(*coo) @ table]
  return jax.pure_callback(run, [shape], operands[:4], operands[5])


def _sgd(operands, unused_params, unused_devices):
  run = lambda coo, table, gradient, rate: [
      table - rate * _weights(*coo).T @ gradient
  ]
  return jax.pure_callback(run, [operands[5]], operands[:4], *operands[5:])


_RULES = {("lookup", "toy"): _lookup, ("update_sgd", "toy"): _sgd}


class ToyPlatformTest(absltest.TestCase):

  @mock.patch.dict(lowerings.RULES, _RULES)
  def test_lookup_and_update(self):
    coo = random_coo.random_coo(
        num_sc_per_device=1,
        rows_per_shard=16,
        batch_size_per_sc=8,
        ids_per_sample=2,
    )
    as_on, sgd = every_lowering.as_on, update.UPDATE_PRIMITIVES["sgd"]
    limits = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)

    @jax.jit
    def step(table):
      activations = as_on("toy", "lookup", lookup.lookup_p).bind(
          *coo.operands, table, device_batch_size=8, **limits
      )
      operands = (*coo.operands, table, activations, np.float32(0.5))
      return activations, as_on("toy", "update_sgd", sgd).bind(
          *operands, **limits
      )

    table = np.float32(np.random.default_rng(0).normal(size=(16, 4)))
    activations, new = step(table)
    pooled = coo.weights @ table
    np.testing.assert_allclose(activations, pooled, atol=1e-5)
    change = -0.5 * coo.weights.T @ pooled
    np.testing.assert_allclose(new - table, change, atol=1e-4)


if __name__ == "__main__":
  absltest.main()
