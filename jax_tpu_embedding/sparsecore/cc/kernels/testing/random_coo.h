// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Valid COO buffers with random entries, for tests. Cells that hold no entry
// hold values that no kernel may use.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TESTING_RANDOM_COO_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TESTING_RANDOM_COO_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::kernels {

struct RandomCoo {
  CooGeometry geometry;
  std::vector<int32_t> row_pointers = {};
  std::vector<int32_t> embedding_ids = {};
  std::vector<int32_t> sample_ids = {};
  std::vector<float> gains = {};
  std::vector<Entry> entries = {};  // in the order of the buffers

  CooBuffers buffers() const {
    return {row_pointers, embedding_ids, sample_ids, gains};
  }
  int64_t num_rows() const {
    return geometry.num_sc_per_device * geometry.rows_per_shard;
  }
  int64_t num_samples() const {
    return geometry.num_sc_per_device * geometry.batch_size_per_sc;
  }
};

// `ids_per_sample` random ids for each sample. Half of them come from the first
// eight rows of a shard, so that rows repeat within and across SparseCores.
inline RandomCoo MakeRandomCoo(const CooGeometry& geometry, int ids_per_sample,
                               uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t num_scs = geometry.num_sc_per_device;
  // ids[source][minibatch][target]: (id, sample); a row is in one minibatch.
  using Partitions = std::vector<std::vector<std::pair<int32_t, int32_t>>>;
  std::vector<Partitions> ids(num_scs,
                              Partitions(geometry.num_minibatches * num_scs));
  for (Partitions& source : ids) {
    for (int64_t i = 0; i < geometry.batch_size_per_sc * ids_per_sample; ++i) {
      const int64_t limit = random() % 2 == 0
                                ? std::min<int64_t>(8, geometry.rows_per_shard)
                                : geometry.rows_per_shard;
      const auto id = static_cast<int32_t>(random() % limit);
      const int64_t target = random() % num_scs;
      const int64_t minibatch = id % geometry.num_minibatches;
      source[minibatch * num_scs + target].emplace_back(id, i / ids_per_sample);
    }
  }

  RandomCoo coo{.geometry = geometry};
  const int64_t block = RowPointersPerBlock(num_scs);
  const int64_t region_size =
      RoundUp(geometry.batch_size_per_sc * ids_per_sample, kAlignment) +
      kAlignment * num_scs * geometry.num_minibatches;
  const auto pad_to = [&coo](int64_t size) {
    coo.embedding_ids.resize(size, -5);
    coo.sample_ids.resize(size, std::numeric_limits<int32_t>::min());
    coo.gains.resize(size, kPaddingGain);
  };
  for (int64_t source = 0; source < num_scs; ++source) {
    // Where row pointers count from.
    const int64_t origin =
        geometry.enable_minibatching ? 0 : source * region_size;
    const auto position = [&coo, origin] {
      return static_cast<int32_t>(std::ssize(coo.embedding_ids) - origin);
    };
    for (int64_t p = 0; p < std::ssize(ids[source]); ++p) {
      auto& partition = ids[source][p];
      std::ranges::sort(partition);
      for (const auto& [id, sample] : partition) {
        coo.embedding_ids.push_back(id);
        coo.sample_ids.push_back(sample);
        coo.gains.push_back(static_cast<float>(random() % 1000) / 999.0f);
        coo.entries.push_back(
            {.row = static_cast<int32_t>(p % num_scs * geometry.rows_per_shard +
                                         id),
             .sample = static_cast<int32_t>(
                 source * geometry.batch_size_per_sc + sample),
             .gain = coo.gains.back()});
      }
      coo.row_pointers.push_back(position());
      pad_to(RoundUp<int64_t>(std::ssize(coo.embedding_ids), kAlignment));
      if (p % num_scs == num_scs - 1) {  // the rest of the block
        coo.row_pointers.resize(
            RoundUp<int64_t>(std::ssize(coo.row_pointers), block), position());
      }
    }
    if (!geometry.enable_minibatching) pad_to(origin + region_size);
  }
  coo.row_pointers.resize(RowPointersPerDevice({.num_sc_per_device = num_scs},
                                               geometry.enable_minibatching),
                          -7);
  return coo;
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TESTING_RANDOM_COO_H_
