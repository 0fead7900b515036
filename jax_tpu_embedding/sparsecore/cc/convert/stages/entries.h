// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Entries: what sorted elements of the same row and sample merge into. The gain
// of an entry is the sum of theirs in order of occurrence.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_ENTRIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_ENTRIES_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"

namespace jte::convert {

// How far beyond the last entry CompactEntries may write.
inline constexpr int64_t kCompactSlack = 16;

// The most elements that it takes.
inline constexpr int64_t kMaxCompactSize = 512;

// Where entries go; there is room for as many as elements, and kCompactSlack
// more.
struct EntryArrays {
  uint32_t* keys;
  int32_t* samples;
  float* gains;
  uint32_t* begins;  // position of the first element of each
};

// Merges what is one entry. The payloads of elements are samples. `id_gains`
// are gains of elements, which are added from left to right; without any, each
// is 1. Returns the number of entries.
//
// CPU time per element, with gains: 0.4 ns with AVX-512, whatever merges. Else
// 0.5 where nothing does, and 2 where much does, at places hard to predict.
int64_t CompactEntries(std::span<const uint64_t> elements,
                       std::span<const float> id_gains,
                       const EntryArrays& entries);

// The same for any machine.
int64_t CompactEntriesPortably(std::span<const uint64_t> elements,
                               std::span<const float> id_gains,
                               const EntryArrays& entries);

// ---- Reading entries, block by block.
//
// Entries come in blocks that fit the L1 cache, in arrays, so that they are
// made and read by vector instructions.

// A block of entries.
struct EntryBlock {
  static constexpr int64_t kMaxSize = kMaxCompactSize;
  // Behind each array, so that 16 entries at a time can be read and written.
  static constexpr int64_t kSlack = kCompactSlack;
  // No entry has this key: a row is below 2^31 / num_scs.
  static constexpr uint32_t kNoKey = ~uint32_t{0};

  template <typename T>
  using Values = std::array<T, kMaxSize + kSlack>;

  // Empty. EntryReader writes the entries.
  EntryBlock() { key_before_and_keys[0] = kNoKey; }

  // [-1]: that of the entry before the block, if any; [size ..]: kNoKey,
  // kSlack times.
  uint32_t* keys() { return key_before_and_keys.data() + 1; }
  const uint32_t* keys() const { return key_before_and_keys.data() + 1; }

  int64_t size = 0;
  int64_t first_element = 0;
  Values<uint32_t> begins;  // first_element + begins[i] is the i-th entry's
                            // first element; [size]: the end of the last
  Values<int32_t> samples;
  Values<float> gains;
  std::array<uint32_t, 1 + kMaxSize + kSlack> key_before_and_keys;
};

// For the elements of a block: replaces payloads by samples, where they are
// not, and looks up gains.
void Resolve(const SampleGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains);
void Resolve(const MatrixGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains);
void Resolve(const PackedGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains);
void Resolve(const IdGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains);

template <typename Gains>
class EntryReader {
 public:
  // Equal entries of `elements` are neighbours.
  EntryReader(std::span<const uint64_t> elements, const Gains& gains)
      : elements_(elements), gains_(gains) {}

  // Reads the entries that follow the last block, which was `block`. Without
  // any left, returns false and makes the block empty.
  bool Next(EntryBlock& block) {
    block.key_before_and_keys[0] = block.keys()[block.size - 1];
    block.first_element = position_;
    const auto rest = elements_.subspan(position_);
    const auto elements =
        rest.first(std::min<size_t>(rest.size(), EntryBlock::kMaxSize));
    int64_t end = std::ssize(elements);
    block.size = elements.empty() ? 0 : Compact(elements, block);
    if (elements.size() < rest.size()) {
      // The last entry may go on.
      if (block.size == 1) {
        end = FinishEntry(block);
      } else {
        end = block.begins[--block.size];
      }
    }
    block.begins[block.size] = static_cast<uint32_t>(end);
    std::fill_n(block.keys() + block.size, EntryBlock::kSlack,
                EntryBlock::kNoKey);
    position_ += end;
    return block.size > 0;
  }

 private:
  int64_t Compact(std::span<const uint64_t> elements, EntryBlock& block) {
    EntryBlock::Values<uint64_t> with_samples;
    EntryBlock::Values<float> id_gains;
    std::span<const uint64_t> to_compact = elements;
    std::span<const float> of_elements;
    if constexpr (!std::is_same_v<Gains, UnitGains>) {
      Resolve(gains_, elements, with_samples.data(), id_gains.data());
      of_elements = std::span(id_gains).first(elements.size());
    }
    if constexpr (!Gains::kPayloadIsSample) {
      to_compact = std::span(with_samples).first(elements.size());
    }
    return CompactEntries(to_compact, of_elements,
                          {.keys = block.keys(),
                           .samples = block.samples.data(),
                           .gains = block.gains.data(),
                           .begins = block.begins.data()});
  }

  // Adds what follows to the only entry of `block`, which has kMaxSize elements
  // and can have any number. Returns how many it has.
  int64_t FinishEntry(EntryBlock& block) const {
    int64_t size = EntryBlock::kMaxSize;
    for (; position_ + size < std::ssize(elements_); ++size) {
      const uint64_t element = elements_[position_ + size];
      const WeightedId id = gains_[SortKey::PayloadOf(element)];
      if (SortKey::KeyOf(element) != block.keys()[0] ||
          id.sample != block.samples[0]) {
        break;
      }
      block.gains[0] += id.gain;
    }
    return size;
  }

  const std::span<const uint64_t> elements_;
  const Gains gains_;
  int64_t position_ = 0;  // the next element
};

// ---- Entries of one partition to cells.

struct CopiedEntries {
  int64_t size = 0;      // entries
  int64_t num_rows = 0;  // that begin among them
};

// Copies the entries of `block` from `from` on that belong to `partition`, to
// the cells from `begin` on, and padding behind them up to a multiple of 8;
// those that have no cell are counted only. May write any cells after that.
CopiedEntries CopyEntries(const EntryBlock& block, int64_t from,
                          const SortKey& sort_key, uint32_t partition,
                          const CsrBuffers& cells, int64_t begin);

// The same for any machine.
CopiedEntries CopyEntriesPortably(const EntryBlock& block, int64_t from,
                                  const SortKey& sort_key, uint32_t partition,
                                  const CsrBuffers& cells, int64_t begin);

// ---- Counting entries and distinct rows, by vector instructions.
//
// CPU time per element, Xeon with AVX-512: 0.3 ns where payloads are samples;
// otherwise 0.3 ns where hardly any row repeats, 1.1 where many do.

struct DistinctCounts {
  uint32_t ids = 0;         // entries
  uint32_t unique_ids = 0;  // distinct rows
};

// The counts of elements whose payloads are samples, so that an entry is a
// distinct element.
DistinctCounts CountDistinct(std::span<const uint64_t> elements);

// Where elements[1..] stop to begin a row each, in whole blocks.
struct FirstRepeats {
  static constexpr size_t kBlockSize = 16;

  size_t num_rows = 0;   // elements that begin one, before the block
  uint32_t repeats = 0;  // bit j: its element j does not; 0: no whole block
};
FirstRepeats FindRepeats(std::span<const uint64_t> elements);

template <typename Gains>
DistinctCounts CountDistinct(std::span<const uint64_t> elements,
                             const Gains& gains) {
  if constexpr (Gains::kPayloadIsSample) {
    return CountDistinct(elements);
  } else {
    if (elements.empty()) return {};
    const auto sample = [elements, &gains](size_t i) {
      return gains[SortKey::PayloadOf(elements[i])].sample;
    };
    DistinctCounts counts = {.ids = 1, .unique_ids = 1};
    size_t i = 1;
    for (;;) {
      const auto [num_rows, repeats] = FindRepeats(elements.subspan(i - 1));
      counts.ids += num_rows;
      counts.unique_ids += num_rows;
      i += num_rows;
      if (repeats == 0) break;
      counts.ids += FirstRepeats::kBlockSize;
      counts.unique_ids += FirstRepeats::kBlockSize;
      for (uint32_t rest = repeats; rest != 0; rest &= rest - 1) {
        const size_t repeat = i + std::countr_zero(rest);
        counts.ids -= sample(repeat) == sample(repeat - 1);
        counts.unique_ids -= 1;
      }
      i += FirstRepeats::kBlockSize;
    }
    for (; i < elements.size(); ++i) {
      const bool new_row =
          SortKey::KeyOf(elements[i]) != SortKey::KeyOf(elements[i - 1]);
      counts.unique_ids += new_row;
      counts.ids += new_row | (sample(i) != sample(i - 1));
    }
    return counts;
  }
}

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_ENTRIES_H_
