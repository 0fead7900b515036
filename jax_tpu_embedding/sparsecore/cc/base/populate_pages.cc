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

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"

namespace jte {
namespace {

struct Range {
  uintptr_t begin;
  uintptr_t end;
};

uintptr_t PageBytes() {
  static const auto kBytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return kBytes;
}

// The whole pages that `bytes` are in.
Range PagesOf(std::span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  return {begin / PageBytes() * PageBytes(),
          RoundUp(begin + bytes.size(), PageBytes())};
}

// The pages of `memory`, each once, cut at huge pages: one of these is
// populated by one task.
std::vector<Range> Pages(std::span<const std::span<std::byte>> memory) {
  std::vector<Range> ranges;
  for (const std::span<std::byte> bytes : memory) {
    if (!bytes.empty()) ranges.push_back(PagesOf(bytes));
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> pages;
  uintptr_t done = 0;  // where the last range ended
  for (const Range& range : ranges) {
    uintptr_t begin = std::max(range.begin, done);
    while (begin < range.end) {
      const uintptr_t end =
          std::min(range.end, (begin / kHugePageBytes + 1) * kHugePageBytes);
      const bool continues = !pages.empty() && pages.back().end == begin &&
                             begin % kHugePageBytes != 0;
      if (continues) {
        pages.back().end = end;
      } else {
        pages.push_back({begin, end});
      }
      begin = end;
    }
    done = std::max(done, range.end);
  }
  return pages;
}

}  // namespace

void PopulatePages(std::vector<std::span<std::byte>> memory, Executor& executor,
                   [[maybe_unused]] size_t least_bytes) {
#if defined(MADV_POPULATE_WRITE)
  size_t num_bytes = 0;
  for (const std::span<std::byte> bytes : memory) num_bytes += bytes.size();
  if (num_bytes < least_bytes) return;
  const std::vector<Range> pages = Pages(memory);
  executor.ParallelFor(std::ssize(pages), [&pages](int64_t i) {
    const auto [begin, end] = pages[i];
    // A kernel that cannot provides them when they are written.
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  });
#endif
}

void PopulateNewPages(std::span<std::byte> memory, Executor& executor) {
#if defined(MADV_POPULATE_WRITE)
  if (memory.size() < kMinPopulatedBytes) return;
  const auto [begin, end] = PagesOf(memory);
  std::vector<unsigned char> pages((end - begin) / PageBytes());
  if (mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()) != 0) {
    return;
  }
  const int64_t num_there = std::ranges::count_if(
      pages, [](unsigned char page) { return (page & 1) != 0; });
  if (2 * num_there <= std::ssize(pages)) PopulatePages({memory}, executor);
#endif
}

}  // namespace jte
