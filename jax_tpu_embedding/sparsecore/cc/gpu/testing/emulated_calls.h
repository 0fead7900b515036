// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Conversions, plans and moves on vectors, for tests. Every array has its exact
// size, so that a sanitizer sees what is read or written beyond it.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_TESTING_EMULATED_CALLS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_TESTING_EMULATED_CALLS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/convert_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/occurrences.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pack_messages.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_terms.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::gpu {

// The buffers of a batch, and what their numbers refer to.
struct Batch {
  Batch(const kernels::CooBuffers& buffers,
        const kernels::CooGeometry& of_buffers)
      : num_minibatches(static_cast<int32_t>(of_buffers.num_minibatches)),
        coo{buffers.row_pointers.data(), buffers.embedding_ids.data(),
            buffers.sample_ids.data(), buffers.gains.data(), &num_minibatches},
        geometry{
            .num_row_pointers = std::ssize(buffers.row_pointers),
            .num_cells = std::ssize(buffers.embedding_ids),
            .num_devices = static_cast<int>(of_buffers.num_devices),
            .num_sc_per_device = static_cast<int>(of_buffers.num_sc_per_device),
            .rows_per_shard = of_buffers.rows_per_shard,
            .batch_size_per_sc = of_buffers.batch_size_per_sc,
            .enable_minibatching = of_buffers.enable_minibatching} {}
  Batch(const Batch&) = delete;

  int64_t num_samples() const {
    return geometry.num_sc_per_device * geometry.batch_size_per_sc;
  }

  int32_t num_minibatches;
  CooBuffers coo;
  CooGeometry geometry;
};

// Ints of scratch memory, which a plan overwrites.
class Ints {
 public:
  explicit Ints(int64_t size) : values_(size, -12345) {}
  operator int32_t*() { return values_.data(); }
  const std::vector<int32_t>& values() const { return values_; }

 private:
  std::vector<int32_t> values_;
};

// Converts raw ids, and says whether any is an error.
inline bool Convert(std::span<const RawIds> features,
                    const ConversionGeometry& geometry, int32_t error_mark,
                    const ConvertedIds& buffers) {
  int64_t n = 0;
  int64_t num_samples = 0;
  for (const RawIds& feature : features) {
    n += feature.num_ids;
    num_samples += feature.num_samples;
  }
  const int64_t num_blocks = geometry.num_sc_per_device * geometry.num_shards;
  Ints blocks(n), rows(n), samples(n), keys(n), order(n);
  Ints other_keys(n), other_order(n);
  std::vector<float> gains(n), factors(num_samples);
  Ints first_entries(num_blocks + 1), cells(num_blocks), ends(num_blocks);
  Ints any_error(1), row_splits_errors(std::ssize(features));
  EXPECT_EQ(ConvertIds(Stream(), features, geometry, error_mark,
                       {{blocks, rows, samples, gains.data(), keys, order},
                        other_keys,
                        other_order,
                        factors.data(),
                        first_entries,
                        cells,
                        ends,
                        {any_error, row_splits_errors},
                        Scratch{}},
                       buffers),
            nullptr);
  return any_error.values()[0] != 0;
}

// SampleGroups of a batch, or of entries that were packed.
class GroupedSamples {
 public:
  GroupedSamples(int64_t num_cells, int64_t num_samples)
      : begins_(num_samples + 1), rows_(num_cells), gains_(num_cells) {}

  static GroupedSamples Of(const Batch& batch) {
    const int64_t n = batch.geometry.num_cells;
    GroupedSamples groups(n, batch.num_samples());
    groups.flaws_ = {-1, -1};  // which the plan overwrites
    Ints rows(n), samples(n), places(n), cells(n), has_long_samples(1);
    Ints begins(batch.geometry.num_partitions());
    Ints ends(batch.geometry.num_partitions());
    EXPECT_EQ(GroupBySample(Stream(), batch.coo, batch.geometry,
                            {rows, samples, places, cells, has_long_samples,
                             Partitions{begins, ends}, Scratch{}},
                            {groups.begins_.data(), groups.rows_.data(),
                             groups.gains_.data(), &groups.flaws_}),
              nullptr);
    return groups;
  }

  static GroupedSamples Of(const KnownEntries& entries, int64_t num_samples) {
    const int64_t n = entries.num_cells;
    GroupedSamples groups(n, num_samples);
    Ints samples(n), places(n), cells(n), has_long_samples(1);
    EXPECT_EQ(GroupKnownBySample(Stream(), entries, num_samples,
                                 {nullptr, samples, places, cells,
                                  has_long_samples, Partitions{}, Scratch{}},
                                 {groups.begins_.data(), groups.rows_.data(),
                                  groups.gains_.data(), &groups.flaws_}),
              nullptr);
    return groups;
  }

  int64_t num_cells() const { return std::ssize(rows_); }
  ConstSampleGroups view() const {
    return {begins_.data(), rows_.data(), gains_.data(), &flaws_};
  }

 private:
  std::vector<int32_t> begins_;
  std::vector<int32_t> rows_;
  std::vector<float> gains_;
  Flaws flaws_ = {};
};

// RowGroups of a batch, or of rows that were received.
class GroupedRows {
 public:
  static GroupedRows Of(const Batch& batch, int64_t block_size) {
    const int64_t n = batch.geometry.num_cells;
    GroupedRows groups(n, block_size, batch.geometry.num_sc_per_device);
    groups.is_sorted_ = HasOnePartition(batch.geometry);
    Ints keys(n), cells(n), samples(n);
    Ints begins(batch.geometry.num_partitions());
    Ints ends(batch.geometry.num_partitions());
    EXPECT_EQ(
        GroupByRow(Stream(), batch.coo, batch.geometry, block_size,
                   {keys, cells, samples, Partitions{begins, ends}, Scratch{}},
                   groups.results()),
        nullptr);
    return groups;
  }

  static GroupedRows Of(const RowNumbers& numbers, int64_t block_size) {
    GroupedRows groups(numbers.size, block_size, /*num_sources=*/1);
    Ints keys(numbers.size), cells(numbers.size);
    EXPECT_EQ(GroupRows(Stream(), numbers, block_size,
                        {keys, cells, nullptr, Partitions{}, Scratch{}},
                        groups.results()),
              nullptr);
    return groups;
  }

  int64_t max_row_blocks() const { return std::ssize(blocks_); }
  ConstRowGroups view() const {
    return {rows_.data(),   samples_.data(),
            starts_.data(), is_sorted_ ? nullptr : cells_.data(),
            blocks_.data(), long_rows_.data(),
            &counts_};
  }

 private:
  GroupedRows(int64_t n, int64_t block_size, int64_t num_sources)
      : rows_(n),
        samples_(n),
        starts_(n + 1),
        cells_(n),
        blocks_(MaxRowBlocks(n, block_size, num_sources)),
        long_rows_(MaxLongRows(n, block_size)) {}

  RowGroups results() {
    return {rows_.data(),   samples_.data(),   starts_.data(), cells_.data(),
            blocks_.data(), long_rows_.data(), &counts_};
  }

  bool is_sorted_ = false;
  std::vector<int32_t> rows_;
  std::vector<int32_t> samples_;
  std::vector<int32_t> starts_;
  std::vector<int32_t> cells_;
  std::vector<RowBlock> blocks_;
  std::vector<LongRow> long_rows_;
  GroupCounts counts_ = {-1, -1, -1, {-1, -1}};  // which plans overwrite
};

// What a batch adds to its rows.
inline RowTerms TermsOf(const Batch& batch, const GroupedRows& groups,
                        const std::vector<float>& gradient, int64_t dim,
                        int64_t block_size) {
  return {.groups = groups.view(),
          .cell_gains = batch.coo.gains,
          .gradient = gradient.data(),
          .dim = dim,
          .batch_size_per_sc = batch.geometry.batch_size_per_sc,
          .has_one_source = batch.geometry.num_sc_per_device == 1,
          .block_size = block_size,
          .num_cells = batch.geometry.num_cells};
}

// The same of rows from one source.
inline RowTerms TermsOf(const GroupedRows& groups, int64_t num_rows,
                        const std::vector<float>& gradient, int64_t dim,
                        int64_t block_size, const float* gains = nullptr) {
  return {.groups = groups.view(),
          .cell_gains = gains,
          .gradient = gradient.data(),
          .dim = dim,
          .batch_size_per_sc = std::numeric_limits<int64_t>::max(),
          .has_one_source = true,
          .block_size = block_size,
          .num_cells = num_rows};
}

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_TESTING_EMULATED_CALLS_H_
