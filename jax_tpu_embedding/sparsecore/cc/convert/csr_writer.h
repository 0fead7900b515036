// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Sorted elements to COO cells, partition after partition.
//
// Elements of the same row and sample merge into one entry, whose gain is the
// sum in order of occurrence. Entries beyond a limit or the last cell are
// dropped and counted.
//
// The stages fill_csr.h and fill_minibatches.h decide which elements go where.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CSR_WRITER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CSR_WRITER_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/copy_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/partition_limits.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte {

struct EntryCounts {
  int64_t ids = 0;         // entries
  int64_t unique_ids = 0;  // distinct rows

  bool Within(const PartitionLimits& limits) const {
    return ids <= limits.max_ids && unique_ids <= limits.max_unique_ids;
  }
};

// Tells where entries begin, element by element.
class EntryScan {
 public:
  // Whether the element begins an entry; if not, it merges into the last one.
  bool Next(uint64_t element, int32_t sample) {
    const uint32_t key = SortKey::KeyOf(element);
    const bool new_row = counts_.ids == 0 || key != last_key_;
    const bool new_entry = new_row || sample != last_sample_;
    counts_.ids += new_entry;
    counts_.unique_ids += new_row;
    last_key_ = key;
    last_sample_ = sample;
    return new_entry;
  }

  // Of the elements so far.
  const EntryCounts& counts() const { return counts_; }

 private:
  EntryCounts counts_;
  uint32_t last_key_ = 0;
  int32_t last_sample_ = 0;
};

// The entries of sorted elements.
template <typename Gains>
EntryCounts CountEntries(std::span<const uint64_t> elements,
                         const Gains& gains) {
  if (elements.empty()) return {};
  const auto sample = [elements, &gains](size_t i) {
    return gains[SortKey::PayloadOf(elements[i])].sample;
  };
  EntryCounts counts = {.ids = 1, .unique_ids = 1};
  for (size_t i = 1; i < elements.size(); ++i) {
    const bool new_row =
        SortKey::KeyOf(elements[i]) != SortKey::KeyOf(elements[i - 1]);
    counts.unique_ids += new_row;
    counts.ids += new_row | (sample(i) != sample(i - 1));
  }
  return counts;
}

// Writes to consecutive cells.
template <typename Gains>
class CsrWriter {
 public:
  // To the cells [begin, end of `cells`), both multiples of 8.
  CsrWriter(const SortKey& sort_key, const Gains& gains,
            const CsrBuffers& cells, int64_t begin = 0)
      : sort_key_(sort_key), gains_(gains), cells_(cells), position_(begin) {}

  int64_t position() const { return position_; }
  int64_t dropped_id_count() const { return dropped_id_count_; }

  bool HasRoomFor(int64_t num_entries) const {
    return num_entries <= end() - position_;
  }

  // Any elements of one partition. Keeps the longest prefix of entries within
  // the limits, and of that what there is room for. Returns what there was.
  //
  // That nothing has to be dropped is the usual case, and known only when the
  // entries are written: a row in many samples is one distinct row.
  EntryCounts WritePartition(std::span<const uint64_t> elements,
                             const PartitionLimits& limits) {
    if (HasRoomFor(std::ssize(elements)) ||
        HasRoomFor(CountEntries(elements, gains_).ids)) {
      const int64_t begin = position_;
      const EntryCounts counts = Write(elements);
      if (counts.Within(limits)) return counts;
      position_ = begin;
    }
    return WriteWithinLimits(elements, limits);
  }

  // Elements of one partition, whose entries are within the limits and have
  // room.
  EntryCounts Write(std::span<const uint64_t> elements) {
    if (elements.empty()) return {};
    const int64_t begin = position_;
    int64_t unique_ids = 1;
    WriteFirst(elements.front());
    for (size_t done = 1; done < elements.size();) {
      size_t block = elements.size() - done;
      if constexpr (Gains::kPayloadIsSample) {
        const CopiedEntries copied = Copy(elements.subspan(done - 1));
        unique_ids += copied.num_rows;
        done += copied.size;
        // Where one block has merges, the next ones often have, too.
        const int64_t num_blocks = copied.size > 0 ? 1 : 4;
        block = std::min<size_t>(elements.size() - done,
                                 num_blocks * kEntriesPerBlock);
      }
      unique_ids += WriteMerging(elements.subspan(done - 1, block + 1));
      done += block;
    }
    return {.ids = position_ - begin, .unique_ids = unique_ids};
  }

  // WritePartition, for those that exceed something.
  EntryCounts WriteWithinLimits(std::span<const uint64_t> elements,
                                const PartitionLimits& limits) {
    EntryScan scan;
    bool written = false;  // whether the entry of the last element was
    for (const uint64_t element : elements) {
      const WeightedId id = gains_[SortKey::PayloadOf(element)];
      const bool new_entry = scan.Next(element, id.sample);
      if (!scan.counts().Within(limits)) {
        ++dropped_id_count_;
      } else if (!new_entry) {
        if (written) cells_.gains[position_ - 1] += id.gain;
      } else if (position_ < end()) {
        cells_.embedding_ids[position_] =
            static_cast<int32_t>(sort_key_.RowOf(SortKey::KeyOf(element)));
        cells_.sample_ids[position_] = id.sample;
        cells_.gains[position_] = id.gain;
        ++position_;
        written = true;
      } else {
        // One per entry, not per id: the merged ids went together.
        ++dropped_id_count_;
        written = false;
      }
    }
    return scan.counts();
  }

  // Ends a partition: pads to the next multiple of 8.
  void Align() {
    const int64_t aligned = RoundUp(position_, kAlignment);
    if (position_ + kAlignment > end()) {
      Pad(cells_, position_, aligned - position_);
    } else {
      // A fixed number of cells compiles to a few stores. What is beyond the
      // alignment gets overwritten.
      Pad(cells_, position_, kAlignment);
    }
    position_ = aligned;
  }

  void PadToEnd() {
    Pad(cells_, position_, end() - position_);
    position_ = end();
  }

  int64_t end() const { return std::ssize(cells_.gains); }

 private:
  void WriteFirst(uint64_t element) {
    const WeightedId id = gains_[SortKey::PayloadOf(element)];
    cells_.embedding_ids[position_] =
        static_cast<int32_t>(sort_key_.RowOf(SortKey::KeyOf(element)));
    cells_.sample_ids[position_] = id.sample;
    cells_.gains[position_] = id.gain;
    ++position_;
  }

  // Both of these write elements[1..], where elements[0] is written; Copy stops
  // before a block of elements that merge.
  CopiedEntries Copy(std::span<const uint64_t> elements) {
    if (std::ssize(elements) <= kEntriesPerBlock) return {};
    int32_t* const samples = cells_.sample_ids.data() + position_;
    const CopiedEntries copied =
        CopyEntries(elements, sort_key_.row_mask(),
                    cells_.embedding_ids.data() + position_, samples);
    for (int64_t i = 0; i < copied.size; ++i) {
      cells_.gains[position_ + i] = gains_[samples[i]].gain;
    }
    position_ += copied.size;
    return copied;
  }

  // Returns the number of rows that begin. The loop has no branch on the data
  // but its end.
  int64_t WriteMerging(std::span<const uint64_t> elements) {
    int64_t cell = position_ - 1;
    int64_t num_rows = 0;
    uint32_t last_key = SortKey::KeyOf(elements.front());
    int32_t last_sample = cells_.sample_ids[cell];
    float gain = cells_.gains[cell];
    for (const uint64_t element : elements.subspan(1)) {
      const uint32_t key = SortKey::KeyOf(element);
      const WeightedId id = gains_[SortKey::PayloadOf(element)];
      const bool new_row = key != last_key;
      const bool new_entry = new_row | (id.sample != last_sample);
      cell += new_entry;
      num_rows += new_row;
      gain = NextGain(gain, id.gain, new_entry);
      cells_.embedding_ids[cell] = static_cast<int32_t>(sort_key_.RowOf(key));
      cells_.sample_ids[cell] = id.sample;
      cells_.gains[cell] = gain;
      last_key = key;
      last_sample = id.sample;
    }
    position_ = cell + 1;
    return num_rows;
  }

  // The gain of an entry with one more id.
  static float NextGain(float gain, float id_gain, bool new_entry) {
    if constexpr (Gains::kPayloadIsSample) {
      // A compiler makes a branch of the line below. Here, behind CopyEntries,
      // it would be hard to predict: 7.4 -> 6.7 ns per id in all for Zipf 1.2.
      const uint32_t all_bits_if_old = uint32_t{new_entry} - 1;
      constexpr uint32_t kMinusZero = 0x80000000;  // adds nothing to any float
      return id_gain + std::bit_cast<float>(
                           (std::bit_cast<uint32_t>(gain) & all_bits_if_old) |
                           (kMinusZero & ~all_bits_if_old));
    }
    return new_entry ? id_gain : gain + id_gain;
  }

  const SortKey sort_key_;
  const Gains gains_;
  const CsrBuffers cells_;
  int64_t position_;  // the next cell to write
  int64_t dropped_id_count_ = 0;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CSR_WRITER_H_
