// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The least that a conversion has to move: reads every byte of the input,
// writes every byte of the output, and computes next to nothing.
//
// floor.py calls it through ctypes.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

// The t-th of n equal parts of an array of `size` elements.
struct Part {
  Part(int64_t size, int64_t t, int64_t n)
      : begin(size * t / n), end(size * (t + 1) / n) {}
  int64_t begin;
  int64_t end;
};

std::atomic<uint32_t> sink;  // so that the reads are not optimized away

}  // namespace

// Arrays are of 32-bit words; sizes count them.
extern "C" void MoveMemory(const uint32_t* const* inputs,
                           const int64_t* input_sizes, int64_t num_inputs,
                           uint32_t* const* outputs,
                           const int64_t* output_sizes, int64_t num_outputs,
                           int64_t num_threads) {
  const auto move = [inputs, input_sizes, num_inputs, outputs, output_sizes,
                     num_outputs, num_threads](int64_t t) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < num_inputs; ++i) {
      const Part part(input_sizes[i], t, num_threads);
      for (int64_t k = part.begin; k < part.end; ++k) sum += inputs[i][k];
    }
    for (int64_t i = 0; i < num_outputs; ++i) {
      const Part part(output_sizes[i], t, num_threads);
      std::fill(outputs[i] + part.begin, outputs[i] + part.end, sum);
    }
    sink.store(sum, std::memory_order_relaxed);
  };
  std::vector<std::jthread> threads;
  for (int64_t t = 1; t < num_threads; ++t) threads.emplace_back(move, t);
  move(0);
}
