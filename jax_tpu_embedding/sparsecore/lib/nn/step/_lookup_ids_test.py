# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Activations from ids are those of conversion and lookup, bit by bit."""

import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_BATCH = 16
_TOPOLOGY = layout.Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=2
)


def _specs():
  """Two tables in one stack; three features, one of single ids."""
  make = functools.partial(two_table_model.table, embedding_dim=8)
  items = make("items", 70)
  feature = functools.partial(two_table_model.feature, batch=_BATCH)
  specs = {
      "user": feature("user", make("users", 40)),
      "item": feature("item", items, valency=1),
      "last": feature("last", items, valency=4),
  }
  limits = lambda name, batch_size: 512
  embedding.auto_stack_tables(specs, 1, 2, limits, limits)
  embedding.prepare_feature_specs_for_training(specs, 1, 2)
  return specs


def _variables(specs):
  rng = np.random.default_rng(1)
  return {
      name: (
          jnp.asarray(
              rng.normal(
                  size=(stack.stack_vocab_size, stack.stack_embedding_dim)
              ),
              jnp.float32,
          ),
      )
      for name, stack in embedding.get_stacked_table_specs(specs).items()
  }


def _ids(specs, batch):
  rng = np.random.default_rng(0)
  valencies = {"item": 1, "last": 4}
  return {
      name: np.int32(
          rng.integers(
              spec.table_spec.vocabulary_size,
              size=(batch, valencies.get(name, 3)),
          )
      )
      for name, spec in specs.items()
  }


class LookupIdsTest(parameterized.TestCase):

  @parameterized.product(
      batch=[_BATCH, 6],  # as declared, and another
      strategy=["SPLIT_THEN_STACK", "STACK_THEN_SPLIT"],
  )
  def test_bits_are_those_of_buffers(self, batch, strategy):
    specs = _specs()
    variables, ids = _variables(specs), _ids(specs, batch)
    weights = {"user": None, "item": None, "last": np.float32(ids["last"] / 7)}
    options = dict(feature_stacking_strategy=strategy)

    @jax.jit
    def both(ids, weights, variables):
      buffers = embedding.convert_ids(ids, weights, specs, _TOPOLOGY, **options)
      return (
          embedding.lookup_ids(
              ids, weights, variables, specs, _TOPOLOGY, **options
          ),
          embedding.tpu_sparse_dense_matmul(buffers, variables, specs),
          embedding.lookup_ids(
              ids,
              weights,
              variables,
              specs,
              _TOPOLOGY,
              perform_unstacking=False,
              **options,
          ),
      )

    found, expected, stacked = both(ids, weights, variables)
    self.assertEqual(found["last"].shape[0], batch)
    self.assertGreater(np.abs(found["last"]).sum(), 0)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    self.assertEqual(
        {name: x.shape[0] for name, x in stacked.items()},
        dict.fromkeys(variables, 3 * batch),
    )

  def test_many_features_are_cut_by_one_call(self):
    specs = _specs()
    variables, ids = _variables(specs), _ids(specs, _BATCH)

    def look_up(ids, variables):
      return embedding.lookup_ids(ids, None, variables, specs, _TOPOLOGY)

    few = jax.jit(look_up).lower(ids, variables).compile()
    with mock.patch.object(_lookup, "_MANY_FEATURES", 1):
      many = jax.jit(lambda *args: look_up(*args)).lower(ids, variables)
    many = many.compile()
    self.assertNotIn("unstack_activations", few.as_text())
    self.assertIn("jte_unstack_activations_cpu", many.as_text())
    jax.tree.map(
        np.testing.assert_array_equal,
        many(ids, variables),
        few(ids, variables),
    )

  def test_tables_of_other_specs_are_refused(self):
    specs = _specs()
    ids = _ids(specs, _BATCH)
    (name,) = variables = _variables(specs)
    with self.assertRaisesRegex(ValueError, "other"):
      embedding.lookup_ids(
          ids, None, {"other": variables[name]}, specs, _TOPOLOGY
      )
    with self.assertRaisesRegex(ValueError, "40 rows"):
      embedding.lookup_ids(
          ids, None, {name: (variables[name][0][:40],)}, specs, _TOPOLOGY
      )
    with self.assertRaisesRegex(ValueError, "sharding strategy"):
      embedding.lookup_ids(
          ids, None, variables, specs, _TOPOLOGY, sharding_strategy="DIV"
      )


if __name__ == "__main__":
  absltest.main()
