# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Meshes of several axes, of explicit axes and of some of the devices."""

import contextlib

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import click_model
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

AUTO = jax.sharding.AxisType.Auto
EXPLICIT = jax.sharding.AxisType.Explicit
P = jax.sharding.PartitionSpec


def grid(*axis_types):
  return jax.make_mesh((2, 2), ("data", "model"), axis_types)


def of_specs():
  """One table; the twin is in embed_test.py."""
  return {
      "item": click_model.make_specs(embedding_spec.SGDOptimizerSpec(0.5))[
          "item"
      ]
  }


# Name -> (mesh, sharding axis, number of shards).
MESHES = {
    "one_of_two_axes": lambda: (grid(AUTO, AUTO), "data", 2),
    "the_second_axis": lambda: (grid(AUTO, AUTO), "model", 2),
    "all_axes": lambda: (grid(AUTO, AUTO), ("data", "model"), 4),
    "explicit_axes": lambda: (
        grid(EXPLICIT, EXPLICIT),
        ("data", "model"),
        4,
    ),
    "one_of_two_explicit_axes": lambda: (
        grid(EXPLICIT, EXPLICIT),
        "data",
        2,
    ),
    "some_devices_in_another_order": lambda: (
        jax.sharding.Mesh(jax.devices()[3:1:-1], ("data",)),
        "data",
        2,
    ),
    "all_devices_by_default": lambda: (None, "data", 4),
}


class MeshesTest(parameterized.TestCase):

  @parameterized.product(name=list(MESHES), tables=["param", "ref"])
  def test_an_update_takes_half_a_vote_per_occurrence(self, name, tables):
    mesh, sharding_axis, num_shards = MESHES[name]()
    layer = embed.SparseCoreEmbed(
        of_specs(), sharding_axis, mesh, nnx.Rngs(0), tables=tables
    )
    self.assertEqual(layer.num_shards, num_shards)
    self.assertEqual(layer.data_partition, P(sharding_axis))
    model = nnx.Module()
    model.embed = layer
    before = click_model.logical_tables(model)["items"]
    ids = {"item": click_model.make_batch().ids["item"]}

    @nnx.jit
    def update(model, ids):
      loss = lambda model: model.embed(ids)["item"].sum()
      optimizer = embed.PartitionedOptimizer(model, optax.identity())
      optimizer.update(model, nnx.grad(loss)(model))

    set_mesh = (
        jax.set_mesh(mesh) if "explicit" in name else contextlib.nullcontext()
    )
    with set_mesh:
      out = nnx.jit(lambda model: model.embed(ids)["item"])(model)
      update(model, ids)
    np.testing.assert_allclose(
        out, before[ids["item"]].sum(1), rtol=1e-5, atol=1e-6
    )
    occurrences = np.bincount(ids["item"].ravel(), minlength=len(before))
    np.testing.assert_allclose(
        click_model.logical_tables(model)["items"],
        before - 0.5 * occurrences[:, None],
        rtol=1e-5,
        atol=1e-6,
    )

  def test_the_mesh_of_the_context(self):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("data",))
    with jax.set_mesh(mesh):
      layer = embed.SparseCoreEmbed(of_specs(), "data", None, nnx.Rngs(0))
    self.assertIs(layer.mesh, mesh)

  def test_an_axis_that_the_mesh_lacks_is_an_error(self):
    with self.assertRaisesRegex(ValueError, "'date'.*axes.*data"):
      embed.SparseCoreEmbed(
          of_specs(), "date", click_model.make_mesh(4), nnx.Rngs(0)
      )

  def test_sparsecores_per_device_are_those_that_specs_were_prepared_for(self):
    specs = of_specs()
    embedding.prepare_feature_specs_for_training(specs, 2, 3)
    layer = embed.SparseCoreEmbed(
        specs, "data", click_model.make_mesh(2), nnx.Rngs(0)
    )
    self.assertEqual(layer.num_sc_per_device, 3)


if __name__ == "__main__":
  absltest.main()
