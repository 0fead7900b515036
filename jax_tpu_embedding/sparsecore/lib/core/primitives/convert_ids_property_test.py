# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""All five converters give the same bytes.

The primitive on CPU (the native converter inside a program), on GPUs (kernels,
emulated), on other platforms (sorting, in jnp), the converter of the host, and
the readable one.
"""

from __future__ import annotations

import dataclasses
import functools

from absl.testing import absltest
import hypothesis
from hypothesis import strategies as st
import jax
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import conversion
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
import numpy as np

hypothesis.settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    # Nearly every example compiles a program.
    max_examples=40,
)
hypothesis.settings.load_profile("deterministic")

_EMULATED_P = every_lowering.as_on(
    "cuda", "convert_ids", convert_ids.convert_ids_p
)
_SPECIAL_WEIGHTS = np.array(
    # Subnormal numbers, signed zeros, sums that overflow, and no numbers.
    [1e-40, -3e-45, 2e-38, 0.0, -0.0, 3e38, -3e38, np.inf, -np.inf, np.nan],
    np.float32,
)
_ID_TYPES = {False: ["int32", "uint32"], True: ["int64", "uint64"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What to convert on one device: the primitive's operands and parameters."""

  operands: tuple[np.ndarray, ...]
  params: dict
  enable_x64: bool

  @property
  def topology(self) -> layout.Topology:
    return layout.Topology(
        local_device_count=1,
        global_device_count=self.params["global_device_count"],
        num_sc_per_device=self.params["num_sc_per_device"],
    )


@st.composite
def requests(draw) -> Request:
  global_device_count = draw(st.integers(1, 5))
  num_sc = draw(st.integers(1, 4))
  num_scs = global_device_count * num_sc
  strategy = draw(st.sampled_from(raw_ids.FEATURE_STACKING_STRATEGIES))
  enable_x64 = draw(st.booleans())
  rng = np.random.default_rng(draw(st.integers(0, 2**32)))
  split_first = strategy == "SPLIT_THEN_STACK"
  num_samples = [
      draw(st.integers(0, 5)) * (num_sc if split_first else 1)
      for _ in range(draw(st.integers(1, 3)))
  ]
  if not split_first:
    num_samples[-1] += -sum(num_samples) % num_sc

  features, operands = [], []
  row_offset = 0
  for f, samples in enumerate(num_samples):
    # Tables behind each other, and rotated, or all the same one.
    col_offset = draw(st.sampled_from([0, 8 * f])) * num_scs
    largest = (2**31 // num_scs - 2) * num_scs - col_offset
    feature = raw_ids.Feature(
        name=f"f{f}",
        vocabulary_size=draw(st.sampled_from([1, 7, 50, largest])),
        row_offset=row_offset,
        col_offset=col_offset,
        col_shift=draw(st.integers(0, 2 * num_scs)),
        is_ragged=draw(st.booleans()),
        has_weights=draw(st.booleans()),
        out_of_range_ids=draw(st.sampled_from(raw_ids.ID_POLICIES)),
        non_finite_weights=draw(st.sampled_from(raw_ids.WEIGHT_POLICIES)),
    )
    dtype = draw(st.sampled_from(_ID_TYPES[enable_x64]))
    operands += _operands(draw, rng, feature, samples, np.dtype(dtype))
    features.append(feature)
    row_offset += samples * global_device_count
    if split_first:  # Only then gaps are allowed.
      row_offset += draw(st.sampled_from([0, num_scs]))
  return Request(
      operands=tuple(operands),
      params=dict(
          combiner=draw(st.sampled_from(raw_ids.COMBINERS)),
          global_device_count=global_device_count,
          num_sc_per_device=num_sc,
          features=tuple(features),
          feature_stacking_strategy=strategy,
      ),
      enable_x64=enable_x64,
  )


def _operands(draw, rng, feature, num_samples, dtype) -> list[np.ndarray]:
  if feature.is_ragged:
    longest = draw(st.sampled_from([1, 4, 20]))
    lengths = rng.integers(0, longest + 1, num_samples)
    splits = np.cumsum([0, *lengths]).astype(np.int32)
    shape = (splits[-1] + draw(st.sampled_from([0, 5])),)
  else:
    splits = None
    shape = (num_samples, draw(st.sampled_from([0, 1, 2, 9])))
  # Few distinct ids, for repeats in samples.
  ids = rng.choice(rng.integers(0, feature.vocabulary_size, 6), shape)
  ids = ids.astype(dtype)
  if feature.out_of_range_ids != "error":
    limits = np.iinfo(dtype)
    outside = [limits.min, limits.min + 1, limits.max - 1, limits.max]
    outside = np.array(outside, dtype)
    ids = np.where(rng.random(shape) < 0.2, rng.choice(outside, shape), ids)
  operands = [ids]
  if splits is not None:
    operands.append(splits)
  if feature.has_weights:
    weights = rng.normal(size=shape).astype(np.float32)
    special = _SPECIAL_WEIGHTS
    if feature.non_finite_weights == "error":
      # Nor what no mean of weights can be divided by.
      special = special[np.abs(special) < 1]
    is_special = rng.random(shape) < draw(st.sampled_from([0, 0.3, 1]))
    operands.append(np.where(is_special, rng.choice(special, shape), weights))
  if splits is not None:
    # What no sample has may be anything.
    ids[splits[-1] :] = np.iinfo(dtype).max
    if feature.has_weights:
      operands[-1][splits[-1] :] = np.nan
  return operands


def _as_features(request: Request) -> list[input_preprocessing.Feature]:
  """The request for the converters that take samples."""
  features = []
  for feature, (ids, splits, weights) in zip(
      request.params["features"],
      raw_ids.group_operands(request.params["features"], request.operands),
  ):
    if splits is not None:
      ids = converter_requests.ragged(np.split(ids, splits[1:])[:-1])
      if weights is not None:
        weights = converter_requests.ragged(np.split(weights, splits[1:])[:-1])
    features.append(
        input_preprocessing.Feature(
            name=feature.name,
            ids=ids,
            weights=weights,
            vocabulary_size=feature.vocabulary_size,
            row_offset=feature.row_offset,
            col_offset=feature.col_offset,
            col_shift=feature.col_shift,
            out_of_range_ids=feature.out_of_range_ids,
            non_finite_weights=feature.non_finite_weights,
        )
    )
  return features


def _assert_same_bytes(actual, expected, what, padding_gain=0x7FC00000):
  names = converter_requests.BUFFERS
  actual, expected = (
      {name: np.asarray(x).reshape(-1) for name, x in zip(names, buffers)}
      for buffers in (actual, expected)
  )
  is_padding = expected["sample_ids"] == constants.PADDING_VALUE
  for name in names:
    a, b = (buffers[name].view(np.uint32) for buffers in (actual, expected))
    if name == "gains":
      np.testing.assert_array_equal(a[is_padding], padding_gain, what)
      # Any NaN is as good as another.
      a, b = (
          np.where(is_padding | np.isnan(x.view(np.float32)), 0, x)
          for x in (a, b)
      )
    np.testing.assert_array_equal(a, b, f"{name} of {what}", strict=True)


def _convert_on_host(request, stack):
  features = _as_features(request)
  specs = [converter_requests.spec_of(feature, stack) for feature in features]
  for spec, feature in zip(specs, features):
    spec.out_of_range_ids = feature.out_of_range_ids
    spec.non_finite_weights = feature.non_finite_weights
  strategy = request.params["feature_stacking_strategy"]
  *buffers, _, _ = converter.preprocess_sparse_dense_matmul_input(
      [feature.ids for feature in features],
      [feature.weights for feature in features],
      specs,
      local_device_count=1,
      global_device_count=request.params["global_device_count"],
      num_sc_per_device=request.params["num_sc_per_device"],
      feature_stacking_strategy=getattr(
          converter.FeatureStackingStrategy, strategy
      ),
  )
  return [by_stack["s"] for by_stack in buffers]


class ConvertIdsPropertyTest(absltest.TestCase):

  @hypothesis.given(requests())
  def test_all_converters_give_the_same_bytes(self, request):
    with jax.enable_x64(request.enable_x64):
      custom_call = convert_ids.convert_ids_p.bind(
          *request.operands, **request.params
      )
      kernels = jax.jit(functools.partial(_EMULATED_P.bind, **request.params))(
          *request.operands
      )
      sorting = jax.jit(
          functools.partial(conversion.convert_ids, **request.params)
      )(*request.operands)
    num_cells = custom_call[1].size
    stack = input_preprocessing.Stack(
        combiner=request.params["combiner"],
        max_ids_per_partition=num_cells,
        max_unique_ids_per_partition=num_cells,
        suggested_coo_buffer_size_per_device=num_cells,
    )
    readable = input_preprocessing.convert_stack(
        stack,
        _as_features(request),
        request.topology,
        feature_stacking_strategy=request.params["feature_stacking_strategy"],
    )
    expected = [getattr(readable, name) for name in converter_requests.BUFFERS]
    host = _convert_on_host(request, stack)
    _assert_same_bytes(host, expected, "the host's converter")
    _assert_same_bytes(custom_call, expected, "the custom call", 0)
    _assert_same_bytes(kernels, expected, "the kernels of GPUs", 0)
    _assert_same_bytes(sorting, expected, "the jnp version", 0)


if __name__ == "__main__":
  absltest.main()
