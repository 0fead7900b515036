// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/pack.h"

#include <algorithm>
#include <limits>

#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"

namespace jte {
namespace {

// Subtracts, because the sum of two loads may not fit.
bool Fits(const Load& item, const Load& used, const Load& capacity) {
  return item.activation_bytes <=
             capacity.activation_bytes - used.activation_bytes &&
         item.rows <= capacity.rows - used.rows;
}

}  // namespace

std::vector<std::vector<size_t>> FirstFit(std::span<const Load> items,
                                          const Load& capacity) {
  struct Bin {
    Load used;
    std::vector<size_t> items;
  };
  std::vector<Bin> bins;
  for (size_t i = 0; i < items.size(); ++i) {
    auto bin = std::ranges::find_if(bins, [&items, &capacity, i](const Bin& b) {
      return Fits(items[i], b.used, capacity);
    });
    if (bin == bins.end()) {
      bins.push_back({.used = items[i], .items = {i}});
      continue;
    }
    bin->used.activation_bytes += items[i].activation_bytes;
    bin->used.rows += items[i].rows;
    bin->items.push_back(i);
  }

  std::vector<std::vector<size_t>> result;
  for (Bin& bin : bins) result.push_back(std::move(bin.items));
  return result;
}

std::vector<Load> TableLoads(const Model& model) {
  std::vector<int64_t> samples_per_sc(model.tables.size());
  for (const Feature& feature : model.features) {
    samples_per_sc[feature.table] +=
        feature.num_samples / model.topology.num_scs();
  }
  std::vector<Load> loads;
  for (size_t t = 0; t < model.tables.size(); ++t) {
    const Table& table = model.tables[t];
    const int64_t bytes_per_sample = PaddedEmbeddingDim(table) * sizeof(float);
    Load load{.rows = PaddedVocabularySize(table, model.topology)};
    if (__builtin_mul_overflow(samples_per_sc[t], bytes_per_sample,
                               &load.activation_bytes)) {
      load.activation_bytes = std::numeric_limits<int64_t>::max();
    }
    loads.push_back(load);
  }
  return loads;
}

}  // namespace jte
