// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// That --config=asan and --config=tsan (.bazelrc) find what they are for. A
// flag that gets lost would otherwise look like code without bugs.

#include <climits>
#include <cstdlib>
#include <span>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::ExitedWithCode;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif

#ifdef __SANITIZE_THREAD__
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

// Hides a value from the optimizer.
template <typename T>
T Opaque(T value) {
  volatile T copy = value;
  return copy;
}

class SanitizersTest : public ::testing::Test {
 protected:
  SanitizersTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SanitizersTest, AsanFindsUseAfterFree) {
  if (!kAsan) GTEST_SKIP() << "not built with --config=asan";
  const auto use = [] {
    int* const number = Opaque(new int(1));
    delete number;
    Opaque(*number);
  };
  EXPECT_DEATH(use(), "heap-use-after-free");
}

TEST_F(SanitizersTest, AsanFindsLeaks) {
  if (!kAsan) GTEST_SKIP() << "not built with --config=asan";
  const auto leak = [] {
    // More than one: the stack may still have the address of the last.
    for (int i = 0; i < 10; ++i) Opaque(new int(i));
    std::exit(0);
  };
  EXPECT_DEATH(leak(), "detected memory leaks");
}

TEST_F(SanitizersTest, UbsanFindsSignedOverflow) {
  if (!kAsan) GTEST_SKIP() << "not built with --config=asan";
  EXPECT_DEATH(Opaque(Opaque(INT_MAX) + Opaque(1)), "signed integer overflow");
}

TEST_F(SanitizersTest, TheLibraryChecksSpans) {
  if (!kAsan && !kTsan) GTEST_SKIP() << "not built with a sanitizer";
  const int four[4] = {};
  // One element of a larger array, which is all that ASan knows of.
  EXPECT_DEATH(Opaque(std::span(four, 1)[Opaque(1)]), "Assertion");
}

TEST_F(SanitizersTest, TsanFindsRaces) {
  if (!kTsan) GTEST_SKIP() << "not built with --config=tsan";
  const auto race = [] {
    int count = 0;
    {
      std::jthread thread([&count] { ++count; });
      ++count;
    }
    std::exit(Opaque(count) < 0);
  };
  constexpr int kExitCodeOfTsan = 66;
  EXPECT_EXIT(race(), ExitedWithCode(kExitCodeOfTsan), "data race");
}

}  // namespace
