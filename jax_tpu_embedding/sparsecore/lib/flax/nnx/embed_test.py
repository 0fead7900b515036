# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import click_model
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

BATCH = click_model.BATCH
FORMS = ["param", "ref"]
DEVICES = [1, 4]


def make(num_devices=1, tables="param", **fields):
  return click_model.Model(
      click_model.make_specs(),
      click_model.make_mesh(num_devices),
      tables=tables,
      **fields,
  )


def assert_close(actual, expected):
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
      actual,
      expected,
  )


def assert_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


class TrainingTest(parameterized.TestCase):

  @parameterized.product(num_devices=DEVICES, tables=FORMS)
  def test_a_wrong_batch_costs_no_table(self, num_devices, tables):
    model = make(num_devices, tables)
    # The gradients of dense parameters are NaN.
    optimizer = embed.PartitionedOptimizer(
        model, optax.apply_if_finite(optax.sgd(0.1), 10)
    )
    # A model with Refs cannot be donated, and need not.
    donated = (0, 1) if tables == "param" else ()
    step = nnx.jit(click_model.train_step, donate_argnums=donated)
    good, wrong = click_model.make_batch(), click_model.make_batch()
    wrong.ids["item"][3, 1] = 1000
    first = step(model, optimizer, good)
    before = click_model.variables_of(model)
    self.assertTrue(np.isnan(step(model, optimizer, wrong)))
    assert_equal(click_model.variables_of(model), before)
    with self.assertRaisesRegex(ValueError, "'item': sample .* has id 1000"):
      embedding.raise_errors()
    self.assertLess(step(model, optimizer, good), first)

  @parameterized.product(num_devices=DEVICES, tables=FORMS)
  def test_steps_are_those_of_whole_tables(self, num_devices, tables):
    model = make(num_devices, tables)
    optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.2))
    accumulators = lambda model: click_model.logical_tables(
        model, lambda variables: variables.slot.accumulator
    )
    state = lambda: (
        click_model.logical_tables(model),
        accumulators(model),
        np.array(model.dense.kernel[...]),
        np.array(model.dense.bias[...]),
    )
    expected = state()
    train_step = nnx.jit(click_model.train_step)
    for seed in range(3):
      batch = click_model.make_batch(seed)
      expected_loss, expected = click_model.plain_step(
          *expected, batch, dense_rate=0.2
      )
      loss = train_step(model, optimizer, batch)
      np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert_close(state(), expected)

  @parameterized.parameters(*FORMS)
  def test_rows_that_the_batch_does_not_name_keep_their_bits(self, tables):
    model = make(4, tables)
    before = click_model.logical_tables(model)["users"]
    batch = click_model.make_batch()
    nnx.jit(click_model.train_step)(
        model, embed.PartitionedOptimizer(model, optax.sgd(0.1)), batch
    )
    after = click_model.logical_tables(model)["users"]
    changed = np.flatnonzero((before != after).any(1))
    np.testing.assert_array_equal(changed, np.unique(batch.ids["user"]))

  @parameterized.parameters(*FORMS)
  def test_the_step_reaches_schedules_without_compiling_anew(self, tables):
    specs = click_model.make_specs(
        embedding_spec.SGDOptimizerSpec(lambda step: jnp.where(step, 1.0, 0.0))
    )
    model = click_model.Model(specs, click_model.make_mesh(4), tables=tables)
    optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.1))
    start = click_model.variables_of(model)
    traces = []

    @nnx.jit
    def train_step(model, optimizer, batch, step):
      traces.append(step)
      return click_model.train_step(model, optimizer, batch, step)

    # After the first one, dense variables are on all devices.
    for _ in range(2):
      train_step(model, optimizer, click_model.make_batch(), 0)
    np.testing.assert_array_equal(
        click_model.variables_of(model)["users"].table, start["users"].table
    )
    compiled = len(traces)
    train_step(model, optimizer, click_model.make_batch(), 1)
    self.assertTrue(
        (
            click_model.variables_of(model)["users"].table
            != start["users"].table
        ).any()
    )
    self.assertLen(traces, compiled)


class InputsTest(parameterized.TestCase):

  @parameterized.product(num_devices=DEVICES, tables=FORMS)
  def test_activations_are_sums_and_rows_of_tables(self, num_devices, tables):
    model, ids = make(num_devices, tables), click_model.make_batch().ids
    rows = click_model.logical_tables(model)
    out = nnx.jit(lambda model: model.embed(ids))(model)
    assert_equal(
        [out["user"], out["last"]],
        [rows["users"][ids["user"]][:, 0], rows["items"][ids["last"]]],
    )
    assert_close(out["item"], rows["items"][ids["item"]].sum(1))

  @parameterized.product(num_devices=DEVICES, enable_minibatching=[False, True])
  def test_preprocessed_inputs_give_the_same(
      self, num_devices, enable_minibatching
  ):
    model = make(num_devices, enable_minibatching=enable_minibatching)
    batch = click_model.make_batch()
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        batch.ids,
        None,
        model.embed.feature_specs,
        num_devices,
        num_devices,
        num_sc_per_device=1,
        enable_minibatching=enable_minibatching,
    )
    optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.1))
    of_raw_ids = make(num_devices, enable_minibatching=enable_minibatching)
    for m, ids in [(model, inputs), (of_raw_ids, batch.ids)]:
      nnx.jit(click_model.train_step)(
          m, optimizer, click_model.Batch(ids, batch.labels)
      )
    assert_close(
        click_model.variables_of(model), click_model.variables_of(of_raw_ids)
    )

  @parameterized.parameters("SPLIT_THEN_STACK", "STACK_THEN_SPLIT")
  def test_inputs_of_either_stacking_strategy(self, strategy):
    model = make(num_sc_per_device=2, feature_stacking_strategy=strategy)
    self.assertEqual(model.embed.num_sc_per_device, 2)
    batch = click_model.make_batch()
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        batch.ids,
        None,
        model.embed.feature_specs,
        1,
        1,
        num_sc_per_device=2,
        feature_stacking_strategy=strategy,
    )
    rows = click_model.logical_tables(model)
    out = model.embed(inputs)
    assert_equal(out["user"], rows["users"][batch.ids["user"]][:, 0])
    assert_equal(model.embed(batch.ids), out)

  def test_inputs_without_a_number_of_minibatches(self):
    layer, ids = make().embed, click_model.make_batch().ids
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, layer.feature_specs, 1, 1
    )
    assert_equal(layer(inputs.sparse_dense_matmul_input), layer(inputs))

  @parameterized.parameters(*DEVICES)
  def test_weights_scale_ids(self, num_devices):
    model, ids = make(num_devices), click_model.make_batch().ids
    weights = {
        name: np.random.default_rng(1).uniform(size=x.shape).astype(np.float32)
        for name, x in ids.items()
    }
    rows = click_model.logical_tables(model)
    out = nnx.jit(lambda model: model.embed(ids, weights=weights))(model)
    assert_close(
        out["item"],
        (rows["items"][ids["item"]] * weights["item"][..., None]).sum(1),
    )
    assert_close(
        out["last"], rows["items"][ids["last"]] * weights["last"][..., None]
    )

  def test_ragged_ids(self):
    model, ids = make(), dict(click_model.make_batch().ids)
    lengths = np.arange(BATCH) % 3
    row_splits = np.append(0, np.cumsum(lengths)).astype(np.int32)
    values = np.arange(64, dtype=np.int32)  # more than the batch uses
    ids["item"] = (values, row_splits)
    rows = click_model.logical_tables(model)["items"]
    expected = [
        rows[row_splits[i] : row_splits[i + 1]].sum(0) for i in range(BATCH)
    ]
    out = nnx.jit(lambda model, ids: model.embed(ids))(model, ids)
    assert_close(out["item"], np.array(expected))

  @parameterized.parameters(*FORMS)
  def test_the_batch_is_that_of_the_ids(self, tables):
    specs = click_model.make_specs()
    for spec in specs.values():
      spec.input_shape = spec.output_shape = (None, *spec.output_shape[1:])
    layer = embed.SparseCoreEmbed(
        specs, "data", click_model.make_mesh(1), nnx.Rngs(0), tables=tables
    )
    same = make(tables=tables).embed
    ids = click_model.make_batch().ids
    assert_equal(layer(ids), same(ids))
    half = jax.tree.map(lambda x: x[: BATCH // 2], ids)
    assert_equal(
        layer(half), jax.tree.map(lambda x: x[: BATCH // 2], same(ids))
    )

  def test_preprocessed_inputs_do_not_tell_the_batch(self):
    specs = click_model.make_specs()
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        click_model.make_batch().ids, None, make().embed.feature_specs, 1, 1
    )
    specs["user"].output_shape = (None, *specs["user"].output_shape[1:])
    layer = embed.SparseCoreEmbed(
        specs, "data", click_model.make_mesh(1), nnx.Rngs(0)
    )
    with self.assertRaisesRegex(ValueError, "preprocessed inputs do not tell"):
      layer(inputs)

  def test_activations_of_another_type(self):
    model = make(activation_dtype=jnp.bfloat16)
    ids = click_model.make_batch().ids
    out = model.embed(ids)
    assert_equal(
        out, jax.tree.map(lambda x: x.astype(jnp.bfloat16), make().embed(ids))
    )
    grads = nnx.grad(lambda layer: layer(ids)["user"].sum())(model.embed)
    table = grads["embedding_table"].get_value()["users"].table
    self.assertEqual(table.dtype, jnp.float32)

  def test_weights_with_preprocessed_inputs_are_an_error(self):
    model, ids = make(), click_model.make_batch().ids
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, model.embed.feature_specs, 1, 1
    )
    with self.assertRaisesRegex(ValueError, "weights go with raw ids"):
      model.embed(inputs, weights=ids)

  def test_misspelt_features_are_an_error(self):
    ids = dict(click_model.make_batch().ids)
    ids["itme"] = ids.pop("item")
    with self.assertRaisesRegex(ValueError, r"\['itme'\]"):
      make().embed(ids)


class EvaluationTest(parameterized.TestCase):

  @parameterized.product(num_devices=DEVICES, tables=FORMS)
  def test_a_lookup_needs_no_slots_and_only_reads(self, num_devices, tables):
    model, batch = make(num_devices, tables), click_model.make_batch()
    expected = model(batch.ids)
    before = click_model.variables_of(model)
    without_slots = lambda variables: {
        name: v._replace(slot=()) for name, v in variables.items()
    }
    layer = model.embed
    if tables == "ref":
      layer.embedding_table = nnx.data(without_slots(layer.embedding_table))
    else:
      layer.embedding_table.set_value(
          without_slots(layer.embedding_table.get_value())
      )
    out = nnx.jit(lambda model, ids: model(ids))(model, batch.ids)
    assert_close(out, expected)
    assert_equal(click_model.variables_of(model), without_slots(before))


class LayerTest(parameterized.TestCase):

  @parameterized.parameters(*DEVICES)
  def test_attributes(self, num_devices):
    specs, mesh = click_model.make_specs(), click_model.make_mesh(num_devices)
    layer = embed.SparseCoreEmbed(specs, "data", mesh, nnx.Rngs(0))
    self.assertEqual(layer.feature_specs, specs)
    self.assertIs(layer.mesh, mesh)
    self.assertEqual(layer.sharding_axis, "data")
    self.assertEqual(layer.num_sc_per_device, 1)
    self.assertEqual(layer.num_shards, num_devices)
    self.assertFalse(layer.enable_minibatching)
    self.assertEqual(layer.table_sharding_strategy, "MOD")
    P = jax.sharding.PartitionSpec
    self.assertEqual(layer.embedding_table_partition, P("data", None))
    self.assertEqual(layer.data_partition, P("data"))
    variables = layer.embedding_table.get_value()
    self.assertCountEqual(variables, ["users", "items"])
    self.assertIsInstance(variables["users"], embedding.EmbeddingVariables)
    self.assertEqual(
        variables["users"].table.sharding,
        jax.sharding.NamedSharding(mesh, P("data", None)),
    )

  @parameterized.product(num_devices=DEVICES, tables=FORMS)
  def test_axis_and_mesh_have_defaults(self, num_devices, tables):
    make_layer = lambda *args: embed.SparseCoreEmbed(
        click_model.make_specs(), *args, rngs=nnx.Rngs(0), tables=tables
    )
    mesh, ids = click_model.make_mesh(num_devices), click_model.make_batch().ids
    with jax.set_mesh(mesh):
      layer = make_layer()
      activations = layer(ids)
    self.assertEqual(layer.mesh, mesh)
    self.assertEqual(layer.sharding_axis, "data")
    self.assertEqual(layer.num_shards, num_devices)
    assert_equal(activations, make_layer("data", mesh)(ids))

  @parameterized.parameters(*FORMS)
  def test_without_any_mesh_there_is_one_of_all_devices(self, tables):
    layer = embed.SparseCoreEmbed(
        click_model.make_specs(), rngs=nnx.Rngs(0), tables=tables
    )
    self.assertEqual(layer.num_shards, 4)
    expected = embed.SparseCoreEmbed(
        click_model.make_specs(),
        "data",
        click_model.make_mesh(4),
        nnx.Rngs(0),
        tables=tables,
    )
    ids = click_model.make_batch().ids
    assert_equal(layer(ids), expected(ids))

  @parameterized.parameters(
      (lambda: None, "None"),
      (lambda: 0, "0"),
      (lambda: nnx.Rngs(dropout=0), r"Rngs\((?s:.*)dropout"),
  )
  def test_rngs_without_a_key_for_tables_are_an_error(self, rngs, value):
    with self.assertRaisesRegex(
        TypeError,
        r"rngs must be an nnx\.Rngs with the stream 'params'(?s:.*) got"
        rf" {value}(?s:.*) Pass rngs=nnx\.Rngs\(seed\)",
    ):
      embed.SparseCoreEmbed(
          click_model.make_specs(), rngs=rngs(), tables="param"
      )

  def test_tables_are_made_of_the_stream_params(self):
    specs, mesh = click_model.make_specs(), click_model.make_mesh(1)
    layer = embed.SparseCoreEmbed(specs, "data", mesh, nnx.Rngs(params=7))
    expected = embedding.init_embedding_variables(
        nnx.Rngs(params=7).params(),
        embedding.get_table_specs(specs),
        jax.sharding.NamedSharding(mesh, layer.embedding_table_partition),
        bypass_mesh_check=True,
    )
    assert_equal(layer.embedding_table.get_value(), expected)

  def test_another_sharding_strategy_is_an_error(self):
    model = make(table_sharding_strategy="DIV")
    with self.assertRaisesRegex(ValueError, "DIV"):
      model.embed(click_model.make_batch().ids)

  def test_a_form_that_is_not_said_warns(self):
    with self.assertWarnsRegex(FutureWarning, "Pass tables='param'"):
      make(tables="auto")

  @parameterized.parameters(
      ("tables", "params", "one of 'auto', 'param' and 'ref', got 'params'"),
      ("activation_dtype", "int8", "a type of floats, got int8"),
  )
  def test_another_value_of_a_field_is_an_error(self, name, value, message):
    with self.assertRaisesRegex(ValueError, f"{name} must be {message}"):
      make(**{name: value})

  @parameterized.parameters(dict(step=-1), dict(gradient_scale=0))
  def test_impossible_numbers_are_an_error(self, **numbers):
    (name,) = numbers
    with self.assertRaisesRegex(ValueError, f"{name} must be"):
      make().embed(click_model.make_batch().ids, **numbers)

  def test_specs_for_another_number_of_shards_are_an_error(self):
    specs = click_model.make_specs()
    embedding.prepare_feature_specs_for_training(specs, 2, 1)
    with self.assertRaisesRegex(ValueError, "2"):
      click_model.Model(specs, click_model.make_mesh(4))

  def test_a_layer_that_a_bridge_made_for_linen(self):
    specs, ids = click_model.make_specs(), click_model.make_batch().ids
    mesh = click_model.make_mesh(1)
    args = specs, click_model.AXIS, mesh
    layer = embed.SparseCoreEmbed(*args, nnx.Rngs(0), tables="param")
    loss = lambda activations: sum(
        jnp.sum(jnp.sin(x)) for x in activations.values()
    )
    expected = nnx.grad(lambda layer: loss(layer(ids)))(layer)
    linen = nnx.bridge.to_linen(embed.SparseCoreEmbed, *args, tables="param")
    params = linen.init(jax.random.key(0), ids)["EmbeddingVariablesParam"]
    params["embedding_table"] = params["embedding_table"].replace_boxed(
        layer.embedding_table.get_value()
    )
    gradient = jax.jit(
        jax.grad(
            lambda params: loss(
                linen.apply({"EmbeddingVariablesParam": params}, ids)
            )
        )
    )(params)
    for name in ("embedding_table", "update_seal"):
      assert_close(gradient[name].unbox(), expected[name].get_value())

  @parameterized.parameters(*DEVICES)
  def test_backward_pass_alone(self, num_devices):
    layer = make(num_devices).embed
    batch = click_model.make_batch()
    loss = lambda layer: sum(jnp.sum(a) for a in layer(batch.ids).values())
    expected = nnx.grad(loss)(layer)
    out_g = jax.tree.map(jnp.ones_like, layer(batch.ids))
    layer_g = jax.tree.map(jnp.zeros_like, nnx.state(layer))
    layer_g, inputs_g, step_g = embed.embedding_lookup_bwd(
        (layer, batch.ids, None), ((layer_g, "inputs", "step"), out_g)
    )
    self.assertEqual((inputs_g, step_g), ("inputs", "step"))
    assert_equal(nnx.to_pure_dict(layer_g), nnx.to_pure_dict(expected))

  @parameterized.parameters(*DEVICES)
  def test_a_wrong_batch_changes_no_table_in_the_backward_pass_alone(
      self, num_devices
  ):
    layer, batch = make(num_devices).embed, click_model.make_batch()
    before = jax.tree.map(np.array, layer.embedding_table.get_value())
    batch.ids["user"][-1] = 1000
    out_g = jax.tree.map(
        lambda spec: jnp.full(spec.output_shape, jnp.nan), layer.feature_specs
    )
    layer_g, _, _ = embed.embedding_lookup_bwd(
        (layer, batch.ids, None), ((nnx.state(layer), None, None), out_g)
    )
    assert_equal(layer_g["embedding_table"].get_value(), before)
    with self.assertRaisesRegex(ValueError, "'user': sample .* has id 1000"):
      embedding.raise_errors()

  def test_backward_pass_alone_is_not_for_refs(self):
    layer, ids = make(tables="ref").embed, click_model.make_batch().ids
    with self.assertRaisesRegex(ValueError, "are jax.Refs.*tables='param'"):
      embed.embedding_lookup_bwd((layer, ids, None), (({}, None, None), None))


if __name__ == "__main__":
  absltest.main()
