// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Tables of more than 2^31 elements, in fewer rows: 32 bits do not count them.
//
// Memory is reserved without being used: only the pages of the rows that a test
// touches exist.

#include <sys/mman.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"

namespace jte::kernels {
namespace {

constexpr int64_t kDim = 16;
constexpr int64_t kRowsPerShard = (int64_t{1} << 26) + 3;
constexpr int64_t kNumScs = 3;
constexpr int64_t kNumRows = kNumScs * kRowsPerShard;
static_assert(kNumRows * kDim > int64_t{1} << 31);

template <typename T>
class SparseArray {
 public:
  explicit SparseArray(int64_t size)
      : size_(size),
        data_(mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseArray() {
    if (is_there()) munmap(data_, size_ * sizeof(T));
  }
  SparseArray(const SparseArray&) = delete;
  SparseArray& operator=(const SparseArray&) = delete;

  bool is_there() const { return data_ != MAP_FAILED; }
  std::span<T> values() {
    return {static_cast<T*>(data_), static_cast<size_t>(size_)};
  }

 private:
  int64_t size_;
  void* data_;
};

// The last row of each shard, in samples 0, 1 and 2 of the first SparseCore,
// with gains 1, 2 and 4.
struct Batch {
  std::vector<int32_t> row_pointers =
      std::vector<int32_t>{1, 9, 17, 24, 24, 24, 24, 24};
  std::vector<int32_t> embedding_ids = std::vector<int32_t>(72, -1);
  std::vector<int32_t> sample_ids = std::vector<int32_t>(72, -1);
  std::vector<float> gains = std::vector<float>(72, 0.0f);
  CooGeometry geometry{.num_sc_per_device = kNumScs,
                       .rows_per_shard = kRowsPerShard,
                       .batch_size_per_sc = 3,
                       .enable_minibatching = false,
                       .num_minibatches = 1};

  Batch() {
    row_pointers.resize(3 * 8, 0);
    for (int32_t k = 0; k < 3; ++k) {
      embedding_ids[8 * k] = kRowsPerShard - 1;
      sample_ids[8 * k] = k;
      gains[8 * k] = static_cast<float>(1 << k);
    }
  }

  CooBuffers buffers() const {
    return {row_pointers, embedding_ids, sample_ids, gains};
  }
};

// The element of column 5 in the last row of each shard.
std::vector<int64_t> TouchedElements() {
  std::vector<int64_t> elements;
  for (int64_t k = 1; k <= kNumScs; ++k) {
    elements.push_back((k * kRowsPerShard - 1) * kDim + 5);
  }
  return elements;
}

TEST(LargeTableTest, LooksUpElementsBeyondTwoToThe31) {
  SparseArray<float> table(kNumRows * kDim);
  ASSERT_TRUE(table.is_there());
  float value = 3.0f;
  for (const int64_t i : TouchedElements()) table.values()[i] = value++;
  std::vector<float> activations(9 * kDim);
  const Batch batch;
  InlineExecutor executor;
  const auto done =
      Lookup(batch.buffers(), batch.geometry,
             std::span<const float>(table.values()), kDim,
             /*quantization=*/std::nullopt, activations, executor);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(activations[0 * kDim + 5], 3.0f);
  EXPECT_EQ(activations[1 * kDim + 5], 8.0f);
  EXPECT_EQ(activations[2 * kDim + 5], 20.0f);
}

template <typename T>
void ExpectUpdates() {
  SparseArray<T> table(kNumRows * kDim);
  SparseArray<float> accumulator(kNumRows * kDim);
  ASSERT_TRUE(table.is_there() && accumulator.is_there());
  const std::vector<float> gradient(9 * kDim, 2.0f);
  const float learning_rate = 0.5f;
  const std::vector<std::span<float>> slots = {accumulator.values()};
  const Batch batch;
  InlineExecutor executor;
  const auto done =
      ApplyRows(batch.buffers(), batch.geometry, gradient, kDim,
                {.rule = "adagrad", .hyperparameters = {&learning_rate, 1}},
                {.table = table.values(), .slots = slots}, executor);
  ASSERT_TRUE(done) << done.error().message;
  float square = 4.0f;  // of the gradients 2, 4 and 8
  for (const int64_t i : TouchedElements()) {
    EXPECT_EQ(accumulator.values()[i], square);
    // 0 - 0.5 * g / sqrt(g^2)
    EXPECT_EQ(ToFloat(table.values()[i]), -0.5f);
    square *= 4.0f;
  }
}

TEST(LargeTableTest, UpdatesElementsBeyondTwoToThe31) {
  ExpectUpdates<float>();
}

TEST(LargeTableTest, UpdatesElementsOfLowPrecision) {
  ExpectUpdates<Bfloat16>();
}

}  // namespace
}  // namespace jte::kernels
