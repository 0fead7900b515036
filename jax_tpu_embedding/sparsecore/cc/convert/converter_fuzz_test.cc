// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Random requests. Good ones must give what naive_converter.h gives, bad ones
// an error or buffers that are wholly written, and nothing may go wrong in
// between: run it with --config=asan and --config=tsan too.
//
// Every request has a seed of its own, which a failure names. To run one
// request, or more of them than usual:
//
//   bazel test --test_env=FUZZ_FIRST_SEED=123 --test_env=FUZZ_NUM_SEEDS=1 ...

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/testing/naive_converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/testing/random_request.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

// The buffers of a stack on all local devices, filled with one byte.
struct Buffers {
  Buffers(const StackPlan& plan, bool enable_minibatching, uint8_t poison)
      : row_pointers(
            plan.topology.local_device_count *
                RowPointersPerDevice(plan.topology, enable_minibatching),
            Repeat(poison)),
        embedding_ids(
            plan.topology.local_device_count * plan.coo_cells_per_device,
            Repeat(poison)),
        sample_ids(embedding_ids),
        gains(embedding_ids.size(), std::bit_cast<float>(Repeat(poison))) {}

  static int32_t Repeat(uint8_t byte) {
    return static_cast<int32_t>(byte * 0x01010101u);
  }

  CsrBuffers view() { return {row_pointers, embedding_ids, sample_ids, gains}; }

  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<float> gains;
};

struct Converted {
  std::vector<Buffers> buffers;
  Conversion conversion;
};

Result<Converted> ConvertInto(const std::vector<StackPlan>& plans,
                              const ConvertOptions& options, uint8_t poison,
                              Executor& executor) {
  std::vector<Buffers> buffers;
  buffers.reserve(plans.size());
  std::vector<CsrBuffers> views;
  for (const StackPlan& plan : plans) {
    views.push_back(
        buffers.emplace_back(plan, options.enable_minibatching, poison).view());
  }
  JTE_ASSIGN_OR_RETURN(auto conversion,
                       Convert(plans, options, views, executor, nullptr));
  return Converted{std::move(buffers), std::move(conversion)};
}

std::vector<int32_t> Bits(const std::vector<float>& gains) {
  std::vector<int32_t> bits;
  for (const float gain : gains) bits.push_back(std::bit_cast<int32_t>(gain));
  return bits;
}

void ExpectSameBytes(const Converted& a, const Converted& b) {
  for (size_t i = 0; i < a.buffers.size(); ++i) {
    EXPECT_EQ(a.buffers[i].row_pointers, b.buffers[i].row_pointers);
    EXPECT_EQ(a.buffers[i].embedding_ids, b.buffers[i].embedding_ids);
    EXPECT_EQ(a.buffers[i].sample_ids, b.buffers[i].sample_ids);
    EXPECT_EQ(Bits(a.buffers[i].gains), Bits(b.buffers[i].gains));
  }
}

void ExpectEqualToModel(const Converted& converted,
                        const NaiveConversion& model) {
  EXPECT_EQ(converted.conversion.num_minibatches, model.num_minibatches);
  ASSERT_EQ(converted.buffers.size(), model.stacks.size());
  for (size_t i = 0; i < model.stacks.size(); ++i) {
    SCOPED_TRACE("stack " + std::to_string(i));
    const Buffers& buffers = converted.buffers[i];
    const StackStats& stats = converted.conversion.stats[i];
    const NaiveStack& expected = model.stacks[i];
    EXPECT_EQ(buffers.row_pointers, expected.row_pointers);
    EXPECT_EQ(buffers.embedding_ids, expected.embedding_ids);
    EXPECT_EQ(buffers.sample_ids, expected.sample_ids);
    ASSERT_EQ(buffers.gains.size(), expected.gains.size());
    for (size_t k = 0; k < expected.gains.size(); ++k) {
      const float gain = buffers.gains[k];
      // The bits of the padding are part of the format. Those of a NaN that was
      // computed are up to the processor.
      const bool any_nan = std::isnan(gain) && std::isnan(expected.gains[k]) &&
                           buffers.embedding_ids[k] != kPaddingId;
      EXPECT_TRUE(any_nan || std::bit_cast<int32_t>(gain) ==
                                 std::bit_cast<int32_t>(expected.gains[k]))
          << "cell " << k << ": " << gain << " != " << expected.gains[k];
    }
    EXPECT_EQ(stats.max_ids_per_partition, expected.max_ids_per_partition);
    EXPECT_EQ(stats.max_unique_ids_per_partition,
              expected.max_unique_ids_per_partition);
    EXPECT_EQ(stats.required_buffer_size_per_sc,
              expected.required_buffer_size_per_sc);
    EXPECT_EQ(stats.minibatch_alignment_per_sc,
              expected.minibatch_alignment_per_sc);
    EXPECT_EQ(stats.dropped_id_count, expected.dropped_id_count);
  }
}

// What holds for any buffers, whatever the ids were: pointers ascend and stay
// inside, partitions hold entries in order, and all else is padding.
void ExpectWellFormed(const Converted& converted, const StackPlan& plan,
                      size_t stack, bool enable_minibatching) {
  const Topology& topology = plan.topology;
  const int64_t num_scs = topology.num_scs();
  const int64_t block = RowPointersPerBlock(num_scs);
  const int64_t num_minibatches = converted.conversion.num_minibatches;
  const Buffers& all = converted.buffers[stack];
  // Without minibatching each SparseCore has a region of its own.
  const int64_t regions_per_device =
      enable_minibatching ? 1 : topology.num_sc_per_device;
  const int64_t num_regions = topology.local_device_count * regions_per_device;
  const int64_t cells = std::ssize(all.gains) / num_regions;
  const int64_t pointers = std::ssize(all.row_pointers) / num_regions;
  const int64_t num_blocks =
      enable_minibatching ? topology.num_sc_per_device * num_minibatches : 1;
  for (int64_t region = 0; region < num_regions; ++region) {
    const auto order = [&all, num_scs, first_cell = region * cells,
                        num_minibatches](int64_t cell, int64_t target) {
      const int64_t row = all.embedding_ids[first_cell + cell];
      const int64_t stack_row = row * num_scs + target;
      const int bucket =
          num_minibatches > 1 ? BucketOf(static_cast<uint32_t>(stack_row)) : 0;
      return std::tuple(bucket, row, all.sample_ids[first_cell + cell]);
    };
    int64_t cell = 0;  // the next one
    for (int64_t b = 0; b < num_blocks; ++b) {
      for (int64_t target = 0; target < num_scs; ++target) {
        const int64_t end =
            all.row_pointers[region * pointers + b * block + target];
        ASSERT_LE(cell, end);
        ASSERT_LE(end, cells);
        for (const int64_t begin = cell; cell < end; ++cell) {
          ASSERT_NE(all.embedding_ids[region * cells + cell], kPaddingId);
          ASSERT_LT(all.sample_ids[region * cells + cell], plan.num_sample_ids);
          if (cell > begin) {
            ASSERT_LT(order(cell - 1, target), order(cell, target));
          }
        }
        for (; cell % kAlignment != 0; ++cell) {
          ASSERT_EQ(all.embedding_ids[region * cells + cell], kPaddingId);
        }
      }
    }
    for (; cell < cells; ++cell) {
      ASSERT_EQ(all.embedding_ids[region * cells + cell], kPaddingId);
      ASSERT_EQ(all.sample_ids[region * cells + cell], kPaddingId);
    }
  }
}

// Calls test(random) for every seed, until a failure.
template <typename Test>
void ForEachSeed(int64_t num_seeds, Test test) {
  const int64_t first = FromEnvironment("FUZZ_FIRST_SEED", 0);
  num_seeds = FromEnvironment("FUZZ_NUM_SEEDS", num_seeds);
  for (int64_t seed = first; seed < first + num_seeds; ++seed) {
    SCOPED_TRACE("FUZZ_FIRST_SEED=" + std::to_string(seed));
    Random random(seed);
    test(random);
    if (::testing::Test::HasFailure()) return;
  }
}

// TSan takes twelve times as long, and what it finds is in every request that
// threads convert.
#if defined(__SANITIZE_THREAD__)
constexpr int64_t kNumRequests = 300;
#else
constexpr int64_t kNumRequests = 1500;
#endif

TEST(ConverterFuzzTest, EqualsTheModel) {
  int64_t num_converted = 0, num_refused = 0, num_minibatched = 0;
  ForEachSeed(kNumRequests, [&](Random& random) {
    const Request request = RandomRequest(random);
    const ConvertOptions& options = request.options;
    const auto plans = PlanConversion(request.features, options);
    ASSERT_TRUE(plans) << plans.error().message;
    const auto model = ConvertNaively(request.features, options);

    InlineExecutor one_thread;
    const auto converted = ConvertInto(*plans, options, 0x00, one_thread);
    ASSERT_EQ(converted.has_value(), model.has_value())
        << (converted ? "should be refused" : converted.error().message);
    ThreadExecutor three_threads(3);
    const auto again = ConvertInto(*plans, options, 0xa5, three_threads);
    ASSERT_EQ(again.has_value(), converted.has_value());
    if (!converted) {
      EXPECT_EQ(again.error().message, converted.error().message);
      ++num_refused;
      return;
    }
    ++num_converted;
    num_minibatched += model->num_minibatches > 1;
    ExpectEqualToModel(*converted, *model);
    ExpectSameBytes(*converted, *again);
    for (size_t i = 0; i < plans->size(); ++i) {
      ExpectWellFormed(*converted, (*plans)[i], i, options.enable_minibatching);
    }
  });
  // The loop must not come to test one outcome only.
  if (std::getenv("FUZZ_FIRST_SEED") == nullptr) {
    EXPECT_GT(num_converted, kNumRequests / 5);
    EXPECT_GT(num_refused, kNumRequests / 5);
    EXPECT_GT(num_minibatched, kNumRequests / 15);
  }
}

#if !defined(__SANITIZE_THREAD__)  // It starts no threads.
TEST(ConverterFuzzTest, SpoiledRequestsAreRefusedOrWhollyWritten) {
  constexpr int64_t kMaxCells = 1 << 20;  // memory of the test
  int64_t num_planned = 0, num_refused = 0;
  ForEachSeed(4000, [&](Random& random) {
    Request request = RandomRequest(random);
    Spoil(random, request);
    const ConvertOptions& options = request.options;
    const auto plans = PlanConversion(request.features, options);
    if (!plans) {
      EXPECT_FALSE(plans.error().message.empty());
      ++num_refused;
      return;
    }
    for (const StackPlan& plan : *plans) {
      if (plan.topology.local_device_count *
              (plan.coo_cells_per_device +
               RowPointersPerDevice(plan.topology, true)) >
          kMaxCells) {
        return;
      }
    }
    ++num_planned;
    InlineExecutor executor;
    const auto one = ConvertInto(*plans, options, 0x00, executor);
    const auto other = ConvertInto(*plans, options, 0xa5, executor);
    ASSERT_EQ(one.has_value(), other.has_value());
    if (one) ExpectSameBytes(*one, *other);
  });
  if (std::getenv("FUZZ_FIRST_SEED") == nullptr) {
    EXPECT_GT(num_planned, 500);
    EXPECT_GT(num_refused, 500);
  }
}
#endif

}  // namespace
}  // namespace jte::convert
