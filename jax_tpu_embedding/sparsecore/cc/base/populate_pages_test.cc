// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/populate_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

namespace jte {
namespace {

// New memory of whole pages.
class Mapping {
 public:
  explicit Mapping(size_t size) : size_(size) {
    data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~Mapping() { munmap(data_, size_); }

  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(data_), size_};
  }

  int64_t NumResidentPages() const {
    std::vector<unsigned char> resident(size_ / sysconf(_SC_PAGESIZE));
    mincore(data_, size_, resident.data());
    return std::ranges::count_if(resident,
                                 [](unsigned char page) { return page & 1; });
  }

 private:
  size_t size_;
  void* data_;
};

bool SystemCanPopulate() {
#if defined(MADV_POPULATE_WRITE)
  const Mapping page(sysconf(_SC_PAGESIZE));
  return madvise(page.bytes().data(), page.bytes().size(),
                 MADV_POPULATE_WRITE) == 0;
#else
  return false;
#endif
}

TEST(PopulatePagesTest, ProvidesEveryPage) {
  if (!SystemCanPopulate()) GTEST_SKIP() << "This kernel cannot.";
  const size_t size = 3 * kMinPopulatedBytes;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const Mapping mapping(size);
  ThreadExecutor executor(3);
  // In any order, with a page that two of them share.
  const size_t middle = size / 2 + 100;
  PopulatePages({mapping.bytes().subspan(middle, size - middle),
                 mapping.bytes().first(middle),
                 {}},
                executor);
  EXPECT_EQ(mapping.NumResidentPages(), size / page);
}

TEST(PopulatePagesTest, KeepsContents) {
  const Mapping mapping(kMinPopulatedBytes);
  mapping.bytes()[12345] = std::byte{42};
  InlineExecutor executor;
  PopulatePages({mapping.bytes()}, executor);
  EXPECT_EQ(mapping.bytes()[12345], std::byte{42});
  EXPECT_EQ(mapping.bytes()[12346], std::byte{0});
}

TEST(PopulatePagesTest, LeavesLittleMemoryAlone) {
  const Mapping mapping(kMinPopulatedBytes);
  InlineExecutor executor;
  PopulatePages({mapping.bytes().subspan(1)}, executor);
  EXPECT_EQ(mapping.NumResidentPages(), 0);
}

TEST(PopulatePagesTest, ProvidesThePagesOfFewBytes) {
  if (!SystemCanPopulate()) GTEST_SKIP() << "This kernel cannot.";
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const Mapping mapping(5 * page);
  InlineExecutor executor;
  PopulatePages({mapping.bytes().subspan(2 * page - 1, 2)}, executor,
                /*least_bytes=*/0);
  EXPECT_EQ(mapping.NumResidentPages(), 2);
}

TEST(PopulateNewPagesTest, ProvidesPagesUnlessMostAreThere) {
  if (!SystemCanPopulate()) GTEST_SKIP() << "This kernel cannot.";
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const int64_t num_pages = kMinPopulatedBytes / page;
  InlineExecutor executor;
  for (const int64_t num_there : {int64_t{0}, num_pages / 2, num_pages - 1}) {
    const Mapping mapping(kMinPopulatedBytes);
    for (int64_t i = 0; i < num_there; ++i) {
      mapping.bytes()[i * page] = std::byte{42};
    }
    PopulateNewPages(mapping.bytes(), executor);
    const bool is_new = num_there <= num_pages / 2;
    EXPECT_EQ(mapping.NumResidentPages(), is_new ? num_pages : num_there);
  }
}

TEST(PopulateNewPagesTest, LeavesLittleMemoryAlone) {
  const Mapping mapping(kMinPopulatedBytes);
  InlineExecutor executor;
  PopulateNewPages(mapping.bytes().subspan(1), executor);
  EXPECT_EQ(mapping.NumResidentPages(), 0);
}

}  // namespace
}  // namespace jte
