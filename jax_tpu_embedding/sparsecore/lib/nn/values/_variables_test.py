# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of codes: lookups on one device and several, and on kernels."""

from __future__ import annotations

import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
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


def _lower(model, variables, way="calls"):
  return model.lower(
      lambda inputs, variables: embedding.tpu_sparse_dense_matmul(
          inputs, variables, model.specs
      )["f"],
      variables,
      way,
  )


def _look_up(model, variables, way="calls"):
  return _lower(model, variables, way).compile()(model.inputs, variables)


def _look_up_ids(model, variables):
  num_devices = model.mesh.size
  topology = layout.Topology(
      local_device_count=num_devices,
      global_device_count=num_devices,
      num_sc_per_device=1,
  )
  look_up = lambda ids, variables: embedding.lookup_ids(
      {"f": ids}, None, variables, model.specs, topology
  )["f"]
  if num_devices > 1:
    look_up = jax.shard_map(
        look_up,
        mesh=model.mesh,
        in_specs=one_table_model.P("x"),
        out_specs=one_table_model.P("x"),
        check_vma=False,
    )
  return jax.jit(look_up)(model.ids, variables)


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
    expected = _look_up(model, {"t": old._replace(table=decoded)})
    np.testing.assert_array_equal(_look_up(model, codes), expected)
    np.testing.assert_array_equal(_look_up_ids(model, codes), expected)

  def test_native_calls_read_the_codes(self):
    model = _model(1)
    codes = embedding.int8_variables(model.variables)
    lowered = _lower(model, codes, "calls").as_text()
    self.assertIn("@jte_lookup_cpu(", lowered)
    # Nothing decodes the table, or rows of it: all floats are activations.
    self.assertEqual(set(re.findall(r"tensor<(\d+)x32xf32>", lowered)), {"16"})

  def test_kernels_look_them_up(self):
    model = _model(1)
    codes = embedding.int8_variables(model.variables)
    with subcores.recorded() as kernels:
      activations = _look_up(model, codes, "kernels")
    self.assertEqual([x.name for x in kernels], ["sum_runs"])
    np.testing.assert_allclose(
        activations, _look_up(model, codes), rtol=1e-6, atol=1e-6
    )

  def test_rows_are_read_by_id(self):
    model = _model(1)
    codes = embedding.int8_variables(model.variables)
    ids = np.array([[3, 99], [0, 3]])
    decoded = quantized_rows.decode(codes["t"].table, _DIM)
    np.testing.assert_allclose(
        embedding.read_rows(codes, model.specs, "t", ids),
        embedding.read_rows({"t": decoded}, model.specs, "t", ids),
        rtol=1e-6,
    )

  @parameterized.parameters(
      ([np.nan, 0],), ([0, np.inf],), ([-np.inf, 1],), ([1e38, -1e38],)
  )
  def test_rows_that_no_codes_stand_for_are_refused(self, numbers):
    for num_devices in (1, 4):
      variables = _model(num_devices).variables
      (old,) = variables.values()
      table = old.table.at[jnp.array([7, 50]), :2].set(jnp.float32(numbers))
      with self.assertRaisesRegex(
          ValueError, "Stack 't': 2 rows cannot be .* first is row 7 .* finite"
      ):
        embedding.int8_variables({"t": old._replace(table=table)})

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
