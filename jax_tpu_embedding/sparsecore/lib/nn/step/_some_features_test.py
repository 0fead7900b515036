# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups and updates of some of the features that a stack was planned for.

With SGD the update by gradients of the others that are zero is the same.
"""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.testing import replicated_model
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_STRATEGIES = ("SPLIT_THEN_STACK", "STACK_THEN_SPLIT")


def _step(inputs, variables, specs, seen=None, **options):
  """Activations, and new variables by three ways."""
  activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
  gradients = {
      name: jnp.sin(3 * x) * (seen is None or name in seen)
      for name, x in activations.items()
  }
  new = embedding.tpu_sparse_dense_matmul_grad(
      gradients, inputs, variables, specs, **options
  )
  sparse = embedding.sparse_gradients(gradients, inputs, specs)
  return (
      activations,
      new,
      embedding.apply_sparse_gradients(sparse, variables, specs),
  )


def _assert_close(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
      actual,
      expected,
  )


class SomeFeaturesTest(parameterized.TestCase):

  @parameterized.product(
      some=[("last",), ("user", "last"), ("item",)],
      strategy=_STRATEGIES,
      way=["host", "host_of_all", "program", "ids"],
  )
  def test_a_step_is_that_with_zeros_for_the_others(self, some, strategy, way):
    num_sc = 2
    model = two_table_model.TwoTableModel(num_sc)
    specs = {name: model.specs[name] for name in some}
    ids = {name: model.ids[name] for name in some}
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=num_sc
    )
    options = dict(feature_stacking_strategy=strategy)

    def preprocess(ids, specs):
      return embedding.preprocess_sparse_dense_matmul_input(
          ids, None, specs, 1, 1, num_sc_per_device=num_sc, **options
      )[0]

    of_all = preprocess(model.ids, model.specs)
    activations, *expected = _step(
        of_all, model.variables, model.specs, seen=some
    )
    activations = {name: activations[name] for name in some}
    stacks = embedding.get_stacked_table_specs(specs)
    variables = {name: model.variables[name] for name in stacks}
    if way == "ids":
      looked_up = embedding.lookup_ids(
          ids, None, variables, specs, topology, **options
      )
      _assert_close(looked_up, activations)
      return
    inputs = {
        "host": lambda: preprocess(ids, specs),
        "host_of_all": lambda: of_all,
        "program": lambda: embedding.convert_ids(
            ids, None, specs, topology, **options
        ),
    }[way]()
    _assert_close(
        _step(inputs, variables, specs),
        (activations, *({n: x[n] for n in stacks} for x in expected)),
    )

  def test_gradients_that_are_laid_out_as_planned_are_refused(self):
    model = two_table_model.TwoTableModel(2)
    specs = {"last": model.specs["last"]}
    options = dict(feature_stacking_strategy="STACK_THEN_SPLIT")
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"last": model.ids["last"]},
        None,
        specs,
        1,
        1,
        num_sc_per_device=2,
        **options,
    )
    # The samples of the inputs begin with those of "last", as of no others.
    gradients = embedding.stack_embedding_gradients(
        {"last": jnp.ones(specs["last"].output_shape)}, specs, 2, 1, **options
    )
    stacks = embedding.get_stacked_table_specs(specs)
    variables = {name: model.variables[name] for name in stacks}
    with self.assertRaisesRegex(
        ValueError, r"have \d+ samples, and the inputs 24 .* \['last'\]"
    ):
      embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, specs, perform_stacking=False
      )

  def test_one_primitive_cuts_activations_with_others_between_them(self):
    model = two_table_model.TwoTableModel(2)
    specs = {name: model.specs[name] for name in ("user", "last")}
    of_all = embedding.tpu_sparse_dense_matmul(
        model.inputs, model.variables, model.specs, perform_unstacking=False
    )
    cut, by_primitive = (
        embedding.unstack_embedding_activations(
            of_all, specs, 1, 2, use_activation_unstack_primitive=flag
        )
        for flag in (False, True)
    )
    _assert_close(by_primitive, cut)

  def test_whole_stacks_are_as_planned_in_any_order(self):
    model = two_table_model.TwoTableModel(2)
    for names in (sorted(model.specs), sorted(model.specs, reverse=True)):
      inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
          [model.ids[name] for name in names],
          None,
          [model.specs[name] for name in names],
          1,
          1,
          num_sc_per_device=2,
      )
      self.assertEqual(inputs.settings.layouts, ())

  def test_tables_of_a_stack_share_its_spec(self):
    model = two_table_model.TwoTableModel(2)
    specs = {name: model.specs[name] for name in ("user", "last")}
    features = list(specs.values())
    for batches in ({}, {"user": 4}):
      laid_out = _batch_sizes.lay_out(
          specs,
          batches,
          _batch_sizes.layouts(features, batches, 2, keeps_places=False),
      )
      tables = [x.table_spec for x in laid_out.values()]
      by_name = {x.stacked_table_spec.stack_name: x for x in tables}
      for table in tables:
        name = table.stacked_table_spec.stack_name
        self.assertIs(
            table.stacked_table_spec, by_name[name].stacked_table_spec
        )

  def test_one_primitive_joins_gradients_with_zeros_between_them(self):
    model = two_table_model.TwoTableModel(2)
    specs = {name: model.specs[name] for name in ("user", "last")}
    gradients = {
        name: jnp.ones(spec.output_shape) for name, spec in specs.items()
    }
    joined, by_primitive = (
        embedding.stack_embedding_gradients(gradients, specs, 2, 1, flag)
        for flag in (False, True)
    )
    _assert_close(joined, by_primitive)
    (stack,) = embedding.get_stacked_table_specs(specs).values()
    self.assertLen(joined[stack.stack_name], stack.total_sample_count)
    zeros = np.all(np.asarray(joined[stack.stack_name]) == 0, axis=1)
    self.assertEqual(zeros.sum(), two_table_model.BATCH)  # those of "item"

  @parameterized.parameters(*_STRATEGIES)
  def test_replicated_tables(self, strategy):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 1, 2)
    ids = replicated_model.batch()
    options = dict(feature_stacking_strategy=strategy)
    of_all, _ = model.preprocess(ids, **options)
    expected = embedding.tpu_sparse_dense_matmul(
        of_all, model.variables, model.specs
    )
    specs = {name: model.specs[name] for name in ("b", "c")}
    of_some, _ = embedding.preprocess_sparse_dense_matmul_input(
        {name: ids[name] for name in specs},
        None,
        specs,
        1,
        1,
        num_sc_per_device=2,
        **options,
    )
    for inputs in (of_some, of_all):
      activations, new, _ = _step(inputs, model.variables, specs)
      _assert_close(activations, {name: expected[name] for name in specs})
      old = model.variables["small"].table
      changed = np.any(np.asarray(new["small"].table != old), axis=1)
      # The only row that "b" names.
      np.testing.assert_array_equal(np.flatnonzero(changed), [7])

  def test_shapes_of_inputs(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 1, 2)
    for name in ("a", "b"):
      specs = {name: model.specs[name]}
      inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
          {name: replicated_model.batch()[name]},
          None,
          specs,
          1,
          1,
          num_sc_per_device=2,
      )
      shapes = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
          specs, 1, 1, num_sc_per_device=2
      )
      self.assertEqual(jax.tree.structure(inputs), jax.tree.structure(shapes))
      self.assertEqual(
          jax.tree.map(np.shape, inputs), jax.tree.map(np.shape, shapes)
      )

  def test_inputs_without_a_feature_that_is_looked_up_are_refused(self):
    model = two_table_model.TwoTableModel(2)
    some = {"last": model.specs["last"]}
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"last": model.ids["last"]}, None, some, 1, 1, num_sc_per_device=2
    )
    message = r"feature 'item' has 24 samples.*and samples {'last': 24}"
    with self.assertRaisesRegex(ValueError, message):
      embedding.tpu_sparse_dense_matmul(inputs, model.variables, model.specs)
    gradients = {
        name: jnp.ones(spec.output_shape) for name, spec in model.specs.items()
    }
    with self.assertRaisesRegex(ValueError, message):
      embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, model.variables, model.specs
      )


if __name__ == "__main__":
  absltest.main()
