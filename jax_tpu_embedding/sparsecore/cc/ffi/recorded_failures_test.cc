// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/recorded_failures.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jte::ffi {
namespace {

std::atomic<int> announced = 0;

TEST(RecordedFailuresTest, KeepsTheFirstAndCountsAll) {
  RecordedFailures failures;
  failures.Add("first");
  failures.Add("second");
  EXPECT_EQ(failures.Get().first, "first");
  EXPECT_EQ(failures.Get().count, 2);
}

TEST(RecordedFailuresTest, WhatIsTakenIsForgotten) {
  RecordedFailures failures;
  failures.Add("first");
  EXPECT_EQ(failures.Take().first, "first");
  EXPECT_EQ(failures.Take().count, 0);
  failures.Add("second");
  EXPECT_EQ(failures.Take().first, "second");
}

TEST(RecordedFailuresTest, AnnouncesTheFirstOnly) {
  announced = 0;
  RecordedFailures failures;
  failures.SetAnnounce([] { ++announced; });
  std::vector<std::jthread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&failures] { failures.Add("wrong"); });
  }
  threads.clear();
  EXPECT_EQ(announced, 1);
  EXPECT_EQ(failures.Take().count, 4);
  failures.Add("wrong again");
  EXPECT_EQ(announced, 2);
}

}  // namespace
}  // namespace jte::ffi
