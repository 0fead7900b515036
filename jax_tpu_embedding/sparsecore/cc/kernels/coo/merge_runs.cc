// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/merge_runs.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"

namespace jte::kernels {

namespace {

// The first of a run's entries that is of `row` or of one behind it.
int64_t LowerBound(const Run& run, int64_t row) {
  const auto first = std::ranges::lower_bound(
      run.embedding_ids, row - run.first_row, {},
      [](int32_t id) { return static_cast<int64_t>(id); });
  return first - run.embedding_ids.begin();
}

// Merges the ascending keys [a, a_end) and [b, b_end), of which no two are
// equal, to `out`.
//
// From both ends at a time, and with no branch on a key: it would be predicted
// wrong every other time, and each end waits for its own loads.
void MergeKeys(const uint64_t* a, const uint64_t* a_end, const uint64_t* b,
               const uint64_t* b_end, uint64_t* out) {
  uint64_t* out_end = out + (a_end - a) + (b_end - b);
  // A turn takes two keys of one at most.
  while (const int64_t turns = std::min(a_end - a, b_end - b) / 2) {
    for (int64_t i = 0; i < turns; ++i) {
      const bool b_is_first = *b < *a;
      *out++ = std::min(*a, *b);
      b += b_is_first;
      a += !b_is_first;
      const bool b_is_last = a_end[-1] < b_end[-1];
      *--out_end = std::max(a_end[-1], b_end[-1]);
      b_end -= b_is_last;
      a_end -= !b_is_last;
    }
  }
  std::merge(a, a_end, b, b_end, out);
}

// Merges the ascending ranges of `from` that end at `ends`, two at a time,
// until there is one; `to` is as large. Returns which of the two it is in.
std::span<const uint64_t> MergeAll(std::span<uint64_t> from,
                                   std::span<uint64_t> to,
                                   std::vector<int64_t>& ends) {
  while (ends.size() > 1) {
    size_t num_merged = 0;
    int64_t begin = 0;
    for (size_t k = 0; k < ends.size(); k += 2) {
      const int64_t middle = ends[k];
      const int64_t end = ends[std::min(k + 1, ends.size() - 1)];
      MergeKeys(from.data() + begin, from.data() + middle, from.data() + middle,
                from.data() + end, to.data() + begin);
      begin = ends[num_merged++] = end;
    }
    ends.resize(num_merged);
    std::swap(from, to);
  }
  return from;
}

}  // namespace

Run MakeRun(const CooBuffers& buffers, const Partition& partition) {
  return {.embedding_ids = buffers.embedding_ids.subspan(
              partition.begin, partition.end - partition.begin),
          .sample_ids = buffers.sample_ids.data() + partition.begin,
          .gains = buffers.gains.data() + partition.begin,
          .first_row = static_cast<int32_t>(partition.first_row),
          .first_sample = static_cast<int32_t>(partition.first_sample)};
}

bool IsAscending(const Run& run) {
  // Differences of numbers that are not negative are in range. No exit and no
  // bool, so that GCC vectorizes the loop.
  const int32_t* ids = run.embedding_ids.data();
  const int64_t size = run.size();
  int32_t differences = 0;
  for (int64_t i = 1; i < size; ++i) differences |= ids[i] - ids[i - 1];
  return differences >= 0;
}

std::vector<int64_t> CutRows(std::span<const Run> runs, int64_t num_rows,
                             int64_t num_entries) {
  // Rows of entries at equal distances, some per cut.
  constexpr int64_t kSamplesPerCut = 8;
  const int64_t distance = CeilDiv(num_entries, kSamplesPerCut);
  std::vector<int64_t> rows;
  for (const Run& run : runs) {
    for (int64_t i = distance; i < run.size(); i += distance) {
      rows.push_back(run.row(i));
    }
  }
  std::ranges::sort(rows);
  std::vector<int64_t> cuts = {0};
  const int64_t num_samples = std::ssize(rows);
  for (int64_t i = kSamplesPerCut; i < num_samples; i += kSamplesPerCut) {
    if (rows[i] > cuts.back()) cuts.push_back(rows[i]);
  }
  cuts.push_back(num_rows);
  return cuts;
}

std::span<const Entry> MergeRuns(std::span<const Run> runs, int64_t first_row,
                                 int64_t last_row, MergeScratch& scratch) {
  struct Piece {
    const Run& run;
    int64_t begin;
    int64_t end;
  };
  std::vector<Piece> pieces;
  std::vector<int64_t> ends;  // in what follows, which has one after the other
  int64_t num_entries = 0;
  for (const Run& run : runs) {
    const int64_t begin = LowerBound(run, first_row);
    const int64_t end = LowerBound(run, last_row);
    if (begin == end) continue;
    pieces.push_back({run, begin, end});
    num_entries += end - begin;
    ends.push_back(num_entries);
  }

  // A key has the row above the position, hence is the only one of its value.
  const std::span<uint64_t> keys = scratch.keys.Take(num_entries);
  const auto terms = scratch.terms.Take(num_entries);
  int64_t position = 0;
  for (const auto& [run, begin, end] : pieces) {
    for (int64_t i = begin; i < end; ++i, ++position) {
      keys[position] = static_cast<uint64_t>(run.row(i) << 32 | position);
      terms[position] = {run.sample(i), run.gains[i]};
    }
  }
  const std::span<const uint64_t> merged =
      MergeAll(keys, scratch.merged_keys.Take(num_entries), ends);

  const std::span<Entry> entries = scratch.entries.Take(num_entries);
  for (int64_t i = 0; i < num_entries; ++i) {
    const auto [sample, gain] = terms[static_cast<uint32_t>(merged[i])];
    entries[i] = {static_cast<int32_t>(merged[i] >> 32), sample, gain};
  }
  return entries;
}

}  // namespace jte::kernels
