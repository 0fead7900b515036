# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The layer on one device, with tables in mutable arrays."""

import re

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed as older_name
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

quick_compiles.use()

BATCH, LENGTH = two_feature_model.BATCH, two_feature_model.LENGTH
VOCAB, DIM = two_feature_model.VOCAB, two_feature_model.DIM
IDS = two_feature_model.make_ids()
values = two_feature_model.values


def make_layer(specs=None, **options):
  """The layer as a model of its own, and the variables to apply it with."""
  specs = specs or two_feature_model.make_features()
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0)
  )
  layer = embed.SparseCoreEmbed(specs, **options)
  params = layer.init(jax.random.key(1), IDS)["params"]
  return layer, {"params": params, "embedding": tables}


def rows_of(variables):
  """Table name -> rows; one SparseCore has them in the order of ids."""
  return {k: v.table for k, v in values(variables["embedding"]).items()}


def gradient_of_sum(layer, variables, **kwargs):
  """By the layer's parameters, of the sum of all activations."""

  def loss(params):
    out = layer.apply(variables | {"params": params}, IDS, **kwargs)
    return sum(jnp.sum(activation) for activation in out.values())

  return jax.grad(loss)(variables["params"])


class SparseCoreEmbedTest(parameterized.TestCase):

  def test_looks_up_positions_and_pools(self):
    layer, variables = make_layer()
    out = jax.jit(layer.apply)(variables, IDS)
    rows = rows_of(variables)
    np.testing.assert_array_equal(out["words"], rows["words"][IDS["words"]])
    np.testing.assert_allclose(
        out["tags"], rows["tags"][IDS["tags"]].mean(1), rtol=1e-5, atol=1e-6
    )

  def test_weights_scale_raw_ids(self):
    layer, variables = make_layer()
    weights = {
        "words": np.full((BATCH, LENGTH), 2.0, np.float32),
        "tags": np.tile(np.float32([1, 3]), (BATCH, 1)),
    }
    out = layer.apply(variables, IDS, weights)
    rows = rows_of(variables)
    np.testing.assert_allclose(out["words"], 2 * rows["words"][IDS["words"]])
    np.testing.assert_allclose(
        out["tags"],
        (rows["tags"][IDS["tags"]] * np.array([[0.25], [0.75]])).sum(1),
        rtol=1e-5,
        atol=1e-6,
    )

  def test_preprocessed_inputs_give_the_same(self):
    layer, variables = make_layer()
    inputs = layer.preprocess_inputs(0, IDS, None)
    jax.tree.map(
        np.testing.assert_array_equal,
        layer.apply(variables, inputs),
        layer.apply(variables, IDS),
    )

  def test_the_older_input_without_minibatches_is_accepted(self):
    layer, variables = make_layer()
    inputs = layer.preprocess_inputs(0, IDS, None)
    jax.tree.map(
        np.testing.assert_array_equal,
        layer.apply(variables, inputs.sparse_dense_matmul_input),
        layer.apply(variables, IDS),
    )

  def test_differentiating_updates_the_rows_that_were_looked_up(self):
    layer, variables = make_layer()
    before = rows_of(variables)
    gradients = jax.jit(lambda v: gradient_of_sum(layer, v))(variables)
    after = rows_of(variables)
    # The gradient of a sum is one, so SGD with rate 0.5 takes 0.5 * gain for
    # each id; the gain of an id in a mean of two is a half.
    for name, gain in (("words", 1.0), ("tags", 0.5)):
      occurrences = np.bincount(IDS[name].ravel(), minlength=VOCAB)
      np.testing.assert_allclose(
          after[name] - before[name],
          np.repeat(-0.5 * gain * occurrences[:, None], DIM, axis=1),
          atol=1e-5,
      )
    self.assertEqual(
        jax.tree.leaves(gradients), [0.0], "the anchor has no gradient"
    )

  def test_applying_without_differentiating_only_reads(self):
    layer, variables = make_layer()
    before = rows_of(variables)
    jax.jit(layer.apply)(variables, IDS)
    jax.tree.map(np.testing.assert_array_equal, rows_of(variables), before)

  def test_evaluation_needs_no_slots(self):
    specs = two_feature_model.make_features(
        embedding_spec.AdagradOptimizerSpec()
    )
    layer, variables = make_layer(specs)
    tables = {k: (v.table,) for k, v in variables["embedding"].items()}
    jax.tree.map(
        np.testing.assert_array_equal,
        layer.apply(variables | {"embedding": tables}, IDS),
        layer.apply(variables, IDS),
    )

  def test_the_step_reaches_the_optimizer(self):
    rate = lambda step: jnp.where(step == 0, 0.0, 1.0)
    layer, variables = make_layer(
        two_feature_model.make_features(embedding_spec.SGDOptimizerSpec(rate))
    )
    start = rows_of(variables)
    traces = []

    @jax.jit
    def gradient(variables, step):
      traces.append(step)
      return gradient_of_sum(layer, variables, step=step)

    gradient(variables, 0)
    jax.tree.map(np.testing.assert_array_equal, rows_of(variables), start)
    gradient(variables, 1)
    changed = (rows_of(variables)["words"] != start["words"]).all(axis=1)
    np.testing.assert_array_equal(
        np.nonzero(changed)[0], np.unique(IDS["words"])
    )
    self.assertLen(traces, 1, "another step must not compile anew")

  def test_activations_have_the_type_that_is_asked_for(self):
    layer, variables = make_layer(activation_dtype=jnp.bfloat16)
    out = layer.apply(variables, IDS)
    self.assertEqual(
        {k: x.dtype for k, x in out.items()},
        {"words": jnp.bfloat16, "tags": jnp.bfloat16},
    )
    rows = rows_of(variables)
    np.testing.assert_array_equal(
        out["words"], rows["words"][IDS["words"]].astype(jnp.bfloat16)
    )
    gradient_of_sum(layer, variables)
    # Gradients of bfloat16 are summed in float32: 1 + 1 + ... is exact.
    occurrences = np.bincount(IDS["words"].ravel(), minlength=VOCAB)
    np.testing.assert_allclose(
        rows_of(variables)["words"] - rows["words"],
        np.repeat(-0.5 * occurrences[:, None], DIM, axis=1),
        atol=1e-5,
    )

  def test_init_needs_no_tables_and_creates_only_the_anchor(self):
    layer = embed.SparseCoreEmbed(two_feature_model.make_features())
    self.assertEqual(
        jax.tree.map(jnp.shape, layer.init(jax.random.key(0), IDS)),
        {"params": {"update_anchor": ()}},
    )

  def test_parameters_and_an_output_in_one_call(self):
    layer, variables = make_layer()
    expected = layer.apply(variables, IDS)
    out, created = layer.apply(
        {"embedding": variables["embedding"]},
        IDS,
        rngs={"params": jax.random.key(1)},
        mutable=["params"],
    )
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    self.assertEqual(created, {"params": variables["params"]})

  def test_tabulate_shows_shapes(self):
    layer = embed.SparseCoreEmbed(two_feature_model.make_features())
    text = nn.tabulate(layer, jax.random.key(0))(IDS)
    self.assertIn(f"[{BATCH},{LENGTH},{DIM}]", re.sub(r"\x1b\[\w*m", "", text))

  def test_applying_without_tables_is_an_error(self):
    layer, variables = make_layer()
    with self.assertRaisesRegex(
        ValueError, "without the collection 'embedding'.*create_embedding_var"
    ):
      layer.apply({"params": variables["params"]}, IDS)

  def test_tables_of_other_features_are_an_error(self):
    layer, variables = make_layer()
    del variables["embedding"]["tags"]
    with self.assertRaisesRegex(
        ValueError,
        r"lacks the stacks \['tags'\]; it has \['words'\].* stacked for another"
        r" batch, use those of the first.*activation_mem_bytes_limit",
    ):
      layer.apply(variables, IDS)

  def test_ids_of_another_shape_are_an_error(self):
    layer, variables = make_layer()
    ids = IDS | {"words": IDS["words"][:, :2]}
    with self.assertRaisesRegex(
        ValueError,
        r"'words': ids have shape \(16, 2\).*must have shape \(16, 3\)",
    ):
      layer.apply(variables, ids)

  def test_misspelt_features_are_an_error(self):
    layer, variables = make_layer()
    ids = {"wrods": IDS["words"], "tags": IDS["tags"]}
    with self.assertRaisesRegex(
        ValueError, r"Only in features: \[\"\['wrods'\]\"\]"
    ):
      layer.apply(variables, ids)

  def test_weights_with_preprocessed_inputs_are_an_error(self):
    layer, variables = make_layer()
    inputs = layer.preprocess_inputs(0, IDS, None)
    with self.assertRaisesRegex(ValueError, "weights go with raw ids"):
      layer.apply(variables, inputs, IDS)

  @parameterized.parameters(
      ("tables", "refs", "one of 'auto', 'param' and 'ref', got 'refs'"),
      ("activation_dtype", "int8", "a type of floats, got int8"),
      ("activation_dtype", "int3", "a type of floats, got 'int3'"),
  )
  def test_another_value_of_a_field_is_an_error(self, name, value, message):
    with self.assertRaisesRegex(
        (ValueError, TypeError), f"{name} must be {message}"
    ):
      embed.SparseCoreEmbed(two_feature_model.make_features(), **{name: value})

  @parameterized.parameters(
      (dict(step=-1), "step must be from 0 to 2.31 - 1, got -1"),
      (dict(step=np.float32("nan")), "step must be from 0 .*nan"),
      (dict(step=2**31), "step must be from 0 .* 2147483648"),
      (dict(step="1"), "step must be a number, got '1'"),
      (dict(step=np.arange(2)), r"step must be one number, got shape \(2,\)"),
      (dict(gradient_scale=0), "gradient_scale must be finite and not zero"),
      (dict(gradient_scale=float("inf")), "gradient_scale must be finite"),
  )
  def test_impossible_numbers_are_an_error(self, numbers, message):
    layer, variables = make_layer()
    with self.assertRaisesRegex((ValueError, TypeError), message):
      layer.apply(variables, IDS, **numbers)

  def test_the_older_module_has_the_same_names(self):
    self.assertIs(older_name.SparseCoreEmbed, embed.SparseCoreEmbed)
    self.assertIs(older_name.EmbeddingLookupInput, embedding.PreprocessedInput)


if __name__ == "__main__":
  absltest.main()
