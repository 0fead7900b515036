# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Pipelines that are told of devices by a layer."""

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen_embed
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)


def _linen(features, **options):
  return linen_embed.SparseCoreEmbed(features, tables="ref", **options)


def _nnx(features, **options):
  return nnx_embed.SparseCoreEmbed(
      features, tables="ref", rngs=nnx.Rngs(0), **options
  )


def _pipeline(layer, **options):
  return input_pipeline.InputPipeline(
      [two_feature_model.make_ids(i) for i in range(3)],
      layer,
      ids=lambda batch: batch,
      **options,
  )


def _one_device():
  return jax.sharding.Mesh(jax.devices()[:1], ("y",))


class LayersTest(parameterized.TestCase):

  @parameterized.product(
      make_layer=(_linen, _nnx),
      options=(
          dict(),  # all devices
          dict(
              num_sc_per_device=4, feature_stacking_strategy="STACK_THEN_SPLIT"
          ),
          dict(enable_minibatching=True, num_sc_per_device=2),
          dict(mesh=_one_device, sharding_axis="y"),
      ),
  )
  def test_the_layer_looks_up_what_comes(self, make_layer, options):
    if "mesh" in options:
      options = options | {"mesh": options["mesh"]()}
    layer = make_layer(two_feature_model.make_features(), **options)
    if make_layer is _linen:
      variables = linen_embed.SparseCoreEmbed.create_embedding_variables(
          layer.feature_specs,
          jax.random.key(0),
          mesh=options.get("mesh"),
          sharding_axis=layer.sharding_axis,
          num_sc_per_device=layer.num_sc_per_device,
      )
      variables = {"params": {"update_anchor": 0.0}, "embedding": variables}
      look_up = jax.jit(lambda inputs: layer.apply(variables, inputs))
    else:
      look_up = layer
    with _pipeline(layer) as batches:
      for batch in batches:
        sharding = jax.tree.leaves(batch.inputs)[0].sharding
        self.assertEqual(sharding.mesh, layer.lookup_config.mesh)
        self.assertEqual(sharding.spec, layer.data_partition)
        self.assertEqual(
            batch.inputs.settings.enable_minibatching, layer.enable_minibatching
        )
        got = look_up(batch.inputs)
        raw = look_up(two_feature_model.make_ids(batch.number))
        for name, expected in raw.items():
          np.testing.assert_allclose(got[name], expected, rtol=1e-6)
    self.assertEqual(batch.number, 2)

  @parameterized.parameters(
      dict(mesh=_one_device, sharding_axis="y"),
      dict(mesh=_one_device),
      dict(sharding_axis="y"),
  )
  def test_a_layer_has_its_mesh(self, **options):
    if "mesh" in options:
      options["mesh"] = options["mesh"]()
    layer = _linen(two_feature_model.make_features())
    with self.assertRaisesRegex(ValueError, "a layer has its own"):
      _pipeline(layer, **options)

  def test_limits_may_be_made_for_the_specs_of_a_layer(self):
    layer = _linen(two_feature_model.make_features())
    embedding.prepare_feature_specs_for_training(layer.feature_specs, 2, 1)
    limits = embedding.AdaptiveLimits(layer.feature_specs, 2, 2)
    with _pipeline(layer, limits=limits) as batches:
      next(batches)
      self.assertIs(batches.limits, limits)
    others = _linen(two_feature_model.make_features())
    with self.assertRaisesRegex(ValueError, "limits are of other"):
      _pipeline(others, limits=limits)

  @parameterized.parameters(_linen, _nnx)
  def test_sizes_must_be_known(self, make_layer):
    features = two_feature_model.make_features(batch=None)
    with self.assertRaisesRegex(ValueError, "sizes that are None"):
      _pipeline(make_layer(features))


if __name__ == "__main__":
  absltest.main()
