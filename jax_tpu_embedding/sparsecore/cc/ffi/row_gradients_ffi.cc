// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Targets "jte_row_gradients_cpu", the gradients of the rows that a batch names
// on one device, and "jte_sum_rows_cpu", which adds such gradients. The math is
// kernels/update/row_gradients.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/populate_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_gradients.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

using FloatMatrix = xffi::BufferR2<xffi::F32>;

// Checks that `values` has a row of `dim` numbers for each of `rows`.
Result<void> CheckShapes(std::string_view names, const IntVector& rows,
                         const FloatMatrix& values, int64_t dim) {
  const auto num_rows = static_cast<int64_t>(rows.element_count());
  const auto shape = values.dimensions();
  if (shape[0] != num_rows || shape[1] != dim || dim < 1) {
    return InvalidArgument(names, " have shapes [", num_rows, "] and [",
                           shape[0], ", ", shape[1], "], expected [n] and [n, ",
                           dim, "], with one column or more.");
  }
  return {};
}

// Large results are new memory in every call, most of it written once.
kernels::SparseRows MakeResults(const IntVector& rows,
                                const FloatMatrix& values, Executor& executor) {
  const kernels::SparseRows results{.rows = ToSpan<int32_t>(rows),
                                    .values = ToSpan<float>(values)};
  const auto bytes = std::as_writable_bytes(results.values);
  AllowHugePages(bytes);
  PopulateNewPages(bytes, executor);
  return results;
}

Result<void> CheckedRowGradients(
    Executor& executor, const CooOperands& coo, const FloatMatrix& gradient,
    const IntVector& rows, const FloatMatrix& values, int64_t rows_per_device,
    int64_t num_sc_per_device, bool enable_minibatching) {
  JTE_ASSIGN_OR_RETURN(const auto buffers, ToCooBuffers(coo));
  const auto shape = gradient.dimensions();
  JTE_ASSIGN_OR_RETURN(const auto geometry,
                       MakeGeometry(num_sc_per_device, enable_minibatching,
                                    *coo.num_minibatches.typed_data(),
                                    rows_per_device, shape[0]));
  JTE_RETURN_IF_ERROR(
      CheckShapes("The rows and their gradients", rows, values, shape[1]));
  return kernels::GradientsOfRows(
      buffers, geometry, ToSpan<const float>(gradient), shape[1],
      MakeResults(rows, values, executor), executor);
}

// The operands from number `k` on: rows and values of one gradient.
Result<kernels::ConstSparseRows> ReadTerm(xffi::RemainingArgs args, size_t k,
                                          int64_t dim) {
  const auto rows = args.get<IntVector>(k);
  const auto values = args.get<FloatMatrix>(k + 1);
  if (rows.has_error() || values.has_error()) {
    return InvalidArgument("Operands ", k, " and ", k + 1,
                           " must be rows, int32 of rank 1, and their values, "
                           "float32 of rank 2.");
  }
  JTE_RETURN_IF_ERROR(
      CheckShapes("Rows and their values", *rows, *values, dim));
  return kernels::ConstSparseRows{.rows = ToSpan<const int32_t>(*rows),
                                  .values = ToSpan<const float>(*values)};
}

Result<void> CheckedSumRows(Executor& executor, xffi::RemainingArgs args,
                            const IntVector& rows, const FloatMatrix& sums) {
  const int64_t dim = sums.dimensions()[1];
  JTE_RETURN_IF_ERROR(
      CheckShapes("The distinct rows and their sums", rows, sums, dim));
  std::vector<kernels::ConstSparseRows> terms;
  for (size_t k = 0; k < args.size(); k += 2) {
    JTE_ASSIGN_OR_RETURN(const auto term, ReadTerm(args, k, dim));
    terms.push_back(term);
  }
  return kernels::SumOfRows(terms, dim, MakeResults(rows, sums, executor),
                            executor);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteRowGradientsCpu,
                              kCooOnPool<CheckedRowGradients>,
                              BindCooOnPool()
                                  .Arg<FloatMatrix>()  // activation_gradient
                                  .Ret<IntVector>()    // rows
                                  .Ret<FloatMatrix>()  // values
                                  .Attr<int64_t>("rows_per_device")
                                  .Attr<int64_t>("num_sc_per_device")
                                  .Attr<bool>("enable_minibatching"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteSumRowsCpu, kOnPool<CheckedSumRows>,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::ThreadPool>()
                                  .RemainingArgs()   // rows, values; as often
                                                     // as there are terms
                                  .Ret<IntVector>()  // distinct rows
                                  .Ret<FloatMatrix>());  // sums

}  // namespace jte::ffi
