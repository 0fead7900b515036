# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The ids of a feature as one row per sample."""

from __future__ import annotations

import math
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np


def one_row_per_sample(
    ids: Any,
    feature: _tables.FeatureSpec,
    batch: int,
    name: str = "ids",
) -> Any:
  """Reshapes dense ids (or weights) to [samples, valency].

  A sample is whatever gets one activation vector: an example when the output
  shape is (batch, D), a position when it is (batch, length, D). For an output
  shape (*lead, D), ids are `lead` (one id per sample), `(*lead, valency)`, or
  already `(prod(lead), valency)`.

  Args:
    ids: an array.
    feature: the feature's spec.
    batch: how much of the spec's batch `ids` hold: one device's, or one
      process's.
    name: what `ids` are, for the message.

  Raises:
    ValueError: if the shape is none of these.
  """
  lead = (batch, *feature.output_shape[1:-1])
  num_samples = math.prod(lead)
  shape = tuple(ids.shape)
  if shape == lead:
    return ids.reshape(num_samples, 1)
  if shape[:-1] in (lead, (num_samples,)):
    return ids.reshape(num_samples, shape[-1])
  # The last two are one shape where a sample is an example.
  shapes = dict.fromkeys((lead, (*lead, "valency"), (num_samples, "valency")))
  raise ValueError(
      f"Feature {feature.name!r}: {name} have shape {shape}. For the"
      f" output_shape {tuple(feature.output_shape)}, of which {batch} examples"
      f" are here, they must have shape {' or '.join(map(str, shapes))}."
  )


def ids_and_weights(
    ids: Any,
    weights: Any | None,
    feature: _tables.FeatureSpec,
    batch: int,
) -> tuple[Any, Any | None]:
  """Both as one_row_per_sample has them; its arguments.

  Raises:
    ValueError: as there, or if their shapes differ.
  """
  rows = one_row_per_sample(ids, feature, batch)
  if weights is None:
    return rows, None
  of_weights = one_row_per_sample(weights, feature, batch, "weights")
  if rows.shape != of_weights.shape:
    raise ValueError(
        f"Feature {feature.name!r}: ids have shape {tuple(ids.shape)} and"
        f" weights {tuple(weights.shape)}. They must be the same."
    )
  return rows, of_weights


def refuse_masked(
    array: Any, feature: _tables.FeatureSpec, name: str = "ids"
) -> None:
  """Raises ValueError for a masked array: most of NumPy forgets the mask."""
  if isinstance(array, np.ma.MaskedArray):
    raise ValueError(
        f"Feature {feature.name!r}: its {name} are a masked array, and what is"
        " masked has no meaning here. Fill it, for example ids with"
        " ids.filled(-1) and out_of_range_ids='drop', or weights with"
        " weights.filled(0)."
    )
