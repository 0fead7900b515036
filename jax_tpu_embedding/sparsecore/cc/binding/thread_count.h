// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How many threads a call may use, and how many are worth their start.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_THREAD_COUNT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_THREAD_COUNT_H_

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

namespace jte::binding {

// How many threads a call may have.
class ThreadLimit {
 public:
  // `requested`, or without it the number of CPUs that the process may use, by
  // its container's quota too, or SPARSECORE_INPUT_PREPROCESSING_THREADS if
  // that is less. Needs the interpreter lock, under which os.environ changes
  // the environment.
  //
  // Errors: a request that is not positive.
  static Result<ThreadLimit> Of(std::optional<int> requested) {
    if (!requested) return ThreadLimit(OfEnvironment(), /*is_requested=*/false);
    if (*requested > 0) return ThreadLimit(*requested, /*is_requested=*/true);
    return InvalidArgument("num_threads must be positive or None, got ",
                           *requested, ".");
  }

  // At most `wanted`. To count CPUs costs a system call, which a small batch
  // would feel, so that only those who want several threads are told.
  int AtMost(int64_t wanted) const {
    const int64_t allowed = std::min<int64_t>(limit_, wanted);
    if (allowed <= 1) return 1;
    if (is_requested_) return static_cast<int>(allowed);
    return static_cast<int>(std::min<int64_t>(allowed, NumSchedulableCpus()));
  }

 private:
  ThreadLimit(int limit, bool is_requested)
      : limit_(limit), is_requested_(is_requested) {}

  static int OfEnvironment() {
    constexpr int kNone = std::numeric_limits<int>::max();
    const char* value = std::getenv("SPARSECORE_INPUT_PREPROCESSING_THREADS");
    if (value == nullptr) return kNone;
    const std::string_view text(value);
    int limit = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), limit);
    const bool is_number =
        error == std::errc() && end == text.data() + text.size();
    return is_number && limit > 0 ? limit : kNone;
  }

  int limit_;
  bool is_requested_;
};

// Work, in units of about a nanosecond, that makes one more thread worth its
// start. Measured on 2 cores with 32 SparseCores, one thread against two, wall
// and CPU time in us: 16 k ids 113, 113 and 121, 189; 33 k ids 250, 251 and
// 168, 288; 66 k ids 407, 407 and 297, 524.
inline constexpr int64_t kMinWorkPerThread = 100'000;

// Calls function(executor) with one that suits the work.
template <typename Function>
auto OnThreads(const ThreadLimit& limit, int64_t work, Function function) {
  const int num_threads = limit.AtMost(work / kMinWorkPerThread);
  if (num_threads == 1) {
    InlineExecutor executor;
    return function(executor);
  }
  ThreadExecutor executor(num_threads);
  return function(executor);
}

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_THREAD_COUNT_H_
