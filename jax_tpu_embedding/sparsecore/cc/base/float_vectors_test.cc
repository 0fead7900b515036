// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"

namespace jte {

namespace {

constexpr int kLanes = 8;

// ReadFloats from each of `values` on, against ToFloat, bit by bit. They begin
// at one that is not at a multiple of any vector.
template <typename T>
void ExpectAsToFloat(const std::vector<T>& values) {
  for (size_t i = 1; i + kLanes <= values.size(); i += kLanes) {
    Vector<float, kLanes> floats;
    ReadFloats<kLanes>(values.data() + i, floats);
    for (int k = 0; k < kLanes; ++k) {
      ASSERT_EQ(std::bit_cast<uint32_t>(float{floats[k]}),
                std::bit_cast<uint32_t>(ToFloat(values[i + k])))
          << "value " << i + k;
    }
  }
}

template <typename T>
std::vector<T> EveryValue() {
  std::vector<T> values(1);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    values.push_back({static_cast<uint16_t>(bits)});
  }
  return values;
}

TEST(FloatVectorsTest, ReadsEveryBfloat16) {
  ExpectAsToFloat(EveryValue<Bfloat16>());
}

TEST(FloatVectorsTest, ReadsEveryFloat16) {
  ExpectAsToFloat(EveryValue<Float16>());
}

TEST(FloatVectorsTest, ReadsFloatsAsTheyAre) {
  ExpectAsToFloat<float>({0.0f, -0.0f, 1.5f, 1e-45f, -3e38f,
                          std::numeric_limits<float>::infinity(),
                          std::bit_cast<float>(0x7fc01234), -1e-20f, 7.0f});
}

}  // namespace

}  // namespace jte
