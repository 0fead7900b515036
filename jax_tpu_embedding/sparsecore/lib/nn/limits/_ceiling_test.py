# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a ceiling may be; what it does is in _adaptive_limits_test.py."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.nn.limits import _ceiling


class LimitCeilingTest(parameterized.TestCase):

  @parameterized.parameters(
      ({"x": 8}, ValueError, "ceiling has 'x'; the choices are"),
      (
          {"max_ids_per_partition": 0},
          ValueError,
          "max_ids_per_partition must be a positive integer, got 0",
      ),
      ("most", ValueError, "ceiling must be 'compile', .* got 'most'"),
      (3, TypeError, "ceiling must be 'compile', a mapping, .* got 3"),
  )
  def test_what_is_no_ceiling_is_refused(self, ceiling, error, message):
    with self.assertRaisesRegex(error, message):
      _ceiling.LimitCeiling(ceiling, enable_minibatching=True)

  def test_numbers_need_several_passes(self):
    with self.assertRaisesRegex(ValueError, "needs enable_minibatching=True"):
      _ceiling.LimitCeiling(
          {"max_ids_per_partition": 8}, enable_minibatching=False
      )


if __name__ == "__main__":
  absltest.main()
