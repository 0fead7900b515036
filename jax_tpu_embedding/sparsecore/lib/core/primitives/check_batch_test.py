# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which batches are found to be wrong, natively and in plain jnp."""

import functools
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import batch_errors
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_batch
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
import numpy as np

_VOCAB, _SAMPLES, _NUM_SCS = 16, 8, 2
_IDS = np.arange(_SAMPLES * 2, dtype=np.int32).reshape(_SAMPLES, 2)
_WEIGHTS = np.ones((_SAMPLES, 2), np.float32)
_SPLITS = np.arange(_SAMPLES + 1, dtype=np.int32) * 2

_PRIMITIVES = {
    "check_batch": check_batch.check_batch_p,
    "convert_ids": convert_ids.convert_ids_p,
    "nan_if_failed": check_batch.nan_if_failed_p,
}


def _with_rule(operation, platform):
  primitive = _PRIMITIVES[operation]
  if platform == "cpu":
    return primitive
  return every_lowering.as_on(platform, operation, primitive)


def _convert(platform, ids, *others, **feature):
  """The buffers of one device."""
  feature = raw_ids.Feature(
      name="f", vocabulary_size=_VOCAB, **{"has_weights": False} | feature
  )
  return jax.jit(
      functools.partial(
          _with_rule("convert_ids", platform).bind,
          combiner="sum",
          global_device_count=1,
          num_sc_per_device=_NUM_SCS,
          features=(feature,),
          feature_stacking_strategy="SPLIT_THEN_STACK",
          keeps_errors=True,
      )
  )(ids, *others)


def _check(platform, *coo, enable_minibatching=False):
  return jax.jit(
      functools.partial(
          _with_rule("check_batch", platform).bind,
          num_devices=1,
          num_sc_per_device=_NUM_SCS,
          rows_per_device=_VOCAB,
          batch_size=_SAMPLES,
          enable_minibatching=enable_minibatching,
      )
  )(*coo, jnp.int32(0))


def _change(array, index, value):
  array = np.array(array)
  array[index] = value
  return array


class CheckBatchTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.addCleanup(self.assert_nothing_recorded)

  def assert_nothing_recorded(self):
    batch_errors.raise_errors()

  def assert_recorded(self, message):
    with self.assertRaisesRegex(ValueError, message):
      batch_errors.raise_errors()

  @parameterized.parameters("cpu", None, "tpu")
  def test_valid_buffers_stay(self, platform):
    coo = _convert("cpu", _IDS)
    row_pointers, has_failed = _check(platform, *coo, 1)
    np.testing.assert_array_equal(row_pointers, coo[0])
    self.assertEqual(has_failed.tolist(), [False])

  # Row pointers of SparseCore 0 are 4, 12; its cells 0 to 4 and 8 to 12.
  _CORRUPT = (
      ("row_pointers", 0, 0, 1000, r"row_pointers\[0\] is 1000"),
      ("embedding_ids", 1, 1, 8, r"embedding_ids\[1\] is 8, expected 0 to 7"),
      ("sample_ids", 2, 8, -1, r"sample_ids\[8\] is -1, expected 0 to 3"),
  )

  @parameterized.product(case=_CORRUPT, platform=["cpu", None])
  def test_corrupt_buffers_fail(self, case, platform):
    _, operand, index, value, message = case
    coo = list(_convert("cpu", _IDS))
    coo[operand] = _change(coo[operand], index, value)
    row_pointers, has_failed = _check(platform, *coo, 1)
    self.assertEqual(has_failed.tolist(), [True])
    if platform == "cpu":
      self.assert_recorded(message)
    else:
      np.testing.assert_array_equal(row_pointers, 0)

  @parameterized.product(count=[0, 65], platform=["cpu", None])
  def test_an_impossible_number_of_minibatches_fails(self, count, platform):
    cells = np.zeros(8, np.int32)
    pointers = np.zeros(8 * _NUM_SCS * constants.MAX_MINIBATCHES, np.int32)
    _, has_failed = _check(
        platform,
        *(pointers, cells, cells, np.float32(cells), count),
        enable_minibatching=True,
    )
    self.assertEqual(has_failed.tolist(), [True])
    if platform == "cpu":
      self.assert_recorded(f"num_minibatches is {count}, expected 1 to 64")

  @parameterized.parameters(jnp.float32, jnp.bfloat16)
  def test_a_lookup_after_it_gives_nan(self, dtype):
    ids = _change(_IDS, (3, 0), _VOCAB)
    _, *cells = coo = _convert("cpu", ids)
    row_pointers, _ = _check("cpu", *coo, 1)
    activations = lookup.lookup_p.bind(
        row_pointers,
        *cells,
        jnp.int32(1),
        jnp.ones((_VOCAB, 8), dtype),
        device_batch_size=_SAMPLES,
        max_ids_per_partition=8,
        max_unique_ids_per_partition=8,
    )
    np.testing.assert_array_equal(activations, np.full((_SAMPLES, 8), np.nan))
    self.assert_recorded("^Feature 'f': sample 3 has id 16 ")

  def test_errors_are_counted_and_the_first_is_raised(self):
    for value in (16, 17, 18):
      coo = _convert("cpu", _change(_IDS, (3, 0), value))
      jax.block_until_ready(_check("cpu", *coo, 1))
    self.assert_recorded(r"id 16 .*\(The first of 3 errors since the last")

  @parameterized.parameters(True, False)
  def test_activations_are_nan_if_and_only_if_it_failed(self, failed):
    activations = jnp.ones((2, 8))
    result = jax.jit(_with_rule("nan_if_failed", None).bind)(
        activations, jnp.array([failed])
    )
    self.assertEqual(np.isnan(result).all(), failed)
    self.assertEqual(np.isnan(result).any(), failed)


# Name -> whether it is an error, operands and fields of the feature.
_BATCHES = {
    "good": (False, (_IDS,), {}),
    "no_ids": (False, (np.zeros((_SAMPLES, 0), np.int32),), {}),
    "id": (True, (_change(_IDS, (7, 1), _VOCAB),), {}),
    "negative_id": (True, (_change(_IDS, (7, 1), -1),), {}),
    "dropped_id": (
        False,
        (_change(_IDS, (7, 1), _VOCAB),),
        dict(out_of_range_ids="drop"),
    ),
    "weight": (
        True,
        (_IDS, _change(_WEIGHTS, (7, 1), np.nan)),
        dict(has_weights=True),
    ),
    "kept_weight": (
        False,
        (_IDS, _change(_WEIGHTS, (7, 1), np.nan)),
        dict(has_weights=True, non_finite_weights="keep"),
    ),
    "weight_of_a_dropped_id": (
        False,
        (_change(_IDS, (7, 1), _VOCAB), _change(_WEIGHTS, (7, 1), np.inf)),
        dict(has_weights=True, out_of_range_ids="drop"),
    ),
    "row_splits": (False, (_IDS.ravel(), _SPLITS), dict(is_ragged=True)),
    "id_after_the_last_split": (
        False,
        (_change(_IDS.ravel(), 15, _VOCAB), np.minimum(_SPLITS, 15)),
        dict(is_ragged=True),
    ),
    "row_splits_that_descend": (
        True,
        (_IDS.ravel(), _change(_SPLITS, 3, 0)),
        dict(is_ragged=True),
    ),
    "row_splits_without_values": (
        True,
        (np.zeros(0, np.int32), _SPLITS),
        dict(is_ragged=True),
    ),
}


class ConversionThatKeepsErrorsTest(parameterized.TestCase):

  @parameterized.product(batch=list(_BATCHES), platform=["cpu", None])
  def test_row_pointers_say_whether_it_failed(self, batch, platform):
    is_wrong, operands, feature = _BATCHES[batch]
    row_pointers, *_ = coo = _convert(platform, *operands, **feature)
    self.assertEqual(row_pointers[0] == constants.FAILED_CONVERSION, is_wrong)
    for checked_by in (platform, "tpu"):
      _, has_failed = _check(checked_by, *coo, 1)
      self.assertEqual(has_failed.tolist(), [is_wrong])
    if is_wrong and platform == "cpu":
      with self.assertRaisesRegex(ValueError, re.escape("Feature 'f': ")):
        batch_errors.raise_errors()


if __name__ == "__main__":
  absltest.main()
