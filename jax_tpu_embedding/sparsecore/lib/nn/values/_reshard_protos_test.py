# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.values import _reshard
from jax_tpu_embedding.sparsecore.lib.nn.values import _reshard_protos
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, max_examples=10
)
hypothesis.settings.load_profile("deterministic")

P = jax.sharding.PartitionSpec


def _stacked(shapes, table_names, devices, num_sc_per_device):
  """The features and the message of one stack of the named tables.

  Args:
    shapes: table name -> (rows, columns), in the order of features.
    table_names: in the order of the stack.
    devices: of the topology.
    num_sc_per_device: of the topology.
  """
  features = [
      embedding_spec.FeatureSpec(
          name=f"f{name}",
          table_spec=embedding_spec.TableSpec(
              name=name,
              vocabulary_size=rows,
              embedding_dim=columns,
              optimizer=embedding_spec.SGDOptimizerSpec(),
          ),
          input_shape=(16, 1),
          output_shape=(16, columns),
      )
      for name, (rows, columns) in shapes.items()
  ]
  _plan.stack_tables(
      features, table_names, devices, num_sc_per_device, stack_name="s"
  )
  return features, embedding_proto_utils.create_proto_from_feature_specs(
      features, devices, num_sc_per_device
  )


def _values(shapes, dtype=np.float32):
  rng = np.random.default_rng(0)
  return {
      name: (100 * rng.standard_normal(shape)).astype(dtype)
      for name, shape in shapes.items()
  }


def _by_rows(axis_type, num_devices=4):
  mesh = jax.make_mesh(
      (num_devices,),
      ("x",),
      axis_types=(getattr(jax.sharding.AxisType, axis_type),),
      devices=jax.devices()[:num_devices],
  )
  return jax.sharding.NamedSharding(mesh, P("x", None))


class StackAndShardFeatureTablesTest(parameterized.TestCase):

  def test_places_rows_shard_after_shard(self):
    shapes = {"a": (10, 2), "b": (17, 3)}
    _, message = _stacked(shapes, ["a", "b"], 1, 2)
    tables = {
        "a": jnp.tile(jnp.arange(10.0)[:, None], 2),
        "b": jnp.tile(100 + jnp.arange(17.0)[:, None], 3),
    }
    (stack,) = _reshard_protos.stack_and_shard_feature_tables(
        tables, message
    ).values()
    self.assertEqual(stack.shape, (48, 8))
    np.testing.assert_array_equal(
        stack[:, 0],
        [0, 2, 4, 6, 8]
        + 3 * [0]
        + list(range(100, 117, 2))
        + 7 * [0]
        + [1, 3, 5, 7, 9]
        + 3 * [0]
        + list(range(101, 117, 2))
        + 8 * [0],
    )

  def test_tables_go_where_their_row_offset_says(self):
    # The message lists tables as features do: b, a. The stack begins with a.
    shapes = {"b": (40, 8), "a": (24, 8)}
    features, message = _stacked(shapes, ["a", "b"], 2, 2)
    names = [t.table_name for t in message.stacked_table_specs[0].table_specs]
    self.assertEqual(names, ["b", "a"])
    tables = _values(shapes)
    stack = _reshard_protos.stack_and_shard_feature_tables(tables, message)
    expected = _reshard.stack_and_shard_tables(
        _prepared.get_table_specs(features), tables, 4, pad_value=0
    )
    np.testing.assert_array_equal(stack["s"], expected["s"].reshape(-1, 8))

  @parameterized.parameters("Auto", "Explicit")
  def test_keeps_the_sharding(self, axis_type):
    shapes = {"a": (40, 8), "b": (24, 6)}
    _, message = _stacked(shapes, ["a", "b"], 2, 2)
    sharding = _by_rows(axis_type)
    tables = jax.device_put(_values(shapes), sharding)
    stack = _reshard_protos.stack_and_shard_feature_tables(tables, message)
    self.assertEqual(stack["s"].sharding, sharding)
    back = _reshard_protos.unstack_and_unshard_stacked_tables(stack, message)
    for name, table in tables.items():
      self.assertEqual(back[name].sharding, sharding)
      np.testing.assert_array_equal(back[name], table)

  @parameterized.parameters(True, False)
  def test_deletes_only_if_told(self, delete):
    shapes = {"a": (40, 8), "b": (24, 6)}
    _, message = _stacked(shapes, ["a", "b"], 2, 2)
    tables = jax.tree.map(jnp.asarray, _values(shapes))
    stacks = _reshard_protos.stack_and_shard_feature_tables(
        tables, message, delete_input=delete
    )
    self.assertEqual(tables["a"].is_deleted(), delete)
    self.assertEqual(tables["b"].is_deleted(), delete)
    _reshard_protos.unstack_and_unshard_stacked_tables(
        stacks, message, donate=delete
    )
    self.assertEqual(stacks["s"].is_deleted(), delete)

  def test_tables_of_other_models_are_ignored(self):
    shapes = {"a": (40, 8)}
    _, message = _stacked(shapes, ["a"], 1, 1)
    tables = _values(shapes) | {"z": np.zeros((1, 1))}
    self.assertEqual(
        list(_reshard_protos.stack_and_shard_feature_tables(tables, message)),
        ["s"],
    )


class ErrorsTest(parameterized.TestCase):
  """Each row changes the tables or the message in one way."""

  def setUp(self):
    super().setUp()
    self.shapes = {"a": (40, 8), "b": (24, 6)}
    _, self.message = _stacked(self.shapes, ["a", "b"], 2, 2)
    self.tables = jax.tree.map(jnp.asarray, _values(self.shapes))
    self.stack = self.message.stacked_table_specs[0]

  def _stack(self):
    return _reshard_protos.stack_and_shard_feature_tables(
        self.tables, self.message
    )

  def test_baseline_is_valid(self):
    self.assertIn("s", self._stack())

  def test_no_tables(self):
    self.tables = {}
    with self.assertRaisesRegex(IndexError, "feature_tables is empty"):
      self._stack()

  def test_missing_table(self):
    del self.tables["b"]
    with self.assertRaisesRegex(ValueError, "'s': .* lacks its table 'b'"):
      self._stack()

  def test_wrong_shape(self):
    self.tables["b"] = jnp.zeros((24, 8))
    with self.assertRaisesRegex(
        ValueError, r"'b': expected an array of shape \(24, 6\), got \(24, 8\)"
    ):
      self._stack()

  def test_different_shardings(self):
    self.tables["b"] = jax.device_put(self.tables["b"], jax.devices()[1])
    with self.assertRaisesRegex(
        ValueError, "'a' and 'b' have different shardings"
    ):
      self._stack()

  def test_different_widths_in_the_message(self):
    self.stack.table_specs[1].padded_embedding_dim = 16
    with self.assertRaisesRegex(
        ValueError, "'b' in stack 's': padded_embedding_dim is 16, and the .* 8"
    ):
      self._stack()

  def test_overlapping_tables_in_the_message(self):
    self.stack.table_specs[1].row_offset_in_shard = 8
    with self.assertRaisesRegex(
        ValueError, "'b' .* starts at row 8 of each shard, where table 'a' is"
    ):
      self._stack()

  def test_tables_beyond_the_stack_in_the_message(self):
    self.stack.stack_vocab_size -= 32
    with self.assertRaisesRegex(
        ValueError, "'b' .* ends at row 24 of each of the 4 shards, .* has 16"
    ):
      self._stack()

  def test_rows_that_shards_cannot_share_in_the_message(self):
    self.stack.table_specs[0].padded_vocab_size = 41
    with self.assertRaisesRegex(
        ValueError, "'a' .* 40 rows are padded to 41, .* not a plan for 4"
    ):
      self._stack()

  def test_wide_table_in_the_message(self):
    self.stack.table_specs[0].embedding_dim = 9
    self.tables["a"] = jnp.zeros((40, 9))
    with self.assertRaisesRegex(ValueError, "'a' .* has 9 columns, .* stack 8"):
      self._stack()

  def test_no_sparsecores_in_the_message(self):
    self.stack.num_sparsecores = 0
    with self.assertRaisesRegex(ValueError, "num_sparsecores must be positive"):
      self._stack()

  def test_missing_stack(self):
    with self.assertRaisesRegex(ValueError, "lacks the stack 's'. It has none"):
      _reshard_protos.unstack_and_unshard_stacked_tables({}, self.message)

  def test_stack_of_another_shape(self):
    with self.assertRaisesRegex(
        ValueError, r"'s': .* shape \(96, 8\), got \(95, 8\)"
    ):
      _reshard_protos.unstack_and_unshard_stacked_tables(
          {"s": jnp.zeros((95, 8))}, self.message
      )


class UnstackAndUnshardTest(absltest.TestCase):

  def test_rows_that_devices_cannot_share_are_on_all_of_them(self):
    _, message = _stacked({"a": (17, 8)}, ["a"], 1, 4)
    stack = jax.device_put(np.zeros((32, 8), np.float32), _by_rows("Auto"))
    (table,) = _reshard_protos.unstack_and_unshard_stacked_tables(
        {"s": stack}, message
    ).values()
    self.assertEqual(table.shape, (17, 8))
    self.assertTrue(table.sharding.is_fully_replicated)

  @hypothesis.given(
      st.lists(
          st.tuples(st.integers(1, 100), st.integers(1, 16)),
          min_size=1,
          max_size=4,
      ),
      st.randoms(use_true_random=False),
      st.integers(1, 3),
      st.integers(1, 5),
      st.sampled_from((np.float32, jnp.bfloat16, np.int32)),
      st.booleans(),
  )
  def test_undoes_stacking(
      self, shapes, random, devices, num_sc_per_device, dtype, on_device
  ):
    shapes = {f"t{i}": shape for i, shape in enumerate(shapes)}
    order = list(shapes)
    random.shuffle(order)
    _, message = _stacked(shapes, order, devices, num_sc_per_device)
    tables = _values(shapes, dtype)
    if on_device:
      tables = jax.tree.map(jnp.asarray, tables)
    stacks = _reshard_protos.stack_and_shard_feature_tables(tables, message)
    if not on_device:
      stacks = jax.tree.map(np.asarray, stacks)
    back = _reshard_protos.unstack_and_unshard_stacked_tables(stacks, message)
    self.assertEqual(set(back), set(tables))
    for name, table in tables.items():
      self.assertEqual(back[name].dtype, dtype)
      np.testing.assert_array_equal(back[name], table)
    self.assertEqual(
        np.count_nonzero(stacks["s"]),
        sum(np.count_nonzero(table) for table in tables.values()),
    )


if __name__ == "__main__":
  absltest.main()
