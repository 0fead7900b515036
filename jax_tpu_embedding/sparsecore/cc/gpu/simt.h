// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels that one source compiles for a GPU and, thread by thread, for a CPU.
//
// A kernel is a struct. Its members are its parameters, and it is called once
// for each thread:
//
//   struct Double {
//     static constexpr int kThreads = 256;  // of a block
//     const float* x;
//     float* y;
//     int64_t n;
//     JTE_DEVICE void operator()(const Thread& thread) const {
//       for (int64_t i = thread.number(); i < n; i += thread.num_threads()) {
//         y[i] = 2 * x[i];
//       }
//     }
//   };
//   return Launch(stream, NumBlocks<Double>(n), Double{x, y, n});
//
// Threads of a *tile* may exchange values: a power of two of neighbours, 32 at
// most, within a warp. Such a kernel says `kExchanges = true`.
//
// With nvcc this is CUDA. With JTE_EMULATED_GPU, simt_emulation.h runs the
// threads one by one, in an order that a seed decides. Otherwise there are no
// kernels, and only what code has to know that asks for them.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SIMT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SIMT_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#elif defined(JTE_EMULATED_GPU)
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt_emulation.h"
#else
struct CUstream_st;  // of CUDA, which is not needed here
#endif

namespace jte::gpu {

#ifdef __CUDACC__

#define JTE_DEVICE __device__ __forceinline__
#define JTE_DEVICE_CALL __device__ __noinline__  // for what is called often
#define JTE_UNROLL _Pragma("unroll")

using Stream = cudaStream_t;

// Where a thread is, and what it can do with others.
class Thread {
 public:
  __device__ int index() const { return threadIdx.x; }  // in its block
  __device__ int64_t block() const { return blockIdx.x; }
  __device__ int64_t num_blocks() const { return gridDim.x; }

  // In the grid.
  __device__ int64_t number() const {
    return int64_t{blockDim.x} * blockIdx.x + threadIdx.x;
  }
  __device__ int64_t num_threads() const {
    return int64_t{gridDim.x} * blockDim.x;
  }

  // The value that thread `lane` of the tile of `lanes` threads has. All of
  // them must call it.
  template <typename T>
  __device__ T Shuffle(T value, int lane, int lanes) const {
    return __shfl_sync(TileMask(lanes), value, lane, lanes);
  }
  // The value of the thread whose lane differs in the bits of `mask`. Of a mask
  // that the compiler knows it takes no register for the lane.
  template <typename T>
  __device__ T ShuffleXor(T value, int mask, int lanes) const {
    return __shfl_xor_sync(TileMask(lanes), value, mask, lanes);
  }
  // Whether it holds for any thread of the tile; all must call it.
  __device__ bool Any(bool value, int lanes) const {
    return __any_sync(TileMask(lanes), value);
  }
  // Returns once all threads of the tile have called it. What they wrote before
  // is visible to them all.
  __device__ void SyncTile(int lanes) const { __syncwarp(TileMask(lanes)); }

  // The value before; the order of threads is any.
  __device__ int AtomicAdd(int* at, int value) const {
    return atomicAdd(at, value);
  }

 private:
  static __device__ unsigned TileMask(int lanes) {
    const unsigned ones = lanes == 32 ? ~0u : (1u << lanes) - 1;
    return ones << (threadIdx.x & 31 & ~(lanes - 1));
  }
};

// Blocks that a multiprocessor is to have room for, which bounds registers.
template <typename Kernel>
constexpr int kMinBlocks = [] {
  if constexpr (requires { Kernel::kMinBlocks; }) return Kernel::kMinBlocks;
  return 4;
}();

template <typename Kernel>
__global__ __launch_bounds__(Kernel::kThreads, kMinBlocks<Kernel>) void Run(
    const __grid_constant__ Kernel kernel) {
  kernel(Thread());
}

// Null, or the message of an error.
inline const char* MessageOf(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Starts `num_blocks` blocks of the kernel; nothing if that is 0. Returns null,
// or the message of an error.
template <typename Kernel>
const char* Launch(Stream stream, int64_t num_blocks, const Kernel& kernel) {
  if (num_blocks == 0) return nullptr;
  Run<<<static_cast<unsigned>(num_blocks), Kernel::kThreads, 0, stream>>>(
      kernel);
  return MessageOf(cudaGetLastError());
}

inline const char* FillWithZeros(Stream stream, void* data, size_t num_bytes) {
  return MessageOf(cudaMemsetAsync(data, 0, num_bytes, stream));
}

#elif defined(JTE_EMULATED_GPU)

#define JTE_DEVICE inline
#define JTE_DEVICE_CALL [[gnu::noinline]]
#define JTE_UNROLL

template <typename Kernel>
constexpr bool kExchanges = requires { requires Kernel::kExchanges; };

template <typename Kernel>
const char* Launch(Stream, int64_t num_blocks, const Kernel& kernel) {
  return EmulateGrid(
      num_blocks, Kernel::kThreads, kExchanges<Kernel>,
      [](const void* kernel, const Thread& thread) {
        (*static_cast<const Kernel*>(kernel))(thread);
      },
      &kernel);
}

inline const char* FillWithZeros(Stream, void* data, size_t num_bytes) {
  if (num_bytes > 0) __builtin_memset(data, 0, num_bytes);
  ++Launches().fills;
  return nullptr;
}

#else

#define JTE_DEVICE inline
#define JTE_UNROLL

using Stream = ::CUstream_st*;  // cudaStream_t

#endif

// As many as grids have here.
inline constexpr int64_t kMaxBlocks = 1 << 16;
inline constexpr int64_t kMaxThreadsPerBlock = 256;
inline constexpr int64_t kMaxThreads = kMaxBlocks * kMaxThreadsPerBlock;

// Enough blocks for a thread for each of `n`, or for as many as a grid should
// have: beyond that each thread takes several in turn.
template <typename Kernel>
constexpr int64_t NumBlocks(int64_t n) {
  static_assert(Kernel::kThreads <= kMaxThreadsPerBlock);
  const int64_t blocks = (n + Kernel::kThreads - 1) / Kernel::kThreads;
  return blocks < kMaxBlocks ? blocks : kMaxBlocks;
}

#if defined(__CUDACC__) || defined(JTE_EMULATED_GPU)

// Numbers of which a thread has several at once, so that it waits for what it
// loads of them together: number(k) for k from 0 to kSize - 1.
class Numbers {
 public:
  static constexpr int kSize = 4;

  JTE_DEVICE Numbers(int64_t first, int64_t stride, int64_t end)
      : first_(first), stride_(stride), end_(end) {}

  JTE_DEVICE int64_t number(int k) const { return first_ + k * stride_; }
  JTE_DEVICE bool has(int k) const { return number(k) < end_; }
  // The number, or the last of all: what is read there needs no branch, which
  // the next read would wait for.
  JTE_DEVICE int64_t number_or_last(int k) const {
    return has(k) ? number(k) : end_ - 1;
  }

 private:
  int64_t first_;
  int64_t stride_;
  int64_t end_;
};

// Calls visit(numbers) until all threads together have had all below n.
template <typename Visit>
JTE_DEVICE void ForEachNumber(const Thread& thread, int64_t n,
                              const Visit& visit) {
  const int64_t stride = thread.num_threads();
  for (int64_t first = thread.number(); first < n;
       first += Numbers::kSize * stride) {
    visit(Numbers(first, stride, n));
  }
}

// Blocks of a kernel that does: a quarter of those for a thread each, but as
// many as there is room for on a GPU before threads have several.
template <typename Kernel>
constexpr int64_t NumBlocksForNumbers(int64_t n) {
  constexpr int64_t kRoomForBlocks = 1024;
  const int64_t of_one = NumBlocks<Kernel>(n);
  const int64_t of_several =
      NumBlocks<Kernel>((n + Numbers::kSize - 1) / Numbers::kSize);
  if (of_several >= kRoomForBlocks) return of_several;
  return of_one < kRoomForBlocks ? of_one : kRoomForBlocks;
}

#endif

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SIMT_H_
