// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch_converter.h"

#include <cstdint>
#include <expected>
#include <span>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch_split.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch_step.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {
namespace {

constexpr int32_t kMaxBatchNumber = (1 << 30) - 1;  // 2 b + 1 fits int32

Result<void> CheckReduction(const Topology& topology, int32_t batch_number,
                            const AllReduce* all_reduce) {
  if (all_reduce == nullptr) {
    if (topology.local_device_count == topology.global_device_count) return {};
    return InvalidArgument(
        "enable_minibatching=True on ", topology.local_device_count, " of ",
        topology.global_device_count,
        " devices needs an all_reduce_interface, by which all hosts agree on "
        "the minibatches. Pass that of get_all_reduce_interface().");
  }
  if (batch_number >= 0 && batch_number <= kMaxBatchNumber) return {};
  return InvalidArgument("batch_number must be in [0, ", kMaxBatchNumber,
                         "], got ", batch_number, ".");
}

Result<bool> AnyHost(AllReduce* all_reduce, int32_t batch_number, bool value) {
  if (all_reduce == nullptr) return value;
  return all_reduce->AnyOf(2 * batch_number, value);
}

Result<uint64_t> OrOfHosts(AllReduce* all_reduce, int32_t batch_number,
                           uint64_t value) {
  if (all_reduce == nullptr) return value;
  return all_reduce->BitwiseOr(2 * batch_number + 1, value);
}

// The minibatches of all hosts. `local` is how this host's part went so far;
// its error is the one to report even if the reductions fail too.
Result<MinibatchSplit> AgreeOnSplit(MinibatchStep& step, Result<void> local,
                                    AllReduce* all_reduce,
                                    int32_t batch_number) {
  const auto needed =
      AnyHost(all_reduce, batch_number, local && step.exceeds_limits());
  MinibatchSplit split;
  Result<void> reduced;
  if (!needed) {
    reduced = std::unexpected(needed.error());
  } else if (*needed) {
    if (local) local = step.SortIntoBuckets();
    const auto bits =
        OrOfHosts(all_reduce, batch_number, local ? step.split_bits() : 0);
    if (bits) {
      split = MinibatchSplit(*bits);
    } else {
      reduced = std::unexpected(bits.error());
    }
  }
  if (!local) return std::unexpected(local.error());
  if (!reduced) return std::unexpected(reduced.error());
  return split;
}

}  // namespace

Result<Conversion> ConvertInMinibatches(std::span<const StackPlan> stacks,
                                        const ConvertOptions& options,
                                        std::span<const CsrBuffers> buffers,
                                        Executor& executor,
                                        AllReduce* all_reduce) {
  if (auto checked = CheckReduction(stacks.front().topology,
                                    options.batch_number, all_reduce);
      !checked) {
    return std::unexpected(checked.error());
  }
  MinibatchStep step(stacks, executor);
  const auto split =
      AgreeOnSplit(step, step.Count(), all_reduce, options.batch_number);
  if (!split) return std::unexpected(split.error());
  if (auto filled = step.Fill(*split, buffers); !filled) {
    return std::unexpected(filled.error());
  }
  auto stats = step.TakeStats(options.allow_id_dropping);
  if (!stats) return std::unexpected(std::move(stats).error());
  return Conversion{.stats = *std::move(stats),
                    .num_minibatches = static_cast<int>(split->size())};
}

}  // namespace jte
