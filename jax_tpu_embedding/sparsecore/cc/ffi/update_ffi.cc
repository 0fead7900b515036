// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_update_cpu": the update of one stack on one device, in place, for
// every rule that has a fused kernel. The math is kernels/update/apply_rows.h;
// the operands after the fixed ones are read in optimizer_operands.h. Over
// several devices of one process these are followed by the devices' records and
// the number of this one, and the entries for its rows are read from the
// buffers that the records name. Target "jte_small_updates_cpu": the updates of
// several small stacks. Target "jte_update_batches_cpu": that of one from
// copies of all devices' batches. Target "jte_update_received_cpu": the update
// by messages, once the gradients of rows are here.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/message_blocks.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/optimizer_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/small_stacks.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/table_memory.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/buffers_or_nan.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;
using xffi::StructMember;

auto AfterOptimizer(auto... members) {
  return std::tuple_cat(OptimizerAttributes::Members(), std::tuple(members...));
}

struct UpdateAttributes {
  OptimizerAttributes optimizer;
  int64_t num_devices;
  int64_t num_sc_per_device;
  bool enable_minibatching;

  static auto Members() {
    return AfterOptimizer(StructMember<int64_t>("num_devices"),
                          StructMember<int64_t>("num_sc_per_device"),
                          StructMember<bool>("enable_minibatching"));
  }
};

struct SmallUpdatesAttributes {
  OptimizerAttributes optimizer;
  int64_t num_stacks;
  std::string_view stacks;  // a line for each
  int64_t num_sc_per_device;
  bool enable_minibatching;

  static auto Members() {
    return AfterOptimizer(StructMember<int64_t>("num_stacks"),
                          StructMember<std::string_view>("stacks"),
                          StructMember<int64_t>("num_sc_per_device"),
                          StructMember<bool>("enable_minibatching"));
  }
};

struct UpdateReceivedAttributes {
  OptimizerAttributes optimizer;
  int64_t num_devices;

  static auto Members() {
    return AfterOptimizer(StructMember<int64_t>("num_devices"));
  }
};

using FloatMatrix = xffi::BufferR2<xffi::F32>;

// What all devices have, and which one this is.
struct Devices {
  std::vector<kernels::DeviceBatch> batches;
  int64_t own;
};

// From the operands from number `k` on; `own` is what this one has published.
Result<Devices> ReadDevices(xffi::RemainingArgs args, size_t k,
                            const Published& own) {
  const auto words = args.get<WordsByDevice>(k);
  const auto device = args.get<IntScalar>(k + 1);
  if (words.has_error() || device.has_error()) {
    return InvalidArgument(
        "After the hyperparameters there must be records, uint32 of rank 2, "
        "and the number of the device, int32.");
  }
  JTE_ASSIGN_OR_RETURN(const auto published, ReadPublished(*words, own));
  Devices devices{.batches = {}, .own = *device->typed_data()};
  if (devices.own < 0 || devices.own >= own.geometry.num_devices) {
    return InvalidArgument("The device has number ", devices.own, " of ",
                           own.geometry.num_devices, " of the axis.");
  }
  for (const Published& other : published) {
    devices.batches.push_back(
        {.buffers = other.buffers,
         .activation_gradient =
             reinterpret_cast<const float*>(other.rows.data())});
  }
  return devices;
}

// For what the update writes.
void PreferHugePages(const OptimizerOperands& operands) {
  TableMemory& memory = TableMemory::OfProcess();
  std::visit(
      [&memory](auto table) { memory.Used(std::as_writable_bytes(table)); },
      operands.table.values);
  for (const std::span<float> slot : operands.slots) {
    memory.Used(std::as_writable_bytes(slot));
  }
}

// A view of what was read.
kernels::Optimizer OptimizerOf(const OptimizerAttributes& attributes,
                               const OptimizerOperands& operands) {
  return {.rule = attributes.rule,
          .hyperparameters = operands.hyperparameters,
          .options = operands.options,
          .rounding = operands.rounding};
}

// What an update reads, once shapes and types are known to fit the table.
struct Batch {
  kernels::CooBuffers buffers;
  kernels::CooGeometry geometry;
  Matrix gradient;
};

Result<Batch> ReadBatch(const CooOperands& coo,
                        const xffi::AnyBuffer& gradient_buffer,
                        const Table& table, int64_t num_sc_per_device,
                        bool enable_minibatching) {
  JTE_ASSIGN_OR_RETURN(const auto buffers, ToCooBuffers(coo));
  JTE_ASSIGN_OR_RETURN(const auto gradient,
                       ToMatrix(gradient_buffer, "The gradient"));
  JTE_ASSIGN_OR_RETURN(const auto geometry,
                       MakeGeometry(num_sc_per_device, enable_minibatching,
                                    *coo.num_minibatches.typed_data(),
                                    table.num_rows, gradient.num_rows));
  if (gradient.dim != table.dim) {
    return InvalidArgument("The gradient has ", gradient.dim,
                           " columns, expected the table's ", table.dim, ".");
  }
  return Batch{.buffers = buffers, .geometry = geometry, .gradient = gradient};
}

Result<void> UpdateWithAllRowsHere(Executor& executor, const Batch& batch,
                                   const OptimizerAttributes& attributes,
                                   const OptimizerOperands& operands) {
  PreferHugePages(operands);
  const Table& table = operands.table;
  return kernels::ApplyRows(
      batch.buffers, batch.geometry, batch.gradient.values, table.dim,
      OptimizerOf(attributes, operands),
      {.table = table.values, .slots = operands.slots}, executor);
}

Result<void> CheckedUpdate(Executor& all_threads, const CooOperands& coo,
                           const xffi::AnyBuffer& gradient_buffer,
                           xffi::RemainingArgs args, xffi::RemainingRets rets,
                           const UpdateAttributes& attributes) {
  DeviceExecutor executor(all_threads, attributes.num_devices);
  JTE_ASSIGN_OR_RETURN(const auto operands,
                       ReadOptimizerOperands(args, rets, attributes.optimizer));
  JTE_ASSIGN_OR_RETURN(
      auto batch,
      ReadBatch(coo, gradient_buffer, operands.table,
                attributes.num_sc_per_device, attributes.enable_minibatching));
  if (attributes.num_devices == 1) {
    return UpdateWithAllRowsHere(executor, batch, attributes.optimizer,
                                 operands);
  }
  PreferHugePages(operands);
  batch.geometry.num_devices = attributes.num_devices;
  JTE_ASSIGN_OR_RETURN(const auto devices,
                       ReadDevices(args, operands.num_operands,
                                   {.buffers = batch.buffers,
                                    .rows = BytesOf(gradient_buffer),
                                    .geometry = batch.geometry}));
  return kernels::ApplyBatches(
      devices.batches, devices.own, batch.geometry, operands.table.dim,
      OptimizerOf(attributes.optimizer, operands),
      {.table = operands.table.values, .slots = operands.slots}, executor);
}

// The operands of one stack after those of the other; then any that only order
// the call.
Result<void> CheckedSmallUpdates(xffi::RemainingArgs args,
                                 xffi::RemainingRets rets,
                                 const SmallUpdatesAttributes& attributes) {
  const int64_t num_stacks = attributes.num_stacks;
  if (num_stacks < 1 || std::ssize(rets) % num_stacks != 0) {
    return InvalidArgument("There are ", rets.size(), " tables and slots of ",
                           num_stacks, " stacks.");
  }
  const OptimizerAttributes& optimizer = attributes.optimizer;
  const int64_t num_tables = std::ssize(rets) / num_stacks;
  const int64_t num_operands = kNumCooOperands + 1 + num_tables +
                               optimizer.num_hyperparameters +
                               (optimizer.stochastic_rounding ? 1 : 0);
  return ForEachStack(
      num_stacks, attributes.stacks,
      [&](int64_t k, Executor& executor) -> Result<void> {
        const int64_t first = k * num_operands;
        JTE_ASSIGN_OR_RETURN(const auto coo, ReadCooOperands(args, first));
        const auto gradient =
            args.get<xffi::AnyBuffer>(first + kNumCooOperands);
        if (gradient.has_error()) {
          return InvalidArgument("There is no gradient.");
        }
        JTE_ASSIGN_OR_RETURN(
            const auto operands,
            ReadOptimizerOperands(args, rets, optimizer,
                                  {.first_arg = first + kNumCooOperands + 1,
                                   .first_ret = k * num_tables,
                                   .num_tables = num_tables}));
        JTE_ASSIGN_OR_RETURN(const auto batch,
                             ReadBatch(coo, *gradient, operands.table,
                                       attributes.num_sc_per_device,
                                       attributes.enable_minibatching));
        return UpdateWithAllRowsHere(executor, batch, optimizer, operands);
      });
}

// It fails for what is wrong in the program only, hence on every device: see
// kernels/exchange/buffers_or_nan.h.
Result<void> CheckedUpdateBatches(Executor& executor, const CooOperands& coo,
                                  const FloatMatrix& gradient,
                                  const IntScalar& device,
                                  xffi::RemainingArgs args,
                                  xffi::RemainingRets rets,
                                  const UpdateAttributes& attributes) {
  JTE_ASSIGN_OR_RETURN(const auto operands,
                       ReadOptimizerOperands(args, rets, attributes.optimizer));
  const Table& table = operands.table;
  const int64_t num_devices = attributes.num_devices;
  const auto shape = gradient.dimensions();
  if (shape[1] != table.dim) {
    return InvalidArgument("The gradient has ", shape[1],
                           " columns, expected the table's ", table.dim, ".");
  }
  JTE_ASSIGN_OR_RETURN(
      auto geometry,
      MakeGeometry(attributes.num_sc_per_device, attributes.enable_minibatching,
                   *coo.num_minibatches.typed_data(), table.num_rows,
                   shape[0] / num_devices));
  geometry.num_devices = num_devices;
  std::vector<kernels::BuffersOrNaN> buffers;
  for (int64_t k = 0; k < num_devices; ++k) {
    buffers.emplace_back(PartOf(coo.Spans(), k, num_devices), geometry,
                         executor);
  }
  std::vector<kernels::DeviceBatch> batches;
  for (int64_t k = 0; k < num_devices; ++k) {
    batches.push_back(
        {.buffers = buffers[k].buffers(),
         .activation_gradient =
             PartOf(ToSpan<const float>(gradient), k, num_devices).data()});
  }
  PreferHugePages(operands);
  return kernels::ApplyBatches(
      batches, *device.typed_data(), buffers.front().geometry(), table.dim,
      OptimizerOf(attributes.optimizer, operands),
      {.table = table.values, .slots = operands.slots}, executor);
}

Result<void> CheckedUpdateReceived(Executor& executor, xffi::RemainingArgs args,
                                   xffi::RemainingRets rets,
                                   const UpdateReceivedAttributes& attributes) {
  JTE_ASSIGN_OR_RETURN(const auto operands,
                       ReadOptimizerOperands(args, rets, attributes.optimizer));
  const Table& table = operands.table;
  const size_t first = operands.num_operands;
  const int64_t num_devices = attributes.num_devices;
  JTE_ASSIGN_OR_RETURN(
      const auto rows,
      ReadBlocks<IntVector>(args, first, num_devices, "received rows"));
  JTE_ASSIGN_OR_RETURN(
      const auto gradients,
      ReadBlocks<FloatMatrix>(args, first + num_devices, num_devices,
                              "received gradients"));
  const auto shape = gradients.front().dimensions();
  const auto num_rows = static_cast<int64_t>(rows.front().element_count());
  if (shape[0] != num_rows || shape[1] != table.dim) {
    return InvalidArgument("The received gradients have shape [", shape[0],
                           ", ", shape[1], "], expected [", num_rows, ", ",
                           table.dim, "].");
  }
  std::vector<kernels::ReceivedGradients> received;
  for (int64_t k = 0; k < num_devices; ++k) {
    received.push_back({.rows = ToSpan<const int32_t>(rows[k]),
                        .gradients = gradients[k].typed_data()});
  }
  PreferHugePages(operands);
  return kernels::ApplyReceived(
      received, table.num_rows, table.dim,
      OptimizerOf(attributes.optimizer, operands),
      {.table = table.values, .slots = operands.slots}, executor);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteUpdateCpu, kCooOnPool<CheckedUpdate>,
    BindCooOnPool()
        .Arg<xffi::AnyBuffer>()  // activation_gradient
        .RemainingArgs()         // see optimizer_operands.h
        .RemainingRets()         // table, slots
        .Attrs<UpdateAttributes>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteSmallUpdatesCpu, kHandler<CheckedSmallUpdates>,
    xffi::Ffi::Bind()
        .RemainingArgs()  // row_pointers, embedding_ids, sample_ids, gains,
                          // num_minibatches, activation_gradient and those of
                          // optimizer_operands.h, by stack
        .RemainingRets()  // table, slots, by stack
        .Attrs<SmallUpdatesAttributes>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteUpdateBatchesCpu, kCooOnPool<CheckedUpdateBatches>,
    BindCooOnPool()          // of all devices
        .Arg<FloatMatrix>()  // activation_gradient
        .Arg<IntScalar>()    // the number of this device
        .RemainingArgs()     // see optimizer_operands.h
        .RemainingRets()     // table, slots
        .Attrs<UpdateAttributes>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteUpdateReceivedCpu,
                              kOnPool<CheckedUpdateReceived>,
                              xffi::Ffi::Bind()
                                  .Ctx<xffi::ThreadPool>()
                                  .RemainingArgs()  // see optimizer_operands.h;
                                                    // rows, then gradients, by
                                                    // device
                                  .RemainingRets()  // table, slots
                                  .Attrs<UpdateReceivedAttributes>());

}  // namespace jte::ffi
