# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What layers only read, they look up from ids; what they train, from buffers."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen_embed
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

from flax import nnx

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

_BATCH = two_feature_model.BATCH


def _linen(tables):
  """(variables, differentiated part of them) and how to look up."""
  specs = two_feature_model.make_features()
  layer = linen_embed.SparseCoreEmbed(specs, tables=tables)
  variables = layer.init(jax.random.key(0), two_feature_model.make_ids())
  rest = {}
  if tables == "ref":
    rest["embedding"] = layer.create_embedding_variables(
        specs, jax.random.key(0)
    )
  look_up = lambda params, ids, weights=None: layer.apply(
      {"params": params, **rest}, ids, weights
  )
  return variables["params"], look_up


def _nnx(tables):
  mesh = jax.sharding.Mesh(jax.devices(), ("x",))
  layer = nnx_embed.SparseCoreEmbed(
      two_feature_model.make_features(),
      "x",
      mesh,
      nnx.Rngs(0),
      tables=tables,
  )
  graph, params, rest = nnx.split(layer, nnx.Param, ...)
  look_up = lambda params, ids, weights=None: nnx.merge(graph, params, rest)(
      ids, weights=weights
  )
  return params, look_up


_LAYERS = {"linen": _linen, "nnx": _nnx}
_FORMS = parameterized.product(layer=list(_LAYERS), tables=["param", "ref"])


def _calls(function, *args):
  """Which native calls of ids a program has."""
  text = jax.jit(function).lower(*args).as_text()
  names = ("jte_lookup_ids_of_devices_cpu", "jte_convert_ids_cpu")
  return [name for name in names if f"@{name}(" in text]


class LookupIdsTest(parameterized.TestCase):

  @_FORMS
  def test_only_what_is_differentiated_converts(self, layer, tables):
    params, look_up = _LAYERS[layer](tables)
    ids = two_feature_model.make_ids()
    self.assertEqual(
        _calls(look_up, params, ids), ["jte_lookup_ids_of_devices_cpu"]
    )

    def loss(params):
      return look_up(params, ids)["tags"].sum()

    self.assertEqual(
        _calls(jax.grad(loss, allow_int=True), params),
        ["jte_convert_ids_cpu"],
    )
    # Both in one program, and the same activations.
    read = look_up(params, ids)
    _, backward, trained = jax.vjp(
        lambda params: (loss(params), look_up(params, ids)),
        params,
        has_aux=True,
    )
    del backward
    jax.tree.map(np.testing.assert_array_equal, read, trained)
    self.assertGreater(np.abs(read["words"]).sum(), 0)

  @_FORMS
  def test_batches_of_any_size_with_weights(self, layer, tables):
    params, look_up = _LAYERS[layer](tables)
    large = two_feature_model.make_ids(batch=_BATCH)
    weights = {
        "words": None,
        "tags": np.float32(np.random.default_rng(2).random((_BATCH, 2))),
    }
    expected = look_up(params, large, weights)
    first = lambda x: None if x is None else x[: _BATCH // 2]
    found = look_up(
        params,
        {name: first(x) for name, x in large.items()},
        {name: first(x) for name, x in weights.items()},
    )
    self.assertEqual(found["words"].shape[0], _BATCH // 2)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x, first(y)), found, expected
    )

  def test_weights_have_no_gradient(self):
    params, look_up = _linen("param")
    ids = two_feature_model.make_ids()

    def loss(weights):
      return look_up(params, ids, {"words": None, "tags": weights})[
          "tags"
      ].sum()

    with self.assertRaisesRegex(NotImplementedError, "have no gradients"):
      jax.grad(loss)(jnp.ones((_BATCH, 2)))

  @parameterized.parameters(*_LAYERS)
  def test_tables_with_a_broken_seal_are_not_read(self, layer):
    params, look_up = _LAYERS[layer]("param")
    ids = two_feature_model.make_ids()
    halved = jax.tree.map(lambda x: x / 2, params)
    with self.assertRaisesRegex(
        jax.errors.JaxRuntimeError, "not the result of one update"
    ):
      jax.block_until_ready(jax.jit(look_up)(halved, ids))

  def test_a_wrong_id_is_nan_and_raised_later(self):
    params, look_up = _nnx("ref")
    ids = two_feature_model.make_ids()
    ids["tags"][0, 1] = two_feature_model.VOCAB
    found = look_up(params, ids)
    is_nan = np.isnan(found["tags"]).all(1)
    np.testing.assert_array_equal(is_nan, np.arange(_BATCH) < _BATCH // 4)
    self.assertFalse(np.isnan(found["words"]).any())
    with self.assertRaisesRegex(ValueError, "'tags': sample 0 has id 32"):
      embedding.raise_errors()


if __name__ == "__main__":
  absltest.main()
