// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/fill_csr.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_writer.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/partition_size.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte {
namespace {

template <typename Gains>
FillReport Fill(std::span<const uint64_t> elements, const SortKey& sort_key,
                const Gains& gains, const PartitionLimits& limits,
                const CsrBuffers& region, const PartitionCounts& counts) {
  FillReport report;
  CsrWriter writer(sort_key, gains, region);
  for (uint32_t partition = 0; partition < limits.num_scs; ++partition) {
    const auto ids =
        elements.first(PartitionSize(elements, sort_key, partition));
    elements = elements.subspan(ids.size());
    const EntryCounts entries = writer.WritePartition(ids, limits);
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

}  // namespace jte
