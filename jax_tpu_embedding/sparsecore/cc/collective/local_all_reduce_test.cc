// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/collective/local_all_reduce.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jte::collective {
namespace {

using Hosts = std::vector<std::unique_ptr<AllReduce>>;

// Runs `run(rank, host)` on a thread per host. A host goes when its run ends,
// as it does in a program whose thread returns early.
void RunHosts(Hosts hosts,
              const std::function<void(int rank, AllReduce& host)>& run) {
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    threads.emplace_back([rank, &run, host = std::move(hosts[rank])] {
      run(static_cast<int>(rank), *host);
    });
  }
}

TEST(LocalAllReduceTest, OneHostGetsWhatItGave) {
  const Hosts hosts = MakeLocalAllReduce(1);
  EXPECT_EQ(hosts[0]->AnyOf(0, false), false);
  EXPECT_EQ(hosts[0]->AnyOf(2, true), true);
  EXPECT_EQ(hosts[0]->BitwiseOr(1, 0b101), 0b101);
}

TEST(LocalAllReduceTest, EveryHostGetsTheOrOfAll) {
  for (const int n : {2, 3, 7}) {
    RunHosts(MakeLocalAllReduce(n), [n](int rank, AllReduce& host) {
      EXPECT_EQ(host.AnyOf(0, false), false);
      EXPECT_EQ(host.AnyOf(2, rank == n - 1), true);
      // Rank r contributes bit 9r: each bit arrives, up to bit 54.
      uint64_t all = 0;
      for (int r = 0; r < n; ++r) all |= uint64_t{1} << (9 * r);
      EXPECT_EQ(host.BitwiseOr(3, uint64_t{1} << (9 * rank)), all);
    });
  }
}

TEST(LocalAllReduceTest, AllSixtyFourBitsTravel) {
  RunHosts(MakeLocalAllReduce(2), [](int rank, AllReduce& host) {
    const uint64_t half = uint64_t{0xffffffff} << (32 * rank);
    EXPECT_EQ(host.BitwiseOr(0, half), ~uint64_t{0});
  });
}

// Hosts run up to a few batches apart, in a random order per seed.
TEST(LocalAllReduceTest, ManyKeysMatchTheirOwnReduction) {
  for (int seed = 0; seed < 5; ++seed) {
    const int n = 3;
    RunHosts(MakeLocalAllReduce(n), [seed](int rank, AllReduce& host) {
      std::mt19937 random(100 * seed + rank);
      for (int key = 0; key < 3 * kNumRememberedKeys; ++key) {
        if (random() % 64 == 0) std::this_thread::yield();
        const uint64_t all = 0b111 * (uint64_t{1} << (3 * (key % 20)));
        const uint64_t own = all & (0x1249249249249249 << rank);
        ASSERT_EQ(host.BitwiseOr(key, own), all) << key;
      }
    });
  }
}

TEST(LocalAllReduceTest, KeysOfOneHostMayOverlap) {
  RunHosts(MakeLocalAllReduce(2), [](int rank, AllReduce& host) {
    // Each host starts with the key that the other starts last.
    std::vector<std::jthread> threads;
    for (const int key : {rank, 1 - rank}) {
      threads.emplace_back([key, rank, &host] {
        EXPECT_EQ(host.AnyOf(key, rank == key), true);
      });
    }
  });
}

TEST(LocalAllReduceTest, AKeyUsedTwiceIsAnError) {
  const Hosts hosts = MakeLocalAllReduce(1);
  ASSERT_TRUE(hosts[0]->AnyOf(4, true));
  const auto again = hosts[0]->AnyOf(4, true);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(again.error().message,
            "Reduction with sync_key 4: participant 0 contributed before. Use "
            "a batch_number once.");
}

TEST(LocalAllReduceTest, OnlyRecentKeysAreRemembered) {
  const Hosts hosts = MakeLocalAllReduce(1);
  for (int key = 0; key <= kNumRememberedKeys; ++key) {
    ASSERT_TRUE(hosts[0]->AnyOf(key, false));
  }
  EXPECT_FALSE(hosts[0]->AnyOf(1, false));  // the oldest that is remembered
  EXPECT_TRUE(hosts[0]->AnyOf(0, false));
}

TEST(LocalAllReduceTest, HostsThatDisagreeOnTheKindGetAnError) {
  // The loser of the race leaves, and so the winner fails too.
  RunHosts(MakeLocalAllReduce(2), [](int rank, AllReduce& host) {
    const bool failed =
        rank == 0 ? !host.AnyOf(0, true) : !host.BitwiseOr(0, 1);
    EXPECT_TRUE(failed);
  });
}

TEST(LocalAllReduceTest, AHostThatLeavesFailsThoseThatWaitForIt) {
  RunHosts(MakeLocalAllReduce(3), [](int rank, AllReduce& host) {
    EXPECT_EQ(host.AnyOf(0, false), false);
    if (rank == 1) return;
    for (const int key : {2, 4}) {
      const auto result = host.AnyOf(key, true);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().message,
                StrCat("Reduction with sync_key ", key,
                       ": participant 1 left without contributing. See its "
                       "error."));
    }
  });
}

TEST(LocalAllReduceTest, AHostThatContributedMayLeave) {
  Hosts hosts = MakeLocalAllReduce(2);
  std::jthread other([host = std::move(hosts[1])] { host->AnyOf(0, true); });
  EXPECT_EQ(hosts[0]->AnyOf(0, false), true);
}

}  // namespace
}  // namespace jte::collective
