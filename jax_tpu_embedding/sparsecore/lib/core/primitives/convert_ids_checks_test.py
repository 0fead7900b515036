# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What convert_ids refuses before a program runs, on every platform."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids

_FEATURES = (
    raw_ids.Feature(name="f", vocabulary_size=8, has_weights=True),
    raw_ids.Feature(
        name="g", vocabulary_size=8, row_offset=4, col_offset=8, is_ragged=True
    ),
)
_VALID = dict(
    ids=((4, 2), jnp.int32),
    weights=((4, 2), jnp.float32),
    values=((9,), jnp.int32),
    row_splits=((5,), jnp.int32),
    combiner="mean",
    global_device_count=1,
    num_sc_per_device=2,
    features=_FEATURES,
    feature_stacking_strategy="SPLIT_THEN_STACK",
)
_STACK_FIRST = {"feature_stacking_strategy": "STACK_THEN_SPLIT"}


def _shapes(**changes):
  """Shapes of the buffers of a valid request with other arguments."""
  params = _VALID | changes
  operands = [
      jax.ShapeDtypeStruct(*params.pop(name))
      for name in ("ids", "weights", "values", "row_splits")
  ]
  if len(params["features"]) == 1:
    operands = operands[: params["features"][0].num_operands]
  buffers = jax.eval_shape(
      lambda *operands: convert_ids.convert_ids_p.bind(*operands, **params),
      *operands,
  )
  return [buffer.shape for buffer in buffers]


def _first(**changes):
  return {"features": (dataclasses.replace(_FEATURES[0], **changes),)}


def _second(**changes):
  second = dataclasses.replace(_FEATURES[1], **changes)
  return {"features": (_FEATURES[0], second)}


class ConvertIdsChecksTest(parameterized.TestCase):

  def test_shapes(self):
    # 4 + 9 ids on a SparseCore and 14 cells wasted in two partitions: 27.
    self.assertEqual(_shapes(), [(16,), (64,), (64,), (64,)])
    # Without ragged features, ids are where their samples are.
    self.assertEqual(_shapes(**_first()), [(16,), (48,), (48,), (48,)])
    # The first SparseCore has all of "f".
    self.assertEqual(_shapes(**_STACK_FIRST)[1], (48,))

  @parameterized.parameters("int64", "uint32", "uint64")
  def test_types_of_ids(self, dtype):
    with jax.enable_x64(True):
      self.assertLen(_shapes(ids=((4, 2), jnp.dtype(dtype))), 4)

  @parameterized.named_parameters(
      (
          "ids_type",
          {"ids": ((4, 2), jnp.int16)},
          "Feature 'f': ids must have type int32, int64, uint32 or uint64, got"
          " int16",
      ),
      (
          "ids_rank",
          {"ids": ((4,), jnp.int32)},
          "Feature 'f': ids must have dim 2, got 1",
      ),
      (
          "ids_shared",
          {"ids": ((3, 2), jnp.int32), "weights": ((3, 2), jnp.float32)},
          "Feature 'f': .*the 2 SparseCores of a device can share equally, got"
          " 3",
      ),
      (
          "values_rank",
          {"values": ((4, 2), jnp.int32)},
          "Feature 'g': ids must have dim 1, got 2",
      ),
      (
          "row_splits_type",
          {"row_splits": ((5,), jnp.uint32)},
          "Feature 'g': row_splits must have type int32, got uint32",
      ),
      (
          "row_splits_rank",
          {"row_splits": ((5, 1), jnp.int32)},
          "Feature 'g': row_splits must have dim 1, got 2",
      ),
      (
          "row_splits_empty",
          {"row_splits": ((0,), jnp.int32)},
          "Feature 'g': row_splits must have one element more .* got none",
      ),
      (
          "row_splits_shared",
          {"row_splits": ((4,), jnp.int32)},
          "Feature 'g': .* can share equally, got 3 samples. Use a multiple"
          " of 2",
      ),
      (
          "weights_type",
          {"weights": ((4, 2), jnp.int32)},
          "Feature 'f': weights must have type float32, got int32",
      ),
      (
          "weights_shape",
          {"weights": ((4, 1), jnp.float32)},
          r"Feature 'f': weights must have shape \(4, 2\), got \(4, 1\)",
      ),
      (
          "combiner",
          {"combiner": "max"},
          "combiner must be one of sum, mean, sqrtn, got 'max'",
      ),
      (
          "strategy",
          {"feature_stacking_strategy": "STACK"},
          "feature_stacking_strategy must be one of SPLIT_THEN_STACK,"
          " STACK_THEN_SPLIT, got 'STACK'",
      ),
      (
          "id_policy",
          _first(out_of_range_ids="ignore"),
          "Feature 'f': out_of_range_ids must be one of error, drop, clamp,"
          " modulo, got 'ignore'",
      ),
      (
          "weight_policy",
          _first(non_finite_weights="modulo"),
          "Feature 'f': non_finite_weights must be one of error, drop, clamp,"
          " keep, got 'modulo'",
      ),
      (
          "vocabulary",
          _first(vocabulary_size=0),
          r"Feature 'f': the vocabulary_size of its table must be in \[1,"
          r" 2147483647\], got 0",
      ),
      (
          "offset",
          _second(col_offset=7),
          "Feature 'g': .*col_offset must be a multiple of the 2 SparseCores",
      ),
      (
          "shift",
          _second(col_shift=-1),
          r"Feature 'g': .*must not be negative.*got \(4, 8, -1\)",
      ),
      (
          "columns",
          _second(vocabulary_size=2**31 - 8),
          "Feature 'g': .*needs stack rows beyond int32",
      ),
      (
          "overlap",
          _second(row_offset=2),
          "Feature 'g': row_offset=2 is sample 2 of the device.*of feature"
          " 'f', end at 4",
      ),
      (
          "gap",
          _second(row_offset=6) | _STACK_FIRST,
          "Feature 'g': row_offset=6 is sample 6 .* end at 4",
      ),
      (
          "stack_shared",
          {"row_splits": ((4,), jnp.int32)} | _STACK_FIRST,
          "Feature 'f' and .* cannot share 7 samples equally",
      ),
      (
          "samples",
          _first(has_weights=False) | {"ids": ((2**26, 1), jnp.int32)},
          "Feature 'f' .* have 67108864 samples per device, more than 67108863",
      ),
      (
          "cells",
          _first(has_weights=False) | {"ids": ((4, 2**28), jnp.int32)},
          "Feature 'f' .*: 1073741824 ids per device need 1073741856 cells",
      ),
      (
          "devices",
          {"global_device_count": 0},
          "global_device_count must be positive, got 0",
      ),
      (
          "cores",
          {"num_sc_per_device": 0},
          "num_sc_per_device must be positive, got 0",
      ),
      (
          "no_features",
          {"features": ()},
          "the number of features must be positive, got 0",
      ),
      (
          "operands",
          {"features": (*_FEATURES, _FEATURES[0])},
          r"takes 6 operands for the features f, g, f .*, got 4",
      ),
  )
  def test_bad_arguments_raise(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _shapes(**changes)

  def test_gaps_are_allowed_where_features_are_split(self):
    self.assertLen(_shapes(**_second(row_offset=6)), 4)

  def test_a_feature_without_samples_overlaps_nothing(self):
    empty = {"row_splits": ((1,), jnp.int32)}
    self.assertLen(_shapes(**_second(row_offset=0), **empty), 4)


if __name__ == "__main__":
  absltest.main()
