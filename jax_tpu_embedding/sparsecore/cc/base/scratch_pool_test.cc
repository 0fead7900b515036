// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"
#include "jax_tpu_embedding/sparsecore/cc/base/failing_allocation.h"

namespace jte {
namespace {

// A kind of scratch per test, since a process has one cache of each.
template <int>
struct TestScratch {
  ScratchArray<char> array;

  size_t capacity_bytes() const { return array.capacity_bytes(); }
};

TEST(ScratchArrayTest, KeepsItsMemoryForSizesThatFit) {
  ScratchArray<int> array;
  const int* const data = array.Take(800).data();
  EXPECT_EQ(array.Take(100).data(), data);
  EXPECT_EQ(array.Take(900).data(), data) << "grows by an eighth more";
  EXPECT_EQ(array.Take(1000).size(), 1000);
}

TEST(ScratchPoolTest, PassesScratchOnToLaterCalls) {
  using Scratch = TestScratch<0>;
  const Scratch* first = nullptr;
  {
    ScratchPool<Scratch> pool;
    auto scratch = pool.Take();
    scratch->array.Take(80);
    first = scratch.get();
    pool.Return(std::move(scratch));
    scratch = pool.Take();
    EXPECT_EQ(scratch.get(), first) << "to the next task of the call";
    EXPECT_NE(pool.Take().get(), first) << "not to two tasks";
    pool.Return(std::move(scratch));
  }
  EXPECT_EQ(CacheBudget::OfProcess().used_bytes(), 90);
  ScratchPool<Scratch> later;
  EXPECT_EQ(later.Take().get(), first);
  EXPECT_EQ(CacheBudget::OfProcess().used_bytes(), 0);
}

template <typename Scratch>
void ReturnToCache(size_t size) {
  auto scratch = std::make_unique<Scratch>();
  scratch->array.Take(size);
  ScratchCache<Scratch>::OfProcess().Return(std::move(scratch));
}

TEST(ScratchCacheTest, KindsHaveOneBudget) {
  CacheBudget& budget = CacheBudget::OfProcess();
  budget.SetLimitBytes(200);
  ReturnToCache<TestScratch<1>>(80);
  ReturnToCache<TestScratch<2>>(80);
  EXPECT_EQ(budget.used_bytes(), 180);
  ReturnToCache<TestScratch<1>>(80);
  ReturnToCache<TestScratch<3>>(80);
  EXPECT_EQ(budget.used_bytes(), 180);
  EXPECT_EQ(
      ScratchCache<TestScratch<1>>::OfProcess().Take()->array.Take(90).size(),
      90);
  EXPECT_EQ(ScratchCache<TestScratch<2>>::OfProcess().Take()->capacity_bytes(),
            90);
  EXPECT_EQ(budget.used_bytes(), 0);
  budget.SetLimitBytes(CacheBudget::kDefaultLimitBytes);
}

// Destructors return scratch.
TEST(ScratchPoolTest, FreesWhatItHasNoMemoryToRemember) {
  using Scratch = TestScratch<4>;
  for (const bool is_in_destructor : {false, true}) {
    std::optional<ScratchPool<Scratch>> pool(std::in_place);
    auto scratch = pool->Take();
    scratch->array.Take(80);
    if (is_in_destructor) pool->Return(std::move(scratch));
    const ScopedFailingAllocation allocation(0);
    if (is_in_destructor) {
      pool.reset();
    } else {
      pool->Return(std::move(scratch));
    }
    EXPECT_TRUE(allocation.has_failed());
  }
  EXPECT_EQ(CacheBudget::OfProcess().used_bytes(), 0);
}

}  // namespace
}  // namespace jte
