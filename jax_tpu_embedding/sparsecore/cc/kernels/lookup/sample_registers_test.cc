// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_registers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/unsorted_samples.h"

namespace jte::kernels {
namespace {

constexpr WeightedRow kUnwritten = {.row = -7, .gain = -7.0f};

// The processor is asked, so that a ShouldSortInRegisters that refuses all
// skips no test.
bool ProcessorCan() {
#ifdef JTE_HAS_AVX512_CODE
  return __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// What is written for each sample. Requires that they can be sorted.
std::vector<Sums> ActualSums(const UnsortedSamples& samples) {
  const int64_t num_ids = samples.begins.back() - samples.begins.front();
  const int64_t num_samples = std::ssize(samples.begins) - 1;
  // One before, which counts, and one behind, which is no one's.
  std::vector<WeightedRow> entries(1 + num_ids + kMaxIdsInRegisters + 1,
                                   kUnwritten);
  std::vector<uint32_t> ends(num_samples);
  const WeightedRow* const end =
      SortInRegisters(samples, entries.data(), entries.data() + 1, ends.data());
  EXPECT_EQ(entries.front().row, kUnwritten.row);
  EXPECT_EQ(entries.back().row, kUnwritten.row);
  EXPECT_EQ(end - entries.data(), ends.back());
  std::vector<Sums> sums;
  for (int64_t begin = 1; const uint32_t end : ends) {
    sums.emplace_back();
    for (; begin < end; ++begin) {
      sums.back().emplace_back(static_cast<uint32_t>(entries[begin].row),
                               entries[begin].gain);
    }
  }
  return sums;
}

std::vector<Sums> ActualSums(const Samples& samples, int64_t most_ids,
                             bool has_gains) {
  return ActualSums({.numbers = samples.numbers.data(),
                     .begins = samples.begins,
                     .most_ids = most_ids,
                     .gains = has_gains ? samples.gains.data() : nullptr,
                     .same_gains = samples.same_gains.data()});
}

class SampleRegistersTest : public testing::TestWithParam<int64_t> {};

TEST_P(SampleRegistersTest, SumTheGainsOfEachNumber) {
  if (!ProcessorCan()) GTEST_SKIP() << "This needs AVX-512.";
  const int64_t most = GetParam();
  std::mt19937_64 random(most);
  for (const int bits : {2, 8, 20, 23, 24, 25, 26, 27, 28, 31, 32}) {
    const Samples samples = RandomSamples(most, bits, random);
    for (const bool has_gains : {false, true}) {
      if (!ShouldSortInRegisters(bits, has_gains, std::max<int64_t>(most, 5))) {
        continue;
      }
      const std::vector<Sums> sums = ActualSums(samples, most, has_gains);
      for (int64_t k = 0; k < SampleLanes::kLanes; ++k) {
        EXPECT_EQ(sums[k], ExpectedSums(samples, k, has_gains))
            << "sample " << k << ", " << bits << " bits, gains: " << has_gains;
      }
    }
  }
}

// Nothing repeats, and every sample has as many.
TEST_P(SampleRegistersTest, SortNumbersThatAreAllDifferent) {
  if (!ProcessorCan()) GTEST_SKIP() << "This needs AVX-512.";
  const int64_t size = GetParam();
  std::mt19937_64 random(size);
  Samples samples;
  for (int64_t i = 0; i < SampleLanes::kLanes * size; ++i) {
    // Some 24 bits, the lowest of which are those of i.
    const auto number =
        static_cast<uint32_t>((random() << 11 | (i & 0x7ff)) & 0xffffff);
    samples.numbers.push_back(number);
    samples.gains.push_back(static_cast<float>(number) + 0.5f);
  }
  for (int64_t k = 0; k <= SampleLanes::kLanes; ++k) {
    samples.begins[k] = k * size;
  }
  for (const bool has_gains : {false, true}) {
    const std::vector<Sums> sums = ActualSums(samples, size, has_gains);
    for (int64_t k = 0; k < SampleLanes::kLanes; ++k) {
      EXPECT_EQ(sums[k], ExpectedSums(samples, k, has_gains));
    }
  }
}

// All are the same: each sum has one term more than that before.
TEST_P(SampleRegistersTest, SumOneNumber) {
  if (!ProcessorCan()) GTEST_SKIP() << "This needs AVX-512.";
  const int64_t size = GetParam();
  if (size == 0) return;
  std::mt19937_64 random(size);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  Samples samples;
  for (int64_t i = 0; i < SampleLanes::kLanes * size; ++i) {
    samples.numbers.push_back(5);
    samples.gains.push_back(uniform(random));
  }
  for (int64_t k = 0; k <= SampleLanes::kLanes; ++k) {
    samples.begins[k] = k * size;
  }
  const std::vector<Sums> sums = ActualSums(samples, size, /*has_gains=*/true);
  for (int64_t k = 0; k < SampleLanes::kLanes; ++k) {
    const auto first = samples.gains.begin() + samples.begins[k];
    EXPECT_EQ(sums[k],
              (Sums{{5, std::accumulate(first + 1, first + size, *first)}}));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SampleRegistersTest,
                         testing::Range<int64_t>(0, kMaxIdsInRegisters + 1));

// A number and its position have 31 bits, so that none are all bits, which
// stand for an id that is not there.
TEST(ShouldSortInRegistersTest, NeedsBitsForPositions) {
  if (!ProcessorCan()) GTEST_SKIP() << "This needs AVX-512.";
  for (const auto& [most_ids, bits] : {std::pair(5, 27),
                                       {16, 27},
                                       {17, 26},
                                       {32, 26},
                                       {33, 25},
                                       {64, 25},
                                       {65, 24},
                                       {128, 24}}) {
    EXPECT_TRUE(ShouldSortInRegisters(bits, /*has_gains=*/true, most_ids));
    EXPECT_FALSE(ShouldSortInRegisters(bits + 1, /*has_gains=*/true, most_ids));
    EXPECT_TRUE(ShouldSortInRegisters(32, /*has_gains=*/false, most_ids));
  }
  EXPECT_FALSE(ShouldSortInRegisters(1, /*has_gains=*/false, 4));
  EXPECT_FALSE(ShouldSortInRegisters(1, /*has_gains=*/false, 129));
}

// The largest number, in every place: no lane that is empty is taken for it.
TEST(SampleRegistersOfLastNumbersTest, KeepTheLast) {
  if (!ProcessorCan()) GTEST_SKIP() << "This needs AVX-512.";
  for (const int64_t size : {5, 15, 16, 17, 31, 32, 63, 64, 95, 128}) {
    int bits = 32;
    while (!ShouldSortInRegisters(bits, /*has_gains=*/true, size)) --bits;
    for (int64_t place = 0; place < size; ++place) {
      std::vector<uint32_t> numbers(size);
      std::iota(numbers.begin(), numbers.end(), 0);
      const auto last = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
      numbers[place] = last;
      const std::vector<float> gains(size, 1.0f);
      const std::vector<Sums> sums =
          ActualSums({.numbers = numbers.data(),
                      .begins = std::vector<int64_t>{0, size, size, size, size},
                      .most_ids = size,
                      .gains = gains.data(),
                      .same_gains = nullptr});
      ASSERT_EQ(std::ssize(sums[0]), size);
      EXPECT_EQ(sums[0].back(), std::pair(last, 1.0f));
      EXPECT_EQ(sums[1], Sums{});
    }
  }
}

// Values of a sample, right before memory that nobody may read.
template <typename T>
class BeforeTheEnd {
 public:
  explicit BeforeTheEnd(std::span<const T> values) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = 2 * page;
    memory_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_ + page, page, PROT_NONE);
    data_ = memory_ + page - values.size_bytes();
    std::memcpy(data_, values.data(), values.size_bytes());
  }
  ~BeforeTheEnd() { munmap(memory_, bytes_); }
  BeforeTheEnd(const BeforeTheEnd&) = delete;
  BeforeTheEnd& operator=(const BeforeTheEnd&) = delete;

  const T* data() const { return reinterpret_cast<const T*>(data_); }

 private:
  size_t bytes_;
  char* memory_;
  char* data_;
};

TEST(SampleRegistersOfLastNumbersTest, ReadNothingBehindASample) {
  if (!ProcessorCan()) GTEST_SKIP() << "This needs AVX-512.";
  for (int64_t size = 1; size <= kMaxIdsInRegisters; ++size) {
    std::vector<uint32_t> numbers(size);
    std::iota(numbers.rbegin(), numbers.rend(), 0);
    const std::vector<float> gains(size, 1.0f);
    const BeforeTheEnd<uint32_t> these_numbers(numbers);
    const BeforeTheEnd<float> these_gains(gains);
    const std::vector<Sums> sums =
        ActualSums({.numbers = these_numbers.data(),
                    .begins = std::vector<int64_t>{0, size, size, size, size},
                    .most_ids = size,
                    .gains = these_gains.data(),
                    .same_gains = nullptr});
    EXPECT_EQ(std::ssize(sums[0]), size);
  }
}

TEST(SampleRegistersOfLastNumbersTest, KeepInfinitiesAndNans) {
  if (!ProcessorCan()) GTEST_SKIP() << "This needs AVX-512.";
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<uint32_t> numbers = {3, 1, 3, 2, 1};
  const std::vector<float> gains = {kInfinity, 1.0f, -kInfinity, kInfinity,
                                    2.0f};
  const std::vector<Sums> sums =
      ActualSums({.numbers = numbers.data(),
                  .begins = std::vector<int64_t>{0, 5, 5, 5, 5},
                  .most_ids = 5,
                  .gains = gains.data(),
                  .same_gains = nullptr});
  ASSERT_EQ(std::ssize(sums[0]), 3);
  EXPECT_EQ(sums[0][0], std::pair(uint32_t{1}, 3.0f));
  EXPECT_EQ(sums[0][1], std::pair(uint32_t{2}, kInfinity));
  EXPECT_TRUE(std::isnan(sums[0][2].second));
}

}  // namespace
}  // namespace jte::kernels
