// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Scratch memory of a call: one result, which is cut into arrays.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_SCRATCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_SCRATCH_H_

#include <cstddef>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

// Takes arrays off a block of memory. Without one it counts what they take, so
// that a size and its use are one function.
class ScratchCutter {
 public:
  explicit ScratchCutter(void* data = nullptr)
      : data_(static_cast<char*>(data)) {}

  template <typename T>
  T* Take(int64_t count) {
    char* const at = data_ == nullptr ? nullptr : data_ + num_bytes_;
    num_bytes_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), kAlignment);
    return reinterpret_cast<T*>(at);
  }

  int64_t num_bytes() const { return num_bytes_; }

 private:
  // Of XLA's buffers, and what loads of whole lines want.
  static constexpr int64_t kAlignment = 256;

  char* data_;
  int64_t num_bytes_ = 0;
};

// What functions of gpu/sort.h need for up to n elements.
inline gpu::Scratch TakeSort(ScratchCutter& scratch, int64_t n) {
  const int64_t num_bytes = gpu::ScratchBytes(n);
  return {.data = scratch.Take<char>(num_bytes),
          .num_bytes = static_cast<size_t>(num_bytes)};
}

inline Result<void> CheckScratch(const xla::ffi::AnyBuffer& scratch,
                                 int64_t needed) {
  if (static_cast<int64_t>(scratch.size_bytes()) >= needed) return {};
  return InvalidArgument("The scratch result has ", scratch.size_bytes(),
                         " bytes, expected ", needed,
                         " or more. If the program was exported by another "
                         "version, export it again.");
}

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_SCRATCH_H_
