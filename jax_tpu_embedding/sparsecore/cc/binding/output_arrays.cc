// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/output_arrays.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/output_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

// int32 and float alike.
constexpr int64_t kItemSize = 4;

// Cuts arrays off a block.
class BlockCutter {
 public:
  explicit BlockCutter(OutputPool::Block block)
      : block_(std::move(block)), next_(static_cast<char*>(block_.data)) {}

  // `size` items of each of num_devices devices: an array and a view of it.
  template <typename T>
  std::pair<py::array_t<T>, std::span<T>> Cut(int64_t num_devices, int64_t size,
                                              bool has_leading_dimension) {
    static_assert(sizeof(T) == kItemSize);
    auto* const data = reinterpret_cast<T*>(next_);
    const int64_t total = num_devices * size;
    next_ += SizeInBlock(total);
    return {has_leading_dimension
                ? NewArray<T>({num_devices, size}, data, block_.owner)
                : NewArray<T>({total}, data, block_.owner),
            std::span<T>(data, total)};
  }

  // Bytes that an array takes.
  static int64_t SizeInBlock(int64_t num_items) {
    return RoundUp(num_items * kItemSize, OutputPool::kAlignment);
  }

 private:
  OutputPool::Block block_;
  char* next_;
};

}  // namespace

OutputArrays MakeOutputArrays(std::span<const convert::StackPlan> stacks,
                              std::span<const py::str> names,
                              bool enable_minibatching,
                              bool has_leading_dimension, OutputPool& pool) {
  int64_t num_bytes = 0;
  for (const convert::StackPlan& plan : stacks) {
    const int64_t num_devices = plan.topology.local_device_count;
    const int64_t of_stack =
        BlockCutter::SizeInBlock(
            num_devices *
            RowPointersPerDevice(plan.topology, enable_minibatching)) +
        3 * BlockCutter::SizeInBlock(num_devices * plan.coo_cells_per_device);
    // One stack fits, many of an absurd topology may not.
    if (__builtin_add_overflow(num_bytes, of_stack, &num_bytes)) {
      throw std::bad_alloc();
    }
  }
  BlockCutter block(pool.Take(num_bytes));

  OutputArrays result;
  result.buffers.reserve(stacks.size());
  for (size_t i = 0; i < stacks.size(); ++i) {
    const convert::StackPlan& plan = stacks[i];
    const py::str& name = names[i];
    const auto add = [&plan, &block, &name, has_leading_dimension]<typename T>(
                         py::dict& arrays, int64_t size, T) {
      auto [array, view] = block.Cut<T>(plan.topology.local_device_count, size,
                                        has_leading_dimension);
      arrays[name] = std::move(array);
      return view;
    };
    const int64_t cells = plan.coo_cells_per_device;
    result.buffers.push_back(
        {.row_pointers =
             add(result.row_pointers,
                 RowPointersPerDevice(plan.topology, enable_minibatching),
                 int32_t{}),
         .embedding_ids = add(result.embedding_ids, cells, int32_t{}),
         .sample_ids = add(result.sample_ids, cells, int32_t{}),
         .gains = add(result.gains, cells, float{})});
  }
  return result;
}

}  // namespace jte::binding
