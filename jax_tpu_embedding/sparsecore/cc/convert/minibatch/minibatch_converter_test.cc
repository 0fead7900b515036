// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Conversion with minibatching, through Convert.

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/minibatch_converter.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/collective/all_reduce.h"
#include "jax_tpu_embedding/sparsecore/cc/collective/local_all_reduce.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kUnwritten = -7;

// One feature in a stack of its own, and what it was converted to.
struct Request {
  std::vector<int32_t> ids;
  int64_t num_samples = 4;
  int64_t limit = 16;
  std::string combiner = "sum";
  std::optional<int64_t> buffer = std::nullopt;

  StackedFeature feature() const {
    return {.feature = {.name = "f",
                        .vocabulary_size = 1000,
                        .batch = {.ids = std::span(ids),
                                  .num_samples = num_samples,
                                  .valency = std::ssize(ids) / num_samples}},
            .stack = {.name = "s",
                      .combiner = combiner,
                      .max_ids_per_partition = limit,
                      .max_unique_ids_per_partition = limit,
                      .suggested_coo_buffer_size_per_device = buffer}};
  }
};

struct Converted {
  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<uint32_t> gains;  // bits, since NaN is not equal to itself
  int num_minibatches = 0;
  StackStats stats{Topology()};

  bool SameBuffers(const Converted& other) const {
    return row_pointers == other.row_pointers &&
           embedding_ids == other.embedding_ids &&
           sample_ids == other.sample_ids && gains == other.gains &&
           num_minibatches == other.num_minibatches;
  }
};

Result<Converted> ConvertRequest(const Request& request, ConvertOptions options,
                                 Executor&& executor = InlineExecutor(),
                                 collective::AllReduce* all_reduce = nullptr) {
  options.enable_minibatching = true;
  JTE_ASSIGN_OR_RETURN(const auto stacks,
                       PlanConversion({request.feature()}, options));
  const int64_t num_devices = options.topology.local_device_count;
  Converted converted;
  converted.row_pointers.assign(
      num_devices * RowPointersPerDevice(options.topology, true), kUnwritten);
  converted.embedding_ids.assign(
      num_devices * stacks.front().coo_cells_per_device, kUnwritten);
  converted.sample_ids = converted.embedding_ids;
  std::vector<float> gains(converted.embedding_ids.size(), kUnwritten);
  const CsrBuffers buffers = {converted.row_pointers, converted.embedding_ids,
                              converted.sample_ids, gains};
  JTE_ASSIGN_OR_RETURN(auto conversion, Convert(stacks, options, {&buffers, 1},
                                                executor, all_reduce));
  for (float gain : gains) {
    converted.gains.push_back(std::bit_cast<uint32_t>(gain));
  }
  converted.num_minibatches = conversion.num_minibatches;
  converted.stats = std::move(conversion.stats[0]);
  return converted;
}

constexpr ConvertOptions kTwoScs = {.topology = {.num_sc_per_device = 2}};

std::vector<int32_t> UpTo(int32_t n) {
  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// The n-th block of row pointers.
std::vector<int32_t> Block(const Converted& converted, int n) {
  const auto begin = converted.row_pointers.begin() + 8 * n;
  return {begin, begin + 8};
}

TEST(MinibatchConverterTest, GivesTheExampleOfTheContract) {
  const auto converted = ConvertRequest({.ids = UpTo(80)}, kTwoScs);
  ASSERT_TRUE(converted) << converted.error().message;
  EXPECT_EQ(converted->num_minibatches, 2);
  EXPECT_THAT(Block(*converted, 0),
              ElementsAre(13, 22, 24, 24, 24, 24, 24, 24));
  EXPECT_THAT(Block(*converted, 1),
              ElementsAre(31, 46, 48, 48, 48, 48, 48, 48));
  EXPECT_THAT(Block(*converted, 2),
              ElementsAre(56, 66, 72, 72, 72, 72, 72, 72));
  EXPECT_THAT(Block(*converted, 3),
              ElementsAre(84, 98, 104, 104, 104, 104, 104, 104));
  const std::vector<int32_t> first(converted->embedding_ids.begin(),
                                   converted->embedding_ids.begin() + 25);
  EXPECT_THAT(first, ElementsAre(0, 3, 9, 17, 1, 11, 4, 7, 16, 5, 6, 10, 13,
                                 kPaddingId, kPaddingId, kPaddingId, 19, 9, 7,
                                 8, 10, 11, kPaddingId, kPaddingId, 2));
  EXPECT_THAT(converted->stats.required_buffer_size_per_sc,
              ElementsAre(48, 48));
  EXPECT_THAT(converted->stats.minibatch_alignment_per_sc, ElementsAre(0, 8));
}

TEST(MinibatchConverterTest, WritesEveryUnusedElement) {
  const auto converted = ConvertRequest({.ids = UpTo(80)}, kTwoScs);
  ASSERT_TRUE(converted);
  EXPECT_THAT(std::span(converted->row_pointers).subspan(4 * 8), Each(0));
  const auto cells = std::span(converted->embedding_ids);
  EXPECT_THAT(cells.subspan(104), Each(kPaddingId));
  EXPECT_THAT(std::span(converted->sample_ids).subspan(104), Each(kPaddingId));
  EXPECT_THAT(std::span(converted->gains).subspan(104), Each(0x7fc00000));
  EXPECT_THAT(cells, Each(testing::Ne(kUnwritten)));
}

TEST(MinibatchConverterTest, OneMinibatchIsPackedWithoutBuckets) {
  const auto converted = ConvertRequest({.ids = UpTo(8)}, kTwoScs);
  ASSERT_TRUE(converted);
  EXPECT_EQ(converted->num_minibatches, 1);
  EXPECT_THAT(Block(*converted, 0), ElementsAre(2, 10, 16, 16, 16, 16, 16, 16));
  EXPECT_THAT(Block(*converted, 1),
              ElementsAre(18, 26, 32, 32, 32, 32, 32, 32));
  EXPECT_THAT(converted->stats.minibatch_alignment_per_sc, ElementsAre(0, 0));
}

// Later SparseCores first: these do not know yet where they begin.
class ReversedExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }
  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    while (n > 0) task(--n);
  }
};

TEST(MinibatchConverterTest, OneMinibatchDoesNotDependOnWhenItIsWritten) {
  const Request request = {.ids = UpTo(40)};
  const auto forward = ConvertRequest(request, kTwoScs);
  const auto backward = ConvertRequest(request, kTwoScs, ReversedExecutor());
  ASSERT_TRUE(forward && backward);
  EXPECT_EQ(forward->num_minibatches, 1);
  EXPECT_TRUE(forward->SameBuffers(*backward));
}

TEST(MinibatchConverterTest,
     WhatWasWrittenAsOneMinibatchTooSoonIsWrittenAgain) {
  // Only the second SparseCore exceeds its limits.
  Request request = {.ids = UpTo(80)};
  for (int32_t i = 0; i < 40; ++i) request.ids[i] %= 10;
  const auto forward = ConvertRequest(request, kTwoScs);
  const auto backward = ConvertRequest(request, kTwoScs, ReversedExecutor());
  ASSERT_TRUE(forward && backward);
  EXPECT_EQ(forward->num_minibatches, 2);
  EXPECT_TRUE(forward->SameBuffers(*backward));
}

TEST(MinibatchConverterTest, DropsWhatABucketHasTooMuch) {
  ConvertOptions options = kTwoScs;
  options.allow_id_dropping = true;
  const Request request = {.ids = std::vector<int32_t>(256, 0),
                           .num_samples = 256};
  const auto converted = ConvertRequest(request, options);
  ASSERT_TRUE(converted);
  EXPECT_EQ(converted->stats.dropped_id_count, 224);
  EXPECT_THAT(converted->stats.max_ids_per_partition, ElementsAre(128, 0));

  const auto refused = ConvertRequest(request, kTwoScs);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      refused.error().message,
      HasSubstr("Stack 's': SparseCore 0 of local device 0 has 128 ids for "
                "bucket 7 of partition 0, which minibatches cannot split, and "
                "max_ids_per_partition is 16. Raise it to at least 128"));
}

TEST(MinibatchConverterTest, ABufferThatIsTooSmallNamesTheSizeThatSuffices) {
  Request request = {.ids = UpTo(80), .buffer = 96};
  const auto refused = ConvertRequest(request, kTwoScs);
  ASSERT_FALSE(refused);
  EXPECT_THAT(
      refused.error().message,
      HasSubstr("Stack 's': local device 0 needs 104 cells for its "
                "minibatches and has 96. Raise "
                "suggested_coo_buffer_size_per_device to at least 104"));
  request.buffer = 104;
  EXPECT_TRUE(ConvertRequest(request, kTwoScs));

  request.buffer = 32;  // ends inside of the second minibatch
  ConvertOptions options = kTwoScs;
  options.allow_id_dropping = true;
  const auto dropped = ConvertRequest(request, options);
  ASSERT_TRUE(dropped);
  EXPECT_THAT(Block(*dropped, 1), ElementsAre(31, 32, 32, 32, 32, 32, 32, 32));
  EXPECT_THAT(Block(*dropped, 2), Each(32));
  EXPECT_EQ(dropped->stats.dropped_id_count, 80 - 13 - 6 - 7);
}

TEST(MinibatchConverterTest, BytesDoNotDependOnTheNumberOfThreads) {
  std::mt19937 random(1);
  std::vector<int32_t> ids(16 * 30);
  for (int32_t& id : ids) id = std::uniform_int_distribution(0, 300)(random);
  const Request request = {
      .ids = ids, .num_samples = 16, .limit = 9, .combiner = "mean"};
  const ConvertOptions options = {.topology = {2, 2, 2},
                                  .allow_id_dropping = true};
  const auto expected = ConvertRequest(request, options);
  ASSERT_TRUE(expected);
  EXPECT_GT(expected->num_minibatches, 1);
  for (int num_threads : {2, 3, 16}) {
    const auto converted =
        ConvertRequest(request, options, ThreadExecutor(num_threads));
    ASSERT_TRUE(converted);
    EXPECT_TRUE(converted->SameBuffers(*expected)) << num_threads;
  }
}

// Runs a host per request at the same time.
std::vector<Result<Converted>> ConvertOnHosts(
    const std::vector<Request>& requests, int64_t num_sc_per_device = 1) {
  const auto num_hosts = std::ssize(requests);
  auto hosts = collective::MakeLocalAllReduce(static_cast<int>(num_hosts));
  std::vector<Result<Converted>> results(num_hosts);
  {
    std::vector<std::jthread> threads;
    for (int64_t h = 0; h < num_hosts; ++h) {
      threads.emplace_back(
          [h, num_hosts, num_sc_per_device, &requests, &hosts, &results] {
            results[h] = ConvertRequest(
                requests[h], {.topology = {1, num_hosts, num_sc_per_device}},
                InlineExecutor(), hosts[h].get());
          });
    }
  }
  return results;
}

TEST(MinibatchConverterTest, AllHostsHaveTheMinibatchesThatOneNeeds) {
  const Request small = {.ids = UpTo(8)};
  const Request large = {.ids = UpTo(80)};
  const auto results = ConvertOnHosts({small, large});
  for (const auto& result : results) ASSERT_TRUE(result);
  EXPECT_GT(results[0]->num_minibatches, 1);
  EXPECT_EQ(results[0]->num_minibatches, results[1]->num_minibatches);
}

TEST(MinibatchConverterTest, HostsThatNeedNoneStayAtOne) {
  const auto results = ConvertOnHosts({{.ids = UpTo(8)}, {.ids = UpTo(16)}});
  for (const auto& result : results) {
    ASSERT_TRUE(result);
    EXPECT_EQ(result->num_minibatches, 1);
  }
}

TEST(MinibatchConverterTest, AHostThatFailsDoesNotHoldUpTheOthers) {
  Request bad = {.ids = UpTo(80)};
  bad.ids[17] = -1;
  // The last needs minibatches, so that both reductions happen.
  for (const int32_t num_ids : {8, 80}) {
    const auto results = ConvertOnHosts({bad, {.ids = UpTo(num_ids)}});
    ASSERT_FALSE(results[0]);
    EXPECT_THAT(results[0].error().message, HasSubstr("has id -1"));
    ASSERT_TRUE(results[1]) << results[1].error().message;
    EXPECT_EQ(results[1]->num_minibatches > 1, num_ids == 80);
  }
}

TEST(MinibatchConverterTest, AHostOutOfMemoryDoesNotHoldUpTheOthers) {
  class OutOfMemory final : public Executor {
   public:
    int num_threads() const override { return 1; }
    void ParallelFor(int64_t, const std::function<void(int64_t)>&) override {
      throw std::bad_alloc();
    }
  };
  class Recorder : public collective::AllReduce {
   public:
    Result<bool> AnyOf(int32_t, bool value) override {
      ++num_calls;
      return value;
    }
    Result<uint64_t> BitwiseOr(int32_t, uint64_t value) override {
      return value;
    }
    int num_calls = 0;
  };
  Recorder recorder;
  const auto failed =
      ConvertRequest({.ids = UpTo(80)}, kTwoScs, OutOfMemory(), &recorder);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(failed.error().message, HasSubstr("Out of memory"));
  EXPECT_EQ(recorder.num_calls, 1);
}

TEST(MinibatchConverterTest, AFailedReductionIsAnError) {
  class Broken : public collective::AllReduce {
   public:
    Result<bool> AnyOf(int32_t, bool value) override {
      if (fail_at_once) return FailedPrecondition("host 1 is gone");
      return value;
    }
    Result<uint64_t> BitwiseOr(int32_t, uint64_t) override {
      return FailedPrecondition("host 1 is gone");
    }
    bool fail_at_once = false;
  };
  Broken broken;
  for (const bool fail_at_once : {true, false}) {
    broken.fail_at_once = fail_at_once;
    const auto failed =
        ConvertRequest({.ids = UpTo(80)}, kTwoScs, InlineExecutor(), &broken);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(failed.error().message, "host 1 is gone");
  }
}

TEST(MinibatchConverterTest, AReductionThatLeavesThisHostOutIsAnError) {
  class Forgetful : public collective::AllReduce {
   public:
    Result<bool> AnyOf(int32_t, bool) override { return any; }
    Result<uint64_t> BitwiseOr(int32_t, uint64_t value) override {
      return value & (value - 1);  // without one of them
    }
    bool any = false;
  };
  Forgetful forgetful;
  const auto error = [&forgetful] {
    const auto failed = ConvertRequest({.ids = UpTo(80)}, kTwoScs,
                                       InlineExecutor(), &forgetful);
    return failed ? "" : failed.error().message;
  };
  EXPECT_THAT(error(), HasSubstr("any_of(sync_key=0) returned 0, which leaves "
                                 "out what this host has contributed, 1"));
  forgetful.any = true;
  EXPECT_THAT(error(), HasSubstr("bitwise_or(sync_key=1) returned "));
}

TEST(MinibatchConverterTest, ReductionsHaveTheKeysOfTheBatchNumber) {
  class Recorder : public collective::AllReduce {
   public:
    Result<bool> AnyOf(int32_t sync_key, bool value) override {
      keys.push_back(sync_key);
      return value;
    }
    Result<uint64_t> BitwiseOr(int32_t sync_key, uint64_t value) override {
      keys.push_back(sync_key);
      return value;
    }
    std::vector<int32_t> keys;
  };
  ConvertOptions options = kTwoScs;
  options.batch_number = 21;
  Recorder recorder;
  ASSERT_TRUE(
      ConvertRequest({.ids = UpTo(80)}, options, InlineExecutor(), &recorder));
  EXPECT_THAT(recorder.keys, ElementsAre(42, 43));

  for (const int32_t batch_number : {-1, 1 << 30}) {
    options.batch_number = batch_number;
    const auto refused =
        ConvertRequest({.ids = UpTo(8)}, options, InlineExecutor(), &recorder);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message,
                HasSubstr("batch_number must be in [0, 1073741823]"));
  }
}

TEST(MinibatchConverterTest, SeveralHostsNeedAReduction) {
  const auto refused =
      ConvertRequest({.ids = UpTo(8)}, {.topology = {1, 2, 1}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("on 1 of 2 devices needs an all_reduce_interface"));
}

}  // namespace
}  // namespace jte::convert
