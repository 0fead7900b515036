# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The converter gives the bytes of testdata/golden."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testdata.golden import golden_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_hosts
import numpy as np

_CASES = {case.name: case for case in golden_cases.golden_cases()}

# A buffer that is too small is an error unless ids may be dropped. The package
# that recorded these cases always dropped them.
_BUFFER_TOO_SMALL = {
    "42_buffer_overflow_1x2": (
        r"SparseCore \d of local device 0 needs \d+ cells"
    ),
    "43_buffer_overflow_weights_4x4": (
        r"SparseCore \d of local device \d needs \d+ cells"
    ),
    "52_mini_buffer_overflow_2x2": (
        r"local device 0 needs \d+ cells for its minibatches"
    ),
    "53_mini_one_batch_overflow_1x2": (
        r"local device 0 needs \d+ cells for its minibatches"
    ),
}


def _call(case: golden_cases.GoldenCase, host: int, **keywords):
  topology = case.topology()
  keywords["num_sc_per_device"] = topology.pop("num_sc_per_device")
  if case.is_sparse:
    return converter.preprocess_sparse_dense_matmul_sparse_coo_input(
        case.sparse(host, "indices"),
        case.sparse(host, "values"),
        case.sparse(host, "dense_shape"),
        case.feature_specs(),
        **topology,
        **keywords,
    )
  return converter.preprocess_sparse_dense_matmul_input(
      case.ids(host),
      case.weights(host),
      case.feature_specs(),
      **topology,
      **keywords,
  )


def _convert(case: golden_cases.GoldenCase, host: int, **keywords):
  """Buffers and statistics, as in GoldenCase.outputs, by stack."""
  keywords = case.config["flags"] | keywords
  keywords.pop("sharding_strategy", None)  # "MOD", which is the default here.
  *buffers, num_minibatches, stats = _call(case, host, **keywords)
  if num_minibatches != case.num_minibatches(host):
    raise ValueError(
        f"Expected {case.num_minibatches(host)} minibatches, got"
        f" {num_minibatches}."
    )
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
    self.assertLen(_CASES, 74)

  @parameterized.parameters(*_CASES)
  def test_bytes_equal_the_recorded_ones(self, name):
    case = _CASES[name]
    flags = {"allow_id_dropping": True} if name in _BUFFER_TOO_SMALL else {}
    hosts = converter_hosts.run_hosts(
        case.num_hosts,
        lambda h, host: _convert(case, h, all_reduce_interface=host, **flags),
    )
    for h, converted in enumerate(hosts):
      self.assertCountEqual(converted, case.stacks())
      for stack, actual in converted.items():
        self._assert_same(case, h, stack, actual)

  def _assert_same(self, case, host, stack, actual):
    expected = case.outputs(host, stack)
    # All weights of the cases are finite. The package that recorded them
    # divided by zero where those of a sample add up to it; we promise zeros.
    is_entry = expected["embedding_ids"] != constants.PADDING_VALUE
    gains = expected["gains"]
    expected["gains"] = np.where(
        is_entry & ~np.isfinite(gains), np.float32(0), gains
    )
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

  @parameterized.parameters(*_BUFFER_TOO_SMALL.items())
  def test_too_small_a_buffer_is_an_error_unless_ids_may_be_dropped(
      self, name, needs
  ):
    with self.assertRaisesRegex(
        ValueError,
        f"Stack 't': {needs}.* and has \\d+.*"
        r" Raise suggested_coo_buffer_size_per_device to at least \d+",
    ):
      _convert(_CASES[name], host=0)


if __name__ == "__main__":
  absltest.main()
