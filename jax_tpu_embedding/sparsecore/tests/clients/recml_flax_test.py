# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""RecML's way to keep tables: a parameter of a Flax layer of its own."""

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.tests.clients import recml_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec
_BATCH = 16


class _Layer(nn.Module):
  """Keeps the variables of an engine as a parameter with their layout."""

  engine: recml_model.Engine

  @nn.compact
  def __call__(self, processed):
    variables = self.param(
        "tables",
        embed.with_sparsecore_layout(
            self.engine.init, ("data", None), self.engine.mesh
        ),
    )
    return self.engine.lookup(processed, variables)


class FlaxTest(parameterized.TestCase):

  @parameterized.parameters(1, 4)
  def test_tables_are_a_parameter_that_is_replaced(self, num_devices):
    mesh = recml_model.make_mesh(num_devices)
    engine = recml_model.Engine(
        {"a": recml_model.Feature(20), "b": recml_model.Feature(30)},
        _BATCH,
        mesh,
    )
    layer = _Layer(engine)
    ids = {
        "a": np.full((_BATCH, 1), 3),
        "b": np.arange(_BATCH).reshape(_BATCH, 1),
    }
    processed = jax.device_put(engine.preprocess(ids), engine.sharding)
    boxed = jax.jit(layer.init)(jax.random.key(0), processed)
    self.assertIsInstance(boxed["params"]["tables"], embed.WithSparseCoreLayout)
    self.assertEqual(
        nn.get_partition_spec(boxed)["params"]["tables"], P("data", None)
    )
    self.assertEqual(
        nn.get_sharding(boxed, mesh)["params"]["tables"].spec, P("data", None)
    )

    def loss(params):
      activations = layer.apply(params, processed)
      return sum(map(jnp.sum, activations.values()))

    params = nn.unbox(boxed)
    new = jax.jit(jax.grad(loss))(params)
    before, after = (
        layer.apply(variables, processed) for variables in (params, new)
    )
    # The first accumulator is 0.1; row 3 of a is in every sample.
    np.testing.assert_allclose(
        after["a"],
        before["a"] - 0.1 * _BATCH / np.sqrt(0.1 + _BATCH**2),
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        after["b"], before["b"] - 0.1 / np.sqrt(1.1), rtol=1e-5, atol=1e-6
    )


if __name__ == "__main__":
  absltest.main()
