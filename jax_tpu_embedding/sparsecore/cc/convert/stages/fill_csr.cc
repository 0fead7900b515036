// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/fill_csr.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/csr_writer.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/entries.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

// Sorted elements partition by partition.
template <typename Gains>
class PartitionFiller {
 public:
  PartitionFiller(std::span<const uint64_t> elements, const SortKey& sort_key,
                  const Gains& gains, const PartitionLimits& limits,
                  const CsrBuffers& region)
      : elements_(elements),
        limits_(limits),
        reader_(elements, gains),
        writer_(sort_key, gains, region) {
    reader_.Next(block_);
  }

  // Writes the next partition, which is `partition`. Returns what there was.
  //
  // That nothing has to be dropped is the usual case, and known only when the
  // entries are written.
  EntryCounts Fill(uint32_t partition) {
    const int64_t begin = writer_.position();
    const int64_t first_element = NextElement();
    EntryCounts counts;
    do {
      const CopiedEntries copied = writer_.Append(block_, entry_, partition);
      entry_ += copied.size;
      counts.ids += copied.size;
      counts.unique_ids += copied.num_rows;
    } while (entry_ == block_.size && ReadBlock());
    if (writer_.position() <= writer_.end() && counts.Within(limits_)) {
      return counts;
    }
    writer_.ReturnTo(begin);
    return writer_.WriteWithinLimits(
        elements_.subspan(first_element, NextElement() - first_element),
        limits_);
  }

  CsrWriter<Gains>& writer() { return writer_; }

 private:
  bool ReadBlock() {
    entry_ = 0;
    return reader_.Next(block_);
  }

  int64_t NextElement() const {
    return block_.first_element + block_.begins[entry_];
  }

  const std::span<const uint64_t> elements_;
  const PartitionLimits limits_;
  EntryReader<Gains> reader_;
  CsrWriter<Gains> writer_;
  EntryBlock block_;
  int64_t entry_ = 0;  // the next one, in block_
};

template <typename Gains>
FillReport Fill(std::span<const uint64_t> elements, const SortKey& sort_key,
                const Gains& gains, const PartitionLimits& limits,
                const CsrBuffers& region, const PartitionCounts& counts) {
  FillReport report;
  PartitionFiller filler(elements, sort_key, gains, limits, region);
  CsrWriter<Gains>& writer = filler.writer();
  for (uint32_t partition = 0; partition < limits.num_scs; ++partition) {
    const EntryCounts entries = filler.Fill(partition);
    region.row_pointers[partition] = static_cast<int32_t>(writer.position());
    writer.Align();
    counts.ids[partition] = static_cast<int32_t>(entries.ids);
    counts.unique_ids[partition] = static_cast<int32_t>(entries.unique_ids);
    report.ids.Record(entries.ids, {partition});
    report.unique_ids.Record(entries.unique_ids, {partition});
    report.required_cells += RoundUp(entries.ids, kAlignment);
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
                   const CsrBuffers& region, const PartitionCounts& counts) {
  return std::visit(
      [elements, &sort_key, &limits, &region, &counts](const auto& source) {
        return Fill(elements, sort_key, source, limits, region, counts);
      },
      gains);
}

}  // namespace jte::convert
