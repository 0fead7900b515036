# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed_optimizer as older_name
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
import numpy as np
import optax

TABLES = "sc_embedding_variables"
SEAL = (1, 3, 9, 2, 4)


def make_params(table=1.0, seal=(1, 0, 0, 0, 0), kernel=2.0):
  """A tree with something other than dicts around the dicts."""
  return [
      {
          "emb": {
              TABLES: {"stack": (jnp.full((4, 2), table),)},
              "update_seal": {TABLES: jnp.float32(seal)},
          },
          "dense": {"kernel": jnp.full((3,), kernel)},
      }
  ]


class EmbedOptimizerTest(absltest.TestCase):

  def test_tables_pass_and_the_rest_is_optimized(self):
    params, gradients = make_params(), make_params(7.0, SEAL, 0.5)
    optimizer = embed_optimizer.create_optimizer_for_sc_model(
        params, optax.sgd(0.1)
    )
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    expected = make_params(7.0, SEAL, -0.05)
    jax.tree.map(np.testing.assert_array_equal, updates, expected)
    new = embed_optimizer.apply_updates_for_sc_model(params, updates)
    expected = make_params(7.0, SEAL, 1.95)
    jax.tree.map(np.testing.assert_array_equal, new, expected)

  def test_norms_are_those_of_the_other_parameters(self):
    params, gradients = make_params(), make_params(1e6, SEAL, 3.0)
    optimizer = embed_optimizer.create_optimizer_for_sc_model(
        params, optax.clip_by_global_norm(1.0)
    )
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    kernel = updates[0]["dense"]["kernel"]
    np.testing.assert_allclose(np.linalg.norm(kernel), 1, rtol=1e-6)

  def test_there_is_no_state_of_tables(self):
    params = make_params()
    optimizer = embed_optimizer.create_optimizer_for_sc_model(
        params, optax.adam(0.1)
    )
    sizes = [x.size for x in jax.tree.leaves(optimizer.init(params))]
    self.assertCountEqual(sizes, [1, 3, 3], "count and moments of the kernel")

  def test_other_parameters_get_the_type_of_the_update(self):
    params = {"kernel": jnp.ones(2, jnp.float32)}
    new = embed_optimizer.apply_updates_for_sc_model(
        params, {"kernel": jnp.ones(2, jnp.bfloat16)}
    )
    self.assertEqual(new["kernel"].dtype, jnp.bfloat16)

  def test_a_broken_seal_raises_at_once_outside_of_jit(self):
    params, broken = make_params(), make_params(seal=(2, 6, 18, 0, 0))
    apply = embed_optimizer.apply_updates_for_sc_model
    with self.assertRaisesRegex(ValueError, r"The seal is 2\.0, 6\.0, 18\.0"):
      apply(params, broken)
    jax.jit(apply)(params, broken)

  def test_tables_that_the_loss_does_not_use_stay(self):
    apply = embed_optimizer.apply_updates_for_sc_model
    params = make_params(), make_params()
    unused = make_params(0.0, (0, 0, 0, 0, 0), -0.5)
    updates = unused, make_params(7.0, SEAL, -0.5)
    expected = make_params(kernel=1.5), make_params(7.0, SEAL, 1.5)
    for new in (apply(params, updates), jax.jit(apply)(params, updates)):
      jax.tree.map(np.testing.assert_array_equal, new, expected)

  def test_tables_without_a_seal_are_replaced(self):
    params, updates = make_params(), make_params(7.0)
    del params[0]["emb"]["update_seal"], updates[0]["emb"]["update_seal"]
    new = embed_optimizer.apply_updates_for_sc_model(params, updates)
    np.testing.assert_array_equal(new[0]["emb"][TABLES]["stack"][0], 7.0)

  def test_the_older_module_has_the_same_names(self):
    for name in ("create_optimizer_for_sc_model", "apply_updates_for_sc_model"):
      self.assertIs(getattr(older_name, name), getattr(embed_optimizer, name))


if __name__ == "__main__":
  absltest.main()
