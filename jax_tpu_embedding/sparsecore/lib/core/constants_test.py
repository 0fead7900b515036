# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import constants

_CC = pathlib.Path(__file__).parents[2] / "cc"
_INT32 = "std::numeric_limits<int32_t>::"


def _value_in_cc(header: str, name: str) -> int:
  """That of `inline constexpr TYPE name = VALUE;`."""
  definition = re.search(
      rf"constexpr int(?:32|64)_t {name} =\s*(.*?);",
      (_CC / header).read_text(),
      flags=re.DOTALL,
  )
  value = definition[1].replace("int64_t{1}", "1")
  for limit, number in (("max()", 2**31 - 1), ("min()", -(2**31))):
    value = value.replace(_INT32 + limit, str(number))
  # What is left has numbers, `<<` and `-`.
  if not re.fullmatch(r"[-0-9<() ]+", value):
    raise ValueError(f"{header}: {name} = {value} is more than a number.")
  return eval(value)  # pylint: disable=eval-used


class ConstantsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("PADDING_VALUE", "layout/constants.h", "kPaddingId"),
      ("ALIGNMENT", "layout/constants.h", "kAlignment"),
      (
          "MIN_ROW_POINTERS_PER_BLOCK",
          "layout/constants.h",
          "kMinRowPointersPerBlock",
      ),
      ("MAX_SAMPLES_PER_DEVICE", "layout/constants.h", "kMaxSamplesPerDevice"),
      ("FAILED_CONVERSION", "ffi/failed_buffers.h", "kFailedConversion"),
      ("MAX_MINIBATCHES", "layout/constants.h", "kMaxMinibatches"),
  )
  def test_number_is_that_of_cc(self, name, header, name_in_cc):
    self.assertEqual(getattr(constants, name), _value_in_cc(header, name_in_cc))


if __name__ == "__main__":
  absltest.main()
