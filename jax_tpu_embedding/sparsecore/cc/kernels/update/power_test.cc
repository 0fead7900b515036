// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/power.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace jte::kernels {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Every 4099th positive float, subnormal ones too: the whole range of
// exponents, with all kinds of mantissas.
TEST(PowerTest, IsWithinOneUnitInTheLastPlace) {
  for (const float y : {-7.5f, -1.75f, -0.5f, -1.0f / 3, 1e-3f, 0.75f, 30.1f}) {
    const Power power(y);
    for (uint32_t bits = 1; bits < 0x7f800000; bits += 4099) {
      const auto x = std::bit_cast<float>(bits);
      const double exact = std::pow(double{x}, double{y});
      const float got = power(x);
      if (exact > std::numeric_limits<float>::max()) {
        ASSERT_GE(got, std::numeric_limits<float>::max()) << x << " ^ " << y;
        continue;
      }
      const auto nearest = static_cast<float>(exact);
      const float unit = std::nextafter(nearest, kInfinity) - nearest;
      ASSERT_NEAR(got, exact, unit) << x << " ^ " << y;
    }
  }
}

TEST(PowerTest, IsExactWhereTheResultIs) {
  EXPECT_EQ(Power(1.5f)(4.0f), 8.0f);
  EXPECT_EQ(Power(-0.25f)(16.0f), 0.5f);
  EXPECT_EQ(Power(0.3f)(1.0f), 1.0f);
}

TEST(PowerTest, HasTheSpecialValuesOfPow) {
  for (const float y : {-2.5f, -0.75f, 0.5f, 3.25f}) {
    const Power power(y);
    for (const float x : {0.0f, kInfinity}) {
      EXPECT_EQ(power(x), std::pow(x, y)) << x << " ^ " << y;
    }
    for (const float x : {-1.0f, -1e-40f, kNaN}) {
      EXPECT_TRUE(std::isnan(power(x))) << x << " ^ " << y;
    }
  }
}

TEST(PowerTest, EveryExponentIsServed) {
  EXPECT_TRUE(InverseSquareRoot::Serves(-0.5f));
  EXPECT_FALSE(InverseSquareRoot::Serves(0.5f));
  EXPECT_TRUE(SquareRoot::Serves(0.5f));
  EXPECT_FALSE(SquareRoot::Serves(-0.5f));
  EXPECT_TRUE(Power::Serves(-1.0f / 3));
  // The powers of negative numbers differ from NaN.
  for (const float y : {0.0f, 1.0f, -2.0f, kInfinity, kNaN}) {
    EXPECT_FALSE(Power::Serves(y)) << y;
    EXPECT_TRUE(AnyPower::Serves(y)) << y;
  }
  EXPECT_EQ(AnyPower(-1.0f)(-4.0f), -0.25f);
}

}  // namespace

}  // namespace jte::kernels
