// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Conversion with minibatching: a step whose partitions exceed their limits is
// looked up in several passes, each of which stays within them.
//
//   extract -> sort -> count
//       | does a partition of any host exceed a limit?     AnyOf(2 b)
//       v if so
//   sort into buckets -> boundaries between minibatches    BitwiseOr(2 b + 1)
//       |
//       v
//   count cells -> fill
//
// with batch number b. All hosts get the same number of minibatches.
//
// A host on which a batch cannot be converted still takes part in both
// reductions, as if its batch were empty, and reports its error after them: the
// other hosts neither wait for it nor lose count. What is checked before any
// id is read, by PlanConversion and above it, comes too early for that; other
// hosts then wait until the deadline of their AllReduce. Limits are checked
// last, when all hosts know the split.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_MINIBATCH_CONVERTER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_MINIBATCH_CONVERTER_H_

#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/collective/all_reduce.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte::convert {

// Convert of converter.h, with options.enable_minibatching; at least one stack.
//
// Errors, beyond those of ids and limits: several hosts without an AllReduce,
// a batch number outside [0, 2^30), an AllReduce that fails.
Result<Conversion> ConvertInMinibatches(std::span<const StackPlan> stacks,
                                        const ConvertOptions& options,
                                        std::span<const CsrBuffers> buffers,
                                        Executor& executor,
                                        collective::AllReduce* all_reduce);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_MINIBATCH_CONVERTER_H_
