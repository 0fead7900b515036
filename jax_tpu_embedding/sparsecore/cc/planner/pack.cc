// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/pack.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"

namespace jte::planner {
namespace {

bool Fits(const Load& item, const Load& room) {
  return item.activation_bytes <= room.activation_bytes &&
         item.rows <= room.rows;
}

// What an item leaves of the room in a bin: negative if it is too large.
Load Without(const Load& room, const Load& item) {
  return {.activation_bytes = room.activation_bytes - item.activation_bytes,
          .rows = room.rows - item.rows};
}

// The room in up to `max_bins` bins, as a tree of the most that is in any bin
// below a node, so that a million items do not look at all bins each.
class BinRooms {
 public:
  BinRooms(size_t max_bins, const Load& capacity)
      : capacity_(capacity),
        num_leaves_(std::bit_ceil(std::max<size_t>(max_bins, 1))),
        most_(2 * num_leaves_, kNewBin) {}

  // Takes room for `item` from the first bin that has it; returns the bin,
  // which is the next new one if none has.
  size_t Take(const Load& item) {
    size_t node = num_leaves_ + *FirstWithRoom(item, /*node=*/1);
    const bool is_new = most_[node].rows == kNewBin.rows;
    most_[node] = Without(is_new ? capacity_ : most_[node], item);
    const size_t bin = node - num_leaves_;
    for (node /= 2; node > 0; node /= 2) {
      const Load& left = most_[2 * node];
      const Load& right = most_[2 * node + 1];
      most_[node] = {.activation_bytes = std::max(left.activation_bytes,
                                                  right.activation_bytes),
                     .rows = std::max(left.rows, right.rows)};
    }
    return bin;
  }

 private:
  // An item is put into a new bin even if it is larger than that.
  static constexpr Load kNewBin = {
      .activation_bytes = std::numeric_limits<int64_t>::max(),
      .rows = std::numeric_limits<int64_t>::max()};

  std::optional<size_t> FirstWithRoom(const Load& item, size_t node) const {
    if (!Fits(item, most_[node])) return std::nullopt;
    if (node >= num_leaves_) return node - num_leaves_;
    if (auto bin = FirstWithRoom(item, 2 * node)) return bin;
    return FirstWithRoom(item, 2 * node + 1);
  }

  const Load capacity_;
  const size_t num_leaves_;
  std::vector<Load> most_;  // of node i the children are 2i and 2i + 1
};

}  // namespace

std::vector<std::vector<size_t>> FirstFit(std::span<const Load> items,
                                          const Load& capacity) {
  BinRooms rooms(items.size(), capacity);
  std::vector<std::vector<size_t>> bins;
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t bin = rooms.Take(items[i]);
    if (bin == bins.size()) bins.emplace_back();
    bins[bin].push_back(i);
  }
  return bins;
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

}  // namespace jte::planner
