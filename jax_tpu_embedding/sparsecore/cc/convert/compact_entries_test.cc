// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/compact_entries.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

using ::testing::ElementsAre;

// Columns that were written, `size` entries of them.
struct Entries {
  std::vector<uint32_t> keys;
  std::vector<int32_t> samples;
  std::vector<float> gains;
  std::vector<uint32_t> begins;

  friend bool operator==(const Entries&, const Entries&) = default;
};

template <typename Compact>
Entries CompactWith(Compact compact, std::span<const uint64_t> elements,
                    std::span<const float> id_gains) {
  const size_t capacity = elements.size() + kCompactSlack;
  Entries entries = {.keys = std::vector<uint32_t>(capacity),
                     .samples = std::vector<int32_t>(capacity),
                     .gains = std::vector<float>(capacity),
                     .begins = std::vector<uint32_t>(capacity)};
  const int64_t size = compact(elements, id_gains,
                               {.keys = entries.keys.data(),
                                .samples = entries.samples.data(),
                                .gains = entries.gains.data(),
                                .begins = entries.begins.data()});
  entries.keys.resize(size);
  entries.samples.resize(size);
  entries.gains.resize(size);
  entries.begins.resize(size + 1);
  return entries;
}

Entries Naive(std::span<const uint64_t> elements,
              std::span<const float> id_gains) {
  Entries entries;
  for (size_t i = 0; i < elements.size(); ++i) {
    const float gain = id_gains.empty() ? 1.0f : id_gains[i];
    if (i > 0 && elements[i] == elements[i - 1]) {
      entries.gains.back() += gain;
      continue;
    }
    entries.keys.push_back(SortKey::KeyOf(elements[i]));
    entries.samples.push_back(
        static_cast<int32_t>(SortKey::PayloadOf(elements[i])));
    entries.gains.push_back(gain);
    entries.begins.push_back(static_cast<uint32_t>(i));
  }
  entries.begins.push_back(static_cast<uint32_t>(elements.size()));
  return entries;
}

// The version for any processor, and the one that this processor gets.
class CompactEntriesTest
    : public testing::TestWithParam<decltype(&CompactEntries)> {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    if (GetParam() == &CompactEntries && !__builtin_cpu_supports("avx512f")) {
      GTEST_SKIP() << "Without AVX-512 it is the portable one.";
    }
#endif
  }
};

INSTANTIATE_TEST_SUITE_P(All, CompactEntriesTest,
                         testing::Values(&CompactEntriesPortably,
                                         &CompactEntries),
                         [](const auto& info) {
                           return info.index == 0 ? "Portable" : "Fast";
                         });

TEST_P(CompactEntriesTest, MergesARowOfASampleInOrderOfOccurrence) {
  const std::vector<uint64_t> elements = {
      SortKey::Element(5, 0), SortKey::Element(5, 0), SortKey::Element(5, 0),
      SortKey::Element(5, 1), SortKey::Element(6, 1)};
  // 2^24 + 1 - 2^24 in float32: the 1 is lost, from left to right.
  const std::vector<float> id_gains = {0x1p24f, 1.0f, -0x1p24f, 2.0f, -0.0f};
  const auto compact = GetParam();
  const Entries entries = CompactWith(compact, elements, id_gains);
  EXPECT_THAT(entries.keys, ElementsAre(5, 5, 6));
  EXPECT_THAT(entries.samples, ElementsAre(0, 1, 1));
  EXPECT_THAT(entries.gains, ElementsAre(0.0f, 2.0f, -0.0f));
  EXPECT_TRUE(std::signbit(entries.gains[2]));
  EXPECT_THAT(entries.begins, ElementsAre(0, 3, 4, 5));
  EXPECT_THAT(CompactWith(compact, elements, {}).gains,
              ElementsAre(3.0f, 1.0f, 1.0f));
}

// Few to many merges, in runs that cross blocks and vectors.
TEST_P(CompactEntriesTest, AgreesWithALoop) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> gain(-1.0f, 1.0f);
  for (const double repeats : {0.0, 0.05, 0.5, 0.95, 1.0}) {
    std::bernoulli_distribution repeat(repeats);
    for (int size : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 511, 512}) {
      std::vector<uint64_t> elements = {random()};
      std::vector<float> id_gains = {gain(random)};
      while (std::ssize(elements) < size) {
        uint64_t element = elements.back();
        if (!repeat(random)) {
          // Another sample, or row.
          element += random() % 2 == 0 ? 1 : uint64_t{1} << 32;
        }
        elements.push_back(element);
        id_gains.push_back(gain(random));
      }
      const auto compact = GetParam();
      EXPECT_EQ(CompactWith(compact, elements, id_gains),
                Naive(elements, id_gains));
      EXPECT_EQ(CompactWith(compact, elements, {}), Naive(elements, {}));
    }
  }
}

}  // namespace
}  // namespace jte
