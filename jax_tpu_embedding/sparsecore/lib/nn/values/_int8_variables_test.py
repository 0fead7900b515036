# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of codes: lookups on one device and several, and on kernels."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import one_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_ROWS, _DIM, _BATCH = 100, 32, 16


def _model(num_devices, optimizer=None):
  return one_table_model.make(
      embedding_spec.TableSpec(
          name="t",
          vocabulary_size=_ROWS,
          embedding_dim=_DIM,
          optimizer=optimizer or embedding_spec.AdagradOptimizerSpec(0.5),
      ),
      batch=_BATCH,
      valency=3,
      num_devices=num_devices,
  )


def _look_up(model, variables, way="calls"):
  lowered = model.lower(
      lambda inputs, variables: embedding.tpu_sparse_dense_matmul(
          inputs, variables, model.specs
      )["f"],
      variables,
      way,
  )
  return lowered.compile()(model.inputs, variables)


class Int8VariablesTest(parameterized.TestCase):

  @parameterized.parameters(1, 4)
  def test_lookups_are_those_of_decoded_rows(self, num_devices):
    model = _model(num_devices)
    (old,) = model.variables.values()
    codes = embedding.int8_variables(model.variables)
    words, slots = codes["t"]
    self.assertEqual(slots, ())
    self.assertEqual(words.sharding, old.table.sharding)
    self.assertEqual(words.shape[1], 16)  # 8 words of codes, and 8
    decoded = quantized_rows.decode(words, _DIM)
    scale = (old.table.max(1) - old.table.min(1)) / 255
    off = np.abs(np.asarray(decoded - old.table)).max(1)
    # Rows of padding are zero, and stay so.
    np.testing.assert_array_less(off, np.asarray(scale) * 0.501 + 1e-9)
    decoded = jax.device_put(decoded, old.table.sharding)
    np.testing.assert_allclose(
        _look_up(model, codes),
        _look_up(model, {"t": old._replace(table=decoded)}),
        rtol=1e-6,
        atol=1e-6,
    )

  def test_kernels_look_them_up(self):
    model = _model(1)
    codes = embedding.int8_variables(model.variables)
    with subcores.recorded() as kernels:
      activations = _look_up(model, codes, "kernels")
    self.assertEqual([x.name for x in kernels], ["sum_runs"])
    np.testing.assert_allclose(
        activations, _look_up(model, codes), rtol=1e-6, atol=1e-6
    )

  def test_updates_are_refused(self):
    model = _model(1, embedding_spec.SGDOptimizerSpec(0.1))
    codes = embedding.int8_variables(model.variables)
    with self.assertRaisesRegex(ValueError, "must have type float.* got int32"):
      embedding.tpu_sparse_dense_matmul_grad(
          {"f": jnp.zeros((_BATCH, _DIM))}, model.inputs, codes, model.specs
      )
    with self.assertRaisesRegex(
        ValueError, r"Stack 't': .* got int32\[104, 16\]"
    ):
      embedding.int8_variables(codes)


if __name__ == "__main__":
  absltest.main()
