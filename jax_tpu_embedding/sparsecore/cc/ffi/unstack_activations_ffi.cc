// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_unstack_activations_cpu": the activations of features, each cut
// out of every run of its stack's. One call for all features: slices would be
// fused with what a model computes from each, and as each begins elsewhere, XLA
// would compile one program for every feature.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

using FloatMatrix = xffi::BufferR2<xffi::F32>;

// Less is copied faster than threads take it over.
constexpr size_t kMinParallelFloats = size_t{1} << 18;

// The columns and rows that one feature has of each run.
struct Part {
  float* values;
  int64_t begin;
  int64_t rows;
  int64_t dim;
};

Result<std::vector<Part>> ReadParts(xffi::RemainingRets rets, int64_t num_runs,
                                    int64_t num_rows, int64_t dim) {
  std::vector<Part> parts;
  parts.reserve(rets.size());
  int64_t end = 0;
  for (size_t k = 0; k < rets.size(); ++k) {
    auto result = rets.get<FloatMatrix>(k);
    if (result.has_error()) {
      return InvalidArgument("The activations of feature ", k,
                             " must be float32 of rank 2.");
    }
    const auto shape = (*result)->dimensions();
    if (shape[0] % num_runs != 0 || shape[1] > dim) {
      return InvalidArgument(
          "The activations of feature ", k, " have shape [", shape[0], ", ",
          shape[1], "], expected a multiple of the ", num_runs,
          " runs of the stack, and at most its ", dim, " columns.");
    }
    parts.push_back({.values = (*result)->typed_data(),
                     .begin = end,
                     .rows = shape[0] / num_runs,
                     .dim = shape[1]});
    end += parts.back().rows;
  }
  if (end * num_runs != num_rows) {
    return InvalidArgument("The features have ", end * num_runs,
                           " samples, expected the stack's ", num_rows, ".");
  }
  return parts;
}

void Copy(const Part& part, const float* run, int64_t dim, float* result) {
  const float* rows = run + part.begin * dim;
  if (part.dim == dim) {
    std::copy_n(rows, part.rows * dim, result);
    return;
  }
  for (int64_t i = 0; i < part.rows; ++i) {
    std::copy_n(rows + i * dim, part.dim, result + i * part.dim);
  }
}

Result<void> UnstackActivations(Executor& executor, const FloatMatrix& stacked,
                                xffi::RemainingRets rets, int64_t num_runs) {
  const int64_t num_rows = stacked.dimensions()[0];
  const int64_t dim = stacked.dimensions()[1];
  if (num_runs < 1 || num_rows % num_runs != 0) {
    return InvalidArgument("The stack has ", num_rows,
                           " samples, expected a multiple of its ", num_runs,
                           " runs, which must be positive.");
  }
  JTE_ASSIGN_OR_RETURN(const auto parts,
                       ReadParts(rets, num_runs, num_rows, dim));
  const int64_t run_size = num_rows / num_runs * dim;
  const auto cut = [&parts, &stacked, num_runs, run_size, dim](int64_t k) {
    const Part& part = parts[static_cast<size_t>(k)];
    for (int64_t run = 0; run < num_runs; ++run) {
      Copy(part, stacked.typed_data() + run * run_size, dim,
           part.values + run * part.rows * part.dim);
    }
  };
  const int64_t num_parts = std::ssize(parts);
  if (stacked.element_count() < kMinParallelFloats) {
    for (int64_t k = 0; k < num_parts; ++k) cut(k);
  } else {
    executor.ParallelFor(num_parts, cut);
  }
  return {};
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteUnstackActivationsCpu,
                              kOnPool<UnstackActivations>,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::ThreadPool>()
                                  .Arg<FloatMatrix>()  // of the stack
                                  .RemainingRets()     // of the features
                                  .Attr<int64_t>("num_runs"));

}  // namespace jte::ffi
