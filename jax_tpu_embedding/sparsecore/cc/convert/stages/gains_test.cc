// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte::convert {
namespace {

TEST(GainsTest, UnweightedGainDependsOnTheNumberOfIds) {
  EXPECT_EQ(UnweightedGain(Combiner::kSum, 4), 1.0f);
  EXPECT_EQ(UnweightedGain(Combiner::kMean, 4), 0.25f);
  EXPECT_EQ(UnweightedGain(Combiner::kSqrtn, 4), 0.5f);
  EXPECT_EQ(UnweightedGain(Combiner::kMean, 3), 1.0f / 3.0f);
}

TEST(GainsTest, DivisorIsOneOrTheSumOrTheNorm) {
  const std::vector<float> weights = {3.0f, -4.0f};
  EXPECT_EQ(WeightDivisor(Combiner::kSum, weights), 1.0f);
  EXPECT_EQ(WeightDivisor(Combiner::kMean, weights), -1.0f);
  EXPECT_EQ(WeightDivisor(Combiner::kSqrtn, weights), 5.0f);
}

TEST(GainsTest, MeanAddsInFloat32FromLeftToRight) {
  // 2^24 + 1 is not a float32: each 1 is lost, unlike 1 + 1 + 2^24.
  EXPECT_EQ(WeightDivisor(Combiner::kMean, std::vector<float>{0x1p24f, 1, 1}),
            0x1p24f);
  EXPECT_EQ(WeightDivisor(Combiner::kMean, std::vector<float>{1, 1, 0x1p24f}),
            0x1p24f + 2);
}

TEST(GainsTest, SqrtnRoundsToFloat32OncePerWeight) {
  // 1 + w^2 lies just above the middle of two float32. The low bits of w^2,
  // which a square in float32 would lose, decide: 0x1.0808ecp+0 without them.
  EXPECT_EQ(
      WeightDivisor(Combiner::kSqrtn, std::vector<float>{1, 4137 * 0x1p-14f}),
      0x1.0808eep+0f);
}

TEST(GainsTest, DivisorCanVanish) {
  EXPECT_EQ(WeightDivisor(Combiner::kMean, std::vector<float>{1, -1}), 0.0f);
  EXPECT_TRUE(
      std::isnan(WeightDivisor(Combiner::kMean, std::vector<float>{NAN, 1})));
}

TEST(GainsTest, UnknownCombinerListsTheChoices) {
  EXPECT_EQ(*ParseCombiner("sqrtn"), Combiner::kSqrtn);
  const auto combiner = ParseCombiner("max");
  ASSERT_FALSE(combiner);
  EXPECT_THAT(combiner.error().message,
              testing::HasSubstr("'max'; choose 'sum', 'mean' or 'sqrtn'."));
}

}  // namespace
}  // namespace jte::convert
