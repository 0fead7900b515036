// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"

namespace jte {
namespace {

TEST(WithVectorLanesTest, CallsWithTheFloatsOfARegister) {
  const int lanes = WithVectorLanes(
      []<int kLanes>() __attribute__((always_inline)) { return kLanes; });
  int expected = 4;
#ifdef JTE_HAS_AVX2_CODE
  if (__builtin_cpu_supports("avx2")) expected = 8;
#endif
#ifdef JTE_HAS_AVX512_CODE
  if (__builtin_cpu_supports("avx512f")) expected = 16;
#endif
  EXPECT_EQ(lanes, expected);
}

template <int kLanes>
[[gnu::always_inline]] inline void Double(std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); i += kLanes) {
    Vector<float, kLanes> part;
    ReadFloats<kLanes>(&values[i], part);
    part += part;
    std::memcpy(&values[i], &part, sizeof(part));
  }
}

TEST(WithVectorLanesTest, LoopsHaveTheSameResultsWithAnyNumberOfLanes) {
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), 1.0f);
  std::vector<float> expected;
  for (const float value : values) expected.push_back(2 * value);
  std::vector<float> of_four = values;
  Double<4>(of_four);
  EXPECT_EQ(of_four, expected);
  WithVectorLanes([&values]<int kLanes>() __attribute__((always_inline)) {
    Double<kLanes>(values);
  });
  EXPECT_EQ(values, expected);
}

}  // namespace
}  // namespace jte
