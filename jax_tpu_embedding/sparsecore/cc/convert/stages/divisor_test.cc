// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/divisor.h"

#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace jte::convert {
namespace {

constexpr uint32_t kLargest = std::numeric_limits<int32_t>::max();

void ExpectExact(uint32_t n, uint32_t d) {
  ASSERT_EQ(Divisor(d).Quotient(n), n / d) << n << " / " << d;
}

TEST(DivisorTest, IsExactAroundEveryMultipleThatCouldRoundWrongly) {
  for (uint32_t d = 1; d <= 1100; ++d) {
    for (uint32_t multiple : {0u, d, 2 * d, 77 * d, kLargest / d * d}) {
      for (int64_t n = int64_t{multiple} - 1; n <= int64_t{multiple} + 1; ++n) {
        if (n >= 0 && n <= kLargest) ExpectExact(n, d);
      }
    }
    ExpectExact(kLargest, d);
  }
}

TEST(DivisorTest, IsExactForRandomNumbersAndLargeDivisors) {
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> number(0, kLargest);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t n = number(random);
    const uint32_t d = (number(random) >> (random() % 31)) | 1;
    ExpectExact(n, d);
    ExpectExact(n, kLargest);
  }
}

}  // namespace
}  // namespace jte::convert
