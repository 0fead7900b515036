# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables as parameters of the layer: names, shapes, boxes, updates."""

from unittest import mock
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

P = jax.sharding.PartitionSpec
MESH = jax.sharding.Mesh(jax.devices(), ("x",))
BATCH = 16


def make_layer(**kwargs):
  """A layer with one table of 50 rows, on 4 devices with 2 SparseCores."""
  table = embedding_spec.TableSpec(
      name="t",
      vocabulary_size=50,
      embedding_dim=6,
      optimizer=embedding_spec.SGDOptimizerSpec(0.1),
  )
  spec = embedding_spec.FeatureSpec(
      name="f",
      table_spec=table,
      input_shape=(BATCH, 3),
      output_shape=(BATCH, 6),
  )
  options = dict(mesh=MESH, sharding_axis="x", num_sc_per_device=2) | kwargs
  return embed.SparseCoreEmbed({"f": spec}, **options)


def make_ids():
  rng = np.random.default_rng(0)
  return {"f": rng.integers(0, 50, (BATCH, 3), dtype=np.int32)}


def init(layer):
  inputs = layer.preprocess_inputs(0, make_ids(), None)
  return layer.init(jax.random.key(0), inputs)["params"], inputs


def rows_of(layer, variables):
  """f32[50, 6], in the order of ids."""
  (table,) = table_stacking.unshard_and_unstack_tables(
      embedding.get_table_specs(layer.feature_specs),
      {"t": np.asarray(variables["t"].table)},
      8,
  ).values()
  return table


class TableParametersTest(parameterized.TestCase):

  def test_init_with_output_looks_up(self):
    layer = make_layer(num_sc_per_device=4)
    inputs = layer.preprocess_inputs(0, make_ids(), None)
    for batch in (make_ids(), inputs):
      out, variables = layer.init_with_output(jax.random.key(0), batch)
      np.testing.assert_array_equal(
          out["f"], layer.apply(variables, batch)["f"]
      )
      self.assertTrue(np.any(out["f"]))

  def test_init_in_several_processes_takes_the_inputs_of_one(self):
    layer = make_layer()
    with mock.patch.object(jax, "process_count", lambda: 2):
      out, _ = layer.init_with_output(jax.random.key(0), make_ids())
    np.testing.assert_array_equal(out["f"], np.zeros((BATCH, 6)))

  def test_the_lookup_of_init_is_not_in_a_program_that_drops_it(self):
    layer = make_layer()
    lowered = jax.jit(layer.init).lower(jax.random.key(0), make_ids())
    self.assertNotIn("jte_lookup", lowered.as_text())

  def test_parameters_are_boxed_variables_and_their_seal(self):
    layer = make_layer()
    params, _ = init(layer)
    box = params[embed.EMBEDDING_PARAM_NAME]
    self.assertIsInstance(box, embed.WithSparseCoreLayout)
    self.assertEqual(box.names, ("x", None))
    self.assertEqual(
        jax.tree.map(jnp.shape, nn.unbox(params)),
        {
            "sc_embedding_variables": {
                "t": embedding.EmbeddingVariables(
                    (64, 8), embedding_spec.SGDSlotVariables()
                )
            },
            "update_seal": {"sc_embedding_variables": (8,)},
        },
    )
    self.assertEqual(box.value["t"].table.sharding, box.get_sharding(MESH))

  def test_partition_specs_are_those_of_rows(self):
    specs = nn.get_partition_spec(jax.eval_shape(lambda: init(make_layer())[0]))
    self.assertEqual(specs["sc_embedding_variables"], P("x", None))

  def test_the_sharding_of_a_box_needs_a_mesh(self):
    box = embed.with_sparsecore_layout(jnp.zeros, ("x", None), MESH)((8, 8))
    self.assertEqual(
        box.get_sharding(MESH), jax.sharding.NamedSharding(MESH, P("x", None))
    )
    with self.assertRaisesRegex(ValueError, "needs the mesh .* got None"):
      box.get_sharding(None)

  def test_arrays_of_a_box_have_the_layouts_of_their_types(self):
    device = jax.sharding.AbstractDevice(
        device_kind="TPU v6 lite", num_cores=1, platform="tpu"
    )
    mesh = jax.sharding.AbstractMesh((4,), ("x",), abstract_device=device)

    def tiling(dtype):
      value = (
          jax.ShapeDtypeStruct((8, 8), dtype),
          (jax.ShapeDtypeStruct((8, 8), jnp.float32),),
      )
      box = embed.WithSparseCoreLayout(value, ("x", None), MESH)
      return jax.tree.map(lambda x: x.layout.tiling, box.get_sharding(mesh))

    self.assertEqual(tiling(jnp.float32), ((8,),))
    self.assertEqual(tiling(jnp.bfloat16), (((16,),), (((8,),),)))

  def test_properties(self):
    layer = make_layer()
    self.assertEqual(layer.num_shards, 4)
    self.assertEqual(layer.embedding_table_partition, P("x", None))
    self.assertEqual(layer.data_partition, P("x"))
    params, _ = init(layer)
    bound = layer.bind({"params": params})
    self.assertEqual(bound.embedding_table["t"].table.shape, (64, 8))
    self.assertIsNone(layer.bind({}).embedding_table)

  def test_the_hardware_or_the_specs_tell_the_sparsecores(self):
    self.assertEqual(
        init(make_layer(num_sc_per_device=-1))[0]["sc_embedding_variables"]
        .value["t"]
        .table.shape,
        (64, 8),
    )
    layer = make_layer(num_sc_per_device=-1)
    embedding.prepare_feature_specs_for_training(
        layer.feature_specs, 4, num_sc_per_device=4
    )
    variables = init(layer)[0]["sc_embedding_variables"].value
    self.assertEqual(variables["t"].table.shape, (128, 8))

  def test_the_gradient_is_the_new_table(self):
    layer = make_layer()
    params, inputs = init(layer)

    @jax.jit
    def gradient(params):
      return jax.grad(lambda p: layer.apply({"params": p}, inputs)["f"].sum())(
          params
      )

    new = gradient(params)
    self.assertEqual(jax.tree.structure(new), jax.tree.structure(params))
    before = rows_of(layer, params["sc_embedding_variables"].value)
    after = rows_of(layer, new["sc_embedding_variables"].value)
    occurrences = np.bincount(make_ids()["f"].ravel(), minlength=50)
    np.testing.assert_allclose(
        after, before - 0.1 * occurrences[:, None], atol=1e-6
    )
    # And it may take the place of the old one.
    gradient(new)

  @parameterized.parameters("", "emb")
  def test_apply_gradient_returns_the_variables_by_path(self, name):
    layer = make_layer()
    params, inputs = init(layer)
    if name:
      options = {
          k: getattr(layer, k)
          for k in ("mesh", "sharding_axis", "num_sc_per_device")
      }

      class Parent(nn.Module):

        def setup(self):
          self.emb = embed.SparseCoreEmbed(layer.feature_specs, **options)

        def __call__(self, *args):
          return self.emb.apply_gradient(*args)

      model, params = Parent(), {name: params}
      method = None
    else:
      model, method = layer, layer.apply_gradient
    gradients = {"f": jnp.ones((BATCH, 6), jnp.bfloat16)}
    updated = model.apply({"params": params}, gradients, inputs, method=method)
    key = "/".join(filter(None, [name, "sc_embedding_variables"]))
    self.assertEqual(list(updated), [key])
    old = (params[name] if name else params)["sc_embedding_variables"].value
    occurrences = np.bincount(make_ids()["f"].ravel(), minlength=50)
    np.testing.assert_allclose(
        rows_of(layer, updated[key]),
        rows_of(layer, old) - 0.1 * occurrences[:, None],
        atol=1e-6,
    )

  def test_apply_gradient_needs_the_step_where_the_optimizer_does(self):
    # It returns tables and no count, so that a count would stay what it is.
    layer = make_layer()
    layer.feature_specs["f"].table_spec.optimizer = (
        embedding_spec.AdamOptimizerSpec(0.1)
    )
    params, inputs = init(layer)
    gradients = {"f": jnp.ones((BATCH, 6))}
    apply = lambda layer, **kwargs: layer.apply(
        {"params": params},
        gradients,
        inputs,
        method=layer.apply_gradient,
        **kwargs,
    )
    with self.assertRaisesRegex(
        ValueError,
        "AdamOptimizerSpec depends on it. Pass step=.* apply_gradient does not"
        " go by the count of 'update_seal'",
    ):
      apply(layer)
    apply(layer, step=0)
    apply(layer.clone(frozen=("t",)))

  def test_a_wrong_batch_is_no_update(self):
    layer = make_layer()
    layer.feature_specs["f"].table_spec.optimizer = (
        embedding_spec.AdamOptimizerSpec(0.1)
    )
    params, _ = init(layer)
    loss = lambda params, ids: layer.apply({"params": params}, ids)["f"].sum()
    step = jax.jit(jax.grad(loss))
    wrong = {"f": make_ids()["f"] + 1000}
    results = []
    for batches in ([make_ids()] * 2, [make_ids(), wrong, make_ids()]):
      new = params
      for ids in batches:
        new = step(new, ids)
      results.append(new)
    with self.assertRaisesRegex(ValueError, "has id 1"):
      embedding.raise_errors(results)
    # The seal of the last batch and the count are the same, too.
    jax.tree.map(np.testing.assert_array_equal, *results)

  @parameterized.parameters(6, 8, 16)
  def test_layers_of_a_scan_are_trained(self, dim):
    table = embedding_spec.TableSpec(
        name="t",
        vocabulary_size=50,
        embedding_dim=dim,
        optimizer=embedding_spec.SGDOptimizerSpec(0.1),
    )
    spec = embedding_spec.FeatureSpec(
        name="f",
        table_spec=table,
        input_shape=(BATCH, 3),
        output_shape=(BATCH, dim),
    )

    class Layers(nn.Module):

      @nn.compact
      def __call__(self, ids):
        scan = nn.scan(
            lambda layer, total, ids: (total + layer(ids)["f"].sum(), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            metadata_params={nn.PARTITION_NAME: None},
        )
        layer = embed.SparseCoreEmbed(
            {"f": spec}, mesh=MESH, tables="param", name="e"
        )
        return scan(layer, 0.0, ids)[0]

    ids = {"f": np.stack([make_ids()["f"], make_ids()["f"] % 5])}
    params = nn.unbox(Layers().init(jax.random.key(0), ids)["params"])

    def step(params):
      loss = lambda params: Layers().apply({"params": params}, ids)
      gradients = jax.grad(loss)(params)
      return embed_optimizer.apply_updates_for_sc_model(params, gradients)

    def rows(params, i):
      table = params["e"][embed.EMBEDDING_PARAM_NAME]["t"].table[i]
      return np.asarray(
          embedding.read_rows({"t": table}, {"f": spec}, "t", np.arange(50))
      )

    for new in (jax.jit(step)(params), step(params)):
      new = jax.jit(step)(new)  # Their seals are intact.
      for i in range(2):
        counts = np.bincount(ids["f"][i].ravel(), minlength=50)
        np.testing.assert_allclose(
            rows(new, i),
            rows(params, i) - 2 * 0.1 * counts[:, None],
            atol=1e-5,
        )

  def test_minibatches_are_looked_up(self):
    layer = make_layer(enable_minibatching=True)
    layer.feature_specs["f"].table_spec.max_ids_per_partition = 1
    layer.feature_specs["f"].table_spec.max_unique_ids_per_partition = 1
    ids = {"f": np.repeat(np.arange(BATCH)[:, None], 3, axis=1)}
    ids["f"][:, 1] += 16
    ids["f"][:, 2] += 32
    inputs = layer.preprocess_inputs(0, ids, None)
    self.assertGreater(inputs.num_minibatches[0], 1)
    params = layer.init(jax.random.key(0), inputs)["params"]
    out = jax.jit(layer.apply)({"params": params}, inputs)["f"]
    table = rows_of(layer, params["sc_embedding_variables"].value)
    np.testing.assert_allclose(out, table[ids["f"]].sum(1), atol=1e-5)

  @parameterized.named_parameters(
      ("a_mesh", dict(mesh=MESH), False, True),
      ("preprocessed", dict(mesh=None), True, True),
      ("neither", dict(mesh=None), False, False),
      ("refs_with_a_mesh", dict(tables="ref"), False, False),
      ("parameters_without", dict(mesh=None, tables="param"), False, True),
  )
  def test_where_tables_are(self, options, is_preprocessed, has_parameter):
    layer = make_layer(sharding_axis="sparsecore_sharding", **options)
    inputs = make_ids()
    if is_preprocessed:
      inputs = layer.preprocess_inputs(0, inputs, None)
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      params = layer.init(jax.random.key(0), inputs)["params"]
    self.assertEqual(
        any("Pass tables='param'" in str(w.message) for w in caught),
        has_parameter and "tables" not in options,
    )
    self.assertEqual("sc_embedding_variables" in params, has_parameter)
    self.assertEqual("update_anchor" in params, not has_parameter)

  def test_tables_in_both_places_raise(self):
    layer = make_layer()
    params, inputs = init(layer)
    tables = embed.SparseCoreEmbed.create_embedding_variables(
        layer.feature_specs, jax.random.key(0), num_sc_per_device=2
    )
    with self.assertRaisesRegex(
        ValueError, "tables in the parameter .* and in the collection"
    ):
      layer.apply({"params": params, "embedding": tables}, inputs)

  def test_a_missing_parameter_raises(self):
    layer = make_layer()
    _, inputs = init(layer)
    with self.assertRaisesRegex(
        ValueError, "applied without the parameter 'sc_embedding_variables'"
    ):
      layer.apply({"params": {}}, inputs)
    with self.assertRaisesRegex(ValueError, "apply_gradient updates the param"):
      layer.apply({}, {}, inputs, method=layer.apply_gradient)

  def test_evaluation_needs_no_slots(self):
    layer = make_layer()
    layer.feature_specs["f"].table_spec.optimizer = (
        embedding_spec.AdagradOptimizerSpec()
    )
    params, inputs = init(layer)
    expected = layer.apply({"params": params}, inputs)["f"]
    tables = params[embed.EMBEDDING_PARAM_NAME].value
    self.assertNotEmpty(tables["t"].slot)
    params[embed.EMBEDDING_PARAM_NAME] = {"t": (tables["t"].table, ())}
    actual = jax.jit(layer.apply)({"params": params}, inputs)["f"]
    np.testing.assert_array_equal(actual, expected)

  def test_each_layer_of_a_model_has_its_own_tables(self):
    class TwoLayers(nn.Module):

      @nn.compact
      def __call__(self, ids):
        lookup = lambda name: make_layer(name=name)(ids)["f"].sum()
        return lookup("first") + 3 * lookup("second")

    layer = make_layer()
    _, inputs = init(layer)
    model = TwoLayers()
    params = nn.unbox(model.init(jax.random.key(0), inputs)["params"])
    loss = jax.jit(lambda params: model.apply({"params": params}, inputs))
    new = embed_optimizer.apply_updates_for_sc_model(
        params, jax.grad(loss)(params)
    )
    occurrences = np.bincount(make_ids()["f"].ravel(), minlength=50)
    rows = lambda params, name: rows_of(
        layer, params[name][embed.EMBEDDING_PARAM_NAME]
    )
    for name, gradient in (("first", 1), ("second", 3)):
      np.testing.assert_allclose(
          rows(new, name),
          rows(params, name) - 0.1 * gradient * occurrences[:, None],
          atol=1e-5,
      )
    jax.block_until_ready(loss(new))  # Both seals are intact.

  def test_gradients_of_raw_ids_raise(self):
    layer = make_layer()
    params, _ = init(layer)
    with self.assertRaisesRegex(TypeError, "takes what preprocess_inputs"):
      layer.apply(
          {"params": params}, {}, make_ids(), method=layer.apply_gradient
      )

  def test_tables_from_elsewhere_need_no_seal(self):
    layer = make_layer()
    params, inputs = init(layer)
    expected = layer.apply({"params": params}, inputs)
    del params["update_seal"]
    actual = layer.apply({"params": params}, inputs)
    np.testing.assert_array_equal(actual["f"], expected["f"])


if __name__ == "__main__":
  absltest.main()
