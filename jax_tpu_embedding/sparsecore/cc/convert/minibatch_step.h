// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// This host's part of a conversion with minibatching, phase by phase. Between
// the phases, minibatch_converter.h asks the other hosts.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_STEP_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_STEP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/bucket_counts.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/fill_report.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/for_each_sparse_core.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch_split.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/scratch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sorted_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"

namespace jte {

// The phases are called in this order. One that failed ends the step.
class MinibatchStep {
 public:
  // At least one stack; all have one topology.
  MinibatchStep(std::span<const StackPlan> stacks, Executor& executor);
  ~MinibatchStep();

  // Extracts, sorts and counts. Errors: those of ExtractIds.
  Result<void> Count();

  // Whether a partition exceeds a limit.
  bool exceeds_limits() const { return exceeds_limits_; }

  // Only if some host exceeds its limits. Count did it where it knew that.
  Result<void> SortIntoBuckets();

  // The boundaries between minibatches that this host needs.
  uint64_t split_bits() const { return split_bits_; }

  // Writes all of `buffers`.
  Result<void> Fill(const MinibatchSplit& split,
                    std::span<const CsrBuffers> buffers);

  // Ends the step. Errors: buckets beyond a limit and buffers that are too
  // small, all in one message, unless ids may be dropped.
  Result<std::vector<StackStats>> TakeStats(bool allow_id_dropping);

 private:
  using SpareElements = ScratchArray<uint64_t>;

  struct SparseCore {
    std::unique_ptr<Scratch> scratch;  // of Count, until the end
    SortedIds ids;
    PartitionTable table;
    PartitionTable minibatches;  // of Fill
    int64_t kept_cells = 0;
    FillReport report;
  };

  Result<void> CountSparseCore(const SparseCoreTask& task);
  void SortSparseCore(const SparseCoreTask& task);
  void ReturnSpare(SparseCore& sc, std::unique_ptr<SpareElements> spare);
  void PlanCells(const SparseCoreTask& task, const MinibatchSplit& split);
  void FillSparseCore(const SparseCoreTask& task, const MinibatchSplit& split,
                      const CsrBuffers& device);

  std::span<const StackPlan> stacks_;
  Executor& executor_;
  std::vector<SparseCore> sparse_cores_;  // by SparseCoreTask::index
  std::deque<SharedStats> stats_;         // by stack
  ScratchPool<Scratch> scratch_pool_;
  ScratchPool<SpareElements> spare_pool_;
  ScratchPool<RowScratch> row_scratch_pool_;
  std::atomic<bool> exceeds_limits_ = false;
  std::atomic<uint64_t> split_bits_ = 0;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_STEP_H_
