// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Sorted elements to COO cells, partition after partition.
//
// Elements of the same row and sample merge into one entry, whose gain is the
// sum in order of occurrence. Entries beyond a limit or the last cell are
// dropped and counted.
//
// The stages fill_csr.h and fill_minibatches.h decide which elements go where.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_CSR_WRITER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_CSR_WRITER_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/entries.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {

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

  // The entries of `block` from `from` on that belong to `partition`. Returns
  // what there was; those that have no room are not written.
  CopiedEntries Append(const EntryBlock& block, int64_t from,
                       uint32_t partition) {
    const CopiedEntries copied =
        CopyEntries(block, from, sort_key_, partition, cells_, position_);
    position_ += copied.size;
    return copied;
  }

  // Elements of one partition, whose entries are within the limits and have
  // room.
  EntryCounts Write(std::span<const uint64_t> elements) {
    if (elements.empty()) return {};
    const uint32_t partition = sort_key_.PartitionOf(elements.front());
    EntryCounts counts;
    EntryReader reader(elements, gains_);
    EntryBlock block;
    while (reader.Next(block)) {
      const CopiedEntries copied = Append(block, 0, partition);
      counts.ids += copied.size;
      counts.unique_ids += copied.num_rows;
    }
    return counts;
  }

  // Takes back what was written to the cells from `position` on.
  void ReturnTo(int64_t position) { position_ = position; }

  // Any elements of one partition. Keeps the longest prefix of entries within
  // the limits, and of that what there is room for. Returns what there was.
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
    PadToAlignment(cells_, position_);
    return scan.counts();
  }

  // Ends a partition. There is padding up to the next one.
  void Align() { position_ = RoundUp(position_, kAlignment); }

  void PadToEnd() {
    Pad(cells_, position_, end() - position_);
    position_ = end();
  }

  int64_t end() const { return std::ssize(cells_.gains); }

 private:
  const SortKey sort_key_;
  const Gains gains_;
  const CsrBuffers cells_;
  int64_t position_;  // the next cell to write
  int64_t dropped_id_count_ = 0;
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_CSR_WRITER_H_
