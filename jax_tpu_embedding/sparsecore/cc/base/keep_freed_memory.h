// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The results of one step are freed before or after those of the next are made.
// By default glibc gives such memory back to the system as soon as there is a
// few MiB of it, and the next step waits until the system has cleared the same
// pages again. What of the CPU time a step of 1 M x 64 float32 takes without
// that, in a virtual machine on an EPYC with 2 cores: 0.75 for 16384 ids of as
// many samples, looked up, or updated too; 0.9 for 20 ids each, looked up.
//
// Threads other than the first have heaps of 64 MiB, which glibc unmaps as soon
// as they are empty, whatever it shall keep. XLA's threads make the activations
// and gradients of a step, so where these are large, all threads share the heap
// of the first: docs/how_to/freed_memory.md has what that takes and gives.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_KEEP_FREED_MEMORY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_KEEP_FREED_MEMORY_H_

#include <cstddef>

namespace jte {

// Blocks above this are mapped, and unmapped when they are freed, unless more
// than kMaxKeptBytes are to be kept. The most that glibc allows.
inline constexpr int kMaxKeptBlockBytes = 32 << 20;
// What the process keeps by default. As glibc does itself once a block of
// kMaxKeptBlockBytes was freed.
inline constexpr int kMaxKeptBytes = 2 * kMaxKeptBlockBytes;

// Lets glibc's malloc keep up to `num_bytes` of freed memory at the end of
// each of its heaps. With more than kMaxKeptBytes no block is mapped any more,
// however large, and threads that start from now on have one heap, unless the
// user has said how many there are. Changes nothing, and returns false, with
// other allocators, where malloc refuses, or where the user has set one of the
// limits on this (mallopt(3), "Environment variables"; or the same as
// GLIBC_TUNABLES).
bool KeepFreedMemory(int num_bytes = kMaxKeptBytes);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_KEEP_FREED_MEMORY_H_
