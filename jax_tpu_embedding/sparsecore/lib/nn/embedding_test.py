# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The public path: specs, buffers, lookup and update, against dense algebra."""

import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

P = jax.sharding.PartitionSpec
BATCH = two_table_model.BATCH
Model = two_table_model.TwoTableModel


class LookupTest(parameterized.TestCase):

  @parameterized.parameters(
      (1, True, "sum"),
      (2, True, "mean"),
      (3, True, "sqrtn"),
      (4, True, "sum"),
      (2, False, "sum"),
      (3, False, "mean"),
  )
  def test_is_gains_times_table(self, num_sc, stacked, combiner):
    model = Model(num_sc, stacked, combiner)
    self.assertLen(model.variables, 1 if stacked else 2)
    activations = jax.jit(model.lookup)(model.inputs, model.variables)
    tables = model.logical_tables(model.variables)
    for name, spec in model.specs.items():
      np.testing.assert_allclose(
          activations[name],
          model.gains(name) @ np.asarray(tables[spec.table_spec.name]),
          rtol=1e-5,
          atol=1e-6,
          err_msg=name,
      )

  def test_runs_under_shard_map_of_one_device(self):
    model = Model(2)
    mapped = jax.shard_map(
        model.lookup,
        mesh=two_table_model.one_device_sharding().mesh,
        in_specs=(P("x"), P("x", None)),
        out_specs=P("x", None),
        check_vma=False,
    )
    expected = model.lookup(model.inputs, model.variables)
    got = jax.jit(mapped)(model.inputs, model.variables)
    jax.tree.map(np.testing.assert_array_equal, got, expected)

  def test_one_vector_per_position(self):
    words = two_table_model.table("words", 50, 8)
    spec = embedding_spec.FeatureSpec(
        name="words",
        table_spec=words,
        input_shape=(4, 6),
        output_shape=(4, 6, 8),
    )
    embedding.prepare_feature_specs_for_training([spec], 1, 2)
    ids = np.arange(24, dtype=np.int32).reshape(4, 6)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        [ids], None, [spec], 1, 1, num_sc_per_device=2
    )
    variables = embedding.init_embedding_variables(
        jax.random.key(0), [words], two_table_model.one_device_sharding(), 2
    )
    (activations,) = embedding.tpu_sparse_dense_matmul(
        inputs, variables, [spec], global_device_count=1
    )
    (rows,) = table_stacking.unshard_and_unstack_tables(
        [words], {"words": variables["words"].table}, 2
    )
    np.testing.assert_array_equal(activations, np.asarray(rows)[ids])

  def test_without_jit_jax_debug_nans_finds_none(self):
    model = Model(2)
    for gains in model.inputs.lhs_gains.values():
      self.assertTrue(np.isnan(gains).any())
    update = functools.partial(
        embedding.tpu_sparse_dense_matmul_grad,
        feature_specs=model.specs,
        global_device_count=1,
    )
    with jax.debug_nans(True):
      activations = model.lookup(model.inputs, model.variables)
      updated = update(activations, model.inputs, model.variables)
    expected = jax.jit(update)(activations, model.inputs, model.variables)
    jax.tree.map(np.testing.assert_array_equal, updated, expected)

  def test_deprecated_input_is_accepted_with_a_warning(self):
    model = Model(2)
    with self.assertWarnsRegex(DeprecationWarning, "SparseDenseMatmulInput"):
      got = model.lookup(
          model.inputs.sparse_dense_matmul_input, model.variables
      )
    expected = model.lookup(model.inputs, model.variables)
    jax.tree.map(np.testing.assert_array_equal, got, expected)

  def test_iterating_over_inputs_warns(self):
    model = Model(2)
    with self.assertWarnsRegex(DeprecationWarning, "use its attributes"):
      row_pointers, *_ = model.inputs
    self.assertIs(row_pointers, model.inputs.lhs_row_pointers)

  def test_other_sparsecores_than_the_buffers_are_an_error(self):
    model = Model(2)
    with self.assertRaisesRegex(
        ValueError,
        "16 row pointers, expected 32 for one of 1 devices with 4 Sparse",
    ):
      embedding.tpu_sparse_dense_matmul(
          model.inputs.replace(settings=None),
          model.variables,
          model.specs,
          global_device_count=1,
          num_sc_per_device=4,
      )

  def test_more_devices_than_the_table_are_an_error(self):
    model = Model(2)
    with self.assertRaisesRegex(
        ValueError,
        "16 row pointers, expected 8 for one of 2 devices with 1 Sparse",
    ):
      embedding.tpu_sparse_dense_matmul(
          model.inputs.replace(settings=None),
          model.variables,
          model.specs,
          global_device_count=2,
      )

  def test_another_topology_than_planned_is_an_error(self):
    model = Model(2)
    message = "'items' was prepared for 2 SparseCores in all, .* used with 1"
    with self.assertRaisesRegex(ValueError, message):
      embedding.preprocess_sparse_dense_matmul_input(
          model.ids, None, model.specs, 1, 1, num_sc_per_device=1
      )
    with self.assertRaisesRegex(ValueError, message):
      embedding.init_embedding_variables(
          jax.random.key(0),
          embedding.get_table_specs(model.specs),
          two_table_model.one_device_sharding(),
          1,
      )
    with self.assertRaisesRegex(ValueError, message):
      embedding.convert_ids(
          model.ids,
          None,
          model.specs,
          layout.Topology(
              local_device_count=1, global_device_count=1, num_sc_per_device=1
          ),
      )
    other = Model(1)  # its stack has as many rows
    with self.assertRaisesRegex(ValueError, message):
      model.lookup(other.inputs, model.variables)

  def test_tables_of_another_height_are_an_error(self):
    model = Model(2)
    variables = jax.tree.map(lambda table: table[:-1], model.variables)
    with self.assertRaisesRegex(
        ValueError, r"has \d+ rows, which does not divide the stack's \d+ rows"
    ):
      model.lookup(model.inputs, variables)

  def test_a_matrix_of_minibatch_counts_is_an_error(self):
    model = Model(2)
    inputs = model.inputs.replace(num_minibatches=np.ones((1, 1), np.int32))
    with self.assertRaisesRegex(
        ValueError, r"num_minibatches must be a scalar .* got shape \(1, 1\)"
    ):
      model.lookup(inputs, model.variables)

  def test_batches_that_sparsecores_cannot_share_are_an_error(self):
    model = Model(2)
    with self.assertRaisesRegex(
        ValueError, r"the 24 samples of .* divisible by 5 \(1 devices x 5"
    ):
      embedding.unstack_embedding_activations(
          {name: jnp.zeros((72, 8)) for name in model.variables},
          model.specs,
          1,
          5,
      )

  def test_missing_tables_are_an_error(self):
    model = Model(2, stacked=False)
    del model.variables["items"]
    with self.assertRaisesRegex(
        ValueError,
        r"embedding_variables must .* \['items', 'users'\], got \['users'\]",
    ):
      model.lookup(model.inputs, model.variables)

  def test_outputs_wider_than_the_table_are_an_error(self):
    spec = two_table_model.feature("f", two_table_model.table(embedding_dim=6))
    embedding.prepare_feature_specs_for_training([spec], 1, 1)
    spec.output_shape = (BATCH, 7)
    with self.assertRaisesRegex(ValueError, "'f'.* wider than .* 6 of table"):
      embedding.unstack_embedding_activations(
          {"t": jnp.zeros((BATCH, 8))}, [spec], 1, 1
      )

  def test_unprepared_specs_are_an_error(self):
    with self.assertRaisesRegex(
        ValueError, "prepare_feature_specs_for_training was not called"
    ):
      embedding.tpu_sparse_dense_matmul(
          None,
          {},
          [two_table_model.feature("f", two_table_model.table())],
          global_device_count=1,
      )


class UpdateTest(parameterized.TestCase):

  @parameterized.parameters((1, True), (2, False), (3, True), (4, True))
  def test_sgd_subtracts_the_summed_gradient(self, num_sc, stacked):
    model = Model(num_sc, stacked)
    rng = np.random.default_rng(7)
    gradients = {
        name: rng.normal(size=spec.output_shape).astype(np.float32)
        for name, spec in model.specs.items()
    }
    before = model.logical_tables(model.variables)
    after = model.logical_tables(
        jax.jit(
            lambda g, v: embedding.tpu_sparse_dense_matmul_grad(
                g, model.inputs, v, model.specs
            )
        )(gradients, model.variables)
    )
    for name, values in before.items():
      gradient = sum(
          model.gains(f).T @ gradients[f]
          for f, spec in model.specs.items()
          if spec.table_spec.name == name
      )
      np.testing.assert_allclose(
          after[name], values - 0.5 * gradient, rtol=1e-5, atol=1e-5
      )

  @parameterized.parameters(
      embedding_spec.SGDOptimizerSpec,
      embedding_spec.AdagradOptimizerSpec,
      embedding_spec.AdamOptimizerSpec,
  )
  def test_keeps_the_tree_of_the_variables(self, optimizer):
    model = Model(2, optimizer=optimizer())
    new = embedding.tpu_sparse_dense_matmul_grad(
        jax.tree.map(
            jnp.ones_like, model.lookup(model.inputs, model.variables)
        ),
        model.inputs,
        model.variables,
        model.specs,
    )
    self.assertEqual(
        jax.tree.structure(new), jax.tree.structure(model.variables)
    )
    for old_slot, new_slot in zip(
        jax.tree.leaves(model.variables), jax.tree.leaves(new)
    ):
      self.assertTrue(np.any(old_slot != new_slot))

  def test_limits_clamp_the_rows_that_are_updated(self):
    model = Model(1, stacked=False)
    new = embedding.tpu_sparse_dense_matmul_grad(
        {n: jnp.full(s.output_shape, 100.0) for n, s in model.specs.items()},
        model.inputs,
        model.variables,
        model.specs,
        embedding_var_limits={"users": (-0.25, None), "items": (None, None)},
    )
    touched = np.unique(model.ids["user"])
    tables = model.logical_tables(new)
    np.testing.assert_array_equal(tables["users"][touched], -0.25)
    self.assertLess(float(tables["items"].min()), -10)

  def test_limits_must_have_every_stack(self):
    model = Model(1, stacked=False)
    with self.assertRaisesRegex(KeyError, "no entry for stack 'items'"):
      embedding.tpu_sparse_dense_matmul_grad(
          {n: jnp.ones(s.output_shape) for n, s in model.specs.items()},
          model.inputs,
          model.variables,
          model.specs,
          embedding_var_limits={"users": (0, 1)},
      )

  def test_schedules_see_the_step(self):
    model = Model(
        1, stacked=False, optimizer=two_table_model.sgd(lambda step: step * 2.0)
    )
    gradients = {n: jnp.ones(s.output_shape) for n, s in model.specs.items()}

    @jax.jit
    def update(step):
      return embedding.tpu_sparse_dense_matmul_grad(
          gradients, model.inputs, model.variables, model.specs, step=step
      )["users"].table

    before = model.variables["users"].table
    np.testing.assert_array_equal(update(0), before)
    np.testing.assert_allclose(
        (update(3) - before) / 3, update(1) - before, rtol=1e-5, atol=1e-5
    )

  def test_stacks_may_have_a_step_each(self):
    rate = two_table_model.sgd(lambda step: step * 2.0)
    model = Model(1, stacked=False, optimizer=rate)
    gradients = {n: jnp.ones(s.output_shape) for n, s in model.specs.items()}
    update = lambda step: embedding.tpu_sparse_dense_matmul_grad(
        gradients, model.inputs, model.variables, model.specs, step=step
    )
    both = update({"users": 3, "items": 1})
    for name, step in (("users", 3), ("items", 1)):
      np.testing.assert_array_equal(both[name].table, update(step)[name].table)

  def test_an_update_without_the_step_it_depends_on_is_logged(self):
    model = Model(1, optimizer=embedding_spec.AdamOptimizerSpec())
    gradients = {n: jnp.ones(s.output_shape) for n, s in model.specs.items()}
    update = lambda step: embedding.tpu_sparse_dense_matmul_grad(
        gradients, model.inputs, model.variables, model.specs, step=step
    )
    with self.assertLogs(level="WARNING") as logs:
      without = update(None)
    self.assertRegex(logs.output[0], "without a step, on which AdamOptimizerSp")
    jax.tree.map(np.testing.assert_array_equal, without, update(0))

  @parameterized.parameters(-1, float("nan"), 2.0**31, (np.array(-1),))
  def test_steps_count_from_zero(self, step):
    model = Model(1, optimizer=embedding_spec.AdamOptimizerSpec())
    gradients = {n: jnp.ones(s.output_shape) for n, s in model.specs.items()}
    with self.assertRaisesRegex(
        ValueError, rf"step must be .* 0 to 2\^31 - 1, got .*{step}"
    ):
      embedding.tpu_sparse_dense_matmul_grad(
          gradients, model.inputs, model.variables, model.specs, step=step
      )

  def test_gradients_of_stacks_must_be_by_name(self):
    model = Model(1)
    gradients = [jnp.ones((BATCH, 8))]
    with self.assertRaisesRegex(
        ValueError, "activation_gradients must be a mapping .*, got list"
    ):
      embedding.tpu_sparse_dense_matmul_grad(
          gradients,
          model.inputs,
          model.variables,
          model.specs,
          perform_stacking=False,
      )

  def test_primitives_stack_on_request(self):
    model = Model(2)
    gradients = {n: jnp.ones(s.output_shape) for n, s in model.specs.items()}

    def step(use_primitives):
      return (
          embedding.tpu_sparse_dense_matmul(
              model.inputs,
              model.variables,
              model.specs,
              use_activation_unstack_primitive=use_primitives,
          ),
          embedding.tpu_sparse_dense_matmul_grad(
              gradients,
              model.inputs,
              model.variables,
              model.specs,
              use_gradient_stacking_primitive=use_primitives,
          ),
      )

    for name in ("activation_unstack", "gradient_stack"):
      self.assertIn(name, str(jax.make_jaxpr(lambda: step(True))()))
      self.assertNotIn(name, str(jax.make_jaxpr(lambda: step(False))()))
    jax.tree.map(np.testing.assert_array_equal, step(True), step(False))

  @parameterized.parameters(1, 2)
  def test_tables_by_themselves_are_two_operations(self, num_sc):
    # Of 1,000 tables each operation takes a tenth of a second to trace and
    # lower, whether it does anything or not.
    features = [
        two_table_model.feature(
            f"f{i}",
            two_table_model.table(
                f"t{i}",
                embedding_dim=8,
                optimizer=embedding_spec.AdagradOptimizerSpec(
                    learning_rate=0.5, l2_weight_decay=0.25
                ),
            ),
        )
        for i in range(3)
    ]
    embedding.prepare_feature_specs_for_training(features, 1, num_sc)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        [np.zeros((BATCH, 3), np.int32)] * 3,
        None,
        features,
        1,
        1,
        num_sc_per_device=num_sc,
    )
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(features),
        two_table_model.one_device_sharding(),
        num_sc,
    )

    def step(inputs, variables):
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, variables, features
      )
      return embedding.tpu_sparse_dense_matmul_grad(
          activations, inputs, variables, features
      )

    operations = jax.make_jaxpr(step)(inputs, variables).eqns
    # The number of minibatches is an array of one, for the batch.
    of_tables = [
        operation.primitive.name
        for operation in operations
        if operation.primitive.name != "squeeze"
    ]
    self.assertEqual(of_tables, ["lookup_of_stacks", "update_of_stacks"])

  @parameterized.parameters(1, 2, 3)
  def test_many_features_have_the_bits_of_few(self, num_sc):
    model = Model(num_sc)

    def step(variables):
      activations = embedding.tpu_sparse_dense_matmul(
          model.inputs, variables, model.specs
      )
      gradients = jax.tree.map(lambda x: jnp.tanh(x + 1), activations)
      return activations, embedding.tpu_sparse_dense_matmul_grad(
          gradients, model.inputs, variables, model.specs
      )

    few = jax.jit(step).lower(model.variables).compile()
    with mock.patch.object(_lookup, "_MANY_FEATURES", 1):
      many = jax.jit(lambda x: step(x)).lower(model.variables).compile()
    self.assertNotIn("unstack_activations", few.as_text())
    self.assertIn("jte_unstack_activations_cpu", many.as_text())
    # XLA compiles what follows a slice as often as there are slices.
    self.assertNotRegex(many.as_text(), r" slice\(")
    jax.tree.map(
        np.testing.assert_array_equal,
        many(model.variables),
        few(model.variables),
    )

  def test_gradients_of_another_shape_are_an_error(self):
    model = Model(1)
    gradients = {n: jnp.ones(s.output_shape) for n, s in model.specs.items()}
    gradients["user"] = gradients["user"][:5]
    with self.assertRaisesRegex(
        ValueError,
        r"'user': the activation gradient has shape \(5, 6\), expected",
    ):
      embedding.tpu_sparse_dense_matmul_grad(
          gradients, model.inputs, model.variables, model.specs
      )

  def test_gradients_of_another_tree_are_an_error(self):
    model = Model(1)
    with self.assertRaisesRegex(
        ValueError, r"activation_gradients do not match.*\['item'\]"
    ):
      embedding.tpu_sparse_dense_matmul_grad(
          {"user": jnp.ones((BATCH, 6))},
          model.inputs,
          model.variables,
          model.specs,
      )

  @parameterized.parameters(False, True)
  def test_stacking_the_unstacked_is_the_identity(self, use_primitives):
    model = Model(3)
    (name,) = model.variables
    stacked = jax.random.normal(jax.random.key(0), (3 * BATCH, 8))
    stack = functools.partial(
        embedding.stack_embedding_gradients,
        feature_specs=model.specs,
        num_sc_per_device=3,
        global_device_count=1,
        use_gradient_stacking_primitive=use_primitives,
    )
    unstack = functools.partial(
        embedding.unstack_embedding_activations,
        feature_specs=model.specs,
        num_sc_per_device=3,
        global_device_count=1,
        use_activation_unstack_primitive=use_primitives,
    )
    features = unstack({name: stacked})
    again = unstack(stack(features))
    jax.tree.map(np.testing.assert_array_equal, features, again)


class ConvertIdsTest(parameterized.TestCase):

  @parameterized.product(num_sc=(1, 2, 3), with_weights=(False, True))
  def test_gives_the_activations_of_preprocessing(self, num_sc, with_weights):
    model = Model(num_sc, combiner="mean")
    weights = model.weights if with_weights else None
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=num_sc
    )
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        model.ids, weights, model.specs, 1, 1, num_sc_per_device=num_sc
    )
    expected = model.lookup(inputs, model.variables)

    @jax.jit
    def lookup(ids, weights, variables):
      inputs = embedding.convert_ids(ids, weights, model.specs, topology)
      return model.lookup(inputs, variables)

    got = lookup(model.ids, weights, model.variables)
    jax.tree.map(np.testing.assert_array_equal, got, expected)

  def test_ids_outside_of_the_table_are_an_error(self):
    model = Model(1)
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=1
    )
    ids = dict(model.ids)
    ids["user"] = ids["user"].copy()
    ids["user"][3, 2] = 40
    with self.assertRaisesRegex(Exception, "user.*40"):
      jax.block_until_ready(
          embedding.convert_ids(ids, None, model.specs, topology)
      )

  def test_float_ids_are_an_error(self):
    model = Model(1)
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=1
    )
    ids = model.ids | {"user": model.ids["user"].astype(np.float32)}
    with self.assertRaisesRegex(
        TypeError, "'user': ids must be integers, got float32"
    ):
      embedding.convert_ids(ids, None, model.specs, topology)


class PreprocessTest(absltest.TestCase):

  def test_shapes_are_as_announced(self):
    model = Model(2)
    for leading in (False, True):
      inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
          model.ids,
          None,
          model.specs,
          1,
          1,
          num_sc_per_device=2,
          has_leading_dimension=leading,
      )
      shapes = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
          model.specs, 1, 1, num_sc_per_device=2, has_leading_dimension=leading
      )
      self.assertEqual(
          jax.tree.map(lambda x: (x.shape, x.dtype), inputs),
          jax.tree.map(lambda x: (x.shape, x.dtype), shapes),
      )

  def test_missing_features_are_an_error(self):
    model = Model(2)
    with self.assertRaisesRegex(
        ValueError, r"features and feature_specs do not match.*\['last'\]"
    ):
      embedding.preprocess_sparse_dense_matmul_input(
          {k: v for k, v in model.ids.items() if k != "last"},
          None,
          model.specs,
          1,
          1,
          num_sc_per_device=2,
      )

  def test_unknown_strategies_are_an_error(self):
    model = Model(2)
    with self.assertRaisesRegex(ValueError, "'DIV'. The choices are: 'MOD'"):
      embedding.preprocess_sparse_dense_matmul_input(
          model.ids,
          None,
          model.specs,
          1,
          1,
          num_sc_per_device=2,
          sharding_strategy="DIV",
      )
    self.assertEqual(int(embedding.sharding_strategy_to_enum("mod")), 1)
    with self.assertRaisesRegex(
        TypeError, "sharding_strategy must be .* got 3"
    ):
      embedding.sharding_strategy_to_enum(3)


if __name__ == "__main__":
  absltest.main()
