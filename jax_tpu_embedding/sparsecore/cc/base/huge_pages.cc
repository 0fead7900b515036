// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"

#include <cstddef>
#include <span>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#endif

namespace jte {

#if defined(__linux__)
namespace {

// MADV_COLLAPSE of Linux 6.1, which older headers do not have; older kernels
// answer that they do not know it.
constexpr int kCollapse = 25;

// PAGEMAP_SCAN of Linux 6.7 (Documentation/admin-guide/mm/pagemap.rst): which
// pages are of some categories.
struct PageRegion {
  uint64_t start;
  uint64_t end;
  uint64_t categories;
};
struct PageScan {
  uint64_t size = 0;
  uint64_t flags = 0;
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t walk_end = 0;
  uint64_t regions = 0;
  uint64_t num_regions = 0;
  uint64_t max_pages = 0;
  uint64_t inverted_categories = 0;
  uint64_t required_categories = 0;
  uint64_t any_of_categories = 0;
  uint64_t returned_categories = 0;
};
constexpr unsigned long kScan = _IOWR('f', 16, PageScan);
constexpr uint64_t kIsHuge = 1 << 6;

bool SystemUsesHugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string choices;  // "always [madvise] never"
  return std::getline(file, choices) &&
         choices.find("[never]") == std::string::npos;
}

struct Range {
  uintptr_t begin;
  uintptr_t end;  // may be before `begin`, if there is nothing
};

// What of `memory` can be huge pages.
Range WholeHugePages(std::span<std::byte> memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  return {RoundUp(begin, uintptr_t{kHugePageBytes}),
          (begin + memory.size()) / kHugePageBytes * kHugePageBytes};
}

}  // namespace

size_t UseHugePages(std::span<std::byte> memory) {
  static const bool kIsUsed = SystemUsesHugePages();
  const auto [begin, end] = WholeHugePages(memory);
  if (!kIsUsed || begin >= end) return 0;

  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t pages_of_huge = kHugePageBytes / page;
  std::vector<unsigned char> resident((end - begin) / page);
  if (mincore(reinterpret_cast<void*>(begin), end - begin, resident.data()) !=
      0) {
    return 0;
  }
  const auto is_whole = [&resident, pages_of_huge](size_t huge) {
    return std::ranges::all_of(
        std::span(resident).subspan(huge * pages_of_huge, pages_of_huge),
        [](unsigned char bits) { return (bits & 1) != 0; });
  };
  size_t moved = 0;
  const size_t num_huge = (end - begin) / kHugePageBytes;
  for (size_t first = 0, last = 0; first < num_huge; first = last + 1) {
    for (last = first; last < num_huge && is_whole(last);) ++last;
    const size_t size = (last - first) * kHugePageBytes;
    if (size > 0 &&
        madvise(reinterpret_cast<void*>(begin + first * kHugePageBytes), size,
                kCollapse) == 0) {
      moved += size;
    }
  }
  return moved;
}

void AllowHugePages(std::span<std::byte> memory) {
  const auto [begin, end] = WholeHugePages(memory);
  // A system without them goes on with small ones.
  if (begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
}

bool IsInHugePage(const std::byte* address) {
  // Opened each time: that of before a fork shows the pages of the parent.
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return false;
  const auto page_size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t page =
      reinterpret_cast<uintptr_t>(address) / page_size * page_size;
  PageRegion region = {};
  PageScan scan = {.size = sizeof(scan),
                   .start = page,
                   .end = page + page_size,
                   .regions = reinterpret_cast<uintptr_t>(&region),
                   .num_regions = 1,
                   .required_categories = kIsHuge,
                   .returned_categories = kIsHuge};
  const int num_regions = ioctl(pagemap, kScan, &scan);
  close(pagemap);
  return num_regions == 1;
}

#else

size_t UseHugePages(std::span<std::byte>) { return 0; }

void AllowHugePages(std::span<std::byte>) {}

bool IsInHugePage(const std::byte*) { return false; }

#endif

}  // namespace jte
