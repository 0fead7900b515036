// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Running out of memory, on whichever thread, is an error of the conversion:
// the process goes on, and so does the next call.

#include <cstdint>
#include <initializer_list>
#include <new>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/failing_allocation.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {
namespace {

class OutOfMemoryTest : public testing::TestWithParam<bool> {
 protected:
  OutOfMemoryTest() {
    options_.enable_minibatching = GetParam();
    for (int32_t i = 0; i < 3000; ++i) ids_.push_back(i * i % 1000);
  }

  Result<Conversion> ConvertIds(Executor& executor) {
    const StackedFeature feature = {
        .feature = {.name = "f",
                    .vocabulary_size = 1000,
                    .batch = {.ids = std::span(ids_),
                              .num_samples = 300,
                              .valency = 10}},
        .stack = {.name = "s",
                  .combiner = "mean",
                  .max_ids_per_partition = 128,
                  .max_unique_ids_per_partition = 128}};
    JTE_ASSIGN_OR_RETURN(const auto stacks,
                         PlanConversion({feature}, options_));
    std::vector<int32_t> row_pointers(
        RowPointersPerDevice(options_.topology, options_.enable_minibatching));
    const int64_t num_cells = stacks.front().coo_cells_per_device;
    std::vector<int32_t> embedding_ids(num_cells);
    std::vector<int32_t> sample_ids(num_cells);
    std::vector<float> gains(num_cells);
    const CsrBuffers buffers = {row_pointers, embedding_ids, sample_ids, gains};
    return Convert(stacks, options_, {&buffers, 1}, executor, nullptr);
  }

  // Ids may be dropped: without minibatches there are too many.
  ConvertOptions options_ = {.topology = {.num_sc_per_device = 4},
                             .allow_id_dropping = true};
  std::vector<int32_t> ids_;
};

TEST_P(OutOfMemoryTest, IsAnErrorOfTheConversion) {
  InlineExecutor inline_executor;
  ThreadExecutor thread_executor(3);
  for (Executor* const executor :
       std::initializer_list<Executor*>{&inline_executor, &thread_executor}) {
    const int64_t num_thrown =
        ExpectSurvivesFailingAllocations([this, executor] {
          const auto done = ConvertIds(*executor);
          if (done) return;
          ASSERT_EQ(done.error().code, ErrorCode::kResourceExhausted)
              << done.error().message;
          throw std::bad_alloc();
        });
    EXPECT_GT(num_thrown, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(WithoutAndWithMinibatches, OutOfMemoryTest,
                         testing::Bool());

}  // namespace
}  // namespace jte::convert
