// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <string_view>

namespace jte {
namespace {

size_t LimitBytesOfEnvironment() {
  const char* const value = std::getenv("SPARSECORE_CACHE_LIMIT_MIB");
  const std::string_view text = value == nullptr ? "" : value;
  size_t mebibytes = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), mebibytes);
  const bool is_number = !text.empty() && error == std::errc() &&
                         end == text.data() + text.size() &&
                         mebibytes <= (~size_t{0} >> 20);
  return is_number ? mebibytes << 20 : CacheBudget::kDefaultLimitBytes;
}

}  // namespace

// Never destroyed: a thread may convert while the process exits.
CacheBudget* CacheBudget::of_process_ = new CacheBudget();

CacheBudget::CacheBudget() : CacheBudget(LimitBytesOfEnvironment()) {}

bool CacheBudget::Take(size_t bytes) {
  size_t used = used_bytes_;
  do {
    const size_t limit = limit_bytes_;
    if (used > limit || bytes > limit - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return true;
}

}  // namespace jte
