# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Requests to the native converter, for its tests."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import types

from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
import numpy as np

BUFFERS = ("row_pointers", "embedding_ids", "sample_ids", "gains")


def spec_of(
    feature: input_preprocessing.Feature,
    stack: input_preprocessing.Stack,
    stack_name: str = "s",
) -> types.SimpleNamespace:
  """What the converter reads of a FeatureSpec."""
  return types.SimpleNamespace(
      name=feature.name,
      input_shape=(len(feature.ids), 1),
      _id_transformation=types.SimpleNamespace(
          row_offset=feature.row_offset,
          col_offset=feature.col_offset,
          col_shift=feature.col_shift,
      ),
      table_spec=types.SimpleNamespace(
          name=f"table_of_{feature.name}",
          vocabulary_size=feature.vocabulary_size,
          setting_in_stack=types.SimpleNamespace(stack_name=stack_name),
          stacked_table_spec=types.SimpleNamespace(**dataclasses.asdict(stack)),
      ),
  )


def ragged(rows: Sequence) -> np.ndarray:
  array = np.empty(len(rows), object)
  for i, row in enumerate(rows):
    array[i] = row
  return array


def convert(
    stack: input_preprocessing.Stack,
    features: Sequence[input_preprocessing.Feature],
    topology: layout.Topology,
    allow_id_dropping: bool = False,
) -> input_preprocessing.ConvertedStack:
  """The converter behind the interface of convert_stack."""
  weights = [feature.weights for feature in features]
  *buffers, _, stats = converter.preprocess_sparse_dense_matmul_input(
      [feature.ids for feature in features],
      None if weights[0] is None else weights,
      [spec_of(feature, stack) for feature in features],
      topology.local_device_count,
      topology.global_device_count,
      num_sc_per_device=topology.num_sc_per_device,
      has_leading_dimension=True,
      allow_id_dropping=allow_id_dropping,
  )
  return input_preprocessing.ConvertedStack(
      **{name: by_stack["s"] for name, by_stack in zip(BUFFERS, buffers)},
      max_ids_per_partition=stats.max_ids_per_partition["s"],
      max_unique_ids_per_partition=stats.max_unique_ids_per_partition["s"],
      required_buffer_size_per_sc=stats.required_buffer_sizes["s"],
      dropped_id_count=stats.dropped_id_count["s"],
  )


def assert_same(actual, expected):
  for field in dataclasses.fields(expected):
    a, b = getattr(actual, field.name), getattr(expected, field.name)
    if field.name == "gains":
      # Any NaN is as good as another, but for padding.
      is_padding = expected.sample_ids == constants.PADDING_VALUE
      assert (a.view(np.uint32)[is_padding] == 0x7FC00000).all()
      both_nan = np.isnan(a) & np.isnan(b)
      a, b = (np.where(both_nan, 0, x).view(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(a, b, err_msg=field.name, strict=True)
