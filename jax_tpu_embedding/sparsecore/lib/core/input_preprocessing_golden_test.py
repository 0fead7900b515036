# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The converter gives the bytes of testdata/golden."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testdata.golden import golden_cases
import numpy as np

_CASES = {case.name: case for case in golden_cases.golden_cases()}

# A buffer that is too small is an error unless ids may be dropped. The package
# that recorded these cases always dropped them.
_BUFFER_TOO_SMALL = (
    "42_buffer_overflow_1x2",
    "43_buffer_overflow_weights_4x4",
)


def _convert(case: golden_cases.GoldenCase, host: int, **flags):
  """Buffers and statistics, as in GoldenCase.outputs, by stack."""
  topology = case.topology()
  flags = case.config["flags"] | flags
  flags.pop("sharding_strategy", None)  # "MOD", which is the default here.
  *buffers, num_minibatches, stats = (
      converter.preprocess_sparse_dense_matmul_input(
          case.ids(host),
          case.weights(host),
          case.feature_specs(),
          topology["local_device_count"],
          topology["global_device_count"],
          num_sc_per_device=topology["num_sc_per_device"],
          **flags,
      )
  )
  if num_minibatches != 1:
    raise ValueError(f"Expected one minibatch, got {num_minibatches}.")
  stats = (
      stats.max_ids_per_partition,
      stats.max_unique_ids_per_partition,
      stats.required_buffer_sizes,
      stats.dropped_id_count,
  )
  names = golden_cases.BUFFERS + golden_cases.STATS
  return {
      stack: {
          name: np.asarray(by_stack[stack])
          for name, by_stack in zip(names, [*buffers, *stats], strict=True)
      }
      for stack in buffers[0]
  }


class GoldenTest(parameterized.TestCase):

  def test_there_are_cases(self):
    self.assertGreaterEqual(len(_CASES), 48)

  @parameterized.parameters(*_CASES)
  def test_bytes_equal_the_recorded_ones(self, name):
    case = _CASES[name]
    flags = {"allow_id_dropping": True} if name in _BUFFER_TOO_SMALL else {}
    for host in range(case.num_hosts):
      converted = _convert(case, host, **flags)
      self.assertCountEqual(converted, case.stacks())
      for stack, actual in converted.items():
        self._assert_same(case, host, stack, actual)

  def _assert_same(self, case, host, stack, actual):
    expected = case.outputs(host, stack)
    for name in golden_cases.BUFFERS:
      with self.subTest(host=host, stack=stack, buffer=name):
        self.assertEqual(actual[name].dtype, expected[name].dtype)
        self.assertEqual(actual[name].shape, expected[name].shape)
        # Beyond the cells that the format fixes, the cases hold the padding
        # that we promise, so no mask is needed.
        np.testing.assert_array_equal(
            golden_cases.same_bits(actual[name], expected[name]), True
        )
    for name in golden_cases.STATS:
      with self.subTest(host=host, stack=stack, statistic=name):
        np.testing.assert_array_equal(actual[name], expected[name])

  @parameterized.parameters(*_BUFFER_TOO_SMALL)
  def test_too_small_a_buffer_is_an_error_unless_ids_may_be_dropped(self, name):
    with self.assertRaisesRegex(
        ValueError,
        r"Stack 't': SparseCore \d of local device \d needs \d+ cells and has "
        r"\d+.* Raise suggested_coo_buffer_size_per_device to at least \d+",
    ):
      _convert(_CASES[name], host=0)


if __name__ == "__main__":
  absltest.main()
