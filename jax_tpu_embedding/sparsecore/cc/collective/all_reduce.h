// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How the hosts of a job agree on a number: OR reductions named by keys.
//
// Each host has an AllReduce of its own. A reduction is named by its sync key:
// every host contributes once under that key, and the call returns the OR of
// all contributions, the same on every host. A job of one host needs none: a
// null AllReduce* stands for the identity.
//
// Requirements: all hosts use the same keys for the same reductions, and no
// host uses a key twice. Which of them runs first does not matter.
//
// Errors, all kFailedPrecondition: a host that is gone or cannot be reached, a
// deadline that passed, a key that this host used before, hosts that disagree
// on the kind of a reduction. A host that got an error cannot know what the
// others got.
//
// Threading: calls block until the last host has contributed, so they must not
// hold what another contribution needs. Calls with different keys may run at
// the same time on different threads.
//
//   JTE_ASSIGN_OR_RETURN(const bool any,
//                        all_reduce.AnyOf(2 * batch_number, local_answer));

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_COLLECTIVE_ALL_REDUCE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_COLLECTIVE_ALL_REDUCE_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte::collective {

class AllReduce {
 public:
  virtual ~AllReduce() = default;

  virtual Result<bool> AnyOf(int32_t sync_key, bool value) = 0;

  virtual Result<uint64_t> BitwiseOr(int32_t sync_key, uint64_t value) = 0;
};

}  // namespace jte::collective

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_COLLECTIVE_ALL_REDUCE_H_
