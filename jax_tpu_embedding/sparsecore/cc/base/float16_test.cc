// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace jte {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One type with its number of explicit mantissa bits, smallest exponent and
// largest value, from which the tests compute neighbours in double.
template <typename T>
struct Format;

template <>
struct Format<Bfloat16> {
  static constexpr int kMantissaBits = 7;
  static constexpr int kMinExponent = -126;
  static constexpr float kMax = 0x1.fep127f;
};

template <>
struct Format<Float16> {
  static constexpr int kMantissaBits = 10;
  static constexpr int kMinExponent = -14;
  static constexpr float kMax = 65504.0f;
};

// The distance of neighbours around `value`.
template <typename T>
double Unit(float value) {
  const int exponent =
      std::max(value == 0 ? -1000 : std::ilogb(value), Format<T>::kMinExponent);
  return std::ldexp(1.0, exponent - Format<T>::kMantissaBits);
}

template <typename T>
class Float16Test : public testing::Test {};

using Types = testing::Types<Bfloat16, Float16>;
TYPED_TEST_SUITE(Float16Test, Types);

TYPED_TEST(Float16Test, EveryValueSurvives) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam value{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(value);
    for (const TypeParam back :
         {RoundToNearest<TypeParam>(wide), RoundAtRandom<TypeParam>(wide, 0),
          RoundAtRandom<TypeParam>(wide, ~0u)}) {
      if (std::isnan(wide)) {
        EXPECT_TRUE(std::isnan(ToFloat(back))) << bits;
      } else {
        EXPECT_EQ(back.bits, bits) << bits;
      }
    }
  }
}

TYPED_TEST(Float16Test, ValuesAreThoseOfTheFormat) {
  // In the order of their bits, positive values ascend by one unit.
  float last = 0.0f;
  for (uint16_t bits = 1; ToFloat(TypeParam{bits}) < kInfinity; ++bits) {
    const float value = ToFloat(TypeParam{bits});
    ASSERT_EQ(value, last + Unit<TypeParam>(last)) << bits;
    ASSERT_EQ(ToFloat(TypeParam{static_cast<uint16_t>(bits | 0x8000)}), -value);
    last = value;
  }
  EXPECT_EQ(last, Format<TypeParam>::kMax);
}

TYPED_TEST(Float16Test, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7f800000; bits += 997) {
    for (const uint32_t sign : {0u, kSignBit}) {
      const auto value = std::bit_cast<float>(bits | sign);
      const double unit = Unit<TypeParam>(value);
      // nearbyint rounds ties to even.
      const double expected = std::nearbyint(value / unit) * unit;
      const float got = ToFloat(RoundToNearest<TypeParam>(value));
      if (std::abs(expected) > Format<TypeParam>::kMax) {
        ASSERT_EQ(got, std::copysign(kInfinity, value));
      } else {
        ASSERT_EQ(got, expected) << value;
        ASSERT_EQ(std::signbit(got), std::signbit(value));
      }
    }
  }
}

TYPED_TEST(Float16Test, TiesGoToEven) {
  const auto unit = static_cast<float>(Unit<TypeParam>(1.0f));
  EXPECT_EQ(ToFloat(RoundToNearest<TypeParam>(1 + 0.5f * unit)), 1.0f);
  EXPECT_EQ(ToFloat(RoundToNearest<TypeParam>(1 + 1.5f * unit)), 1 + 2 * unit);
}

TYPED_TEST(Float16Test, RandomRoundingKeepsTheMean) {
  // 1 + 3/8 of a unit: up for the noises from 5/8 of 2^16 on.
  const auto unit = static_cast<float>(Unit<TypeParam>(1.0f));
  for (const float sign : {1.0f, -1.0f}) {
    int num_up = 0;
    for (uint32_t noise = 0; noise < 0x10000; ++noise) {
      // The lower half of the bits is not used.
      const float got = ToFloat(RoundAtRandom<TypeParam>(
          sign * (1 + 0.375f * unit), noise << 16 | 0xffff));
      ASSERT_TRUE(got == sign || got == sign * (1 + unit)) << got;
      num_up += got != sign;
    }
    EXPECT_EQ(num_up, 3 * 0x10000 / 8);
  }
}

TYPED_TEST(Float16Test, RandomRoundingTakesOneOfTheTwoNeighbours) {
  for (uint32_t bits = 0; bits < 0x7f800000; bits += 4099) {
    const auto value = std::bit_cast<float>(bits);
    const double unit = Unit<TypeParam>(value);
    const double below = std::floor(value / unit) * unit;
    const double largest = Format<TypeParam>::kMax;
    EXPECT_EQ(ToFloat(RoundAtRandom<TypeParam>(value, 0)),
              std::min(below, largest));
    const float got = ToFloat(RoundAtRandom<TypeParam>(value, ~0u));
    EXPECT_TRUE(got == std::min(below, largest) ||
                got == std::min(below + unit, largest))
        << value;
  }
}

TYPED_TEST(Float16Test, RandomRoundingKeepsWhatIsNotFinite) {
  for (const uint32_t random : {0u, ~0u}) {
    for (const float value : {kInfinity, -kInfinity}) {
      EXPECT_EQ(ToFloat(RoundAtRandom<TypeParam>(value, random)), value);
    }
    // Payload in the bits that are cut off.
    const auto nan = std::bit_cast<float>(uint32_t{0x7f800001});
    EXPECT_TRUE(std::isnan(ToFloat(RoundAtRandom<TypeParam>(nan, random))));
    EXPECT_TRUE(std::isnan(ToFloat(RoundToNearest<TypeParam>(nan))));
    const float max = std::numeric_limits<float>::max();
    EXPECT_EQ(ToFloat(RoundAtRandom<TypeParam>(-max, random)),
              -Format<TypeParam>::kMax);
  }
}

}  // namespace

}  // namespace jte
