// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// One call for several stacks, each of which is done before a second thread
// would have started.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_SMALL_STACKS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_SMALL_STACKS_H_

#include <cstdint>
#include <functional>
#include <ranges>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte::ffi {

// Calls body(k, executor) for the stacks k in [0, n), up to the first error, to
// which it adds the name of the stack: line k of `names`. The executor has the
// calling thread only.
inline Result<void> ForEachStack(
    int64_t n, std::string_view names,
    const std::function<Result<void>(int64_t, Executor&)>& body) {
  InlineExecutor one_thread;
  for (int64_t k = 0; k < n; ++k) {
    const Result<void> result = body(k, one_thread);
    if (result) continue;
    std::string_view name;
    for (const auto line :
         names | std::views::split('\n') | std::views::drop(k)) {
      name = {line.begin(), line.end()};
      break;
    }
    return std::unexpected(
        Error{result.error().code,
              StrCat("In ", name, ": ", result.error().message)});
  }
  return {};
}

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_SMALL_STACKS_H_
