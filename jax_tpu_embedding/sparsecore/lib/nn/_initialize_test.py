# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

P = jax.sharding.PartitionSpec


def sharding(*spec):
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  return jax.sharding.NamedSharding(mesh, P(*spec))


def prepared(*tables, num_sc=2, stack=False):
  specs = [
      embedding_spec.FeatureSpec(
          name=f"f_{table.name}",
          table_spec=table,
          input_shape=(8, 1),
          output_shape=(8, table.embedding_dim),
      )
      for table in tables
  ]
  if stack:
    embedding.auto_stack_tables(specs, 1, num_sc)
  embedding.prepare_feature_specs_for_training(specs, 1, num_sc)
  return list(tables)


def table(name, vocabulary_size, embedding_dim, initializer, **kwargs):
  return embedding_spec.TableSpec(
      name=name,
      vocabulary_size=vocabulary_size,
      embedding_dim=embedding_dim,
      initializer=initializer,
      **(dict(optimizer=embedding_spec.SGDOptimizerSpec()) | kwargs),
  )


class InitEmbeddingVariablesTest(parameterized.TestCase):

  def test_each_shard_has_its_key(self):
    normal = jax.nn.initializers.normal()
    tables = prepared(table("a", 30, 8, normal), table("b", 16, 4, normal))
    got = embedding.init_embedding_variables(
        jax.random.key(3), tables, sharding("x", None), 2
    )
    keys = jax.random.split(jax.random.key(3), 4)
    expected_a = [normal(key, (16, 8)) for key in keys[:2]]
    expected_b = [normal(key, (8, 8)) for key in keys[2:]]
    # A compiled initializer rounds otherwise than one that runs op by op.
    np.testing.assert_allclose(
        got["a"].table, np.concatenate(expected_a), rtol=1e-6
    )
    np.testing.assert_allclose(
        got["b"].table, np.concatenate(expected_b), rtol=1e-6
    )

  def test_members_of_a_stack_lie_side_by_side_in_each_shard(self):
    constant = jax.nn.initializers.constant
    tables = prepared(
        table("b", 40, 8, constant(2.0)),
        table("a", 100, 8, constant(1.0)),
        num_sc=4,
        stack=True,
    )
    got = embedding.init_embedding_variables(
        jax.random.key(0), tables, sharding("x", None), 4
    )
    # 40 rows are 64 with padding, 16 to a shard; 100 are 128, 32 to a shard.
    self.assertEqual(list(got), ["b_a"])
    np.testing.assert_array_equal(
        got["b_a"].table[:, 0], ([2.0] * 16 + [1.0] * 32) * 4
    )

  @parameterized.parameters(1, 2, 3)
  def test_whole_tables_land_where_lookups_read(self, num_sc):
    values = {
        "a": np.arange(33 * 6, dtype=np.float32).reshape(33, 6),
        "b": -np.arange(20 * 8, dtype=np.float32).reshape(20, 8),
    }
    tables = prepared(
        table("a", 33, 6, lambda: values["a"]),
        table("b", 20, 8, lambda: jnp.pad(values["b"], ((0, 5), (0, 1)))),
        num_sc=num_sc,
        stack=True,
    )
    got = embedding.init_embedding_variables(
        jax.random.key(0), tables, sharding("x", None), num_sc
    )
    a, b = table_stacking.unshard_and_unstack_tables(
        tables, {"a_b": got["a_b"].table}, num_sc
    )
    np.testing.assert_array_equal(a, values["a"])
    np.testing.assert_array_equal(b, values["b"])
    total = sum(np.abs(v).sum() for v in values.values())
    self.assertEqual(np.abs(got["a_b"].table).sum(), total)  # padding is zero

  def test_slots_have_their_initial_value_and_names(self):
    tables = prepared(
        table(
            "a",
            16,
            8,
            jax.nn.initializers.ones,
            optimizer=embedding_spec.AdagradOptimizerSpec(
                initial_accumulator_value=0.25
            ),
        )
    )
    got = embedding.init_embedding_variables(
        jax.random.key(0), tables, sharding("x", None), 2
    )
    self.assertEqual(got["a"].slot._fields, ("accumulator",))
    np.testing.assert_array_equal(
        got["a"].slot.accumulator, np.full((16, 8), 0.25)
    )

  def test_a_mesh_of_other_devices_is_an_error_unless_it_is_meant(self):
    tables = prepared(table("a", 16, 8, jax.nn.initializers.ones))
    arguments = (jax.random.key(0), tables, sharding("x", None), 2)
    with mock.patch.object(jax, "devices", return_value=[]):
      with self.assertRaisesRegex(
          ValueError, "default device order from jax.devices()"
      ):
        embedding.init_embedding_variables(*arguments)
      embedding.init_embedding_variables(*arguments, bypass_mesh_check=True)

  def test_small_whole_tables_are_an_error(self):
    tables = prepared(table("a", 16, 8, lambda: jnp.ones((16, 7))))
    with self.assertRaisesRegex(
        ValueError, r"Table 'a'.*at least \(16, 8\), got \(16, 7\)"
    ):
      embedding.init_embedding_variables(
          jax.random.key(0), tables, sharding("x", None), 2
      )

  @parameterized.parameters((P(),), (P("x"),), (P(None, "x"),))
  def test_other_shardings_are_an_error(self, spec):
    tables = prepared(table("a", 16, 8, jax.nn.initializers.ones))
    with self.assertRaisesRegex(
        ValueError, "PartitionSpec of the global sharding either needs"
    ):
      embedding.init_embedding_variables(
          jax.random.key(0), tables, sharding(*spec), 2
      )


if __name__ == "__main__":
  absltest.main()
