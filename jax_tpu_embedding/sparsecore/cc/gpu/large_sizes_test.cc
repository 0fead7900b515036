// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Tables and gradients of more than 2^31 elements, of which a batch has a few
// rows: the others take no memory.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_terms.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/testing/emulated_calls.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::gpu {
namespace {

using ::testing::Each;

constexpr int64_t kRows = int64_t{1} << 27;
constexpr int32_t kLast = kRows - 1;
constexpr int64_t kDim = 24;
static_assert(kRows * kDim > int64_t{1} << 31);

// Zeros.
class LargeMatrix {
 public:
  LargeMatrix()
      : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~LargeMatrix() {
    if (has_memory()) munmap(data_, kBytes);
  }
  LargeMatrix(const LargeMatrix&) = delete;

  // A process may be limited in what it asks for.
  bool has_memory() const { return data_ != MAP_FAILED; }
  float* data() const { return static_cast<float*>(data_); }
  std::vector<float> row(int64_t i) const {
    return {data() + i * kDim, data() + (i + 1) * kDim};
  }
  void SetRow(int64_t i, float value) {
    std::fill_n(data() + i * kDim, kDim, value);
  }

 private:
  static constexpr size_t kBytes = kRows * kDim * sizeof(float);
  void* data_;
};

class LargeSizesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!table_.has_memory() || !other_.has_memory()) {
      GTEST_SKIP() << "No address space for 26 GB.";
    }
  }

  LargeMatrix table_;
  LargeMatrix other_;
};

TEST_F(LargeSizesTest, RowsArePooled) {
  table_.SetRow(1, 3.0f);
  table_.SetRow(kLast, 5.0f);
  const std::vector<int32_t> begins = {0, 1, 3}, rows = {1, 1, kLast};
  const std::vector<float> gains = {1.0f, 10.0f, 2.0f};
  const Flaws flaws = {};
  std::vector<float> activations(2 * kDim);
  ASSERT_EQ(
      PoolSamples<float>(
          Stream(), {begins.data(), rows.data(), gains.data(), &flaws},
          std::ssize(rows), table_.data(), 2, kDim, {}, activations.data()),
      nullptr);
  EXPECT_THAT(std::span(activations).first(kDim), Each(3.0f));
  EXPECT_THAT(std::span(activations).last(kDim), Each(40.0f));
}

TEST_F(LargeSizesTest, RowsAreStepped) {
  const std::vector<int32_t> row_pointers = {2, 8, 8, 8, 8, 8, 8, 8};
  const std::vector<int32_t> ids = {1, kLast, 0, 0, 0, 0, 0, 0};
  const std::vector<int32_t> samples = {kLast, 2, 0, 0, 0, 0, 0, 0};
  const std::vector<float> gains(8, 2.0f);
  const kernels::CooBuffers buffers{row_pointers, ids, samples, gains};
  const Batch batch(buffers, {.num_sc_per_device = 1,
                              .rows_per_shard = kRows,
                              .batch_size_per_sc = kRows,
                              .enable_minibatching = false,
                              .num_minibatches = 1});
  LargeMatrix& gradient = other_;
  gradient.SetRow(2, 1.0f);
  gradient.SetRow(kLast, 3.0f);
  for (const int64_t block_size : {0, 512}) {
    SCOPED_TRACE(block_size);
    table_.SetRow(1, 0.0f);
    table_.SetRow(kLast, 0.0f);
    const auto groups = GroupedRows::Of(batch, block_size);
    Optimizer optimizer{};
    optimizer.hyperparameters[0].value = 0.5f;
    std::vector<float> block_sums(groups.max_row_blocks() * kDim);
    ASSERT_EQ(
        StepRows(
            Stream(), "sgd",
            {.groups = groups.view(),
             .cell_gains = gains.data(),
             .gradient = gradient.data(),
             .dim = kDim,
             .batch_size_per_sc = kRows,
             .has_one_source = true,
             .block_size = block_size,
             .num_cells = 8},
            groups.max_row_blocks(), block_sums.data(), optimizer,
            {.table = table_.data(), .type = TableType::kFloat, .slots = {}}),
        nullptr);
    EXPECT_THAT(table_.row(1), Each(-3.0f));
    EXPECT_THAT(table_.row(kLast), Each(-1.0f));
    EXPECT_THAT(table_.row(0), Each(0.0f));
  }
}

TEST_F(LargeSizesTest, RowsAreReadAndWritten) {
  table_.SetRow(kLast, 7.0f);
  const std::vector<int32_t> rows = {kLast, 3};
  const RowsOfTable of_table{rows.data(), 2, kRows, kDim};
  std::vector<float> values(2 * kDim);
  ASSERT_EQ(ReadRows(Stream(), of_table, table_.data(), values.data()),
            nullptr);
  EXPECT_THAT(std::span(values).first(kDim), Each(7.0f));
  ASSERT_EQ(WriteRows<float>(Stream(), of_table, values.data(), other_.data()),
            nullptr);
  EXPECT_THAT(other_.row(kLast), Each(7.0f));
}

}  // namespace
}  // namespace jte::gpu
