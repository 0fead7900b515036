// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

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
  EXPECT_EQ(ScratchCache<Scratch>::OfProcess().cached_bytes(), 90);
  ScratchPool<Scratch> later;
  EXPECT_EQ(later.Take().get(), first);
  EXPECT_EQ(ScratchCache<Scratch>::OfProcess().cached_bytes(), 0);
}

TEST(ScratchCacheTest, KeepsNoMoreThanItsBound) {
  using Scratch = TestScratch<1>;
  auto& cache = ScratchCache<Scratch>::OfProcess();
  for (int i = 0; i < 3; ++i) {
    auto scratch = std::make_unique<Scratch>();
    scratch->array.Take(ScratchCache<Scratch>::kMaxCachedBytes / 2);
    cache.Return(std::move(scratch));
  }
  EXPECT_GT(cache.cached_bytes(), 0);
  EXPECT_LE(cache.cached_bytes(), ScratchCache<Scratch>::kMaxCachedBytes);
}

}  // namespace
}  // namespace jte
