// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels of the product with one mistake each (broken_kernels.bzl): what
// kernels_test.cc compares, or a sanitizer, finds it.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/testing/emulated_calls.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"

namespace jte::gpu {

template <typename T>
const char* PoolSamplesInAnotherOrder(Stream, const ConstSampleGroups&, int64_t,
                                      const T*, int64_t, int64_t,
                                      const QuantizedTo&, float*);
template <typename T>
const char* PoolSamplesBeyondTheEnd(Stream, const ConstSampleGroups&, int64_t,
                                    const T*, int64_t, int64_t,
                                    const QuantizedTo&, float*);
const char* StepRowsWithoutBarrier(Stream, std::string_view, const RowTerms&,
                                   int64_t, float*, const Optimizer&,
                                   const Tables&);

namespace {

constexpr int64_t kDim = 24;
constexpr int64_t kBlockSize = 512;

// Whole numbers and halves would add up to the same in any order.
std::vector<float> Fractions(int64_t size) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) {
    values[i] = 1.0f / static_cast<float>(i % 91 + 3);
  }
  return values;
}

class BrokenKernelsTest : public testing::Test {
 protected:
  BrokenKernelsTest()
      : coo_(kernels::MakeRandomCoo({.num_sc_per_device = 1,
                                     .rows_per_shard = 24,
                                     .batch_size_per_sc = 6,
                                     .enable_minibatching = false,
                                     .num_minibatches = 1},
                                    /*ids_per_sample=*/9, /*seed=*/4)),
        batch_(coo_.buffers(), coo_.geometry),
        table_(Fractions(coo_.num_rows() * kDim)) {}

  template <typename Pool>
  std::vector<float> LookUp(const Pool& pool) const {
    const auto groups = GroupedSamples::Of(batch_);
    std::vector<float> activations(coo_.num_samples() * kDim);
    EXPECT_EQ(pool(Stream(), groups.view(), groups.num_cells(), table_.data(),
                   coo_.num_samples(), kDim, QuantizedTo{}, activations.data()),
              nullptr);
    return activations;
  }

  // SGD of rows of which one has a gradient that is not finite in one column:
  // no thread of its tile may step before all have looked at theirs.
  template <typename StepFunction>
  std::vector<float> Step(const StepFunction& step) const {
    std::vector<float> table = table_;
    std::vector<float> gradient = Fractions(coo_.num_samples() * kDim);
    gradient[kDim + 5] = std::numeric_limits<float>::infinity();
    const auto groups = GroupedRows::Of(batch_, kBlockSize);
    Optimizer optimizer{};
    optimizer.hyperparameters[0].value = 0.5f;
    optimizer.options.skip_non_finite_gradients = true;
    std::vector<float> block_sums(groups.max_row_blocks() * kDim);
    EXPECT_EQ(
        step(Stream(), "sgd",
             TermsOf(batch_, groups, gradient, kDim, kBlockSize),
             groups.max_row_blocks(), block_sums.data(), optimizer,
             {.table = table.data(), .type = TableType::kFloat, .slots = {}}),
        nullptr);
    return table;
  }

  kernels::RandomCoo coo_;
  Batch batch_;
  std::vector<float> table_;
};

TEST_F(BrokenKernelsTest, AMissingBarrierIsFound) {
  const auto expected = Step(StepRows);
  EXPECT_EQ(Step(StepRows), expected);
  EXPECT_NE(Step(StepRowsWithoutBarrier), expected);
}

TEST_F(BrokenKernelsTest, AWrongOrderOfTermsIsFound) {
  const auto expected = LookUp(PoolSamples<float>);
  EXPECT_EQ(LookUp(PoolSamples<float>), expected);
  const auto actual = LookUp(PoolSamplesInAnotherOrder<float>);
  EXPECT_NE(actual, expected);
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-5);  // nothing but the order
  }
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(BrokenKernelsTest, AnOverrunIsFound) {
  EXPECT_DEATH(LookUp(PoolSamplesBeyondTheEnd<float>), "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace jte::gpu
