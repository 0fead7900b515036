# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One call of the native converter that is fine, for tests that change it."""

from __future__ import annotations

import types
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np


def baseline(**changes) -> dict[str, Any]:
  """Arguments of the call: 4 samples of 2 ids on 2 SparseCores."""
  feature = input_preprocessing.Feature(
      name="f",
      ids=np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32),
      vocabulary_size=8,
  )
  stack = input_preprocessing.Stack(
      combiner="sum", max_ids_per_partition=8, max_unique_ids_per_partition=8
  )
  arguments = {
      "features": [feature.ids],
      "feature_weights": None,
      "feature_specs": [converter_requests.spec_of(feature, stack)],
      "local_device_count": 1,
      "global_device_count": 1,
      "num_sc_per_device": 2,
  }
  return arguments | changes


def call(**changes):
  """The converter's result for the baseline with some arguments replaced."""
  return converter.preprocess_sparse_dense_matmul_input(**baseline(**changes))


def spec_with(**changes) -> list[types.SimpleNamespace]:
  """The baseline's feature specs; "a.b" names an attribute of an attribute."""
  spec = baseline()["feature_specs"][0]
  for path, value in changes.items():
    *objects, attribute = path.split(".")
    holder = spec
    for name in objects:
      holder = getattr(holder, name)
    setattr(holder, attribute, value)
  return [spec]
