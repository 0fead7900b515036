# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What keras-rs makes from specs, reads back from them, and asks of hardware."""

import types

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.utils import utils
import numpy as np


def _table(name="t", **changes):
  return embedding_spec.TableSpec(
      **(
          dict(
              name=name,
              vocabulary_size=20,
              embedding_dim=6,
              initializer=jax.nn.initializers.zeros,
              optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
              combiner="sum",
              max_ids_per_partition=16,
              max_unique_ids_per_partition=8,
          )
          | changes
      )
  )


def _feature(name, table):
  return embedding_spec.FeatureSpec(
      name=name, table_spec=table, input_shape=(16, 1), output_shape=(16, 6)
  )


class DetectionTest(absltest.TestCase):

  def test_a_device_of_a_mesh_has_as_many_as_the_default(self):
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    self.assertEqual(
        utils.num_sparsecores_per_device(mesh.devices.item(0)),
        utils.num_sparsecores_per_device(),
    )
    self.assertGreater(utils.num_sparsecores_per_device(), 0)

  def test_devices_that_are_not_known_are_a_value_error(self):
    for device in (object(), types.SimpleNamespace(device_kind="TPU v99")):
      with self.subTest(device), self.assertRaises(ValueError):
        utils.num_sparsecores_per_device(device)


class OptimizersTest(parameterized.TestCase):

  @parameterized.parameters(
      ("SGD", dict(learning_rate=0.5), ()),
      (
          "Adagrad",
          dict(learning_rate=0.5, initial_accumulator_value=0.25),
          ("accumulator",),
      ),
      (
          "Adam",
          dict(learning_rate=0.5, beta_1=0.8, beta_2=0.9, epsilon=1e-3),
          ("momentum", "velocity"),
      ),
      (
          "FTRL",
          dict(
              learning_rate=0.5,
              learning_rate_power=-0.25,
              l1_regularization_strength=0.1,
              l2_regularization_strength=0.2,
              beta=0.3,
              initial_accumulator_value=0.4,
              initial_linear_value=0.5,
              multiply_linear_by_learning_rate=True,
          ),
          ("accumulator", "linear"),
      ),
  )
  def test_parameters_and_slots_are_read_back(self, name, parameters, slots):
    kind = getattr(embedding_spec, f"{name}OptimizerSpec")
    optimizer = kind(**parameters)
    self.assertIs(type(optimizer), kind)
    self.assertIsInstance(optimizer, embedding_spec.OptimizerSpec)
    for parameter, value in parameters.items():
      self.assertEqual(getattr(optimizer, parameter), value)
    self.assertEqual(optimizer.slot_variables_count(), len(slots))
    self.assertEqual(optimizer.slot_variables_initializers()._fields, slots)
    self.assertEqual(optimizer.get_learning_rate(0), 0.5)

  def test_slots_are_made_by_name(self):
    self.assertEqual(embedding_spec.SGDSlotVariables(), ())
    self.assertEqual(
        embedding_spec.AdagradSlotVariables(accumulator=1).accumulator, 1
    )

  def test_learning_rates_may_be_objects_that_are_called(self):
    class Schedule:

      def __call__(self, step):
        return 0.5**step

    optimizer = embedding_spec.SGDOptimizerSpec(learning_rate=Schedule())
    self.assertEqual(optimizer.get_learning_rate(np.float32(2)), 0.25)


class SpecsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("by_position", ("a", "b"), (2, 4), {}),
      (
          "by_keyword",
          (),
          (),
          dict(
              table_names=["a", "b"], global_device_count=2, num_sc_per_device=4
          ),
      ),
  )
  def test_stacking_is_seen_through_every_feature(
      self, names, counts, keywords
  ):
    a, b, alone = _table("a"), _table("b"), _table("alone")
    # Two features share the object of table a.
    features = [
        _feature("1", a),
        (_feature("2", a), _feature("3", b)),
        _feature("4", alone),
    ]
    arguments = ([list(names)] if names else []) + list(counts)
    table_stacking.stack_tables(features, *arguments, **keywords)
    embedding.prepare_feature_specs_for_training(features, 2, 4)

    tables = embedding.get_table_specs(features)
    stacks = table_stacking.get_table_stacks(tables)
    self.assertEqual(
        {name: [t.name for t in stack] for name, stack in stacks.items()},
        {"a_b": ["a", "b"], "alone": ["alone"]},
    )
    self.assertIs(tables["a"], a)
    self.assertEqual(b.setting_in_stack.row_offset_in_shard, 8)
    self.assertEqual(b.setting_in_stack.padded_vocab_size, 64)
    self.assertEqual(b.setting_in_stack.padded_embedding_dim, 8)
    self.assertIsNone(b.suggested_coo_buffer_size_per_device)
    stack = a.stacked_table_spec
    self.assertIs(type(stack.optimizer), embedding_spec.AdagradOptimizerSpec)
    self.assertEqual(
        (stack.stack_name, stack.stack_vocab_size, stack.stack_embedding_dim),
        ("a_b", 128, 8),
    )
    self.assertEqual(alone.stacked_table_spec.max_ids_per_partition, 16)
    self.assertEqual(alone.stacked_table_spec.max_unique_ids_per_partition, 8)

  def test_stacks_can_be_made_by_hand(self):
    fields = dict(
        stack_name="s",
        stack_vocab_size=64,
        stack_embedding_dim=8,
        optimizer=embedding_spec.SGDOptimizerSpec(),
        combiner="sum",
        total_sample_count=16,
        max_ids_per_partition=16,
        max_unique_ids_per_partition=8,
    )
    stack = embedding_spec.StackedTableSpec(**fields)
    for name, value in fields.items():
      self.assertEqual(getattr(stack, name), value)
    self.assertIsNone(stack.suggested_coo_buffer_size_per_device)


class TableValuesTest(parameterized.TestCase):

  @parameterized.product(num_shards=(1, 2, 8), as_list=(False, True))
  def test_variables_survive_stacking_and_flattening(self, num_shards, as_list):
    specs = {"a": _table("a"), "b": _table("b", vocabulary_size=30)}
    table_stacking.stack_tables(
        [_feature("1", specs["a"]), _feature("2", specs["b"])],
        ["a", "b"],
        1,
        num_shards,
    )
    rng = np.random.default_rng(0)
    values = {
        name: embedding.EmbeddingVariables(
            rng.normal(size=(spec.vocabulary_size, 6)).astype(np.float32),
            embedding_spec.AdagradSlotVariables(
                rng.normal(size=(spec.vocabulary_size, 6)).astype(np.float32)
            ),
        )
        for name, spec in specs.items()
    }
    if as_list:
      specs, values = list(specs.values()), list(values.values())
    stacks = table_stacking.stack_and_shard_tables(specs, values, num_shards)
    for leaf in jax.tree.leaves(stacks):
      self.assertEqual(leaf.shape[0], num_shards)
    flat = jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape((-1, leaf.shape[-1])), stacks
    )
    back = table_stacking.unshard_and_unstack_tables(specs, flat, num_shards)
    jax.tree.map(np.testing.assert_array_equal, back, values)

  def test_variables_hold_anything(self):
    by_position = embedding.EmbeddingVariables(np.zeros(3), ())
    by_keyword = embedding.EmbeddingVariables(table="a variable", slot=None)
    self.assertLen(jax.tree.leaves(by_position), 1)
    self.assertEqual(by_keyword.table, "a variable")

  def test_nested_is_subscripted(self):
    self.assertIn(
        embedding_spec.FeatureSpec,
        embedding.Nested[embedding_spec.FeatureSpec].__args__,
    )

  def test_next_multiples_of_arrays(self):
    np.testing.assert_array_equal(
        table_stacking._next_largest_multiple(np.array([0, 1, 8, 9]), 8),
        [0, 8, 8, 16],
    )


if __name__ == "__main__":
  absltest.main()
