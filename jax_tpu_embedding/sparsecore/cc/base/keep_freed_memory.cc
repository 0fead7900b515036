// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/keep_freed_memory.h"

#include <cstdlib>
#include <string_view>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace jte {
namespace {

// Whether the user has said what malloc shall keep: by mallopt(3)'s variables
// or by glibc's tunables.
bool UserHasDecided() {
  for (const char* variable : {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
                               "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables == nullptr) return false;
  for (const char* tunable :
       {"glibc.malloc.mmap_max=", "glibc.malloc.mmap_threshold=",
        "glibc.malloc.top_pad=", "glibc.malloc.trim_threshold="}) {
    if (std::string_view(tunables).contains(tunable)) return true;
  }
  return false;
}

}  // namespace

bool KeepFreedMemory([[maybe_unused]] int num_bytes) {
#if defined(__GLIBC__)
  if (UserHasDecided()) return false;
  // The threshold first, since it is the only one that glibc refuses: where
  // its heaps have no room for such blocks. Nothing has been changed then.
  if (mallopt(M_MMAP_THRESHOLD, kMaxKeptBlockBytes) != 1) return false;
  mallopt(M_TRIM_THRESHOLD, num_bytes);
  if (num_bytes > kMaxKeptBytes) mallopt(M_MMAP_MAX, 0);
  return true;
#else
  return false;
#endif
}

}  // namespace jte
