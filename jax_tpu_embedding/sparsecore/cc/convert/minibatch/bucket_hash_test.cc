// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash_vectors.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;

TEST(BucketHashTest, GivesTheHashesOfTheBufferFormat) {
  const struct {
    uint32_t stack_row;
    uint64_t hash;
    int bucket;
  } rows[] = {
      {0, 0x286118c966bafb07, 7},        {1, 0x655193192efacaa7, 39},
      {2, 0x271ba71641c27acd, 13},       {3, 0x1dddacbe862539a3, 35},
      {7, 0xff9774b1749041f6, 54},       {8, 0xc1d25f6036862a0e, 14},
      {100, 0x36876f139ec4d47c, 60},     {12345, 0x739891b7b6fd0e2e, 46},
      {1000003, 0xd3e1acd16376bc12, 18}, {2147483647, 0xd3a183578274bdae, 46},
  };
  for (const auto& [stack_row, hash, bucket] : rows) {
    EXPECT_EQ(HashStackRow(stack_row), hash) << stack_row;
    EXPECT_EQ(BucketOf(stack_row), bucket) << stack_row;
  }
}

TEST(BucketHashTest, FindsTheBucketsOfManyStackRows) {
  std::vector<uint32_t> stack_rows(16);
  for (uint32_t i = 0; i < 16; ++i) stack_rows[i] = i;
  std::vector<uint8_t> buckets(16);
  FindBuckets(stack_rows, buckets);
  EXPECT_THAT(buckets, ElementsAre(7, 39, 13, 35, 34, 53, 9, 54, 14, 43, 17, 51,
                                   23, 60, 14, 12));
}

TEST(BucketHashTest, ManyStackRowsHaveTheBucketsOfEach) {
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> any_stack_row(0, 0x7fffffff);
  for (int size : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 1003}) {
    std::vector<uint32_t> stack_rows(size);
    for (uint32_t& stack_row : stack_rows) stack_row = any_stack_row(random);
    std::vector<uint8_t> buckets(size + 1, 255);
    FindBuckets(stack_rows, std::span(buckets).first(size));
    for (int i = 0; i < size; ++i) {
      EXPECT_EQ(buckets[i], BucketOf(stack_rows[i])) << stack_rows[i];
    }
    EXPECT_EQ(buckets[size], 255) << "wrote beyond the end";
  }
}

#if defined(__x86_64__)

// FindBuckets takes only one of the two on any machine.
struct InstructionSet {
  const char* name;
  bool is_supported;
  void (*find_buckets)(std::span<const uint32_t> stack_rows,
                       std::span<uint8_t> buckets);
};

class InstructionSetTest : public testing::TestWithParam<InstructionSet> {};

TEST_P(InstructionSetTest, FindsTheSameBuckets) {
  if (!GetParam().is_supported) {
    GTEST_SKIP() << "This processor has no " << GetParam().name << ".";
  }
  std::mt19937 random(2);
  std::vector<uint32_t> stack_rows(64);
  for (uint32_t& stack_row : stack_rows) stack_row = random();
  std::vector<uint8_t> expected(stack_rows.size());
  std::ranges::transform(stack_rows, expected.begin(), BucketOf);
  std::vector<uint8_t> buckets(stack_rows.size(), 255);
  GetParam().find_buckets(stack_rows, buckets);
  EXPECT_EQ(buckets, expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, InstructionSetTest,
    testing::Values(InstructionSet{"AVX2", __builtin_cpu_supports("avx2") != 0,
                                   FindBucketsWithAvx2},
                    InstructionSet{"AVX512",
                                   __builtin_cpu_supports("avx512bw") != 0,
                                   FindBucketsWithAvx512}),
    [](const auto& info) { return info.param.name; });

#endif  // defined(__x86_64__)

}  // namespace
}  // namespace jte::convert
