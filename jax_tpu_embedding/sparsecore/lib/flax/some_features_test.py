# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Layers with some of the features that a stack was planned for.

Expected are the activations and tables of a program without stacks: SGD by
jax.grad, on whole tables.
"""

from __future__ import annotations

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen_embed
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from flax import nnx
import flax.linen as nn

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

_ROWS, _DIM, _RATE = 20, 8, 0.5
_BATCHES = {"a": 8, "b": 8, "c": 16, "d": 24}


def _specs(
    num_devices,
    num_sc,
    placement="sparsecore",
    optimizer=embedding_spec.SGDOptimizerSpec(_RATE),
):
  """Features a, b and c of one table, and d of another one in its stack."""

  def table(name):
    return embedding_spec.TableSpec(
        name=name,
        vocabulary_size=_ROWS,
        embedding_dim=_DIM,
        initializer=jax.nn.initializers.normal(1.0),
        optimizer=optimizer,
        placement=placement,
        max_ids_per_partition=512,
        max_unique_ids_per_partition=512,
    )

  tables = {"shared": table("shared"), "other": table("other")}
  specs = {
      name: embedding_spec.FeatureSpec(
          name=name,
          table_spec=tables["other" if name == "d" else "shared"],
          input_shape=(batch, 2),
          output_shape=(batch, _DIM),
      )
      for name, batch in _BATCHES.items()
  }
  if placement == "sparsecore":
    limits = lambda unused_name, unused_batch: 512
    embedding.auto_stack_tables(specs, num_devices, num_sc, limits, limits)
  embedding.prepare_feature_specs_for_training(specs, num_devices, num_sc)
  return specs


def _ids(specs):
  rng = np.random.default_rng(0)
  return {
      name: rng.integers(_ROWS, size=(spec.output_shape[0], 2), dtype=np.int32)
      for name, spec in specs.items()
  }


def _loss(activations):
  columns = jnp.arange(1.0, _DIM + 1)
  return sum(
      jnp.sum(jnp.sin(len(x) * x) * columns)
      for x in jax.tree.leaves(activations)
  )


def _tables(specs, variables):
  read = lambda name: np.asarray(
      embedding.read_rows(variables, specs, name, np.arange(_ROWS))
  )
  return {name: read(name) for name in ("shared", "other")}


def _expected(specs, ids, tables, loss=_loss):
  """The activations, and the tables after a step."""

  def look_up(tables):
    return {
        name: tables[specs[name].table_spec.name][of_feature].sum(axis=1)
        for name, of_feature in ids.items()
    }

  gradients = jax.grad(lambda tables: loss(look_up(tables)))(
      jax.tree.map(jnp.asarray, tables)
  )
  new = jax.tree.map(lambda x, g: x - _RATE * g, tables, gradients)
  return look_up(tables), new


def _assert_close(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
      actual,
      expected,
  )


def _mesh(num_devices):
  return jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))


class _Linen:
  """A layer whose tables are in one of two places."""

  def __init__(self, form, all_specs, specs, num_devices, **options):
    mesh = _mesh(num_devices)
    self.layer = linen_embed.SparseCoreEmbed(
        specs, mesh=mesh, tables=form, **options
    )
    self.form, self.specs = form, all_specs
    self.refs = self.layer.create_embedding_variables(
        all_specs,
        jax.random.key(0),
        mesh=mesh,
        num_sc_per_device=self.layer.num_sc_per_device,
    )
    self.params = {"update_anchor": jnp.zeros(())}
    if form == "param":
      self.params = {
          linen_embed.EMBEDDING_PARAM_NAME: {
              name: embedding.EmbeddingVariables(x.table[...], x.slot)
              for name, x in self.refs.items()
          }
      }

  @property
  def tables(self):
    of_params = self.params.get(linen_embed.EMBEDDING_PARAM_NAME)
    return _tables(self.specs, of_params or self.refs)

  def look_up(self, params, refs, inputs):
    variables = {"params": params}
    if self.form == "ref":
      variables["embedding"] = refs
    return self.layer.apply(variables, inputs)

  def step(self, inputs):
    @jax.jit
    def step(params, refs, inputs):
      def loss(params):
        activations = self.look_up(params, refs, inputs)
        return _loss(activations), activations

      return jax.grad(loss, has_aux=True)(params)

    self.params, activations = step(self.params, self.refs, inputs)
    return activations


class SomeFeaturesTest(parameterized.TestCase):

  def check_step(self, layer, specs, ids, inputs):
    tables = layer.tables
    expected, new = _expected(specs, ids, tables)
    _assert_close(
        jax.jit(layer.look_up)(layer.params, layer.refs, inputs), expected
    )
    _assert_close(layer.step(inputs), expected)
    _assert_close(layer.tables, new)

  @parameterized.product(
      form=["ref", "param"],
      placement=["sparsecore", "tensorcore"],
      way=[
          ("SPLIT_THEN_STACK", (1, 1)),
          ("SPLIT_THEN_STACK", (4, 1)),
          ("STACK_THEN_SPLIT", (2, 2)),
      ],
  )
  def test_a_step_is_that_of_whole_tables(self, form, placement, way):
    strategy, topology = way
    all_specs = _specs(*topology, placement)
    specs = {name: all_specs[name] for name in ("b", "d")}
    ids = _ids(specs)
    layer = _Linen(
        form,
        all_specs,
        specs,
        topology[0],
        num_sc_per_device=topology[1],
        feature_stacking_strategy=strategy,
    )
    self.check_step(layer, specs, ids, ids)
    # Preprocessed by the layer, or for all features of the stacks.
    self.check_step(
        layer, specs, ids, layer.layer.preprocess_inputs(0, ids, None)
    )
    of_all, _ = embedding.preprocess_sparse_dense_matmul_input(
        _ids(all_specs) | ids,
        None,
        all_specs,
        topology[0],
        topology[0],
        num_sc_per_device=topology[1],
        feature_stacking_strategy=strategy,
    )
    self.check_step(layer, specs, ids, of_all)

  @parameterized.product(
      form=["ref", "param"], placement=["sparsecore", "tensorcore"]
  )
  def test_other_batches_of_some_features(self, form, placement):
    all_specs = _specs(1, 2, placement)
    specs = {name: all_specs[name] for name in ("b", "d")}
    ids = _ids(specs) | {"b": np.array([[1, 2], [3, 3], [19, 0], [1, 1]])}
    layer = _Linen(form, all_specs, specs, 1)
    self.check_step(layer, specs, ids, ids)
    self.check_step(
        layer, specs, ids, layer.layer.preprocess_inputs(0, ids, None)
    )

  @parameterized.product(form=["ref", "param"], batch=[2, 32])
  def test_specs_that_were_given_another_batch_after_planning(
      self, form, batch
  ):
    all_specs = _specs(1, 2)
    specs = {
        name: dataclasses.replace(
            spec, input_shape=(batch, 2), output_shape=(batch, _DIM)
        )
        for name, spec in all_specs.items()
    }
    ids = _ids(specs)
    layer = _Linen(form, all_specs, specs, 1)
    self.check_step(layer, specs, ids, ids)
    self.check_step(
        layer, specs, ids, layer.layer.preprocess_inputs(0, ids, None)
    )

  @parameterized.product(
      placement=["sparsecore", "tensorcore"], topology=[(1, 1), (2, 2)]
  )
  def test_two_towers_share_a_table(self, placement, topology):
    specs = _specs(*topology, placement)
    mesh = _mesh(topology[0])

    class Towers(nn.Module):

      @nn.compact
      def __call__(self, ids):
        layer = lambda name: linen_embed.SparseCoreEmbed(
            {name: specs[name]}, mesh=mesh, tables="ref", name=f"of_{name}"
        )
        return {name: layer(name)({name: ids[name]})[name] for name in "ab"}

    loss = lambda out: jnp.sum(out["a"] * out["b"])
    ids = {name: x for name, x in _ids(specs).items() if name in "ab"}
    refs = linen_embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0), mesh=mesh, num_sc_per_device=topology[1]
    )
    model = Towers()
    params = model.init(jax.random.key(1), ids)["params"]
    tables = _tables(specs, refs)
    expected, new = _expected(specs, ids, tables, loss)

    @jax.jit
    def step(params, refs, ids):
      def of_params(params):
        out = model.apply({"params": params, "embedding": refs}, ids)
        return loss(out), out

      return jax.grad(of_params, has_aux=True)(params)[1]

    _assert_close(step(params, refs, ids), expected)
    _assert_close(_tables(specs, refs), new)

  @parameterized.parameters("ref", "param")
  def test_nnx(self, form):
    all_specs = _specs(1, 1)
    specs = {name: all_specs[name] for name in ("b", "c", "d")}
    layer = nnx_embed.SparseCoreEmbed(
        specs, "x", _mesh(1), nnx.Rngs(0), tables=form
    )
    for inputs_of in (
        lambda ids: ids,
        lambda ids: embedding.preprocess_sparse_dense_matmul_input(
            ids, None, specs, 1, 1, num_sc_per_device=1
        )[0],
    ):
      ids = _ids(specs)
      tables = _tables(all_specs, layer.table_variables())
      expected, new = _expected(specs, ids, tables)

      @nnx.jit
      def step(layer, inputs):
        def loss(layer):
          return _loss(layer(inputs))

        return layer(inputs), nnx.grad(loss, allow_int=True)(layer)

      activations, gradients = step(layer, inputs_of(ids))
      _assert_close(activations, expected)
      if form == "param":
        nnx.update(layer, gradients)
      _assert_close(_tables(all_specs, layer.table_variables()), new)

  @parameterized.product(
      optimizer=[
          embedding_spec.FTRLOptimizerSpec(),
          embedding_spec.SGDOptimizerSpec(_RATE, l2_weight_decay=0.1),
      ],
      batch=[8, 4],  # planned, and another one
  )
  def test_inputs_of_other_features_step_no_row(self, optimizer, batch):
    all_specs = _specs(1, 2, optimizer=optimizer)
    specs = {name: all_specs[name] for name in ("b", "d")}
    layer = _Linen("ref", all_specs, specs, 1)
    ids = _ids(all_specs)
    ids["a"] = ids["a"][:batch]
    of_all, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, all_specs, 1, 1, num_sc_per_device=2
    )
    of_layer = layer.layer.preprocess_inputs(
        0, {name: ids[name] for name in specs}, None
    )
    look_up = lambda x: layer.look_up(layer.params, layer.refs, x)
    _assert_close(look_up(of_all), look_up(of_layer))
    before = layer.tables
    with self.assertRaisesRegex(
        ValueError,
        rf"Stack 'shared_other': the inputs have {48 + batch} samples,.*"
        rf" \{{'b': 8, 'd': 24\}}.* {type(optimizer).__name__} with gradient",
    ):
      layer.step(of_all)
    _assert_close(layer.tables, before)
    layer.step(of_layer)
    self.assertFalse(np.array_equal(layer.tables["other"], before["other"]))

  def test_inputs_without_a_feature_are_refused_before_the_step(self):
    all_specs = _specs(1, 2)
    some = {name: all_specs[name] for name in ("b", "d")}
    layer = _Linen("ref", all_specs, all_specs, 1)
    for strategy in ("SPLIT_THEN_STACK", "STACK_THEN_SPLIT"):
      layer.layer = layer.layer.clone(feature_stacking_strategy=strategy)
      inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
          _ids(some),
          None,
          some,
          1,
          1,
          num_sc_per_device=2,
          feature_stacking_strategy=strategy,
      )
      with self.assertRaisesRegex(
          ValueError,
          "Stack '.*': feature 'a' has 8 samples.*preprocessed for the features"
          " and samples .*'b': 8",
      ):
        layer.step(inputs)
    self.assertLen(layer.tables, 2)  # They are still there.


if __name__ == "__main__":
  absltest.main()
