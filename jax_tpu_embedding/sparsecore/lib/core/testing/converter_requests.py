# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Requests to the native converter, for its tests."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import types
from typing import Any

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
      out_of_range_ids=feature.out_of_range_ids,
      non_finite_weights=feature.non_finite_weights,
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


def strategy(name: str) -> converter.FeatureStackingStrategy:
  return converter.FeatureStackingStrategy.__members__[name]


def convert(
    stack: input_preprocessing.Stack,
    features: Sequence[input_preprocessing.Feature],
    topology: layout.Topology,
    **keywords: Any,
) -> input_preprocessing.ConvertedStack:
  """The converter behind the interface of convert_stack."""
  (converted,), _ = convert_step([(stack, features)], topology, **keywords)
  return converted


def convert_step(
    stacks: Sequence[
        tuple[input_preprocessing.Stack, Sequence[input_preprocessing.Feature]]
    ],
    topology: layout.Topology,
    *,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
    leaves: Sequence[tuple[Any, Any]] | None = None,
    **keywords: Any,
) -> tuple[list[input_preprocessing.ConvertedStack], int]:
  """One host's part of convert_in_minibatches, and of convert_stack.

  `leaves` are the ids and weights of each feature in a form that says the same
  as those of the features, which are the default.
  """
  features = [
      (feature, spec_of(feature, stack, f"s{i}"))
      for i, (stack, features) in enumerate(stacks)
      for feature in features
  ]
  if leaves is None:
    leaves = [(feature.ids, feature.weights) for feature, _ in features]
  has_weights = any(weights is not None for _, weights in leaves)
  *buffers, num_minibatches, stats = (
      converter.preprocess_sparse_dense_matmul_input(
          [ids for ids, _ in leaves],
          [weights for _, weights in leaves] if has_weights else None,
          [spec for _, spec in features],
          topology.local_device_count,
          topology.global_device_count,
          num_sc_per_device=topology.num_sc_per_device,
          has_leading_dimension=True,
          feature_stacking_strategy=strategy(feature_stacking_strategy),
          **keywords,
      )
  )
  converted = []
  for i in range(len(stacks)):
    name = f"s{i}"
    converted.append(
        input_preprocessing.ConvertedStack(
            **{b: by_stack[name] for b, by_stack in zip(BUFFERS, buffers)},
            max_ids_per_partition=stats.max_ids_per_partition[name],
            max_unique_ids_per_partition=stats.max_unique_ids_per_partition[
                name
            ],
            required_buffer_size_per_sc=stats.required_buffer_sizes[name],
            # Not recorded without minibatching, where it is 0.
            minibatch_alignment_per_sc=stats.minibatch_alignment.get(
                name, np.zeros_like(stats.required_buffer_sizes[name])
            ),
            dropped_id_count=stats.dropped_id_count[name],
        )
    )
  return converted, num_minibatches


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
