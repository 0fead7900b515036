# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Train steps by kernels of SparseCores, emulated, against native ones.

ALL=1 runs every number of devices with every dtype; a program takes ten to
thirty seconds of CPU.
"""

from __future__ import annotations

import itertools
import os

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import one_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_ROWS, _DIM, _BATCH = 200, 16, 32
_NUM_SCS = 8
_CASES = [(2, "bfloat16")]
if os.environ.get("ALL"):
  _CASES = list(itertools.product((1, 2, 4), ("float32", "bfloat16")))


class ByKernelsTest(parameterized.TestCase):

  @parameterized.parameters(*_CASES)
  def test_a_step_is_the_native_one(self, num_devices, dtype):
    model = one_table_model.make(
        embedding_spec.TableSpec(
            name="t",
            vocabulary_size=_ROWS,
            embedding_dim=_DIM,
            dtype=dtype,
            optimizer=embedding_spec.AdagradOptimizerSpec(0.5),
            max_ids_per_partition=4,
            max_unique_ids_per_partition=2,
        ),
        batch=_BATCH,
        valency=5,
        num_devices=num_devices,
        num_sc=_NUM_SCS // num_devices,
        enable_minibatching=True,
    )
    specs, variables = model.specs, model.variables
    self.assertGreater(model.inputs.num_minibatches[0], 1)

    def step(inputs, variables):
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      gradients = jax.tree.map(jnp.tanh, activations)
      return activations, embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, specs, rounding_seed=3
      )

    def results(way):
      with subcores.recorded() as kernels:
        lowered = model.lower(step, variables, way)
      self.assertEqual(
          {"sum_runs", "step_rows"} <= {kernel.name for kernel in kernels},
          way == "kernels",
      )
      return jax.tree.leaves(lowered.compile()(model.inputs, variables))

    (activations, table, slot), expected = results("kernels"), results("calls")
    np.testing.assert_allclose(activations, expected[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(slot, expected[2], rtol=1e-6, atol=1e-6)
    self.assertEqual(table.dtype, dtype)
    table, new = np.float32(table), np.float32(expected[1])
    if dtype == "float32":
      np.testing.assert_allclose(table, new, rtol=1e-6, atol=1e-6)
    else:  # A number near the limit may go to the other side.
      self.assertGreater(np.mean(table == new), 0.999)
    old = np.float32(jax.tree.leaves(variables)[0])
    self.assertBetween(np.mean(table == old), 0.1, 0.9)


if __name__ == "__main__":
  absltest.main()
