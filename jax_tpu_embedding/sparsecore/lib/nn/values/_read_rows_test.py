# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_IDS = np.array([[0, 1, 5], [7, 39, 2]])


def _row_numbers(unused_key, shape):
  return jnp.broadcast_to(jnp.arange(shape[0])[:, None], shape)


def _specs(num_devices, num_sc, stacked):
  specs = [
      two_table_model.feature(
          name, two_table_model.table(name, rows, initializer=_row_numbers)
      )
      for name, rows in (("users", 70), ("items", 40))
  ]
  if stacked:
    embedding.auto_stack_tables(specs, num_devices, num_sc)
  embedding.prepare_feature_specs_for_training(specs, num_devices, num_sc)
  return specs


def _variables(specs, num_devices, num_sc, *partition, explicit=False):
  axis_type = jax.sharding.AxisType
  mesh = jax.sharding.Mesh(
      jax.devices()[:num_devices],
      ("x",),
      axis_types=(axis_type.Explicit if explicit else axis_type.Auto,),
  )
  return embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(
          mesh, jax.sharding.PartitionSpec("x", None, *partition)
      ),
      num_sc,
  )


class ReadRowsTest(parameterized.TestCase):

  @parameterized.product(topology=[(1, 1), (2, 4)], stacked=[False, True])
  def test_rows_are_those_of_the_ids(self, topology, stacked):
    specs = _specs(*topology, stacked)
    variables = _variables(specs, *topology)
    expected = np.broadcast_to(_IDS[..., None], (2, 3, 6))
    for tables in (
        variables,
        {name: x.table for name, x in variables.items()},
        jax.tree.map(np.asarray, variables),
        jax.tree.map(jax.new_ref, variables),
        _variables(specs, *topology, None),
        _variables(specs, *topology, explicit=True),
        jax.tree.map(jax.new_ref, _variables(specs, *topology, explicit=True)),
    ):
      for table in ("users", "items"):
        rows = embedding.read_rows(tables, specs, table, _IDS)
        np.testing.assert_array_equal(rows, expected)
    rows = embedding.read_rows(
        variables, embedding.get_table_specs(specs), "users", 69
    )
    np.testing.assert_array_equal(rows, np.full(6, 69))
    self.assertEqual(
        embedding.read_rows(variables, specs, "users", []).shape, (0, 6)
    )

  def test_specs_without_sizes_say_what_to_pass(self):
    table = two_table_model.table("items", initializer=_row_numbers)
    feature = two_table_model.feature("f", table)
    prepared = [
        dataclasses.replace(feature, table_spec=dataclasses.replace(table))
    ]
    embedding.prepare_feature_specs_for_training(prepared, 1, 2)
    tables = _variables(prepared, 1, 2)
    feature.output_shape = (None, 6)
    with self.assertRaisesRegex(ValueError, "prepare copies .* with any sizes"):
      embedding.read_rows(tables, [feature], "items", _IDS)
    # As it says.
    copy = dataclasses.replace(
        feature, table_spec=dataclasses.replace(table), output_shape=(24, 6)
    )
    embedding.prepare_feature_specs_for_training([copy], 1, 2)
    np.testing.assert_array_equal(
        embedding.read_rows(tables, [copy], "items", _IDS)[..., 0], _IDS
    )

  @parameterized.parameters(
      (dict(name="user"), ValueError, r"no table 'user'.*\['items', 'users'\]"),
      (dict(ids=[0, 40]), ValueError, "'items': there is no row 40, .* to 39"),
      (dict(ids=[-1]), ValueError, "'items': there is no row -1"),
      (dict(ids=[0.5]), TypeError, "'items': ids must be integers"),
      (
          dict(ids=np.ma.array([0, 1], mask=[0, 1])),
          ValueError,
          "ids.compressed",
      ),
      (dict(tables={"t": 0}), ValueError, r"stack 'items'.*tables \['t'\]"),
      (
          dict(specs=[two_table_model.table("items")]),
          ValueError,
          "'items' was not prepared",
      ),
  )
  def test_errors(self, changes, error, message):
    specs = _specs(1, 1, False)
    tables = {"items": np.zeros((40, 8))}
    arguments = dict(tables=tables, specs=specs, name="items", ids=[3])
    embedding.read_rows(**arguments)
    with self.assertRaisesRegex(error, message):
      embedding.read_rows(**arguments | changes)


if __name__ == "__main__":
  absltest.main()
