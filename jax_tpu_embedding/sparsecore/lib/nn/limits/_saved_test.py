# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""States of limits: those that are refused, and batches of before them."""

import copy
import pickle

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import zipf_batches
import numpy as np


def _adaptive(**options):
  return embedding.AdaptiveLimits(
      zipf_batches.specs(), 1, 1, num_sc_per_device=4, **options
  )


class SavedLimitsTest(parameterized.TestCase):

  def test_states_of_other_models_are_refused(self):
    state = _adaptive().state_dict()
    limits = _adaptive()
    limits.load_state_dict(state)
    for change, message in (
        ({"version": 9}, "version 9, expected 1"),
        ({"limits": {"x": {}}}, r"stacks \['x'\], and the specs have \['t'\]"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        limits.load_state_dict(state | change)

  def test_a_batch_of_before_a_state_was_loaded_is_converted_again(self):
    limits = _adaptive()
    limits.preprocess(zipf_batches.batch(0))
    state = limits.state_dict()
    limits.preprocess(zipf_batches.batch(1, 40.0))
    converted = limits.convert(zipf_batches.batch(2))
    self.assertFalse(limits.snapshot_of(state).limits.covers(converted.limits))
    limits.load_state_dict(state)
    inputs, _ = limits.settle(converted)
    expected, _ = _adaptive(start=limits.limits).preprocess(
        zipf_batches.batch(2)
    )
    self.assertEqual(inputs.settings, expected.settings)
    jax.tree.map(np.testing.assert_array_equal, inputs, expected)

  @parameterized.parameters(pickle.dumps, copy.copy, copy.deepcopy)
  def test_what_threads_share_is_not_copied(self, make_copy):
    with self.assertRaisesRegex(TypeError, "shared by threads.*state_dict"):
      make_copy(_adaptive())

  def test_a_state_that_is_refused_says_what_to_do(self):
    limits = _adaptive(enable_minibatching=True)
    with self.assertRaisesRegex(
        ValueError, "do not load it, and limits set themselves anew"
    ):
      limits.load_state_dict(_adaptive().state_dict())

  @parameterized.parameters(
      (None, "of type NoneType"),
      (["version"], "of type list"),
      (dict(topology=..., num_grown=...), "no 'topology', 'num_grown'"),
      (dict(limits=...), "no 'limits'"),
      (dict(limits=[8]), r"its limits are \[8\], expected numbers of each"),
      (dict(limits={"t": {}}), "limits of stack 't' are {}, expected max_ids"),
      (dict(largest={}), r"has largest of the stacks \[\].*specs have \['t'\]"),
      (dict(largest={"t": 3}), "largest of stack 't' are 3, expected max_ids"),
      (dict(topology=[1]), r"its topology is \[1\], expected two"),
      (dict(topology=["a", 1]), "its topology is 'a', expected an integer"),
      (dict(num_batches="7"), "its num_batches is '7', expected an integer"),
      (dict(num_grown=-1), "its num_grown is -1, expected .* at least 0"),
  )
  def test_a_damaged_state_changes_nothing_and_says_what_to_do(
      self, change, message
  ):
    first = _adaptive()
    first.preprocess(zipf_batches.batch(0, 8))
    state, limits = first.state_dict(), _adaptive()
    before = limits.state_dict()
    if isinstance(change, dict):
      change = {k: v for k, v in (state | change).items() if v is not ...}
    with self.assertRaisesRegex(ValueError, f"{message}.*set themselves anew"):
      limits.load_state_dict(change)
    self.assertEqual(limits.state_dict(), before)
    limits.load_state_dict(state)
    self.assertEqual(limits.state_dict(), state)

  def test_a_damaged_number_of_a_state_is_named(self):
    limits = _adaptive()
    state = limits.state_dict()
    state["limits"]["t"]["coo_cells_per_sc"] = 0
    with self.assertRaisesRegex(
        ValueError, "its coo_cells_per_sc of stack 't' is 0, expected"
    ):
      limits.load_state_dict(state)


if __name__ == "__main__":
  absltest.main()
