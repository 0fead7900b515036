# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The converter gives the bytes of its reference, for random requests."""

from __future__ import annotations

import dataclasses

from absl.testing import absltest
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, max_examples=200
)
hypothesis.settings.load_profile("deterministic")


@st.composite
def _requests(draw):
  """A stack, its features in any order, and a topology."""
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  local_device_count = draw(st.integers(1, 3))
  topology = layout.Topology(
      local_device_count=local_device_count,
      global_device_count=local_device_count * draw(st.integers(1, 3)),
      num_sc_per_device=draw(st.integers(1, 5)),
  )
  num_local_scs = local_device_count * topology.num_sc_per_device
  has_weights = draw(st.booleans())
  id_type = draw(st.sampled_from((np.int32, np.int64)))
  ragged = draw(st.booleans())
  row_offset = col_offset = 0
  features = []
  for f in range(draw(st.integers(1, 3))):
    samples_per_sc = draw(st.integers(0, 4))
    vocabulary_size = draw(st.sampled_from((1, 3, 17, 1000, 10**6)))
    num_samples = samples_per_sc * num_local_scs
    lengths = (
        rng.integers(0, 9, num_samples)
        if ragged
        else np.full(num_samples, draw(st.integers(0, 6)))
    )
    # Squared, so that small ids are more frequent.
    ids = [
        (rng.random(n) ** 2 * vocabulary_size).astype(id_type) for n in lengths
    ]
    weights = [
        np.where(
            rng.random(n) < 0.1, 0, rng.normal(size=n).astype(np.float32)
        ).astype(np.float32)
        for n in lengths
    ]
    if not ragged:
      shape = (num_samples, lengths[0] if num_samples else 0)
      ids = np.array(ids, id_type).reshape(shape)
      weights = np.array(weights, np.float32).reshape(shape)
    features.append(
        input_preprocessing.Feature(
            name=f"f{f}",
            ids=converter_requests.ragged(ids) if ragged else ids,
            weights=(converter_requests.ragged(weights) if ragged else weights)
            if has_weights
            else None,
            vocabulary_size=vocabulary_size,
            row_offset=row_offset,
            col_offset=col_offset,
            col_shift=draw(st.integers(0, 2 * topology.num_scs)),
        )
    )
    row_offset += samples_per_sc * topology.num_scs
    col_offset += layout.round_up(vocabulary_size, 8 * topology.num_scs)
  stack = input_preprocessing.Stack(
      combiner=draw(st.sampled_from(input_preprocessing.COMBINERS)),
      max_ids_per_partition=draw(st.sampled_from((1, 3, 8, 200))),
      max_unique_ids_per_partition=draw(st.sampled_from((1, 2, 8, 200))),
  )
  most = layout.max_coo_cells_per_device(stack.max_ids_per_partition, topology)
  if draw(st.booleans()):
    stack = dataclasses.replace(
        stack,
        suggested_coo_buffer_size_per_device=draw(
            st.integers(1, min(most, 64 * topology.num_sc_per_device))
        ),
    )
  return stack, draw(st.permutations(features)), topology


class ReferenceTest(absltest.TestCase):

  @hypothesis.given(_requests())
  def test_converter_gives_the_bytes_of_the_reference(self, request):
    stack, features, topology = request
    expected = input_preprocessing.convert_stack(
        stack, features, topology, allow_id_dropping=True
    )
    converter_requests.assert_same(
        converter_requests.convert(
            stack, features, topology, allow_id_dropping=True
        ),
        expected,
    )

  @hypothesis.given(_requests())
  def test_both_refuse_to_drop_the_same_batches(self, request):
    stack, features, topology = request
    dropped = input_preprocessing.convert_stack(
        stack, features, topology, allow_id_dropping=True
    ).dropped_id_count
    if dropped:
      for convert in (
          converter_requests.convert,
          input_preprocessing.convert_stack,
      ):
        with self.assertRaises(ValueError):
          convert(stack, features, topology)
    else:
      converter_requests.assert_same(
          converter_requests.convert(stack, features, topology),
          input_preprocessing.convert_stack(stack, features, topology),
      )

  def test_the_worked_example_of_two_sparse_cores(self):
    converted = input_preprocessing.convert_stack(
        input_preprocessing.Stack(
            combiner="mean",
            max_ids_per_partition=8,
            max_unique_ids_per_partition=8,
        ),
        [
            input_preprocessing.Feature(
                name="f",
                ids=[[0, 0, 3], [5, 2], [], [1]],
                vocabulary_size=6,
            )
        ],
        layout.Topology(
            local_device_count=1, global_device_count=1, num_sc_per_device=2
        ),
    )
    np.testing.assert_array_equal(
        converted.row_pointers, [[2, 10] + [16] * 6 + [0, 1] + [8] * 6]
    )
    # Even ids live on SparseCore 0, odd ones on 1.
    self.assertEqual(converted.embedding_ids[0, :2].tolist(), [0, 1])
    self.assertEqual(converted.sample_ids[0, :2].tolist(), [0, 1])
    np.testing.assert_allclose(converted.gains[0, :2], [2 / 3, 1 / 2])
    self.assertEqual(converted.embedding_ids[0, 8:10].tolist(), [1, 2])
    np.testing.assert_allclose(converted.gains[0, 8:10], [1 / 3, 1 / 2])
    self.assertEqual(converted.required_buffer_size_per_sc.tolist(), [16, 8])


if __name__ == "__main__":
  absltest.main()
