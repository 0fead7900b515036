// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/keep_freed_memory.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#if defined(__GLIBC__)
namespace {

// What malloc is asked while a test listens; it then refuses the threshold, as
// that of a 32-bit system does, and accepts the rest without doing it.
std::vector<int>* asked = nullptr;

}  // namespace

// In place of that of the C library, which the linker finds after this one.
extern "C" int mallopt(int parameter, int value) noexcept {
  if (asked != nullptr) {
    asked->push_back(parameter);
    return parameter == M_MMAP_THRESHOLD ? 0 : 1;
  }
  using Mallopt = int (*)(int, int);
  static const auto kReal =
      reinterpret_cast<Mallopt>(dlsym(RTLD_NEXT, "mallopt"));
  return kReal(parameter, value);
}
#endif

namespace jte {
namespace {

// Three, so that the end of the heap is longer than what malloc keeps by
// itself, twice the largest block that was freed.
constexpr size_t kBlockBytes = size_t{12} << 20;
// One that is mapped, unless more is to be kept than by default.
constexpr size_t kLargeBlockBytes = size_t{40} << 20;

void WriteAndFreeBlocks(size_t block_bytes) {
  std::array<char*, 3> blocks;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (char*& block : blocks) {
    block = static_cast<char*>(std::malloc(block_bytes));
    for (size_t i = 0; i < block_bytes; i += page) {
      *const_cast<volatile char*>(block + i) = 1;
    }
  }
  for (char* block : blocks) std::free(block);
}

int64_t NumPageFaults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Whether pages of blocks are provided once, if so many bytes are kept. To be
// called in a process of its own: it changes malloc.
bool ProvidesPagesOnce(int num_bytes, size_t block_bytes) {
  const bool does_keep = KeepFreedMemory(num_bytes);
  for (int i = 0; i < 3; ++i) WriteAndFreeBlocks(block_bytes);
  const int64_t before = NumPageFaults();
  WriteAndFreeBlocks(block_bytes);
  return does_keep && NumPageFaults() - before < 10;
}

// The same of a thread that starts afterwards, as those of XLA do.
bool ProvidesPagesOnceInAThread(int num_bytes, size_t block_bytes) {
  const bool does_keep = KeepFreedMemory(num_bytes);
  int64_t num_page_faults = 0;
  std::thread([&] {
    for (int i = 0; i < 3; ++i) WriteAndFreeBlocks(block_bytes);
    const int64_t before = NumPageFaults();
    WriteAndFreeBlocks(block_bytes);
    num_page_faults = NumPageFaults() - before;
  }).join();
  return does_keep && num_page_faults < 10;
}

TEST(KeepFreedMemoryDeathTest, ProvidesPagesOnce) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "malloc is not that of glibc.";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(ProvidesPagesOnce(kMaxKeptBytes, kBlockBytes) ? 0 : 1),
              testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      std::_Exit(ProvidesPagesOnce(kMaxKeptBytes, kLargeBlockBytes) ? 0 : 1),
      testing::ExitedWithCode(1), "");
  EXPECT_EXIT(std::_Exit(ProvidesPagesOnce(1 << 30, kLargeBlockBytes) ? 0 : 1),
              testing::ExitedWithCode(0), "");
}

TEST(KeepFreedMemoryDeathTest, ThreadsThatStartLaterShareTheHeap) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "malloc is not that of glibc.";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      std::_Exit(ProvidesPagesOnceInAThread(1 << 30, kLargeBlockBytes) ? 0 : 1),
      testing::ExitedWithCode(0), "");
  // Nothing of that where the user wants several heaps.
  ASSERT_EQ(setenv("MALLOC_ARENA_MAX", "8", /*overwrite=*/1), 0);
  EXPECT_EXIT(
      std::_Exit(ProvidesPagesOnceInAThread(1 << 30, kLargeBlockBytes) ? 0 : 1),
      testing::ExitedWithCode(1), "");
  unsetenv("MALLOC_ARENA_MAX");
}

TEST(KeepFreedMemoryTest, ChangesNothingIfMallocRefuses) {
#if !defined(__GLIBC__)
  GTEST_SKIP() << "malloc is not that of glibc.";
#else
  for (const int num_bytes : {kMaxKeptBytes, 1 << 30}) {
    std::vector<int> parameters;
    asked = &parameters;
    const bool does_keep = KeepFreedMemory(num_bytes);
    asked = nullptr;
    EXPECT_FALSE(does_keep);
    EXPECT_THAT(parameters, testing::ElementsAre(M_MMAP_THRESHOLD));
  }
#endif
}

TEST(KeepFreedMemoryTest, LeavesWhatTheUserHasSet) {
  for (const auto& [name, value] :
       {std::array{"MALLOC_TRIM_THRESHOLD_", "131072"},
        {"GLIBC_TUNABLES",
         "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=131072"}}) {
    ASSERT_EQ(setenv(name, value, /*overwrite=*/1), 0);
    EXPECT_FALSE(KeepFreedMemory()) << name;
    unsetenv(name);
  }
}

}  // namespace
}  // namespace jte
