// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the emulation is for: kernels that are right give one result, and each
// of some that are wrong is found.

#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kLaunches = 20;

struct CountThreads {
  static constexpr int kThreads = 64;
  int32_t* counts;
  int64_t n;
  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < n; i += thread.num_threads()) {
      ++counts[i];
    }
  }
};

TEST(SimtEmulationTest, EveryThreadRunsOnce) {
  for (const int64_t n : {1, 64, 100, 1000}) {
    for (const int64_t num_blocks : {1, 3}) {
      std::vector<int32_t> counts(n, 0);
      EXPECT_EQ(Launch(Stream(), num_blocks, CountThreads{counts.data(), n}),
                nullptr);
      EXPECT_THAT(counts, Each(1));
    }
  }
}

struct CountNumbers {
  static constexpr int kThreads = 64;
  int32_t* counts;
  int64_t n;
  JTE_DEVICE void operator()(const Thread& thread) const {
    ForEachNumber(thread, n, [this](const Numbers& numbers) {
      for (int k = 0; k < Numbers::kSize; ++k) {
        if (numbers.has(k)) ++counts[numbers.number(k)];
      }
    });
  }
};

TEST(SimtEmulationTest, EveryNumberIsVisitedOnce) {
  for (const int64_t n : {1, 63, 64, 257, 1000}) {
    for (const int64_t num_blocks : {1, 3, 9}) {
      std::vector<int32_t> counts(n, 0);
      EXPECT_EQ(Launch(Stream(), num_blocks, CountNumbers{counts.data(), n}),
                nullptr);
      EXPECT_THAT(counts, Each(1));
    }
  }
}

// As many threads as numbers while there is room for them, then a quarter.
TEST(SimtEmulationTest, BlocksForNumbers) {
  EXPECT_EQ(NumBlocksForNumbers<CountNumbers>(0), 0);
  EXPECT_EQ(NumBlocksForNumbers<CountNumbers>(65), 2);
  EXPECT_EQ(NumBlocksForNumbers<CountNumbers>(64 * 1024), 1024);
  EXPECT_EQ(NumBlocksForNumbers<CountNumbers>(64 * 4095), 1024);
  EXPECT_EQ(NumBlocksForNumbers<CountNumbers>(64 * 8000), 2000);
}

struct SumTiles {
  static constexpr int kThreads = 64;
  static constexpr bool kExchanges = true;
  const float* x;
  float* sums;
  int lanes;
  JTE_DEVICE void operator()(const Thread& thread) const {
    float sum = 0.0f;
    for (int lane = 0; lane < lanes; ++lane) {
      sum += thread.Shuffle(x[thread.number()], lane, lanes);
    }
    sums[thread.number()] = sum;
  }
};

TEST(SimtEmulationTest, ThreadsOfATileExchangeValues) {
  std::vector<float> x(128);
  std::iota(x.begin(), x.end(), 1.0f);
  for (const int lanes : {1, 2, 8, 32}) {
    std::vector<float> sums(x.size());
    ASSERT_EQ(Launch(Stream(), 2, SumTiles{x.data(), sums.data(), lanes}),
              nullptr);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t first = i / lanes * lanes;
      EXPECT_EQ(sums[i], std::accumulate(x.begin() + first,
                                         x.begin() + first + lanes, 0.0f));
    }
  }
}

struct LeaveOne {
  static constexpr int kThreads = 32;
  static constexpr bool kExchanges = true;
  int32_t* out;
  JTE_DEVICE void operator()(const Thread& thread) const {
    if (thread.index() == 7) return;
    out[thread.index()] = thread.Shuffle(thread.index(), 0, 32);
  }
};

TEST(SimtEmulationTest, AThreadThatDoesNotComeIsAnError) {
  std::vector<int32_t> out(32);
  const char* error = Launch(Stream(), 1, LeaveOne{out.data()});
  ASSERT_NE(error, nullptr);
  EXPECT_THAT(std::string(error), HasSubstr("do not come"));
}

// A thread reads what its neighbour writes.
template <bool kWaits>
struct ReadNeighbour {
  static constexpr int kThreads = 32;
  static constexpr bool kExchanges = true;
  int32_t* shared;
  int32_t* out;
  JTE_DEVICE void operator()(const Thread& thread) const {
    const int i = thread.index();
    shared[i] = i;
    if constexpr (kWaits) thread.SyncTile(32);
    out[i] = shared[(i + 1) % 32];
  }
};

template <bool kWaits>
bool ReadsAreRight() {
  std::vector<int32_t> shared(32, -1);
  std::vector<int32_t> out(32);
  EXPECT_EQ(
      Launch(Stream(), 1, ReadNeighbour<kWaits>{shared.data(), out.data()}),
      nullptr);
  for (int i = 0; i < 32; ++i) {
    if (out[i] != (i + 1) % 32) return false;
  }
  return true;
}

TEST(SimtEmulationTest, AMissingBarrierIsFound) {
  int num_right = 0;
  for (int k = 0; k < kLaunches; ++k) {
    EXPECT_TRUE(ReadsAreRight<true>());
    num_right += ReadsAreRight<false>();
  }
  EXPECT_EQ(num_right, 0);
}

// Adds numbers whose float sum depends on their order.
struct AddInAnyOrder {
  static constexpr int kThreads = 32;
  const float* x;
  float* sum;
  JTE_DEVICE void operator()(const Thread& thread) const {
    *sum += x[thread.number()];
  }
};

TEST(SimtEmulationTest, AnOrderThatMattersIsFound) {
  std::vector<float> x(128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(i + 3);
  std::set<float> sums;
  for (int k = 0; k < kLaunches; ++k) {
    float sum = 0.0f;
    ASSERT_EQ(Launch(Stream(), 4, AddInAnyOrder{x.data(), &sum}), nullptr);
    sums.insert(sum);
  }
  EXPECT_GT(sums.size(), 3);
}

#if defined(__SANITIZE_ADDRESS__)
// Writes one element too far, on the stack of a fiber or without one.
template <bool kInFiber>
struct WriteTooFar {
  static constexpr int kThreads = 32;
  static constexpr bool kExchanges = kInFiber;
  int32_t* out;
  JTE_DEVICE void operator()(const Thread& thread) const {
    out[thread.number() + 1] = 1;
  }
};

TEST(SimtEmulationDeathTest, AnOverrunIsFound) {
  std::vector<int32_t> out(32);
  EXPECT_DEATH(Launch(Stream(), 1, WriteTooFar<false>{out.data()}),
               "heap-buffer-overflow");
  EXPECT_DEATH(Launch(Stream(), 1, WriteTooFar<true>{out.data()}),
               "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace jte::gpu
