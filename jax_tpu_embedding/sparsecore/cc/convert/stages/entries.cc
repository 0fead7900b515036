// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/entries.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jte::convert {
namespace {

// Elements that are looked at together.
constexpr int64_t kLanes = 16;

// Gains of 1: their number.
JTE_VECTOR_CLONES
void CountGains(const uint32_t* __restrict begins, int64_t size,
                float* __restrict gains) {
  for (int64_t e = 0; e < size; ++e) {
    gains[e] = static_cast<float>(static_cast<int32_t>(begins[e + 1]) -
                                  static_cast<int32_t>(begins[e]));
  }
}

#if defined(__x86_64__)

// Where entries begin, one bit per element; ones beyond the last.
struct BeginBits {
  std::array<uint16_t, kMaxCompactSize / kLanes + 5> words;

  // The bits of the elements from 16 * word + first on.
  uint32_t Get(int64_t word, int first) const {
    uint64_t bits;
    std::memcpy(&bits, words.data() + word + first / kLanes, sizeof(bits));
    return static_cast<uint32_t>(bits >> (first % kLanes));
  }
};

// 16 elements at a time, without a branch: lanes that begin an entry are
// compressed to the front of a vector, which is written as a whole.
[[gnu::target("avx512f,popcnt")]] int64_t CompactInVectors(
    std::span<const uint64_t> elements, const EntryArrays& entries,
    BeginBits& begin_bits) {
  const __m512i lanes =
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i even = _mm512_slli_epi32(lanes, 1);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  const auto size = static_cast<int64_t>(elements.size());
  // A key that the first element does not have.
  __m512i last_keys = _mm512_set1_epi32(
      static_cast<int32_t>(~SortKey::KeyOf(elements.front())));
  __m512i last_samples = _mm512_setzero_si512();
  __m512i positions = lanes;
  int64_t num_entries = 0;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t rest = std::min(size - i, kLanes);
    const uint32_t valid = (uint32_t{1} << rest) - 1;
    const uint64_t* const from = elements.data() + i;
    const __m512i low =
        _mm512_maskz_loadu_epi64(static_cast<__mmask8>(valid), from);
    const __m512i high =
        _mm512_maskz_loadu_epi64(static_cast<__mmask8>(valid >> 8), from + 8);
    const __m512i key = _mm512_permutex2var_epi32(low, odd, high);
    const __m512i sample = _mm512_permutex2var_epi32(low, even, high);
    // Those of the element before.
    const __m512i key_before =
        _mm512_maskz_alignr_epi32(0xffff, key, last_keys, 15);
    const __m512i sample_before =
        _mm512_maskz_alignr_epi32(0xffff, sample, last_samples, 15);
    const uint32_t is_new = _mm512_cmpneq_epi32_mask(key, key_before) |
                            _mm512_cmpneq_epi32_mask(sample, sample_before);
    const auto begins = static_cast<__mmask16>(is_new & valid);
    _mm512_storeu_si512(entries.keys + num_entries,
                        _mm512_maskz_compress_epi32(begins, key));
    _mm512_storeu_si512(entries.samples + num_entries,
                        _mm512_maskz_compress_epi32(begins, sample));
    _mm512_storeu_si512(entries.begins + num_entries,
                        _mm512_maskz_compress_epi32(begins, positions));
    begin_bits.words[i / kLanes] = static_cast<uint16_t>(is_new | ~valid);
    num_entries += __builtin_popcount(begins);
    last_keys = key;
    last_samples = sample;
    positions = _mm512_add_epi32(positions, _mm512_set1_epi32(kLanes));
  }
  std::fill_n(begin_bits.words.begin() + CeilDiv(size, kLanes), 5, 0xffff);
  return num_entries;
}

// Adds to the gain of each element those that follow until the next entry
// begins; lanes that begin an entry are what is written.
[[gnu::target("avx512f,popcnt")]] void SumInVectors(
    std::span<const float> id_gains, const BeginBits& begin_bits,
    float* gains) {
  const auto size = static_cast<int64_t>(id_gains.size());
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t word = i / kLanes;
    const float* const from = id_gains.data() + i;
    const int64_t rest = size - i;
    const auto valid = static_cast<__mmask16>(
        rest < kLanes ? (uint32_t{1} << rest) - 1 : 0xffff);
    __m512 sum = _mm512_maskz_loadu_ps(valid, from);
    uint32_t goes_on = ~begin_bits.Get(word, 1) & 0xffff;
    const uint32_t begins = begin_bits.words[word] & valid;
    for (int next = 1; (goes_on & 0xffff) != 0; ++next) {
      const auto lanes = static_cast<__mmask16>(goes_on);
      sum = _mm512_mask_add_ps(sum, lanes, sum,
                               _mm512_maskz_loadu_ps(lanes, from + next));
      goes_on &= ~begin_bits.Get(word, next + 1);
    }
    _mm512_storeu_ps(
        gains, _mm512_maskz_compress_ps(static_cast<__mmask16>(begins), sum));
    gains += __builtin_popcount(begins);
  }
}

#endif  // defined(__x86_64__)

// The gain of an entry with one more id. A compiler makes a branch of
// `is_new ? id_gain : gain + id_gain`, which would be hard to predict.
[[gnu::always_inline]] inline float NextGain(float gain, float id_gain,
                                             bool is_new) {
  const uint32_t all_bits_if_old = uint32_t{is_new} - 1;
  constexpr uint32_t kMinusZero = 0x80000000;  // adds nothing to any float
  return id_gain + std::bit_cast<float>(
                       (std::bit_cast<uint32_t>(gain) & all_bits_if_old) |
                       (kMinusZero & ~all_bits_if_old));
}

// Blocks without merges are copied by vector instructions. The loop over the
// others has no branch on the data.
template <bool kHasGains>
[[gnu::always_inline]] inline int64_t CompactBlocks(
    std::span<const uint64_t> elements, const float* __restrict id_gains,
    uint32_t* __restrict keys, int32_t* __restrict samples,
    float* __restrict gains, uint32_t* __restrict ends) {
  constexpr int64_t kBlockSize = 8;
  const auto size = static_cast<int64_t>(elements.size());
  int64_t last = -1;  // the last entry
  uint64_t element = ~elements.front();
  float gain = 0.0f;
  for (int64_t i = 0; i < size; i += kBlockSize) {
    const uint64_t* const block = elements.data() + i;
    uint32_t merges = i == 0 || i + kBlockSize > size;
    if (merges == 0) {
      // Not unrolled, or GCC 12 does not vectorize it.
#pragma GCC unroll 1
      for (int64_t j = 0; j < kBlockSize; ++j)
        merges |= block[j] == block[j - 1];
    }
    if (merges == 0) {
#pragma GCC unroll 1
      for (int64_t j = 0; j < kBlockSize; ++j) {
        keys[last + 1 + j] = SortKey::KeyOf(block[j]);
        samples[last + 1 + j] =
            static_cast<int32_t>(SortKey::PayloadOf(block[j]));
        ends[last + 1 + j] = static_cast<uint32_t>(i + j + 1);
        if (kHasGains) gains[last + 1 + j] = id_gains[i + j];
      }
      last += kBlockSize;
      element = block[kBlockSize - 1];
      if (kHasGains) gain = id_gains[i + kBlockSize - 1];
      continue;
    }
    const int64_t end = std::min(kBlockSize, size - i);
    for (int64_t j = 0; j < end; ++j) {
      const bool is_new = block[j] != element;
      element = block[j];
      last += is_new;
      keys[last] = SortKey::KeyOf(element);
      samples[last] = static_cast<int32_t>(SortKey::PayloadOf(element));
      ends[last] = static_cast<uint32_t>(i + j + 1);
      if (kHasGains) {
        gain = NextGain(gain, id_gains[i + j], is_new);
        gains[last] = gain;
      }
    }
  }
  return last + 1;
}

JTE_VECTOR_CLONES
int64_t CompactWithGains(std::span<const uint64_t> elements,
                         const float* id_gains, const EntryArrays& entries) {
  return CompactBlocks<true>(elements, id_gains, entries.keys, entries.samples,
                             entries.gains, entries.begins + 1);
}

JTE_VECTOR_CLONES
int64_t CompactWithoutGains(std::span<const uint64_t> elements,
                            const EntryArrays& entries) {
  return CompactBlocks<false>(elements, nullptr, entries.keys, entries.samples,
                              entries.gains, entries.begins + 1);
}

}  // namespace

int64_t CompactEntriesPortably(std::span<const uint64_t> elements,
                               std::span<const float> id_gains,
                               const EntryArrays& entries) {
  entries.begins[0] = 0;
  if (!id_gains.empty()) {
    return CompactWithGains(elements, id_gains.data(), entries);
  }
  const int64_t size = CompactWithoutGains(elements, entries);
  CountGains(entries.begins, size, entries.gains);
  return size;
}

int64_t CompactEntries(std::span<const uint64_t> elements,
                       std::span<const float> id_gains,
                       const EntryArrays& entries) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    BeginBits begin_bits;
    const int64_t size = CompactInVectors(elements, entries, begin_bits);
    entries.begins[size] = static_cast<uint32_t>(elements.size());
    if (id_gains.empty()) {
      CountGains(entries.begins, size, entries.gains);
    } else {
      SumInVectors(id_gains, begin_bits, entries.gains);
    }
    return size;
  }
#endif
  return CompactEntriesPortably(elements, id_gains, entries);
}

namespace {

JTE_VECTOR_CLONES
void ComputeSamples(std::span<const uint64_t> elements, const Divisor& valency,
                    uint64_t* __restrict with_samples) {
  // A local copy: the compiler need not assume that what the loop writes is
  // part of it, and does not load it again in each turn.
  const Divisor divisor = valency;
  for (size_t i = 0; i < elements.size(); ++i) {
    with_samples[i] =
        SortKey::Element(SortKey::KeyOf(elements[i]),
                         divisor.Quotient(SortKey::PayloadOf(elements[i])));
  }
}

JTE_VECTOR_CLONES
void UnpackSamples(std::span<const uint64_t> elements, int position_bits,
                   uint64_t* __restrict with_samples) {
  for (size_t i = 0; i < elements.size(); ++i) {
    with_samples[i] =
        SortKey::Element(SortKey::KeyOf(elements[i]),
                         SortKey::PayloadOf(elements[i]) >> position_bits);
  }
}

// Lookups are left to plain loads: gather instructions take twice the time.
void LookUp(std::span<const uint64_t> elements, const float* of_payload,
            float* __restrict id_gains) {
  for (size_t i = 0; i < elements.size(); ++i) {
    id_gains[i] = of_payload[SortKey::PayloadOf(elements[i])];
  }
}

}  // namespace

void Resolve(const SampleGains& gains, std::span<const uint64_t> elements,
             uint64_t*, float* id_gains) {
  LookUp(elements, gains.gains.data(), id_gains);
}

void Resolve(const MatrixGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains) {
  ComputeSamples(elements, gains.valency, with_samples);
  LookUp(elements, gains.gains.data(), id_gains);
}

void Resolve(const PackedGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains) {
  UnpackSamples(elements, gains.position_bits, with_samples);
  const PackedGains packed = gains;  // not loaded again in each turn
  for (size_t i = 0; i < elements.size(); ++i) {
    id_gains[i] =
        packed.gains[packed.PositionOf(SortKey::PayloadOf(elements[i]))];
  }
}

void Resolve(const IdGains& gains, std::span<const uint64_t> elements,
             uint64_t* __restrict with_samples, float* __restrict id_gains) {
  for (size_t i = 0; i < elements.size(); ++i) {
    const WeightedId id = gains.ids[SortKey::PayloadOf(elements[i])];
    with_samples[i] = SortKey::Element(SortKey::KeyOf(elements[i]),
                                       static_cast<uint32_t>(id.sample));
    id_gains[i] = id.gain;
  }
}

namespace {

// Cells that are written together, whether there is an entry for each or not.
static_assert(kLanes <= EntryBlock::kSlack);

[[gnu::always_inline]] inline void CopyCells(const EntryBlock& block,
                                             int64_t from, int64_t n,
                                             uint32_t row_mask,
                                             const CsrBuffers& cells,
                                             int64_t to) {
  const uint32_t* const keys = block.keys() + from;
  int32_t* const embedding_ids = cells.embedding_ids.data() + to;
  for (int64_t i = 0; i < n; ++i) {
    embedding_ids[i] = static_cast<int32_t>(keys[i] & row_mask);
  }
  std::copy_n(block.samples.data() + from, n, cells.sample_ids.data() + to);
  std::copy_n(block.gains.data() + from, n, cells.gains.data() + to);
}

#if defined(__x86_64__)

[[gnu::target("avx512f,popcnt")]] CopiedEntries CopyInVectors(
    const EntryBlock& block, int64_t from, const SortKey& sort_key,
    uint32_t partition, const CsrBuffers& cells, int64_t begin) {
  const auto num_cells = static_cast<int64_t>(cells.gains.size());
  const auto bits = [](uint32_t word) { return static_cast<int32_t>(word); };
  const __m512i row_mask = _mm512_set1_epi32(bits(sort_key.row_mask()));
  const __m512i partition_mask = _mm512_set1_epi32(bits(~sort_key.row_mask()));
  const __m512i first_key = _mm512_set1_epi32(bits(sort_key.Key(partition, 0)));
  const __m512i no_id = _mm512_set1_epi32(kPaddingId);
  const __m512 no_gain = _mm512_set1_ps(cells.padding_gain);
  const bool begins_aligned = begin % kAlignment == 0;
  CopiedEntries copied;
  int64_t size = kLanes;
  while (size == kLanes) {
    const __m512i keys = _mm512_loadu_si512(block.keys() + from);
    const __m512i before = _mm512_loadu_si512(block.keys() + from - 1);
    const __mmask16 belong = _mm512_cmpeq_epi32_mask(
        _mm512_and_si512(keys, partition_mask), first_key);
    const __mmask16 begin_row =
        _mm512_mask_cmpneq_epi32_mask(belong, keys, before);
    size = __builtin_popcount(belong);
    copied.num_rows += __builtin_popcount(begin_row);
    const int64_t room = std::clamp<int64_t>(num_cells - begin, 0, kLanes);
    const auto exist = static_cast<__mmask16>((uint32_t{1} << room) - 1);
    const int64_t to = std::min(begin, num_cells);
    _mm512_mask_storeu_epi32(
        cells.embedding_ids.data() + to, exist,
        _mm512_mask_and_epi32(no_id, belong, keys, row_mask));
    _mm512_mask_storeu_epi32(
        cells.sample_ids.data() + to, exist,
        _mm512_mask_loadu_epi32(no_id, belong, block.samples.data() + from));
    _mm512_mask_storeu_ps(
        cells.gains.data() + to, exist,
        _mm512_mask_loadu_ps(no_gain, belong, block.gains.data() + from));
    from += size;
    begin += size;
    copied.size += size;
  }
  // Aligned vectors have all padding in the last one.
  if (!begins_aligned) PadToAlignment(cells, begin);
  return copied;
}

#endif  // defined(__x86_64__)

}  // namespace

JTE_VECTOR_CLONES
CopiedEntries CopyEntriesPortably(const EntryBlock& block, int64_t from,
                                  const SortKey& sort_key, uint32_t partition,
                                  const CsrBuffers& cells, int64_t begin) {
  const SortKey key = sort_key;
  const auto num_cells = static_cast<int64_t>(cells.gains.size());
  CopiedEntries copied;
  int64_t size = kLanes;
  while (size == kLanes) {
    const uint32_t* const keys = block.keys() + from;
    if (key.PartitionOfKey(keys[kLanes - 1]) == partition) {
      int32_t num_rows = 0;
#pragma GCC unroll 1
      for (int64_t i = 0; i < kLanes; ++i) num_rows += keys[i] != keys[i - 1];
      copied.num_rows += num_rows;
    } else {
      for (size = 0; key.PartitionOfKey(keys[size]) == partition; ++size) {
        copied.num_rows += keys[size] != keys[size - 1];
      }
    }
    if (begin + kLanes <= num_cells) {
      CopyCells(block, from, kLanes, key.row_mask(), cells, begin);
    } else if (begin < num_cells) {
      CopyCells(block, from, std::min(size, num_cells - begin), key.row_mask(),
                cells, begin);
    }
    from += size;
    begin += size;
    copied.size += size;
  }
  PadToAlignment(cells, begin);
  return copied;
}

CopiedEntries CopyEntries(const EntryBlock& block, int64_t from,
                          const SortKey& sort_key, uint32_t partition,
                          const CsrBuffers& cells, int64_t begin) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    return CopyInVectors(block, from, sort_key, partition, cells, begin);
  }
#endif
  return CopyEntriesPortably(block, from, sort_key, partition, cells, begin);
}

JTE_VECTOR_CLONES
DistinctCounts CountDistinct(std::span<const uint64_t> elements) {
  if (elements.empty()) return {};
  uint64_t num_ids = 1;  // as wide as what is compared
  uint64_t num_rows = 1;
  for (size_t i = 1; i < elements.size(); ++i) {
    num_ids += elements[i] != elements[i - 1];
    num_rows += (elements[i] ^ elements[i - 1]) >> 32 != 0;
  }
  return {.ids = static_cast<uint32_t>(num_ids),
          .unique_ids = static_cast<uint32_t>(num_rows)};
}

JTE_VECTOR_CLONES
FirstRepeats FindRepeats(std::span<const uint64_t> elements) {
  constexpr size_t kBlockSize = FirstRepeats::kBlockSize;
  size_t i = 1;
  for (; i + kBlockSize <= elements.size(); i += kBlockSize) {
    const uint64_t* const block = elements.data() + i;
    // As wide as what is compared, and not unrolled, or GCC 12 does not
    // vectorize the loop.
    uint64_t repeats = 0;
#pragma GCC unroll 1
    for (size_t j = 0; j < kBlockSize; ++j) {
      repeats |= uint64_t{(block[j] ^ (block - 1)[j]) >> 32 == 0} << j;
    }
    if (repeats != 0) {
      return {.num_rows = i - 1, .repeats = static_cast<uint32_t>(repeats)};
    }
  }
  return {.num_rows = i - 1};
}

}  // namespace jte::convert
