// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_update_cpu": the update of one stack on one device, in place, for
// every rule that has a fused kernel. The math is kernels/apply_rows.h.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/error_to_ffi.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/apply_rows.h"
#include "xla/ffi/api/ffi.h"

namespace jte {
namespace {

namespace ffi = xla::ffi;

// The table and its slots, each the alias of an operand.
Result<std::vector<Matrix>> ReadTables(ffi::RemainingArgs args,
                                       ffi::RemainingRets rets) {
  if (rets.size() < 1 || args.size() < rets.size()) {
    return InvalidArgument("Got ", args.size(), " operands for ", rets.size(),
                           " tables, expected as many or more.");
  }
  std::vector<Matrix> tables;
  for (size_t k = 0; k < rets.size(); ++k) {
    const std::string name = k == 0 ? "The table" : StrCat("Slot ", k - 1);
    const auto arg = args.get<ffi::AnyBuffer>(k);
    auto ret = rets.get<ffi::AnyBuffer>(k);
    if (arg.has_error() || ret.has_error()) {
      return InvalidArgument(name, " is no buffer.");
    }
    const auto matrix = ToMatrix(**ret, name);
    if (!matrix) return std::unexpected(matrix.error());
    if (arg->untyped_data() != (*ret)->untyped_data()) {
      return FailedPrecondition(name, " and its update are different buffers.",
                                " Alias them in the custom call.");
    }
    tables.push_back(*matrix);
  }
  for (const Matrix& slot : tables) {
    if (slot.num_rows != tables[0].num_rows || slot.dim != tables[0].dim) {
      return InvalidArgument("A slot has shape [", slot.num_rows, ", ",
                             slot.dim, "], expected the table's [",
                             tables[0].num_rows, ", ", tables[0].dim, "].");
    }
  }
  return tables;
}

// Scalars; `args` may go on with operands that only order the call.
Result<std::vector<float>> ReadHyperparameters(ffi::RemainingArgs args,
                                               size_t first, int64_t count) {
  if (count < 0 || args.size() < first + count) {
    return InvalidArgument("Got ", args.size(), " operands for ", first,
                           " tables and ", count, " hyperparameters.");
  }
  std::vector<float> values;
  for (int64_t k = 0; k < count; ++k) {
    const auto arg = args.get<ffi::AnyBuffer>(first + k);
    if (arg.has_error() || arg->element_type() != ffi::F32 ||
        arg->element_count() != 1) {
      return InvalidArgument("Hyperparameter ", k,
                             " must be one float32 number.");
    }
    values.push_back(*arg->typed_data<float>());
  }
  return values;
}

Result<void> CheckedUpdate(Executor& executor, const IntVector& row_pointers,
                           const IntVector& embedding_ids,
                           const IntVector& sample_ids,
                           const FloatVector& gains,
                           const IntScalar& num_minibatches,
                           const FloatMatrix& gradient, ffi::RemainingArgs args,
                           ffi::RemainingRets rets, std::string_view rule,
                           int64_t num_hyperparameters, float min_value,
                           float max_value, int64_t num_sc_per_device,
                           bool enable_minibatching) {
  const auto buffers =
      ToCooBuffers(row_pointers, embedding_ids, sample_ids, gains);
  if (!buffers) return std::unexpected(buffers.error());
  const auto tables = ReadTables(args, rets);
  if (!tables) return std::unexpected(tables.error());
  const auto hyperparameters =
      ReadHyperparameters(args, tables->size(), num_hyperparameters);
  if (!hyperparameters) return std::unexpected(hyperparameters.error());
  const Matrix& table = tables->front();
  const auto geometry = MakeGeometry(num_sc_per_device, enable_minibatching,
                                     *num_minibatches.typed_data(),
                                     table.num_rows, gradient.dimensions()[0]);
  if (!geometry) return std::unexpected(geometry.error());
  if (gradient.dimensions()[1] != table.dim) {
    return InvalidArgument("The gradient has ", gradient.dimensions()[1],
                           " columns, expected the table's ", table.dim, ".");
  }
  std::vector<std::span<float>> slots;
  for (const Matrix& slot : std::span(*tables).subspan(1)) {
    slots.push_back(slot.values);
  }
  return ApplyRows(*buffers, *geometry, ToSpan<const float>(gradient),
                   table.dim,
                   {.rule = rule,
                    .hyperparameters = *hyperparameters,
                    .min_value = min_value,
                    .max_value = max_value},
                   {.table = table.values, .slots = slots}, executor);
}

ffi::Error Handler(ffi::ThreadPool pool, IntVector row_pointers,
                   IntVector embedding_ids, IntVector sample_ids,
                   FloatVector gains, IntScalar num_minibatches,
                   FloatMatrix gradient, ffi::RemainingArgs args,
                   ffi::RemainingRets rets, std::string_view rule,
                   int64_t num_hyperparameters, float min_value,
                   float max_value, int64_t num_sc_per_device,
                   bool enable_minibatching) {
  ThreadPoolExecutor executor(pool);
  return RunHandler(CheckedUpdate, executor, row_pointers, embedding_ids,
                    sample_ids, gains, num_minibatches, gradient, args, rets,
                    rule, num_hyperparameters, min_value, max_value,
                    num_sc_per_device, enable_minibatching);
}

}  // namespace

// The handler's thread takes part in the work, so there is nothing left to wait
// for when it returns, and it returns an error rather than a future.
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteUpdateCpu, Handler,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<IntVector>()    // row_pointers
        .Arg<IntVector>()    // embedding_ids
        .Arg<IntVector>()    // sample_ids
        .Arg<FloatVector>()  // gains
        .Arg<IntScalar>()    // num_minibatches
        .Arg<FloatMatrix>()  // activation_gradient
        .RemainingArgs()     // table, slots, hyperparameters, ignored ones
        .RemainingRets()     // table, slots
        .Attr<std::string_view>("rule")
        .Attr<int64_t>("num_hyperparameters")
        .Attr<float>("min_value")
        .Attr<float>("max_value")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<bool>("enable_minibatching"));

}  // namespace jte
