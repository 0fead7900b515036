// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/count_entries.h"

#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

// Ids of `num_rows` rows, in order, with samples as payloads, or with ordinals
// as payloads and the samples beside them.
struct Ids {
  Ids(uint32_t size, uint32_t num_rows) : weighted(size) {
    std::mt19937 random(size + num_rows);
    std::vector<uint32_t> rows(size);
    for (uint32_t& row : rows) row = random() % num_rows;
    std::ranges::sort(rows);
    for (uint32_t i = 0; i < size; ++i) {
      const bool same_row = i > 0 && rows[i] == rows[i - 1];
      const int32_t sample =
          same_row ? weighted[i - 1].sample + static_cast<int32_t>(random() % 2)
                   : static_cast<int32_t>(random() % 5);
      weighted[i] = {.sample = sample, .gain = 1.0f};
      with_samples.push_back(SortKey::Element(rows[i], sample));
      with_ordinals.push_back(SortKey::Element(rows[i], i));
      distinct_rows.insert(rows[i]);
      entries.emplace(rows[i], sample);
    }
  }

  std::vector<WeightedId> weighted;
  std::vector<uint64_t> with_samples;
  std::vector<uint64_t> with_ordinals;
  std::set<uint32_t> distinct_rows;
  std::set<std::pair<uint32_t, int32_t>> entries;
};

TEST(CountEntriesTest, CountsWhatASetHolds) {
  for (const uint32_t num_rows : {1, 3, 50, 1'000'000}) {
    for (const uint32_t size : {0, 1, 2, 8, 16, 17, 18, 33, 34, 49, 1000}) {
      const Ids ids(size, num_rows);
      const DistinctCounts of_samples =
          CountDistinct(ids.with_samples, UnitGains());
      const DistinctCounts of_ordinals =
          CountDistinct(ids.with_ordinals, IdGains{ids.weighted});
      EXPECT_EQ(of_samples.ids, ids.entries.size()) << num_rows << " " << size;
      EXPECT_EQ(of_samples.unique_ids, ids.distinct_rows.size());
      EXPECT_EQ(of_ordinals.ids, ids.entries.size()) << num_rows << " " << size;
      EXPECT_EQ(of_ordinals.unique_ids, ids.distinct_rows.size());
    }
  }
}

TEST(CountEntriesTest, LeadingRowsEndBeforeTheBlockOfARepeat) {
  constexpr int kSize = 2 * kRowsPerBlock + 3;
  std::vector<uint64_t> elements;
  for (int i = 0; i <= kSize; ++i) {
    elements.push_back(SortKey::Element(i, 0));
  }
  EXPECT_EQ(CountLeadingRows(elements), 2 * kRowsPerBlock);
  for (uint32_t i = 1; i <= 2 * kRowsPerBlock; ++i) {
    std::vector<uint64_t> with_repeat = elements;
    with_repeat[i] = with_repeat[i - 1] + 1;  // the row in the next sample
    EXPECT_EQ(CountLeadingRows(with_repeat),
              (i - 1) / kRowsPerBlock * kRowsPerBlock)
        << i;
  }
}

}  // namespace
}  // namespace jte
