# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The layers of NNX and Linen give the same bits."""

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import click_model
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()


class SameAsLinenTest(parameterized.TestCase):

  @parameterized.product(num_devices=[1, 4], tables=["param", "ref"])
  def test_activations_and_updates(self, num_devices, tables):
    mesh, ids = click_model.make_mesh(num_devices), click_model.make_batch().ids
    model = nnx.Module()
    model.embed = embed.SparseCoreEmbed(
        click_model.make_specs(), "data", mesh, nnx.Rngs(0), tables=tables
    )
    layer = linen.SparseCoreEmbed(
        click_model.make_specs(), "data", mesh, tables=tables
    )
    by_rows = model.embed.embedding_table_partition
    copy = jax.tree.map(
        lambda x: jax.device_put(
            x,
            jax.sharding.NamedSharding(
                # The state of a stack is whole on every device.
                mesh,
                by_rows if x.ndim == 2 else jax.sharding.PartitionSpec(),
            ),
        ),
        click_model.variables_of(model),
    )
    if tables == "ref":
      refs = jax.tree.map(jax.new_ref, copy)
      params = {"update_anchor": jax.numpy.zeros(())}
      apply = lambda params: layer.apply(
          {"params": params, "embedding": refs}, ids, step=1
      )
    else:
      params = {
          "sc_embedding_variables": copy,
          "update_seal": {
              "sc_embedding_variables": model.embed.update_seal[...]
          },
      }
      apply = lambda params: layer.apply({"params": params}, ids, step=1)

    loss = lambda out: (click_model.concatenate(out) ** 2).sum()
    jax.tree.map(np.testing.assert_array_equal, model.embed(ids), apply(params))
    grads = nnx.grad(lambda model: loss(model.embed(ids, 1)))(model)["embed"]
    new = jax.grad(lambda params: loss(apply(params)))(params)
    if tables == "ref":
      actual = click_model.variables_of(model)
      expected = jax.tree.map(lambda ref: ref[...], refs)
    else:
      actual = [
          grads[name].get_value() for name in ("embedding_table", "update_seal")
      ]
      expected = [
          new["sc_embedding_variables"],
          new["update_seal"]["sc_embedding_variables"],
      ]
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


if __name__ == "__main__":
  absltest.main()
