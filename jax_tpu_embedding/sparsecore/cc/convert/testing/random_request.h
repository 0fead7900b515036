// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Requests to the converter, drawn at random: any topology, form of input, type
// of id, policy and limit. Most are so small that limits are exceeded, ids
// repeat and a thousand requests take a second; one in ten is large enough that
// rows, samples and runs of one id go from one block of the converter's 512
// elements to the next.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_TESTING_RANDOM_REQUEST_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_TESTING_RANDOM_REQUEST_H_

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <iterator>
#include <random>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"

namespace jte::convert {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // In [low, high].
  int64_t Integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool OneIn(int64_t n) { return Integer(1, n) == 1; }
  template <typename T>
  T Choose(std::initializer_list<T> choices) {
    return choices.begin()[Integer(0, std::ssize(choices) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// A request, with the memory that its features refer to.
struct Request {
  ConvertOptions options;
  std::vector<StackedFeature> features;
  // Deques, since their elements do not move.
  std::deque<std::vector<int32_t>> int32s;
  std::deque<std::vector<int64_t>> int64s;
  std::deque<std::vector<uint64_t>> uint64s;
  std::deque<std::vector<float>> weights;
};

// PlanConversion accepts it. Some have ids or weights that their policies
// refuse, and many exceed a limit.
Request RandomRequest(Random& random);

// Makes one number of the request anything.
void Spoil(Random& random, Request& request);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_TESTING_RANDOM_REQUEST_H_
