// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The kernels, emulated, beside those of the CPU: the same bits, in whatever
// order threads run.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pack_messages.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sum_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/testing/emulated_calls.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/messages.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_gradients.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::gpu {
namespace {

using ::testing::IsNan;

// Of which no row of these tests has more entries from a source: sums have the
// order of the CPU.
constexpr int64_t kBlockSize = 512;

std::vector<float> RandomFloats(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
  std::vector<float> values(size);
  std::ranges::generate(values, [&] { return uniform(random); });
  return values;
}

template <typename T>
std::vector<T> ToType(const std::vector<float>& values) {
  std::vector<T> result(values.size());
  std::ranges::transform(values, result.begin(), [](float x) {
    if constexpr (std::is_same_v<T, float>) {
      return x;
    } else {
      return RoundToNearest<T>(x);
    }
  });
  return result;
}

template <typename T>
std::string_view Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(T)};
}

kernels::RandomCoo MakeCoo(int64_t num_scs, int64_t num_minibatches,
                           int ids_per_sample = 4) {
  return kernels::MakeRandomCoo(
      {.num_sc_per_device = num_scs,
       .rows_per_shard = 24,
       .batch_size_per_sc = 6,
       .enable_minibatching = num_minibatches > 0,
       .num_minibatches = std::max<int64_t>(num_minibatches, 1)},
      ids_per_sample, /*seed=*/4);
}

// (S, minibatches; 0: without minibatching; D, seed of the order of threads).
class GpuKernelsTest
    : public testing::TestWithParam<
          std::tuple<std::tuple<int64_t, int64_t>, int64_t, unsigned>> {
 protected:
  GpuKernelsTest() { SeedOrder(std::get<2>(GetParam())); }

  static kernels::RandomCoo Coo() {
    const auto [num_scs, num_minibatches] = std::get<0>(GetParam());
    return MakeCoo(num_scs, num_minibatches);
  }
  static int64_t dim() { return std::get<1>(GetParam()); }

  InlineExecutor executor_;
};

template <typename T>
void ExpectLookupOfCpu(const kernels::RandomCoo& coo, int64_t dim,
                       const std::optional<kernels::Quantization>& rounded,
                       Executor& executor) {
  const auto table = ToType<T>(RandomFloats(coo.num_rows() * dim, 1));
  std::vector<float> expected(coo.num_samples() * dim);
  ASSERT_TRUE(kernels::Lookup(coo.buffers(), coo.geometry,
                              std::span<const T>(table), dim, rounded, expected,
                              executor));
  const Batch batch(coo.buffers(), coo.geometry);
  const auto groups = GroupedSamples::Of(batch);
  QuantizedTo quantized{};
  if (rounded) {
    const auto span = static_cast<float>(rounded->max_value) -
                      static_cast<float>(rounded->min_value);
    const auto steps = static_cast<float>(rounded->num_buckets - 1);
    quantized = {true, static_cast<float>(rounded->min_value),
                 static_cast<float>(rounded->max_value), steps / span,
                 span / steps};
  }
  std::vector<float> activations(expected.size());
  ASSERT_EQ(
      PoolSamples(Stream(), groups.view(), groups.num_cells(), table.data(),
                  coo.num_samples(), dim, quantized, activations.data()),
      nullptr);
  EXPECT_EQ(Bytes(activations), Bytes(expected));
}

TEST_P(GpuKernelsTest, LooksUp) {
  ExpectLookupOfCpu<float>(Coo(), dim(), {}, executor_);
  ExpectLookupOfCpu<Bfloat16>(Coo(), dim(), {}, executor_);
  ExpectLookupOfCpu<Float16>(Coo(), dim(), {}, executor_);
  ExpectLookupOfCpu<float>(
      Coo(), dim(),
      kernels::Quantization{
          .min_value = 0.25, .max_value = 0.75, .num_buckets = 9},
      executor_);
}

// Samples with a row or two are pooled several at a time, few cells have plans
// of their own, and with very many entries the plan sorts.
TEST_P(GpuKernelsTest, LooksUpFewAndManyEntriesOfASample) {
  const auto [num_scs, num_minibatches] = std::get<0>(GetParam());
  for (const auto& [batch_size, ids_per_sample] :
       {std::pair(25, 2), {200, 2}, {1, 1100}}) {
    const auto coo = kernels::MakeRandomCoo(
        {.num_sc_per_device = num_scs,
         .rows_per_shard = 3000,
         .batch_size_per_sc = batch_size,
         .enable_minibatching = num_minibatches > 0,
         .num_minibatches = std::max<int64_t>(num_minibatches, 1)},
        ids_per_sample, /*seed=*/4);
    ExpectLookupOfCpu<float>(coo, dim(), {}, executor_);
    ExpectLookupOfCpu<Bfloat16>(coo, dim(), {}, executor_);
  }
}

struct Stepped {
  std::string_view rule;
  std::vector<float> hyperparameters;
  std::vector<int64_t> slot_columns;  // 1: of a row
};

TEST_P(GpuKernelsTest, StepsRows) {
  const kernels::RandomCoo coo = Coo();
  const auto gradient = RandomFloats(coo.num_samples() * dim(), 2);
  for (const Stepped& stepped : {
           Stepped{"sgd", {0.5f}, {}},
           Stepped{"adam", {0.5f, 0.9f, 0.99f, 1e-6f}, {dim(), dim()}},
           Stepped{"rowwise_adagrad",
                   {0.5f, 1e-6f, static_cast<float>(dim())},
                   {1}},
       }) {
    SCOPED_TRACE(stepped.rule);
    auto expected = RandomFloats(coo.num_rows() * dim(), 1);
    auto table = expected;
    std::vector<std::vector<float>> slots;
    for (const int64_t columns : stepped.slot_columns) {
      slots.push_back(RandomFloats(coo.num_rows() * columns, 3));
    }
    auto expected_slots = slots;
    const std::vector<std::span<float>> slot_spans(expected_slots.begin(),
                                                   expected_slots.end());
    const auto done = kernels::ApplyRows(
        coo.buffers(), coo.geometry, gradient, dim(),
        {.rule = stepped.rule,
         .hyperparameters = stepped.hyperparameters,
         .options = {.max_gradient_norm = 0.5f, .l2_weight_decay = 0.125f}},
        {.table = std::span<float>(expected), .slots = slot_spans}, executor_);
    ASSERT_TRUE(done) << done.error().message;

    const Batch batch(coo.buffers(), coo.geometry);
    const auto groups = GroupedRows::Of(batch, kBlockSize);
    Optimizer optimizer{};
    for (size_t k = 0; k < stepped.hyperparameters.size(); ++k) {
      optimizer.hyperparameters[k].at = &stepped.hyperparameters[k];
    }
    optimizer.options.has_max_gradient_norm = true;
    optimizer.options.max_gradient_norm.value = 0.5f;
    optimizer.options.has_l2_weight_decay = true;
    optimizer.options.l2_weight_decay.value = 0.125f;
    Tables tables{
        .table = table.data(), .type = TableType::kFloat, .slots = {}};
    for (size_t k = 0; k < slots.size(); ++k) tables.slots[k] = slots[k].data();
    std::vector<float> block_sums(groups.max_row_blocks() * dim());
    ASSERT_EQ(
        StepRows(Stream(), stepped.rule,
                 TermsOf(batch, groups, gradient, dim(), kBlockSize),
                 groups.max_row_blocks(), block_sums.data(), optimizer, tables),
        nullptr);
    EXPECT_EQ(Bytes(table), Bytes(expected));
    for (size_t k = 0; k < slots.size(); ++k) {
      EXPECT_EQ(Bytes(slots[k]), Bytes(expected_slots[k]));
    }
  }
}

TEST_P(GpuKernelsTest, SumsRows) {
  const kernels::RandomCoo coo = Coo();
  const auto gradient = RandomFloats(coo.num_samples() * dim(), 2);
  const int64_t num_places = coo.num_rows() + 3;
  std::vector<int32_t> expected_rows(num_places);
  std::vector<float> expected(num_places * dim());
  ASSERT_TRUE(kernels::GradientsOfRows(coo.buffers(), coo.geometry, gradient,
                                       dim(), {expected_rows, expected},
                                       executor_));
  const Batch batch(coo.buffers(), coo.geometry);
  const auto groups = GroupedRows::Of(batch, kBlockSize);
  std::vector<int32_t> rows(num_places);
  std::vector<float> sums(expected.size());
  std::vector<float> block_sums(groups.max_row_blocks() * dim());
  const RowTerms terms = TermsOf(batch, groups, gradient, dim(), kBlockSize);
  ASSERT_EQ(SumRows(Stream(), terms, groups.max_row_blocks(), block_sums.data(),
                    {nullptr, num_places, rows.data(), sums.data()}),
            nullptr);
  EXPECT_EQ(rows, expected_rows);
  EXPECT_EQ(Bytes(sums), Bytes(expected));

  // One place less than there are rows.
  const int64_t too_few =
      std::ranges::find(rows, kPaddingId) - rows.begin() - 1;
  std::vector<int32_t> few_rows(too_few);
  std::vector<float> few_sums(too_few * dim());
  ASSERT_EQ(SumRows(Stream(), terms, groups.max_row_blocks(), block_sums.data(),
                    {nullptr, too_few, few_rows.data(), few_sums.data()}),
            nullptr);
  EXPECT_THAT(few_sums, testing::Each(IsNan()));
}

TEST_P(GpuKernelsTest, SumsLongRowsInBlocks) {
  const kernels::RandomCoo coo = Coo();
  // Of whole numbers, whose sum has no order.
  std::vector<float> gradient(coo.num_samples() * dim());
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 7);
  }
  kernels::RandomCoo whole = coo;
  std::ranges::transform(whole.gains, whole.gains.begin(),
                         [](float x) { return x > 0.5f ? 2.0f : 1.0f; });
  std::vector<int32_t> expected_rows(coo.num_rows());
  std::vector<float> expected(coo.num_rows() * dim());
  ASSERT_TRUE(kernels::GradientsOfRows(whole.buffers(), whole.geometry,
                                       gradient, dim(),
                                       {expected_rows, expected}, executor_));
  const Batch batch(whole.buffers(), whole.geometry);
  const auto groups = GroupedRows::Of(batch, /*block_size=*/2);
  EXPECT_GT(groups.view().counts->num_long_rows, 0);
  std::vector<int32_t> rows(expected_rows.size());
  std::vector<float> sums(expected.size());
  std::vector<float> block_sums(groups.max_row_blocks() * dim());
  ASSERT_EQ(SumRows(Stream(), TermsOf(batch, groups, gradient, dim(), 2),
                    groups.max_row_blocks(), block_sums.data(),
                    {nullptr, std::ssize(rows), rows.data(), sums.data()}),
            nullptr);
  EXPECT_EQ(rows, expected_rows);
  EXPECT_EQ(Bytes(sums), Bytes(expected));
}

// (S, minibatches; seed of the order of threads).
class ManyTermsTest : public testing::TestWithParam<
                          std::tuple<std::tuple<int64_t, int64_t>, unsigned>> {
};

// So many that loads of the next ones are under way, in rows with one block of
// terms and with several.
TEST_P(ManyTermsTest, AreAddedInTheOrderOfTheCpu) {
  const auto [layout, seed] = GetParam();
  const auto [num_scs, num_minibatches] = layout;
  SeedOrder(seed);
  InlineExecutor executor;
  const auto coo = kernels::MakeRandomCoo(
      {.num_sc_per_device = num_scs,
       .rows_per_shard = 40,
       .batch_size_per_sc = 8000 * num_scs,
       .enable_minibatching = num_minibatches > 0,
       .num_minibatches = std::max<int64_t>(num_minibatches, 1)},
      /*ids_per_sample=*/1, /*seed=*/4);
  constexpr int64_t kDim = 4;
  const auto gradient = RandomFloats(coo.num_samples() * kDim, 2);
  std::vector<int32_t> expected_rows(coo.num_rows());
  std::vector<float> expected(coo.num_rows() * kDim);
  ASSERT_TRUE(kernels::GradientsOfRows(coo.buffers(), coo.geometry, gradient,
                                       kDim, {expected_rows, expected},
                                       executor));
  const Batch batch(coo.buffers(), coo.geometry);
  const auto groups = GroupedRows::Of(batch, kBlockSize);
  const GroupCounts& counts = *groups.view().counts;
  EXPECT_LT(counts.num_long_rows, counts.num_rows());
  std::vector<int32_t> rows(expected_rows.size());
  std::vector<float> sums(expected.size());
  std::vector<float> block_sums(groups.max_row_blocks() * kDim);
  ASSERT_EQ(
      SumRows(Stream(), TermsOf(batch, groups, gradient, kDim, kBlockSize),
              groups.max_row_blocks(), block_sums.data(),
              {nullptr, std::ssize(rows), rows.data(), sums.data()}),
      nullptr);
  EXPECT_EQ(rows, expected_rows);
  EXPECT_EQ(Bytes(sums), Bytes(expected));
}

const auto kLayouts =
    testing::Values(std::tuple(1, 0), std::tuple(4, 0), std::tuple(2, 3));
INSTANTIATE_TEST_SUITE_P(Orders, ManyTermsTest,
                         testing::Combine(kLayouts, testing::Values(0, 1, 2)));
INSTANTIATE_TEST_SUITE_P(Orders, GpuKernelsTest,
                         testing::Combine(kLayouts, testing::Values(4, 24, 6),
                                          testing::Values(0, 1, 2)));
// In one layout: threads of wide rows exchange many values.
INSTANTIATE_TEST_SUITE_P(WideRows, GpuKernelsTest,
                         testing::Combine(testing::Values(std::tuple(2, 3)),
                                          testing::Values(100, 150, 160, 512),
                                          testing::Values(0, 1, 2)));

// The entries of the first of four devices that have a SparseCore each.
class MessagesTest : public testing::TestWithParam<unsigned> {
 protected:
  static constexpr int64_t kNumDevices = 4;
  static constexpr int64_t kDim = 24;

  MessagesTest() : all_(MakeCoo(kNumDevices, 0)) {
    SeedOrder(GetParam());
    geometry_ = all_.geometry;
    geometry_.num_sc_per_device = 1;
    geometry_.num_devices = kNumDevices;
    const auto of_first = [](auto& values) {
      return std::span(values).first(values.size() / kNumDevices);
    };
    buffers_ = {of_first(all_.row_pointers), of_first(all_.embedding_ids),
                of_first(all_.sample_ids), of_first(all_.gains)};
  }

  void ExpectMessagesOfCpu(int64_t capacity);

  kernels::RandomCoo all_;
  kernels::CooGeometry geometry_;
  kernels::CooBuffers buffers_;
  InlineExecutor executor_;
};

// A capacity of 3: there are more rows than there is room for.
void MessagesTest::ExpectMessagesOfCpu(int64_t capacity) {
  SCOPED_TRACE(capacity);
  const int64_t num_devices = geometry_.num_devices;
  const int64_t num_places = num_devices * capacity;
  const auto gradient = RandomFloats(geometry_.batch_size() * kDim, 2);
  std::vector<int32_t> expected_requests(num_places);
  std::vector<float> expected_sums(num_places * kDim);
  std::vector<std::span<int32_t>> requests_of;
  std::vector<std::span<float>> sums_of;
  for (int64_t k = 0; k < num_devices; ++k) {
    requests_of.push_back(
        std::span(expected_requests).subspan(k * capacity, capacity));
    sums_of.push_back(
        std::span(expected_sums).subspan(k * capacity * kDim, capacity * kDim));
  }
  const auto n = std::ssize(buffers_.embedding_ids);
  std::vector<int32_t> pointers(RowPointersPerBlock(num_devices));
  std::vector<int32_t> entry_places(n), entry_samples(n);
  std::vector<float> entry_gains(n);
  kernels::PackMessages(buffers_, geometry_, requests_of,
                        {pointers, entry_places, entry_samples, entry_gains},
                        executor_);
  kernels::SumGradients({pointers, entry_places, entry_samples, entry_gains},
                        gradient, kDim, sums_of, executor_);

  const Batch batch(buffers_, geometry_);
  std::vector<int32_t> requests(num_places), places(n), samples(n);
  std::vector<float> gains(n);
  Flaws flaws = {-1, -1};  // which are overwritten
  Ints partitions_of_cells(n), are_first(n), num_first(n);
  Ints offsets(batch.geometry.num_partitions());
  Ints begins(batch.geometry.num_partitions());
  Ints ends(batch.geometry.num_partitions());
  ASSERT_EQ(PackMessages(Stream(), batch.coo, batch.geometry, capacity,
                         {partitions_of_cells, are_first, num_first, offsets,
                          Partitions{begins, ends}, Scratch{}},
                         {requests.data(), places.data(), samples.data(),
                          gains.data(), &flaws}),
            nullptr);
  EXPECT_EQ(requests, expected_requests);
  EXPECT_EQ(flaws.any(), capacity == 3);  // more rows than there is room for

  const auto groups = GroupedRows::Of(
      {places.data(), samples.data(), n, 0, num_places}, kBlockSize);
  std::vector<int32_t> rows(num_places);
  std::vector<float> sums(expected_sums.size());
  std::vector<float> block_sums(groups.max_row_blocks() * kDim);
  ASSERT_EQ(
      SumRows(Stream(),
              TermsOf(groups, n, gradient, kDim, kBlockSize, gains.data()),
              groups.max_row_blocks(), block_sums.data(),
              {requests.data(), num_places, rows.data(), sums.data()}),
      nullptr);
  for (int64_t i = 0; i < num_places; ++i) {
    EXPECT_EQ(rows[i], requests[i] == kNoRow ? kPaddingId : i);
  }
  if (!flaws.any()) {
    EXPECT_EQ(Bytes(sums), Bytes(expected_sums));
  } else {
    EXPECT_THAT(sums[0], IsNan());
    EXPECT_THAT(expected_sums[0], IsNan());
  }
}

TEST_P(MessagesTest, PacksAndSums) {
  ExpectMessagesOfCpu(24);
  ExpectMessagesOfCpu(3);
}

// Of each owner 80, which threads read at once: of two sources, 20 minibatches
// and two targets.
TEST_P(MessagesTest, PacksAndSumsManyPartitions) {
  all_ = MakeCoo(4, 20, /*ids_per_sample=*/20);
  geometry_ = all_.geometry;
  geometry_.num_sc_per_device = 2;
  geometry_.num_devices = 2;
  all_.row_pointers.resize(2 * kMaxMinibatches * RowPointersPerBlock(4));
  buffers_ = all_.buffers();
  ExpectMessagesOfCpu(240);
  ExpectMessagesOfCpu(3);
}

TEST_P(MessagesTest, PooledAnswersAreTheLookup) {
  // The table of all devices, and a device with all of its SparseCores.
  const auto table = RandomFloats(all_.num_rows() * kDim, 1);
  std::vector<float> expected(all_.num_samples() * kDim);
  ASSERT_TRUE(kernels::Lookup(all_.buffers(), all_.geometry,
                              std::span<const float>(table), kDim, {}, expected,
                              executor_));
  expected.resize(geometry_.batch_size() * kDim);

  const Batch batch(buffers_, geometry_);
  const int64_t n = batch.geometry.num_cells;
  const int64_t capacity = geometry_.rows_per_shard;
  std::vector<int32_t> requests(kNumDevices * capacity), places(n), samples(n);
  std::vector<float> gains(n);
  Flaws flaws = {-1, -1};  // which are overwritten
  Ints partitions_of_cells(n), are_first(n), num_first(n);
  Ints offsets(batch.geometry.num_partitions());
  Ints begins(batch.geometry.num_partitions());
  Ints ends(batch.geometry.num_partitions());
  ASSERT_EQ(PackMessages(Stream(), batch.coo, batch.geometry, capacity,
                         {partitions_of_cells, are_first, num_first, offsets,
                          Partitions{begins, ends}, Scratch{}},
                         {requests.data(), places.data(), samples.data(),
                          gains.data(), &flaws}),
            nullptr);
  std::vector<float> fetched(requests.size() * kDim);
  for (int64_t k = 0; k < kNumDevices; ++k) {
    ASSERT_EQ(ReadRows(Stream(),
                       {requests.data() + k * capacity, capacity,
                        geometry_.rows_per_shard, kDim},
                       table.data() + k * geometry_.rows_per_shard * kDim,
                       fetched.data() + k * capacity * kDim),
              nullptr);
  }
  const auto groups = GroupedSamples::Of(
      KnownEntries{places.data(), samples.data(), gains.data(), n},
      geometry_.batch_size());
  std::vector<float> activations(expected.size());
  ASSERT_EQ(
      PoolSamples(Stream(), groups.view(), groups.num_cells(), fetched.data(),
                  geometry_.batch_size(), kDim, {}, activations.data()),
      nullptr);
  EXPECT_EQ(Bytes(activations), Bytes(expected));
}

INSTANTIATE_TEST_SUITE_P(Orders, MessagesTest, testing::Values(0, 1, 2));

// Of an infinite gain, columns that a thread has behind the row's end are none.
TEST(StepRowsTest, AnInfiniteGainHasAnInfiniteNorm) {
  for (const int64_t dim : {5, 100, 128, 160}) {
    SCOPED_TRACE(dim);
    const std::vector<int32_t> row_pointers = {1, 8, 8, 8, 8, 8, 8, 8};
    const std::vector<int32_t> ids(8), samples(8);
    std::vector<float> gains(8);
    gains[0] = std::numeric_limits<float>::infinity();
    const kernels::CooBuffers buffers{row_pointers, ids, samples, gains};
    const Batch batch(buffers, {.num_sc_per_device = 1,
                                .rows_per_shard = 1,
                                .batch_size_per_sc = 1,
                                .enable_minibatching = false,
                                .num_minibatches = 1});
    const auto groups = GroupedRows::Of(batch, kBlockSize);
    const std::vector<float> gradient(dim, 1.0f);
    std::vector<float> table(dim), slot = {1.0f};
    Optimizer optimizer{};
    optimizer.hyperparameters[0].value = 0.5f;
    optimizer.hyperparameters[1].value = 1e-6f;
    optimizer.hyperparameters[2].value = static_cast<float>(dim);
    std::vector<float> block_sums(groups.max_row_blocks() * dim);
    ASSERT_EQ(StepRows(Stream(), "rowwise_adagrad",
                       TermsOf(batch, groups, gradient, dim, kBlockSize),
                       groups.max_row_blocks(), block_sums.data(), optimizer,
                       {.table = table.data(),
                        .type = TableType::kFloat,
                        .slots = {slot.data()}}),
              nullptr);
    EXPECT_EQ(slot[0], std::numeric_limits<float>::infinity());
  }
}

template <typename T>
class TableRowsTest : public testing::Test {};
using TableTypes = testing::Types<float, Bfloat16, Float16>;
TYPED_TEST_SUITE(TableRowsTest, TableTypes);

TYPED_TEST(TableRowsTest, AreReadAndWritten) {
  for (const int64_t dim : {1, 4, 24, 520}) {
    const auto before = ToType<TypeParam>(RandomFloats(5 * dim, 1));
    const std::vector<int32_t> rows = {3, -1, 0, 5};  // none: -1 and 5
    const RowsOfTable of_table{rows.data(), std::ssize(rows), 5, dim};
    std::vector<TypeParam> values(rows.size() * dim);
    ASSERT_EQ(ReadRows(Stream(), of_table, before.data(), values.data()),
              nullptr);
    for (int64_t d = 0; d < dim; ++d) {
      EXPECT_EQ(ToFloat(values[d]), ToFloat(before[3 * dim + d]));
      EXPECT_THAT(ToFloat(values[dim + d]), IsNan());
      EXPECT_EQ(ToFloat(values[2 * dim + d]), ToFloat(before[d]));
      EXPECT_THAT(ToFloat(values[3 * dim + d]), IsNan());
    }
    auto table = before;
    auto expected = before;
    const auto written = ToType<TypeParam>(RandomFloats(rows.size() * dim, 2));
    ASSERT_EQ(WriteRows(Stream(), of_table, written.data(), table.data()),
              nullptr);
    std::copy_n(written.begin(), dim, expected.begin() + 3 * dim);
    std::copy_n(written.begin() + 2 * dim, dim, expected.begin());
    EXPECT_EQ(Bytes(table), Bytes(expected));
  }
}

}  // namespace
}  // namespace jte::gpu
