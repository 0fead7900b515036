# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import copy
import dataclasses
import functools
import pickle
import sys
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import optax


def _rate(step, first):
  return first / (1 + step)


def _table(**changes):
  fields = dict(
      name="item",
      vocabulary_size=10,
      embedding_dim=4,
      initializer=jax.nn.initializers.normal(1.0),
      optimizer=embedding_spec.SGDOptimizerSpec(
          optax.linear_schedule(0.0, 1.0, 10)
      ),
  )
  return embedding_spec.TableSpec(**(fields | changes))


def _travelled(spec):
  return pickle.loads(pickle.dumps(spec))


class PicklesTest(parameterized.TestCase):

  def test_a_lost_function_says_so_when_it_is_called(self):
    table = _travelled(_table())
    with self.assertRaisesRegex(
        RuntimeError,
        r"^Table 'item': initializer is jax\..*normal\.<locals>\.init at 0x.*,"
        " which pickle cannot hold.* enough to preprocess .* function of a"
        " module, or a functools.partial",
    ):
      table.initializer(jax.random.key(0), (10, 4))
    with self.assertRaisesRegex(
        RuntimeError, "^SGDOptimizerSpec: learning_rate is optax.*schedule"
    ):
      table.optimizer.get_learning_rate(3)

  def test_all_else_is_kept(self):
    table = _table()
    lost = _travelled(table)
    self.assertEqual(
        dataclasses.replace(
            lost, initializer=table.initializer, optimizer=table.optimizer
        ),
        table,
    )
    self.assertEqual(_travelled(lost), lost)

  @parameterized.named_parameters(
      ("default", {}),
      ("of_a_module", dict(initializer=jax.nn.initializers.zeros)),
      (
          "partial",
          dict(
              optimizer=embedding_spec.SGDOptimizerSpec(
                  functools.partial(_rate, first=0.5)
              )
          ),
      ),
  )
  def test_what_pickle_holds_arrives(self, changes):
    defaults = dict(
        initializer=embedding_spec.TableSpec.initializer,
        optimizer=embedding_spec.AdamOptimizerSpec(0.1),
    )
    table = _travelled(_table(**(defaults | changes)))
    self.assertEqual(table.initializer, (defaults | changes)["initializer"])
    self.assertEqual(
        table.optimizer.get_learning_rate(4),
        (defaults | changes)["optimizer"].get_learning_rate(4),
    )

  def test_functions_of_a_custom_optimizer(self):
    optimizer = embedding_spec.CustomOptimizerSpec(
        0.1,
        custom_computation_fn=lambda gradient, row, slot, rate: (row, slot),
        slot_variable_initializers_tuple=embedding_spec.AdagradSlotVariables(
            accumulator=jax.nn.initializers.constant(0.1)
        ),
    )
    optimizer = _travelled(optimizer)
    with self.assertRaisesRegex(RuntimeError, ": custom_computation_fn is .*"):
      optimizer.custom_computation_fn(1, 1, 1, 1)
    (slot,) = slots = optimizer.slot_variables_initializers()
    self.assertIsInstance(slots, embedding_spec.AdagradSlotVariables)
    with self.assertRaisesRegex(RuntimeError, r"initializers_tuple\[0\] is "):
      slot(jax.random.key(0), (10, 4))

  def test_lost_functions_are_equal_if_they_were_the_same(self):
    a, b = optax.linear_schedule(0, 1, 10), optax.linear_schedule(0, 2, 10)
    one, same, other = (
        _travelled(embedding_spec.SGDOptimizerSpec(f)) for f in (a, a, b)
    )
    self.assertEqual(one, same)
    self.assertEqual(hash(one), hash(same))
    self.assertNotEqual(one, other)

  @parameterized.parameters(copy.copy, copy.deepcopy, dataclasses.replace)
  def test_copies_keep_the_functions(self, copied):
    table = _table()
    result = copied(table)
    self.assertIsNot(result, table)
    self.assertEqual(result, table)
    self.assertIs(result.initializer, table.initializer)
    self.assertIs(result.optimizer.learning_rate, table.optimizer.learning_rate)
    if copied is copy.deepcopy:
      self.assertIsNot(result.optimizer, table.optimizer)
      shared = copy.deepcopy([table, table])
      self.assertIs(shared[0], shared[1])

  def test_cloudpickle_keeps_them_where_the_program_uses_it(self):
    # As cloudpickle: bytes that any pickle reads where the package is.
    cloudpickle = types.ModuleType("cloudpickle")
    cloudpickle.of_bytes = lambda: jax.nn.initializers.ones
    cloudpickle.of_bytes.__module__ = "cloudpickle"
    cloudpickle.of_bytes.__qualname__ = "of_bytes"
    cloudpickle.dumps = lambda function: pickle.dumps(
        _Reduced(cloudpickle.of_bytes)
    )
    with mock.patch.dict(sys.modules, cloudpickle=cloudpickle):
      data = pickle.dumps(_table())
      here = pickle.loads(data)
    self.assertIs(here.initializer, jax.nn.initializers.ones)
    there = pickle.loads(data)  # Without the package.
    with self.assertRaisesRegex(RuntimeError, "pickle cannot hold"):
      there.initializer(jax.random.key(0), (10, 4))


class _Reduced:

  def __init__(self, make):
    self._make = make

  def __reduce__(self):
    return self._make, ()


if __name__ == "__main__":
  absltest.main()
