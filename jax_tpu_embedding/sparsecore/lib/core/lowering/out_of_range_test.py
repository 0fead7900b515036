# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Buffers that no converter writes, where a program cannot raise.

In plain jnp no device can, and one that raised before a message would leave the
others waiting. What depends on such buffers is NaN: an entry that was left out,
or a row of another shard, would be a wrong number that nobody sees.
"""

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_NUM_SCS, _ROWS_PER_SHARD, _BATCH_PER_SC, _DIM = 8, 16, 6, 4
_SHAPE = (_NUM_SCS * _ROWS_PER_SHARD, _DIM)
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
_COO = random_coo.random_coo(
    num_sc_per_device=_NUM_SCS,
    rows_per_shard=_ROWS_PER_SHARD,
    batch_size_per_sc=_BATCH_PER_SC,
    ids_per_sample=3,
)
_TABLE = np.float32(np.random.default_rng(0).normal(size=_SHAPE))
_GRADIENT = np.ones((_NUM_SCS * _BATCH_PER_SC, _DIM), np.float32)
_LOWERINGS = [
    "reference",
    "reference_messages",
    "cpu_messages",
    "cpu_batches",
    "gpu",
    "gpu_messages",
]
_NAMES = ("row_pointers", "embedding_ids", "sample_ids", "gains")
_NO_ROW = 2**31 - 1

# Of one SparseCore in the middle, as is a shard: behind the numbers of a shard,
# or of a SparseCore's samples, and before them, those of the others follow.
_SOURCE, _TARGET = 3, 5
_CHANGES = {
    "large_id": ("embedding_ids", _ROWS_PER_SHARD),
    "negative_id": ("embedding_ids", -1),
    "large_sample": ("sample_ids", _BATCH_PER_SC),
    "negative_sample": ("sample_ids", -1),
    "large_pointer": ("row_pointers", 1000),
    "negative_pointer": ("row_pointers", np.iinfo(np.int32).min),
}


_POINTER = _SOURCE * _NUM_SCS + _TARGET
# The first entry of the partition.
_CELL = (
    _SOURCE * (_COO.embedding_ids.size // _NUM_SCS)
    + -(-_COO.row_pointers[_POINTER - 1] // 8) * 8
)


def _changed(change):
  """_COO with a change in one partition."""
  name, value = _CHANGES[change]
  values = getattr(_COO, name).copy()
  values[_POINTER if name == "row_pointers" else _CELL] = value
  return dataclasses.replace(_COO, **{name: values})


def _device(lowering):
  """The one that has _SOURCE, and how many there are."""
  num_devices = every_lowering.LOWERINGS[lowering].num_devices
  return _SOURCE // (_NUM_SCS // num_devices), num_devices


def _is_on_its_device(lowering):
  """bool[samples]: those of the device that has _SOURCE."""
  device, num_devices = _device(lowering)
  num_samples = _NUM_SCS * _BATCH_PER_SC
  return np.arange(num_samples) // (num_samples // num_devices) == device


def _nan_rows(lowering, change):
  """bool[rows]: those that its device names."""
  name, value = _CHANGES[change]
  if name == "row_pointers":
    # All its cells are entries, for the first shard.
    device, num_devices = _device(lowering)
    ids = np.split(_COO.embedding_ids, num_devices)[device]
    ids = np.clip(ids, 0, _ROWS_PER_SHARD - 1)
    return np.isin(np.arange(_SHAPE[0]), ids)
  weights = _COO.weights.copy()
  nearest = None
  if name == "embedding_ids":
    # The entry is one of another row.
    sample = _SOURCE * _BATCH_PER_SC + _COO.sample_ids[_CELL]
    first_row = _TARGET * _ROWS_PER_SHARD
    weights[sample, first_row + _COO.embedding_ids[_CELL]] -= _COO.gains[_CELL]
    nearest = first_row + min(max(value, 0), _ROWS_PER_SHARD - 1)
  named = np.any(np.abs(weights[_is_on_its_device(lowering)]) > 1e-6, axis=0)
  return named | (np.arange(_SHAPE[0]) == nearest)


@functools.cache
def _program(name, operation):
  """COO operands and others -> results of an operation, in a lowering."""
  lowering = every_lowering.LOWERINGS[name]
  num_devices = lowering.num_devices
  params = {
      "lookup": _LIMITS
      | dict(device_batch_size=_NUM_SCS * _BATCH_PER_SC // num_devices),
      "update_sgd": _LIMITS,
      "row_gradients": dict(
          global_device_count=num_devices,
          rows_per_device=_SHAPE[0] // num_devices,
          max_unique_ids_per_partition=64,
      ),
  }[operation]

  @lowering.compiled
  def run(coo, *operands):
    return lowering.bind(operation, *coo, *operands, **params)

  def on_buffers(coo, *operands):
    return run(lowering.coo_operands(coo, _NUM_SCS), *operands)

  return on_buffers


def _look_up(lowering, coo):
  (activations,) = _program(lowering, "lookup")(coo, _TABLE)
  return activations


def _step(lowering, coo):
  """The table after one step of SGD."""
  (table,) = _program(lowering, "update_sgd")(
      coo, _TABLE, _GRADIENT, np.float32(1)
  )
  return table


def _gradients(lowering, coo):
  """Gradients of all rows, zero where there is none."""
  rows, values = _program(lowering, "row_gradients")(coo, _GRADIENT)
  result = np.zeros(_SHAPE, np.float32)
  is_row = rows != _NO_ROW
  result[rows[is_row]] = values[is_row]
  return result


def _assert_close(actual, expected):
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


class OutOfRangeTest(parameterized.TestCase):

  @parameterized.parameters(_LOWERINGS)
  def test_valid_buffers_are_used(self, lowering):
    gradient = _COO.weights.T @ _GRADIENT
    _assert_close(_look_up(lowering, _COO), _COO.weights @ _TABLE)
    _assert_close(_step(lowering, _COO), _TABLE - gradient)
    _assert_close(_gradients(lowering, _COO), gradient)

  @parameterized.product(lowering=_LOWERINGS, change=list(_CHANGES))
  def test_activations_of_the_device_are_nan(self, lowering, change):
    expected = _COO.weights @ _TABLE
    expected[_is_on_its_device(lowering)] = np.nan
    _assert_close(_look_up(lowering, _changed(change)), expected)

  @parameterized.product(lowering=_LOWERINGS)
  def test_also_those_of_samples_without_entries(self, lowering):
    # As after a conversion that failed: nothing but the first row pointer.
    coo = dataclasses.replace(
        _COO, **{k: np.zeros_like(getattr(_COO, k)) for k in _NAMES}
    )
    self.assertFalse(np.any(_look_up(lowering, coo)))
    coo.row_pointers[_SOURCE * _NUM_SCS] = np.iinfo(np.int32).min
    activations = _look_up(lowering, coo)
    np.testing.assert_array_equal(
        np.isnan(activations).all(axis=1), _is_on_its_device(lowering)
    )

  @parameterized.product(lowering=_LOWERINGS, change=list(_CHANGES))
  def test_rows_that_the_device_names_become_nan(self, lowering, change):
    coo, is_nan = _changed(change), _nan_rows(lowering, change)
    self.assertBetween(np.sum(is_nan), 1, is_nan.size - 1)
    # The others are as if the device had no entries.
    weights = np.where(_is_on_its_device(lowering)[:, None], 0, _COO.weights)
    gradient = weights.T @ _GRADIENT
    gradient[is_nan] = np.nan
    _assert_close(_step(lowering, coo), _TABLE - gradient)
    _assert_close(_gradients(lowering, coo), gradient)


if __name__ == "__main__":
  absltest.main()
