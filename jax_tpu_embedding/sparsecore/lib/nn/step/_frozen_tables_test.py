# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The update below the layers, with frozen tables; the layers have their own."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np


def _gradients(model):
  return jax.tree.map(
      lambda feature: jnp.ones(feature.output_shape), model.specs
  )


class FrozenTablesTest(parameterized.TestCase):

  def _model(self, **kwargs):
    optimizer = embedding_spec.AdagradOptimizerSpec(0.5)
    return two_table_model.TwoTableModel(
        num_sc=2, stacked=False, optimizer=optimizer, **kwargs
    )

  @parameterized.product(by_stack=[False, True], is_tuple=[False, True])
  def test_frozen_tables_are_returned_as_they_are(self, by_stack, is_tuple):
    model = self._model()
    inputs = model.inputs
    if is_tuple:
      inputs = inputs.sparse_dense_matmul_input
    gradients = _gradients(model)
    if by_stack:
      gradients = embedding.stack_embedding_gradients(
          gradients, model.specs, 2, 1
      )
    # Without slots.
    frozen = model.variables | {"users": (model.variables["users"].table, ())}
    update = lambda variables, **kwargs: embedding.tpu_sparse_dense_matmul_grad(
        gradients,
        inputs,
        variables,
        model.specs,
        perform_stacking=not by_stack,
        **kwargs,
    )
    new = update(frozen, frozen=("users",))
    self.assertIs(new["users"], frozen["users"])
    expected = update(model.variables)["items"]
    jax.tree.map(np.testing.assert_array_equal, new["items"], expected)
    self.assertEqual(update(frozen, frozen=("users", "items")), frozen)

  @parameterized.parameters("users", 5)
  def test_names_are_a_tuple(self, frozen):
    model = self._model()
    with self.assertRaisesRegex(
        TypeError, f"frozen must be a tuple of .*, got {frozen!r}. Of one table"
    ):
      embedding.tpu_sparse_dense_matmul_grad(
          _gradients(model),
          model.inputs,
          model.variables,
          model.specs,
          frozen=frozen,
      )

  def test_the_program_has_no_update_of_frozen_tables(self):
    model = self._model()

    def num_updates(frozen):
      step = jax.jit(
          lambda variables: embedding.tpu_sparse_dense_matmul_grad(
              _gradients(model),
              model.inputs,
              variables,
              model.specs,
              frozen=frozen,
          )
      )
      text = step.lower(model.variables).as_text()
      return text.count("@jte_update_cpu")

    self.assertEqual(num_updates(()), 2)
    self.assertEqual(num_updates(("users",)), 1)

  def test_missing_slots_are_named(self):
    model = self._model()
    variables = {
        name: (variables.table, ())
        for name, variables in model.variables.items()
    }
    with self.assertRaisesRegex(
        ValueError,
        r"Stack '(users|items)': an update with AdagradOptimizerSpec needs 1"
        r" slots \(accumulator\) beside the table, and there are 0",
    ):
      embedding.tpu_sparse_dense_matmul_grad(
          _gradients(model), model.inputs, variables, model.specs
      )

  def test_gradients_of_another_tree_raise(self):
    model = self._model()
    gradients = _gradients(model)
    del gradients["last"]
    with self.assertRaisesRegex(ValueError, "activation_gradients"):
      embedding.tpu_sparse_dense_matmul_grad(
          gradients,
          model.inputs,
          model.variables,
          model.specs,
          frozen=("users",),
      )


if __name__ == "__main__":
  absltest.main()
