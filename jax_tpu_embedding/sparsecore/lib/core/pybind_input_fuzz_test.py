# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Random input in random forms: the reference's bytes, or a named error."""

from __future__ import annotations

import dataclasses

from absl.testing import absltest
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import input_forms
import ml_dtypes
import numpy as np

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, max_examples=300
)
hypothesis.settings.load_profile("deterministic")

_ID_TYPES = (np.int8, np.int32, np.int64, np.uint32, np.uint64, ">i4", ">i8")
_WEIGHT_TYPES = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ">f4")
_ARROW_FORMS = ("arrow", "large_arrow", "sliced_arrow", "chunked_arrow")


def _ids(draw, rng, dtype, length, vocabulary_size):
  """Mostly small, with some outside of the vocabulary if `draw` says so."""
  ids = (rng.random(length) ** 2 * vocabulary_size).astype(np.int64)
  if draw(st.booleans()) and length:
    outside = draw(st.sampled_from((-1, vocabulary_size, 127, 2**31, -(2**40))))
    if np.iinfo(dtype).min <= outside <= np.iinfo(dtype).max:
      ids[rng.integers(length)] = outside
  return ids.astype(dtype)


def _weights(draw, rng, dtype, length):
  weights = rng.normal(size=length).astype(np.float32)
  if draw(st.booleans()) and length:
    weights[rng.integers(length)] = draw(
        st.sampled_from((np.nan, np.inf, -np.inf, 0))
    )
  return weights.astype(dtype)


def _leaf(draw, rows, weights):
  names = set(input_forms.FORMS)
  lengths = {len(row) for row in rows}
  if len(lengths) == 1 and lengths != {0}:
    names |= set(input_forms.DENSE_FORMS)
  numbers = rows + (weights or [])
  if any(x.dtype.byteorder == ">" for x in numbers) or any(
      x.dtype == ml_dtypes.bfloat16 for x in numbers
  ):
    names -= {*_ARROW_FORMS, "fixed_arrow"}  # pyarrow has no such types.
  if any(x.size and not 0 <= x.min() <= x.max() < 2**31 - 1 for x in rows):
    names.remove("coo")  # scipy refuses to make one.
  if weights and weights[0].dtype in (np.float16, ml_dtypes.bfloat16):
    names -= {"csr", "coo"}  # the same
  form = draw(st.sampled_from(sorted(names)))
  return (input_forms.FORMS | input_forms.DENSE_FORMS)[form](rows, weights)


@st.composite
def _requests(draw):
  """A stack, its features, a topology, keywords, and leaves in any form."""
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  local_device_count = draw(st.integers(1, 2))
  topology = layout.Topology(
      local_device_count=local_device_count,
      global_device_count=local_device_count * draw(st.integers(1, 2)),
      num_sc_per_device=draw(st.integers(1, 4)),
  )
  strategy = draw(st.sampled_from(raw_ids.FEATURE_STACKING_STRATEGIES))
  # Now and then they cannot be shared evenly.
  unit = topology.local_device_count * draw(
      st.sampled_from((topology.num_sc_per_device,) * 3 + (1,))
  )
  features, leaves = [], []
  row_offset = col_offset = 0
  for f in range(draw(st.integers(1, 3))):
    num_samples = unit * draw(st.integers(0, 4))
    vocabulary_size = draw(st.sampled_from((1, 17, 100, 10**6)))
    id_type = np.dtype(draw(st.sampled_from(_ID_TYPES)))
    if vocabulary_size > 100 and id_type == np.int8:
      id_type = np.dtype(np.int32)
    weight_type = np.dtype(draw(st.sampled_from(_WEIGHT_TYPES)))
    has_weights = draw(st.booleans())
    lengths = (
        rng.integers(0, 6, num_samples)
        if draw(st.booleans())
        else [draw(st.integers(0, 4))] * num_samples
    )
    rows = [
        _ids(draw, rng, id_type, length, vocabulary_size) for length in lengths
    ]
    weights = (
        [_weights(draw, rng, weight_type, length) for length in lengths]
        if has_weights and num_samples
        else None
    )
    leaves.append(_leaf(draw, rows, weights))
    features.append(
        input_preprocessing.Feature(
            name=f"f{f}",
            ids=rows,
            weights=None
            if weights is None
            else [w.astype(np.float32) for w in weights],
            vocabulary_size=vocabulary_size,
            row_offset=row_offset,
            col_offset=col_offset,
            col_shift=draw(st.integers(0, 2 * topology.num_scs)),
            out_of_range_ids=draw(
                st.sampled_from(("error", "drop", "clamp", "modulo"))
            ),
            non_finite_weights=draw(
                st.sampled_from(("error", "drop", "clamp", "keep"))
            ),
        )
    )
    row_offset += (
        num_samples
        * topology.global_device_count
        // topology.local_device_count
    )
    col_offset += layout.round_up(vocabulary_size, 8 * topology.num_scs)
  stack = input_preprocessing.Stack(
      combiner=draw(st.sampled_from(input_preprocessing.COMBINERS)),
      max_ids_per_partition=draw(st.sampled_from((1, 8, 200))),
      max_unique_ids_per_partition=draw(st.sampled_from((1, 8, 200))),
  )
  keywords = {
      "allow_id_dropping": draw(st.booleans()),
      "feature_stacking_strategy": strategy,
  }
  return stack, features, topology, keywords, leaves


class FuzzTest(absltest.TestCase):

  @hypothesis.given(_requests(), st.sampled_from((1, 3)))
  def test_the_bytes_of_the_reference_or_a_named_error(
      self, request, num_threads
  ):
    stack, features, topology, keywords, leaves = request

    def convert():
      return converter_requests.convert(
          stack,
          features,
          topology,
          leaves=leaves,
          num_threads=num_threads,
          **keywords,
      )

    try:
      expected = input_preprocessing.convert_stack(
          stack, features, topology, **keywords
      )
    except ValueError:
      with self.assertRaisesRegex(ValueError, "Feature 'f\\d': |Stack 's0': "):
        convert()
      return
    converter_requests.assert_same(convert(), expected)

  def test_requests_are_of_every_kind(self):
    """The search above meets errors, drops and successes."""
    kinds = set()

    @hypothesis.given(_requests())
    def collect(request):
      stack, features, topology, keywords, _ = request
      try:
        converted = input_preprocessing.convert_stack(
            stack, features, topology, **keywords
        )
        kinds.add("drops" if converted.dropped_id_count else "converts")
      except ValueError as error:
        kinds.add(type(error))
      if any(dataclasses.asdict(f)["weights"] for f in features):
        kinds.add("weights")

    collect()
    self.assertEqual(kinds, {"converts", "drops", "weights", ValueError})


if __name__ == "__main__":
  absltest.main()
