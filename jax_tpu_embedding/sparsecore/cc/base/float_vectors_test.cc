// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

namespace jte {

namespace {

template <int kLanes, typename T>
[[gnu::always_inline]] inline void Read(const std::vector<T>& values,
                                        std::vector<float>& floats) {
  // Not at a multiple of any vector.
  for (size_t i = 1; i + kLanes <= values.size(); i += kLanes) {
    Vector<float, kLanes> part;
    ReadFloats<kLanes>(values.data() + i, part);
    std::memcpy(&floats[i], &part, sizeof(part));
  }
}

// ReadFloats, against ToFloat, bit by bit; but what is no number may become a
// quiet NaN. Of values whose number is one more than a multiple of 16.
template <typename T>
void ExpectAsToFloat(const std::vector<T>& values) {
  std::vector<float> by_4(values.size());
  std::vector<float> by_8(values.size());
  std::vector<float> by_register(values.size());
  Read<4>(values, by_4);
  WithVectorLanes([&]<int kLanes>() __attribute__((always_inline)) {
    // A piece of a row may be shorter than a register.
    Read<std::min(kLanes, 8)>(values, by_8);
    Read<kLanes>(values, by_register);
  });
  for (const std::vector<float>& floats : {by_4, by_8, by_register}) {
    for (size_t i = 1; i < values.size(); ++i) {
      const float expected = ToFloat(values[i]);
      const uint32_t quiet = std::isnan(expected) ? kQuietNaN : 0;
      ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]) | quiet,
                std::bit_cast<uint32_t>(expected) | quiet)
          << "value " << i;
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
  std::vector<float> values = {0.0f,
                               0.0f,
                               -0.0f,
                               1.5f,
                               1e-45f,
                               -3e38f,
                               std::numeric_limits<float>::infinity(),
                               std::bit_cast<float>(0x7fc01234),
                               -1e-20f,
                               7.0f};
  values.resize(33, 8.0f);
  ExpectAsToFloat(values);
}

}  // namespace

}  // namespace jte
