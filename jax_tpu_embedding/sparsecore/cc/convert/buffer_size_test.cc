// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/buffer_size.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {
namespace {

using ::testing::HasSubstr;

constexpr Topology kTopology = {
    .local_device_count = 2, .global_device_count = 2, .num_sc_per_device = 4};

StackSpec Spec(int64_t max_ids, std::optional<int64_t> suggestion) {
  return {.name = "items",
          .combiner = "sum",
          .max_ids_per_partition = max_ids,
          .max_unique_ids_per_partition = 8,
          .suggested_coo_buffer_size_per_device = suggestion};
}

TEST(CheckTopologyTest, AcceptsAnyPositiveCounts) {
  EXPECT_TRUE(CheckTopology(kTopology));
  EXPECT_TRUE(CheckTopology({.local_device_count = 1,
                             .global_device_count = 7,
                             .num_sc_per_device = 3}));
}

TEST(CheckTopologyTest, NamesTheCountThatIsWrong) {
  struct Case {
    Topology topology;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{0, 1, 1}, "local_device_count must be greater than 0"},
      {{1, 0, 1}, "global_device_count must be greater than 0"},
      {{1, 1, -1}, "num_sc_per_device must be greater than 0"},
      {{2, 1, 1}, "global_device_count must be greater than or equal to"},
      {{1, 1 << 20, 8}, "more than 16777216 partitions"},
  };
  for (const Case& c : cases) {
    const auto checked = CheckTopology(c.topology);
    ASSERT_FALSE(checked) << c.message;
    EXPECT_THAT(checked.error().message, HasSubstr(c.message));
  }
}

TEST(CooCellsPerDeviceTest, TakesTheRoundedSuggestionOrTheTheoreticalMost) {
  // up8(10) * 4 SparseCores * 8 partitions.
  EXPECT_EQ(*CooCellsPerDevice(Spec(10, std::nullopt), kTopology, false), 512);
  EXPECT_EQ(*CooCellsPerDevice(Spec(8, 1), kTopology, false), 32);
  EXPECT_EQ(*CooCellsPerDevice(Spec(8, 33), kTopology, false), 64);
  EXPECT_EQ(*CooCellsPerDevice(Spec(8, 256), kTopology, false), 256);
  EXPECT_EQ(*CooCellsPerDevice(Spec(10, std::nullopt), kTopology, true),
            512 * 64);
  EXPECT_EQ(*CooCellsPerDevice(Spec(10, 100), kTopology, true), 128);
}

TEST(CooCellsPerDeviceTest, RefusesWhatCannotBe) {
  StackSpec no_unique_ids = Spec(8, std::nullopt);
  no_unique_ids.max_unique_ids_per_partition = 0;
  struct Case {
    StackSpec spec;
    std::string message;
  };
  const std::vector<Case> cases = {
      {Spec(8, 257),
       "Stack 'items': suggested_coo_buffer_size_per_device=257, "
       "rounded up to 288 (a multiple of 8 * num_sc_per_device), "
       "is above 256"},
      {Spec(8, 0),
       "suggested_coo_buffer_size_per_device must be in [1, "
       "2147483647], got 0."},
      {Spec(0, std::nullopt), "max_ids_per_partition must be in [1, "},
      {no_unique_ids, "max_unique_ids_per_partition must be in [1, "},
      {Spec(int64_t{1} << 31, std::nullopt), "got 2147483648."},
      {Spec((1 << 27) - 1, std::nullopt),
       "would have 4294967296 cells, and must have fewer than 2147483647"},
  };
  for (const Case& c : cases) {
    const auto cells = CooCellsPerDevice(c.spec, kTopology, false);
    ASSERT_FALSE(cells) << c.message;
    EXPECT_THAT(cells.error().message, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace jte
