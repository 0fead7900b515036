# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import copy
import dataclasses
import gc
import pickle
from unittest import mock
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _spec_facts
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_NUM_SC = 2


def _make_specs():
  return two_table_model.TwoTableModel(_NUM_SC).specs


def _of(specs, num_shards=_NUM_SC, limits=None):
  return _spec_facts.of_specs(
      specs, jax.tree.leaves(specs), num_shards, _NUM_SC, limits
  )


def _preprocess(specs, ids, limits=None):
  return embedding.preprocess_sparse_dense_matmul_input(
      ids, None, specs, 1, 1, num_sc_per_device=_NUM_SC, limits=limits
  )


def _set_limits(specs):
  table = specs["item"].table_spec
  table.stacked_table_spec = table.stacked_table_spec.replace(
      max_ids_per_partition=1
  )
  for feature in specs.values():
    feature.table_spec.stacked_table_spec = table.stacked_table_spec


def _move(specs):
  feature = specs["item"]
  feature.id_transformation = dataclasses.replace(
      feature.id_transformation, col_shift=1
  )


def _other_table(specs):
  table = copy.copy(specs["item"].table_spec)
  table.setting_in_stack = dataclasses.replace(
      table.setting_in_stack, num_shards=_NUM_SC + 1
  )
  specs["item"].table_spec = specs["last"].table_spec = table


class SpecFactsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.specs = _make_specs()
    _spec_facts._kept.clear()
    self.ids = {
        name: np.arange(0, 40 * spec.output_shape[0], 20).reshape(-1, 2) % 40
        for name, spec in self.specs.items()
    }

  def _result_of(self, specs):
    """What is said of a batch, or its error."""
    try:
      inputs, stats = _preprocess(specs, self.ids)
    except ValueError as error:
      return str(error)
    row_pointers = inputs.sparse_dense_matmul_input.lhs_row_pointers
    return inputs.settings, repr((row_pointers, stats))

  def test_specs_are_read_once(self):
    facts = _of(self.specs)
    self.assertIs(_of(self.specs), facts)
    self.assertIs(_of(dict(self.specs)), facts)
    with mock.patch.object(_spec_facts, "_find", side_effect=AssertionError):
      _preprocess(self.specs, self.ids)

  def test_facts_are_of_these_features_in_this_order(self):
    self.assertEqual(_of(self.specs).split, [0, 1, 2])
    self.assertEqual(_of([self.specs["item"]]).split, [0])
    self.assertTrue(_of(list(self.specs.values())[::-1]).are_as_planned)
    self.assertFalse(_of([self.specs["item"]]).are_as_planned)

  def test_another_number_of_shards_is_checked(self):
    _of(self.specs)
    with self.assertRaisesRegex(ValueError, "was prepared for 2 SparseCores"):
      _of(self.specs, _NUM_SC + 2)

  @parameterized.named_parameters(
      ("limits", _set_limits),
      ("place", _move),
      ("table", _other_table),
      ("name", lambda specs: setattr(specs["item"], "name", "user")),
      ("shape", lambda specs: setattr(specs["item"], "output_shape", (8, 3))),
  )
  def test_what_is_set_holds_for_the_next_batch(self, change):
    before = self._result_of(self.specs)
    self.assertEqual(self._result_of(self.specs), before)
    change(self.specs)
    expected = _make_specs()
    change(expected)
    after = self._result_of(self.specs)
    self.assertNotEqual(after, before)
    self.assertEqual(after, self._result_of(expected))

  def test_limits_that_are_given_are_read_once_each(self):
    limits = embedding.Limits.of(self.specs, 1, _NUM_SC)
    [(name, of_stack)] = limits.stacks
    small = embedding.Limits(
        ((name, dataclasses.replace(of_stack, max_ids_per_partition=1)),)
    )
    self.assertIs(
        _of(self.specs, limits=limits), _of(self.specs, limits=limits)
    )
    before = [
        spec.table_spec.stacked_table_spec for spec in self.specs.values()
    ]
    _preprocess(self.specs, self.ids, limits)
    with self.assertRaisesRegex(ValueError, "max_ids_per_partition=1 can fill"):
      _preprocess(self.specs, self.ids, small)
    _preprocess(self.specs, self.ids, limits)
    _preprocess(self.specs, self.ids)
    with mock.patch.object(_spec_facts, "_find", side_effect=AssertionError):
      inputs, _ = _preprocess(self.specs, self.ids, limits)
    self.assertEqual(inputs.settings.limits, _of(self.specs).limits)
    for spec, stack in zip(self.specs.values(), before):
      self.assertIs(spec.table_spec.stacked_table_spec, stack)

  def test_limits_that_are_given_hold_for_batches_of_another_size(self):
    least = embedding.Limits.of(self.specs, 1, _NUM_SC)
    [(name, of_stack)] = least.stacks
    limits = embedding.Limits(
        ((name, dataclasses.replace(of_stack, max_ids_per_partition=4096)),)
    )
    half = {feature: ids[: len(ids) // 2] for feature, ids in self.ids.items()}
    inputs, _ = _preprocess(self.specs, half, limits)
    self.assertNotEmpty(inputs.settings.layouts)
    [(_, found)] = inputs.settings.limits
    self.assertEqual(found.max_ids_per_partition, 4096)
    few = embedding.Limits(
        ((name, dataclasses.replace(of_stack, coo_cells_per_sc=8)),)
    )
    with self.assertRaisesRegex(ValueError, "suggested_coo_buffer_size"):
      _preprocess(self.specs, half, few)

  def test_limits_live_as_long_as_the_facts_that_their_id_tells(self):
    limits = embedding.Limits.of(self.specs, 1, _NUM_SC)
    _of(self.specs, limits=limits)
    kept = weakref.ref(limits)
    del limits
    gc.collect()
    self.assertIsNotNone(kept())
    _spec_facts._kept.clear()
    gc.collect()
    self.assertIsNone(kept())

  def test_a_policy_that_is_set_holds_for_the_next_batch(self):
    self.ids["user"][3, 1] = 40
    self.assertIn("feature's out_of_range_ids", self._result_of(self.specs))
    self.specs["user"].out_of_range_ids = "drop"
    _, stats = _preprocess(self.specs, self.ids)
    self.assertEqual(sum(stats.id_drop_counters.values()), 1)

  def test_a_list_that_changes_in_place_holds_for_the_next_batch(self):
    feature = self.specs["item"]
    feature.output_shape = list(feature.output_shape)
    self.assertTrue(_of(self.specs).are_as_planned)
    feature.output_shape[0] //= 2
    self.assertFalse(_of(self.specs).are_as_planned)

  @parameterized.parameters(
      lambda specs: specs["item"], lambda specs: specs["item"].table_spec
  )
  def test_classes_of_programs_are_read_in_every_batch(self, spec_of):
    spec = spec_of(self.specs)
    object.__setattr__(spec, "__class__", type("Spec", (type(spec),), {}))
    facts = _of(self.specs)
    self.assertEqual(facts.limits, _of(_make_specs()).limits)
    self.assertIsNot(_of(self.specs), facts)

  @parameterized.parameters(
      copy.deepcopy, lambda specs: pickle.loads(pickle.dumps(specs))
  )
  def test_copies_are_told_from_what_they_are_copies_of(self, make_copies):
    specs = make_copies(self.specs)
    self.assertEqual(self._result_of(specs), self._result_of(self.specs))
    self.assertEqual(specs, self.specs)
    _set_limits(specs)
    self.assertNotEqual(self._result_of(specs), self._result_of(self.specs))

  def test_a_copy_has_the_facts_until_it_is_changed(self):
    facts = _of(self.specs)
    specs = {name: copy.copy(spec) for name, spec in self.specs.items()}
    self.assertIs(_of(specs), facts)
    specs["item"].out_of_range_ids = "clamp"
    self.assertIsNot(_of(specs), facts)
    self.assertIs(_of(self.specs), facts)

  def test_facts_that_changed_while_they_were_found_are_not_kept(self):
    find = _spec_facts._find

    def find_and_change(*args):
      facts = find(*args)
      _set_limits(self.specs)
      return facts

    with mock.patch.object(_spec_facts, "_find", find_and_change):
      _of(self.specs)
    self.assertEmpty(_spec_facts._kept)

  def test_facts_keep_no_specs_alive(self):
    _of(self.specs)
    table = weakref.ref(self.specs["item"].table_spec)
    del self.specs
    gc.collect()
    self.assertIsNone(table())

  def test_few_facts_are_kept(self):
    for i in range(2 * _spec_facts._MOST_KEPT):
      self.specs["item"].out_of_range_ids = ("drop", "clamp")[i % 2]
      _of(self.specs)
    self.assertLessEqual(len(_spec_facts._kept), _spec_facts._MOST_KEPT)


if __name__ == "__main__":
  absltest.main()
