// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Sorted elements to entries: elements of the same row and sample merge into
// one, whose gain is the sum in order of occurrence.
//
// Entries come in blocks that fit the L1 cache, in columns, so that they are
// made and read by vector instructions.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_ENTRY_READER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_ENTRY_READER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/convert/compact_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {

// A block of entries.
struct EntryBlock {
  static constexpr int64_t kMaxSize = kMaxCompactSize;
  // Behind each column, so that 16 entries at a time can be read and written.
  static constexpr int64_t kSlack = kCompactSlack;
  // No entry has this key: a row is below 2^31 / num_scs.
  static constexpr uint32_t kNoKey = ~uint32_t{0};

  template <typename T>
  using Column = std::array<T, kMaxSize + kSlack>;

  // Empty. Columns are written by EntryReader only.
  EntryBlock() { key_before_and_keys[0] = kNoKey; }

  // [-1]: that of the entry before the block, if any; [size ..]: kNoKey,
  // kSlack times.
  uint32_t* keys() { return key_before_and_keys.data() + 1; }
  const uint32_t* keys() const { return key_before_and_keys.data() + 1; }

  int64_t size = 0;
  int64_t first_element = 0;
  Column<uint32_t> begins;  // first_element + begins[i] is the i-th entry's
                            // first element; [size]: the end of the last
  Column<int32_t> samples;
  Column<float> gains;
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
    EntryBlock::Column<uint64_t> with_samples;
    EntryBlock::Column<float> id_gains;
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

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_ENTRY_READER_H_
