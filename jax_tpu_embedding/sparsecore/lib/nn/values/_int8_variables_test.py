# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of codes: lookups on one device and several, and on kernels."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec
_ROWS, _DIM, _BATCH = 100, 32, 16


class _Model:
  """A table, and a lookup in it by every device."""

  def __init__(self, num_devices, optimizer=None):
    table = embedding_spec.TableSpec(
        name="t",
        vocabulary_size=_ROWS,
        embedding_dim=_DIM,
        optimizer=optimizer or embedding_spec.AdagradOptimizerSpec(0.5),
    )
    self.specs = {
        "f": embedding_spec.FeatureSpec(
            name="f",
            table_spec=table,
            input_shape=(_BATCH, 3),
            output_shape=(_BATCH, _DIM),
        )
    }
    embedding.prepare_feature_specs_for_training(
        self.specs, num_devices, num_sc_per_device=1
    )
    ids = np.random.default_rng(0).integers(0, _ROWS, (_BATCH, 3), np.int32)
    self.inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"f": ids},
        None,
        self.specs,
        num_devices,
        num_devices,
        num_sc_per_device=1,
    )
    self.mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
    self.variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(self.specs),
        jax.sharding.NamedSharding(self.mesh, P("x", None)),
        1,
    )

  def look_up(self, variables, way="calls"):
    def chosen(inputs, variables):
      with choice.lower_by(way):
        return embedding.tpu_sparse_dense_matmul(inputs, variables, self.specs)[
            "f"
        ]

    if self.mesh.size > 1:
      chosen = jax.shard_map(
          chosen,
          mesh=self.mesh,
          in_specs=P("x"),
          out_specs=P("x"),
          check_vma=False,
      )
    return jax.jit(chosen)(self.inputs, variables)


class Int8VariablesTest(parameterized.TestCase):

  @parameterized.parameters(1, 4)
  def test_lookups_are_those_of_decoded_rows(self, num_devices):
    model = _Model(num_devices)
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
        model.look_up(codes),
        model.look_up({"t": old._replace(table=decoded)}),
        rtol=1e-6,
        atol=1e-6,
    )

  def test_kernels_look_them_up(self):
    model = _Model(1)
    codes = embedding.int8_variables(model.variables)
    with subcores.recorded() as kernels:
      activations = model.look_up(codes, "kernels")
    self.assertEqual([x.name for x in kernels], ["sum_runs"])
    np.testing.assert_allclose(
        activations, model.look_up(codes), rtol=1e-6, atol=1e-6
    )

  def test_updates_are_refused(self):
    model = _Model(1, embedding_spec.SGDOptimizerSpec(0.1))
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
