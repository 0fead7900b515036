// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/keep_freed_memory.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace jte {
namespace {

// A setting of malloc that the user can make: as a variable of mallopt(3), or
// as one of glibc's tunables.
struct Setting {
  const char* variable;
  std::string_view tunable;
};

constexpr Setting kLimits[] = {
    {"MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max="},
    {"MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold="},
    {"MALLOC_TOP_PAD_", "glibc.malloc.top_pad="},
    {"MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold="},
};
constexpr Setting kHeaps = {"MALLOC_ARENA_MAX", "glibc.malloc.arena_max="};

bool UserHasDecided(const Setting& setting) {
  if (std::getenv(setting.variable) != nullptr) return true;
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr &&
         std::string_view(tunables).contains(setting.tunable);
}

}  // namespace

bool KeepFreedMemory([[maybe_unused]] int num_bytes) {
#if defined(__GLIBC__)
  if (std::ranges::any_of(kLimits, UserHasDecided)) return false;
  // The threshold first, since it is the only one that glibc refuses: where
  // its heaps have no room for such blocks. Nothing has been changed then.
  if (mallopt(M_MMAP_THRESHOLD, kMaxKeptBlockBytes) != 1) return false;
  mallopt(M_TRIM_THRESHOLD, num_bytes);
  if (num_bytes > kMaxKeptBytes) {
    mallopt(M_MMAP_MAX, 0);
    if (!UserHasDecided(kHeaps)) mallopt(M_ARENA_MAX, 1);
  }
  return true;
#else
  return false;
#endif
}

}  // namespace jte
