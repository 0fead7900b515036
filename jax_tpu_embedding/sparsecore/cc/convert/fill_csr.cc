// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/fill_csr.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte {
namespace {

// What a partition has, before anything is dropped.
struct PartitionCounts {
  int64_t ids = 0;
  int64_t unique_ids = 0;
};

// Writes partitions to consecutive cells of a region.
template <typename Gains>
class RegionWriter {
 public:
  RegionWriter(const SortKey& sort_key, const Gains& gains,
               const CsrBuffers& region)
      : sort_key_(sort_key), gains_(gains), region_(region) {}

  int64_t position() const { return position_; }
  int64_t dropped_id_count() const { return dropped_id_count_; }

  bool HasRoomFor(int64_t num_entries) const {
    return num_entries <= end() - position_;
  }

  // A partition that exceeds neither limits nor region, even if no two of its
  // elements merge. The loop has no branch on the data but its end.
  PartitionCounts Write(std::span<const uint64_t> elements) {
    if (elements.empty()) return {};
    int64_t cell = position_ - 1;
    int64_t unique_ids = 0;
    uint32_t last_key = ~SortKey::KeyOf(elements.front());
    int32_t last_sample = 0;
    float gain = 0.0f;
    for (const uint64_t element : elements) {
      const uint32_t key = SortKey::KeyOf(element);
      const WeightedId id = gains_[SortKey::PayloadOf(element)];
      const bool new_row = key != last_key;
      const bool new_entry = new_row | (id.sample != last_sample);
      cell += new_entry;
      unique_ids += new_row;
      gain = new_entry ? id.gain : gain + id.gain;
      region_.embedding_ids[cell] = static_cast<int32_t>(sort_key_.RowOf(key));
      region_.sample_ids[cell] = id.sample;
      region_.gains[cell] = gain;
      last_key = key;
      last_sample = id.sample;
    }
    const PartitionCounts counts = {.ids = cell + 1 - position_,
                                    .unique_ids = unique_ids};
    position_ = cell + 1;
    return counts;
  }

  // Any partition. Keeps the longest prefix of entries within the limits, and
  // of that what the region has room for.
  PartitionCounts WriteWithinLimits(std::span<const uint64_t> elements,
                                    const PartitionLimits& limits) {
    PartitionCounts counts;
    uint32_t last_key = 0;
    int32_t last_sample = 0;
    bool written = false;  // whether the entry of the last element was
    for (const uint64_t element : elements) {
      const uint32_t key = SortKey::KeyOf(element);
      const WeightedId id = gains_[SortKey::PayloadOf(element)];
      const bool new_row = counts.ids == 0 || key != last_key;
      const bool new_entry = new_row || id.sample != last_sample;
      counts.ids += new_entry;
      counts.unique_ids += new_row;
      last_key = key;
      last_sample = id.sample;
      if (counts.ids > limits.max_ids ||
          counts.unique_ids > limits.max_unique_ids) {
        ++dropped_id_count_;
      } else if (!new_entry) {
        if (written) region_.gains[position_ - 1] += id.gain;
      } else if (position_ < end()) {
        region_.embedding_ids[position_] =
            static_cast<int32_t>(sort_key_.RowOf(key));
        region_.sample_ids[position_] = id.sample;
        region_.gains[position_] = id.gain;
        ++position_;
        written = true;
      } else {
        // One per entry, not per id: the merged ids went together.
        ++dropped_id_count_;
        written = false;
      }
    }
    return counts;
  }

  // Ends a partition: pads to the next multiple of 8.
  void Align() {
    const int64_t aligned = RoundUp(position_, kAlignment);
    if (position_ + kAlignment > end()) {
      Pad(aligned - position_);
    } else {
      // A fixed number of cells compiles to a few stores. What is beyond the
      // alignment gets overwritten.
      Pad(kAlignment);
    }
    position_ = aligned;
  }

  void PadToEnd() {
    Pad(end() - position_);
    position_ = end();
  }

  int64_t end() const { return std::ssize(region_.gains); }

 private:
  void Pad(int64_t count) {
    std::fill_n(&region_.embedding_ids.data()[position_], count, kPaddingId);
    std::fill_n(&region_.sample_ids.data()[position_], count, kPaddingId);
    std::fill_n(&region_.gains.data()[position_], count, kPaddingGain);
  }

  const SortKey sort_key_;
  const Gains gains_;
  const CsrBuffers region_;
  int64_t position_ = 0;  // the next cell to write
  int64_t dropped_id_count_ = 0;
};

// How many of the first elements belong to partitions up to `partition`:
// doubling steps, so that short partitions cost little.
int64_t PartitionSize(std::span<const uint64_t> elements,
                      const SortKey& sort_key, uint32_t partition) {
  const auto belongs = [&sort_key, partition](uint64_t element) {
    return sort_key.PartitionOf(element) <= partition;
  };
  const int64_t size = std::ssize(elements);
  int64_t known = 0;  // elements that belong
  int64_t step = 1;
  while (known + step <= size && belongs(elements[known + step - 1])) {
    known += step;
    step *= 2;
  }
  const auto rest = elements.subspan(known, std::min(step, size - known));
  return known + (std::ranges::partition_point(rest, belongs) - rest.begin());
}

template <typename Gains>
FillReport Fill(std::span<const uint64_t> elements, const SortKey& sort_key,
                const Gains& gains, const PartitionLimits& limits,
                const CsrBuffers& region, PartitionMaxima maxima) {
  FillReport report;
  RegionWriter<Gains> writer(sort_key, gains, region);
  const int64_t safe_size = std::min(limits.max_ids, limits.max_unique_ids);
  for (uint32_t partition = 0; partition < limits.num_scs; ++partition) {
    const auto ids =
        elements.first(PartitionSize(elements, sort_key, partition));
    elements = elements.subspan(ids.size());
    const int64_t size = std::ssize(ids);
    const PartitionCounts counts = size <= safe_size && writer.HasRoomFor(size)
                                       ? writer.Write(ids)
                                       : writer.WriteWithinLimits(ids, limits);
    region.row_pointers[partition] = static_cast<int32_t>(writer.position());
    writer.Align();
    maxima.Record(partition, static_cast<int32_t>(counts.ids),
                  static_cast<int32_t>(counts.unique_ids));
    report.ids.Record(counts.ids, partition);
    report.unique_ids.Record(counts.unique_ids, partition);
    report.required_cells += RoundUp(counts.ids, kAlignment);
  }
  std::ranges::fill(region.row_pointers.subspan(limits.num_scs),
                    static_cast<int32_t>(writer.position()));
  writer.PadToEnd();
  report.dropped_id_count = writer.dropped_id_count();
  return report;
}

}  // namespace

FillReport FillCsr(std::span<const uint64_t> elements, const SortKey& sort_key,
                   const GainSource& gains, const PartitionLimits& limits,
                   const CsrBuffers& region, PartitionMaxima maxima) {
  return std::visit(
      [elements, &sort_key, &limits, &region, maxima](const auto& source) {
        return Fill(elements, sort_key, source, limits, region, maxima);
      },
      gains);
}

}  // namespace jte
