# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed as older_name
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

BATCH, LENGTH, DIM, VOCAB = 4, 3, 8, 32


def make_features(optimizer=None):
  """One feature with a vector per position and one that is pooled."""
  words = embedding_spec.TableSpec(
      name="words",
      vocabulary_size=VOCAB,
      embedding_dim=DIM,
      optimizer=optimizer or embedding_spec.SGDOptimizerSpec(0.5),
  )
  tags = embedding_spec.TableSpec(
      name="tags",
      vocabulary_size=VOCAB,
      embedding_dim=DIM,
      optimizer=optimizer or embedding_spec.SGDOptimizerSpec(0.5),
      combiner="mean",
  )
  return {
      "words": embedding_spec.FeatureSpec(
          name="words",
          table_spec=words,
          input_shape=(BATCH, LENGTH),
          output_shape=(BATCH, LENGTH, DIM),
      ),
      "tags": embedding_spec.FeatureSpec(
          name="tags",
          table_spec=tags,
          input_shape=(BATCH, 2),
          output_shape=(BATCH, DIM),
      ),
  }


def make_ids():
  return {
      "words": np.arange(BATCH * LENGTH, dtype=np.int32).reshape(BATCH, LENGTH),
      "tags": np.array([[1, 1], [1, 2], [3, 4], [5, 6]], np.int32),
  }


class Model(nn.Module):
  feature_specs: embed.Nested[embedding_spec.FeatureSpec]

  @nn.compact
  def __call__(self, inputs, weights=None, step=None):
    return embed.SparseCoreEmbed(feature_specs=self.feature_specs)(
        inputs, weights, step=step
    )


def make_model(specs):
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0)
  )
  model = Model(specs)
  params = model.init(jax.random.key(1), make_ids())["params"]
  return model, params, tables


def values(tables):
  return jax.tree.map(lambda ref: np.asarray(ref[...]), tables)


class SparseCoreEmbedTest(parameterized.TestCase):

  def test_looks_up_positions_and_pools(self):
    model, params, tables = make_model(make_features())
    out = jax.jit(model.apply)(
        {"params": params, "embedding": tables}, make_ids()
    )
    rows = {name: v.table for name, v in values(tables).items()}
    np.testing.assert_array_equal(
        out["words"], rows["words"][make_ids()["words"]]
    )
    np.testing.assert_allclose(
        out["tags"], rows["tags"][make_ids()["tags"]].mean(1), rtol=1e-6
    )

  def test_weights_scale_raw_ids(self):
    model, params, tables = make_model(make_features())
    weights = {
        "words": np.full((BATCH, LENGTH), 2.0, np.float32),
        "tags": np.tile(np.float32([1, 3]), (BATCH, 1)),
    }
    out = model.apply(
        {"params": params, "embedding": tables}, make_ids(), weights
    )
    rows = {name: v.table for name, v in values(tables).items()}
    np.testing.assert_allclose(
        out["words"], 2 * rows["words"][make_ids()["words"]]
    )
    np.testing.assert_allclose(
        out["tags"],
        (rows["tags"][make_ids()["tags"]] * np.array([[0.25], [0.75]])).sum(1),
        rtol=1e-5,
    )

  def test_preprocessed_inputs_give_the_same(self):
    specs = make_features()
    model, params, tables = make_model(specs)
    variables = {"params": params, "embedding": tables}
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        make_ids(), None, specs, 1, 1
    )
    jax.tree.map(
        np.testing.assert_array_equal,
        model.apply(variables, inputs),
        model.apply(variables, make_ids()),
    )

  def test_differentiating_updates_the_rows_that_were_looked_up(self):
    model, params, tables = make_model(make_features())
    before = values(tables)

    @jax.jit
    def gradient(params, tables, ids):
      def loss(params):
        out = model.apply({"params": params, "embedding": tables}, ids)
        return sum(jnp.sum(activation) for activation in out.values())

      return jax.grad(loss)(params)

    gradients = gradient(params, tables, make_ids())
    after = values(tables)
    # The gradient of a sum is one, so SGD with rate 0.5 takes 0.5 per position
    # and 0.5 * gain per id of a mean.
    expected = np.zeros((VOCAB, 1))
    expected[:12] = -0.5
    np.testing.assert_allclose(
        after["words"].table - before["words"].table,
        np.broadcast_to(expected, (VOCAB, DIM)),
        atol=1e-6,
    )
    expected = np.zeros((VOCAB, 1))
    expected[1] = -0.75  # twice in sample 0, once in sample 1
    expected[2:7] = -0.25
    np.testing.assert_allclose(
        after["tags"].table - before["tags"].table,
        np.broadcast_to(expected, (VOCAB, DIM)),
        atol=1e-6,
    )
    self.assertEqual(
        jax.tree.leaves(gradients), [0.0], "the anchor has no gradient"
    )

  def test_applying_without_differentiating_only_reads(self):
    model, params, tables = make_model(make_features())
    before = values(tables)
    jax.jit(model.apply)({"params": params, "embedding": tables}, make_ids())
    jax.tree.map(np.testing.assert_array_equal, values(tables), before)

  def test_the_step_reaches_the_optimizer(self):
    rate = lambda step: jnp.where(step == 0, 0.0, 1.0)
    model, params, tables = make_model(
        make_features(embedding_spec.SGDOptimizerSpec(rate))
    )
    start = values(tables)
    traces = []

    @jax.jit
    def gradient(params, tables, step):
      traces.append(step)

      def loss(params):
        out = model.apply(
            {"params": params, "embedding": tables}, make_ids(), step=step
        )
        return jnp.sum(out["words"])

      return jax.grad(loss)(params)

    gradient(params, tables, 0)
    jax.tree.map(np.testing.assert_array_equal, values(tables), start)
    gradient(params, tables, 1)
    changed = values(tables)["words"].table != start["words"].table
    self.assertTrue(changed[:12].all())
    self.assertLen(traces, 1, "another step must not compile anew")

  def test_the_update_copies_no_table(self):
    big = embedding_spec.TableSpec(
        name="big",
        vocabulary_size=1 << 16,
        embedding_dim=DIM,
        optimizer=embedding_spec.AdagradOptimizerSpec(),
    )
    specs = {
        "f": embedding_spec.FeatureSpec(
            name="f",
            table_spec=big,
            input_shape=(BATCH, 2),
            output_shape=(BATCH, DIM),
        )
    }
    tables = embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0)
    )
    model = Model(specs)
    ids = {"f": jnp.zeros((BATCH, 2), jnp.int32)}
    params = model.init(jax.random.key(1), ids)["params"]

    @jax.jit
    def gradient(params, tables, ids):
      def loss(params):
        out = model.apply({"params": params, "embedding": tables}, ids)
        return jnp.sum(out["f"] ** 2)

      return jax.grad(loss)(params)

    compiled = gradient.lower(params, tables, ids).compile()
    table_bytes = (1 << 16) * DIM * 4
    self.assertLess(
        compiled.memory_analysis().temp_size_in_bytes, table_bytes / 8
    )
    copies = [
        line
        for line in compiled.as_text().splitlines()
        if "copy(" in line and "[65536,8]" in line
    ]
    self.assertEmpty(copies)

  def test_runs_on_the_one_device_of_a_mesh(self):
    program = """
import jax
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_test as test
try:
  test.make_model(test.make_features())
except NotImplementedError as error:
  print(error)
with jax.set_mesh(jax.sharding.Mesh(jax.devices()[1:2], ("device",))):
  model, params, tables = test.make_model(test.make_features())
  variables = {"params": params, "embedding": tables}
  out = jax.jit(model.apply)(variables, test.make_ids())
  print(out["words"].shape, out["words"].devices())
"""
    flags = "--xla_force_host_platform_device_count=3"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertRegex(result.stdout, "runs on one device, and the mesh has 3")
    self.assertIn("(4, 3, 8) {CpuDevice(id=1)}", result.stdout)

  def test_init_needs_no_tables_and_creates_only_the_anchor(self):
    variables = Model(make_features()).init(jax.random.key(0), make_ids())
    self.assertEqual(
        jax.tree.map(jnp.shape, variables),
        {"params": {"SparseCoreEmbed_0": {"update_anchor": ()}}},
    )

  def test_applying_without_tables_is_an_error(self):
    model, params, _ = make_model(make_features())
    with self.assertRaisesRegex(
        ValueError, "without the collection 'embedding'.*create_embedding_var"
    ):
      model.apply({"params": params}, make_ids())

  def test_tables_of_other_features_are_an_error(self):
    model, params, tables = make_model(make_features())
    del tables["tags"]
    with self.assertRaisesRegex(
        ValueError, r"lacks the stacks \['tags'\]; it has \['words'\]"
    ):
      model.apply({"params": params, "embedding": tables}, make_ids())

  def test_ids_of_another_shape_are_an_error(self):
    model, params, tables = make_model(make_features())
    ids = make_ids()
    ids["words"] = ids["words"][:, :2]
    with self.assertRaisesRegex(
        ValueError,
        r"'words': ids have shape \(4, 2\).*must have shape \(4, 3\)",
    ):
      model.apply({"params": params, "embedding": tables}, ids)

  def test_misspelt_features_are_an_error(self):
    model, params, tables = make_model(make_features())
    ids = make_ids()
    ids["wrods"] = ids.pop("words")
    with self.assertRaisesRegex(
        ValueError, r"Only in features: \[\"\['wrods'\]\"\]"
    ):
      model.apply({"params": params, "embedding": tables}, ids)

  def test_weights_with_preprocessed_inputs_are_an_error(self):
    specs = make_features()
    model, params, tables = make_model(specs)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        make_ids(), None, specs, 1, 1
    )
    with self.assertRaisesRegex(ValueError, "weights go with raw ids"):
      model.apply({"params": params, "embedding": tables}, inputs, make_ids())

  def test_the_older_module_has_the_same_layer(self):
    self.assertIs(older_name.SparseCoreEmbed, embed.SparseCoreEmbed)
    self.assertIs(older_name.EmbeddingLookupInput, embedding.PreprocessedInput)


if __name__ == "__main__":
  absltest.main()
