// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Reductions between threads of one process, each in the place of a host.
//
// The participants share one state; the last of them to go frees it. One that
// is destroyed has left: reductions that still lack its contribution fail on
// the others at once, so that an early return on one thread cannot hang the
// rest. Nothing else bounds how long a call waits.
//
//   auto hosts = MakeLocalAllReduce(2);
//   std::jthread other([host = std::move(hosts[1])] { host->AnyOf(0, true); });
//   hosts[0]->AnyOf(0, false);  // true

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_COLLECTIVE_LOCAL_ALL_REDUCE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_COLLECTIVE_LOCAL_ALL_REDUCE_H_

#include <memory>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/collective/all_reduce.h"

namespace jte::collective {

// How many finished keys are remembered, to tell a key that is used twice from
// a new one. Older keys look new again: memory stays bounded in a long job.
inline constexpr int kNumRememberedKeys = 1024;

// The participants of a group of n >= 1. Each may be used from any thread.
std::vector<std::unique_ptr<AllReduce>> MakeLocalAllReduce(int n);

}  // namespace jte::collective

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_COLLECTIVE_LOCAL_ALL_REDUCE_H_
