# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""With minibatching, the converter gives the bytes of its reference."""

from __future__ import annotations

from absl.testing import absltest
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_hosts
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, max_examples=100
)
hypothesis.settings.load_profile("deterministic")


@st.composite
def _jobs(draw):
  """A topology, and the stacks of each host of a job."""
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  num_hosts = draw(st.integers(1, 3))
  local_device_count = draw(st.integers(1, 2))
  topology = layout.Topology(
      local_device_count=local_device_count,
      global_device_count=local_device_count * num_hosts,
      num_sc_per_device=draw(st.integers(1, 4)),
  )
  hosts = [[] for _ in range(num_hosts)]
  for _ in range(draw(st.integers(1, 2))):
    stack = _draw_stack(draw, topology)
    features_of_host = _draw_features(draw, rng, topology, num_hosts)
    for stacks, features in zip(hosts, features_of_host):
      stacks.append((stack, features))
  return topology, hosts


def _draw_stack(draw, topology):
  max_ids = draw(st.sampled_from((1, 3, 8, 40)))
  most = layout.max_coo_cells_per_device(
      max_ids, topology, enable_minibatching=True
  )
  return input_preprocessing.Stack(
      combiner=draw(st.sampled_from(input_preprocessing.COMBINERS)),
      max_ids_per_partition=max_ids,
      max_unique_ids_per_partition=draw(st.sampled_from((1, 2, 8, 40))),
      suggested_coo_buffer_size_per_device=draw(
          st.none()
          | st.integers(1, min(most, 200 * topology.num_sc_per_device))
      ),
  )


def _draw_features(draw, rng, topology, num_hosts):
  """One or two features, with ids of their own on each host."""
  num_local_scs = topology.local_device_count * topology.num_sc_per_device
  has_weights = draw(st.booleans())
  features_of_host = [[] for _ in range(num_hosts)]
  row_offset = col_offset = 0
  for f in range(draw(st.integers(1, 2))):
    samples_per_sc = draw(st.integers(0, 3))
    vocabulary_size = draw(st.sampled_from((1, 17, 1000, 10**6)))
    col_shift = draw(st.integers(0, 2 * topology.num_scs))
    for features in features_of_host:
      lengths = rng.integers(0, 12, samples_per_sc * num_local_scs)
      features.append(
          input_preprocessing.Feature(
              name=f"f{f}",
              # Squared, so that small ids are more frequent.
              ids=converter_requests.ragged(
                  [
                      (rng.random(n) ** 2 * vocabulary_size).astype(np.int32)
                      for n in lengths
                  ]
              ),
              weights=converter_requests.ragged(
                  [rng.normal(size=n).astype(np.float32) for n in lengths]
              )
              if has_weights
              else None,
              vocabulary_size=vocabulary_size,
              row_offset=row_offset,
              col_offset=col_offset,
              col_shift=col_shift,
          )
      )
    row_offset += samples_per_sc * topology.num_scs
    col_offset += layout.round_up(vocabulary_size, 8 * topology.num_scs)
  return features_of_host


def _convert_hosts(topology, hosts, **keywords):
  return converter_hosts.run_hosts(
      len(hosts),
      lambda h, host: converter_requests.convert_step(
          hosts[h],
          topology,
          enable_minibatching=True,
          all_reduce_interface=host,
          **keywords,
      ),
  )


class MinibatchingTest(absltest.TestCase):

  @hypothesis.given(
      _jobs(),
      st.integers(1, 3),
      st.sampled_from(("SPLIT_THEN_STACK", "STACK_THEN_SPLIT")),
  )
  def test_all_hosts_give_the_bytes_of_the_reference(
      self, job, num_threads, strategy
  ):
    topology, hosts = job
    keywords = {
        "allow_id_dropping": True,
        "feature_stacking_strategy": strategy,
    }
    expected, num_minibatches = input_preprocessing.convert_in_minibatches(
        hosts, topology, **keywords
    )
    results = _convert_hosts(
        topology, hosts, num_threads=num_threads, **keywords
    )
    for (stacks, n), expected_stacks in zip(results, expected, strict=True):
      self.assertEqual(n, num_minibatches)
      for stack, expected_stack in zip(stacks, expected_stacks, strict=True):
        converter_requests.assert_same(stack, expected_stack)

  @hypothesis.given(_jobs())
  def test_both_refuse_to_drop_the_same_batches(self, job):
    topology, hosts = job
    hosts = hosts[:1]
    topology = layout.Topology(
        local_device_count=topology.local_device_count,
        global_device_count=topology.local_device_count,
        num_sc_per_device=topology.num_sc_per_device,
    )
    try:
      input_preprocessing.convert_in_minibatches(hosts, topology)
    except ValueError:
      with self.assertRaisesRegex(ValueError, "allow_id_dropping=True"):
        _convert_hosts(topology, hosts)
    else:
      _convert_hosts(topology, hosts)

  def test_the_worked_example_has_three_minibatches(self):
    feature = input_preprocessing.Feature(
        name="f",
        ids=converter_requests.ragged([[0, 1, 2, 3], [4, 6], [8], []]),
        vocabulary_size=9,
    )
    stack = input_preprocessing.Stack(
        combiner="sum",
        max_ids_per_partition=2,
        max_unique_ids_per_partition=2,
    )
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=2
    )
    ((converted,),), num_minibatches = (
        input_preprocessing.convert_in_minibatches(
            [[(stack, [feature])]], topology
        )
    )
    self.assertEqual(num_minibatches, 3)
    np.testing.assert_array_equal(
        converted.row_pointers[0, :48],
        [1]
        + [8] * 7
        + [10]
        + [16] * 7
        + [17, 26]
        + [32] * 6
        + [32] * 8
        + [33]
        + [40] * 7
        + [40] * 8,
    )
    ids = converted.embedding_ids[0]
    # Partition 0 has columns 6 and 2 in minibatch 1: in order of their buckets.
    self.assertEqual(
        ids[[0, 8, 9, 16, 24, 25, 32]].tolist(), [0, 3, 1, 2, 1, 0, 4]
    )
    # SparseCore 0: 8 + 8 cells in one minibatch, 8 + 8 + 16 in three.
    self.assertEqual(converted.required_buffer_size_per_sc.tolist(), [16, 8])
    self.assertEqual(converted.minibatch_alignment_per_sc.tolist(), [16, 0])


if __name__ == "__main__":
  absltest.main()
