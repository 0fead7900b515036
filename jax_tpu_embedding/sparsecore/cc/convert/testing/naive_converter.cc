// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/testing/naive_converter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/input/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"

namespace jte::convert {
namespace {

// The id after its policy. Outer none: an error; inner none: dropped.
std::optional<std::optional<int64_t>> CleanId(__int128 id, IdPolicy policy,
                                              int64_t vocabulary_size) {
  if (0 <= id && id < vocabulary_size) return static_cast<int64_t>(id);
  switch (policy) {
    case IdPolicy::kError:
      return std::nullopt;
    case IdPolicy::kDrop:
      return std::optional<int64_t>();
    case IdPolicy::kClamp:
      return id < 0 ? 0 : vocabulary_size - 1;
    case IdPolicy::kModulo: {
      const auto remainder = static_cast<int64_t>(id % vocabulary_size);
      return remainder < 0 ? remainder + vocabulary_size : remainder;
    }
  }
  return std::nullopt;
}

std::optional<std::optional<float>> CleanWeight(float weight,
                                                WeightPolicy policy) {
  if (std::isfinite(weight)) return weight;
  switch (policy) {
    case WeightPolicy::kError:
      return std::nullopt;
    case WeightPolicy::kDrop:
      return std::optional<float>();
    case WeightPolicy::kClamp:
      if (std::isnan(weight)) return 0.0f;
      return std::copysign(std::numeric_limits<float>::max(), weight);
    case WeightPolicy::kKeep:
      return weight;
  }
  return std::nullopt;
}

__int128 IdAt(const InputBatch& batch, int64_t position) {
  return std::visit([position](auto ids) -> __int128 { return ids[position]; },
                    batch.ids);
}

// Adds one sample. False: the request is refused.
bool AddSample(const FeatureInput& feature, Combiner combiner, int64_t r,
               int64_t sample, int64_t num_scs, SourceCore& core) {
  const InputBatch& batch = feature.batch;
  std::vector<int64_t> ids;
  std::vector<float> weights;
  for (int64_t i = batch.FirstId(r); i < batch.FirstId(r + 1); ++i) {
    const auto id = CleanId(IdAt(batch, i), feature.out_of_range_ids,
                            feature.vocabulary_size);
    if (!id) return false;
    if (!*id) {
      ++core.dropped_id_count;
      continue;
    }
    const auto weight = CleanWeight(batch.weights ? (*batch.weights)[i] : 1.0f,
                                    feature.non_finite_weights);
    if (!weight) return false;
    if (!*weight) {
      ++core.dropped_id_count;
      continue;
    }
    ids.push_back(**id);
    weights.push_back(**weight);
  }
  if (batch.weights && feature.non_finite_weights == WeightPolicy::kError &&
      !std::isfinite(WeightDivisor(combiner, weights))) {
    return false;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t stack_row = feature.transform.StackRow(ids[i], num_scs);
    core.occurrences.push_back(
        {.target = stack_row % num_scs,
         .row = stack_row / num_scs,
         .sample = sample,
         .gain = batch.weights ? WeightedGain(weights[i],
                                              WeightDivisor(combiner, weights))
                               : UnweightedGain(combiner, std::ssize(ids))});
  }
  return true;
}

// Calls add(feature, sample of the feature, SparseCore, sample id).
template <typename Add>
bool ForEachSample(const std::vector<FeatureInput>& features,
                   const ConvertOptions& options, Add add) {
  const auto& [num_local, num_global, num_sc] = options.topology;
  const bool split_first = options.feature_stacking_strategy ==
                           FeatureStackingStrategy::kSplitThenStack;
  int64_t device_batch = 0;
  for (const FeatureInput& feature : features) {
    device_batch += feature.batch.num_samples / num_local;
  }
  for (const FeatureInput& feature : features) {
    const int64_t per_device = feature.batch.num_samples / num_local;
    for (int64_t r = 0; r < feature.batch.num_samples; ++r) {
      const int64_t device = r / per_device;
      const int64_t i = r % per_device;
      int64_t core = 0, sample = 0;
      if (split_first) {
        const int64_t per_core = per_device / num_sc;
        core = i / per_core;
        sample =
            feature.transform.row_offset / (num_global * num_sc) + i % per_core;
      } else {
        const int64_t position = feature.transform.row_offset / num_global + i;
        core = position / (device_batch / num_sc);
        sample = position % (device_batch / num_sc);
      }
      if (!add(feature, r, device * num_sc + core, sample)) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::vector<SourceCore>> Distribute(
    const StackSpec& spec, std::vector<FeatureInput> features,
    const ConvertOptions& options) {
  std::ranges::stable_sort(features, {}, [](const FeatureInput& feature) {
    return feature.transform.row_offset;
  });
  const Topology& topology = options.topology;
  std::vector<SourceCore> cores(topology.local_device_count *
                                topology.num_sc_per_device);
  const Combiner combiner = *ParseCombiner(spec.combiner);
  const bool accepted = ForEachSample(
      features, options,
      [combiner, &topology, &cores](const FeatureInput& feature, int64_t r,
                                    int64_t core, int64_t sample) {
        return AddSample(feature, combiner, r, sample, topology.num_scs(),
                         cores[core]);
      });
  if (!accepted) return std::nullopt;
  return cores;
}

namespace {

constexpr int64_t kBuckets = 64;

int64_t UpToEight(int64_t n) { return (n + 7) / 8 * 8; }

// [target][row] -> samples.
using Grouping = std::map<int64_t, std::map<int64_t, std::set<int64_t>>>;

Grouping Group(const std::vector<Occurrence>& occurrences) {
  Grouping grouping;
  for (const Occurrence& id : occurrences) {
    grouping[id.target][id.row].insert(id.sample);
  }
  return grouping;
}

int64_t NumEntries(const std::map<int64_t, std::set<int64_t>>& rows) {
  int64_t count = 0;
  for (const auto& [row, samples] : rows) count += std::ssize(samples);
  return count;
}

// One stack while it is converted.
struct Stack {
  StackSpec spec;
  std::vector<FeatureInput> features;
  std::vector<SourceCore> cores;  // of the local devices
};

// The boundaries of minibatches that counts of 64 buckets ask for: format,
// "Split".
uint64_t SplitBits(std::array<int64_t, kBuckets> counts, int64_t limit) {
  uint64_t bits = 0;
  int bit = 0;
  for (int64_t size = 2; size <= kBuckets; size *= 2) {
    for (int64_t i = 0; i < kBuckets; i += size, ++bit) {
      const int64_t a = counts[i], b = counts[i + size / 2];
      if (a + b > limit) bits |= uint64_t{1} << bit;
      counts[i] = a + b > limit ? std::max(a, b) : a + b;
    }
  }
  return bits;
}

// [bucket] -> minibatch.
std::array<int, kBuckets> Minibatches(uint64_t bits) {
  std::array<bool, kBuckets + 1> boundary_before = {};
  int bit = 0;
  for (int64_t size = 2; size <= kBuckets; size *= 2) {
    for (int64_t i = 0; i < kBuckets; i += size, ++bit) {
      boundary_before[i + size / 2] = (bits >> bit & 1) != 0;
    }
  }
  std::array<int, kBuckets> minibatches = {};
  for (int64_t b = 1; b < kBuckets; ++b) {
    minibatches[b] = minibatches[b - 1] + boundary_before[b];
  }
  return minibatches;
}

// Writes blocks of row pointers and their cells.
class Writer {
 public:
  Writer(const StackSpec& spec, int64_t num_scs, NaiveStack& out)
      : spec_(spec), num_scs_(num_scs), out_(out) {}

  // Cells of one region: [begin, end). Row pointers count from `begin`.
  void StartRegion(int64_t begin, int64_t end) {
    begin_ = cell_ = begin;
    end_ = end;
  }

  bool exceeded() const { return exceeded_; }

  // `ids` in the order of the block; the block's first row pointer is number
  // `pointer`.
  void WriteBlock(const std::vector<Occurrence>& ids, int64_t pointer) {
    const int64_t block = std::max<int64_t>(num_scs_, 8);
    size_t next = 0;
    for (int64_t target = 0; target < block; ++target) {
      while (next < ids.size() && ids[next].target == target) {
        Write(ids, next++);
      }
      out_.row_pointers[pointer + target] =
          static_cast<int32_t>(cell_ - begin_);
      cell_ = std::min(begin_ + UpToEight(cell_ - begin_), end_);
    }
  }

 private:
  void Write(const std::vector<Occurrence>& ids, size_t i) {
    const Occurrence& id = ids[i];
    const Occurrence* last = i == 0 ? nullptr : &ids[i - 1];
    const bool new_bucket = last == nullptr || last->target != id.target ||
                            last->bucket != id.bucket;
    const bool new_row = new_bucket || last->row != id.row;
    const bool new_entry = new_row || last->sample != id.sample;
    if (new_bucket) num_ids_ = num_unique_ids_ = 0;
    num_ids_ += new_entry;
    num_unique_ids_ += new_row;
    if (num_ids_ > spec_.max_ids_per_partition ||
        num_unique_ids_ > spec_.max_unique_ids_per_partition) {
      ++out_.dropped_id_count;
      exceeded_ = true;
    } else if (!new_entry) {
      if (kept_) out_.gains[cell_ - 1] += id.gain;
    } else if (cell_ == end_) {
      kept_ = false;
      ++out_.dropped_id_count;
      exceeded_ = true;
    } else {
      kept_ = true;
      out_.embedding_ids[cell_] = static_cast<int32_t>(id.row);
      out_.sample_ids[cell_] = static_cast<int32_t>(id.sample);
      out_.gains[cell_] = id.gain;
      ++cell_;
    }
  }

  const StackSpec& spec_;
  int64_t num_scs_;
  NaiveStack& out_;
  int64_t begin_ = 0, cell_ = 0, end_ = 0;
  int64_t num_ids_ = 0, num_unique_ids_ = 0;
  bool kept_ = false;
  bool exceeded_ = false;
};

// In the order of the format: by bucket (0 without minibatches), partition, row
// and sample, and in order of occurrence.
void SortIds(std::vector<Occurrence>& ids) {
  std::ranges::stable_sort(ids, {}, [](const Occurrence& id) {
    return std::tuple(id.bucket, id.target, id.row, id.sample);
  });
}

class Converter {
 public:
  Converter(const std::vector<StackedFeature>& features,
            const ConvertOptions& options)
      : options_(options), num_scs_(options.topology.num_scs()) {
    std::map<std::string, size_t> index;
    for (const StackedFeature& stacked : features) {
      const auto [found, is_new] =
          index.try_emplace(stacked.stack.name, stacks_.size());
      if (is_new) {
        stacks_.push_back({.spec = stacked.stack, .features = {}, .cores = {}});
      }
      stacks_[found->second].features.push_back(stacked.feature);
    }
  }

  std::optional<NaiveConversion> Run() {
    for (Stack& stack : stacks_) {
      auto cores = Distribute(stack.spec, stack.features, options_);
      if (!cores) return std::nullopt;
      stack.cores = *std::move(cores);
      Measure(stack, result_.stacks.emplace_back());
    }
    std::array<int, kBuckets> minibatches = {};
    if (options_.enable_minibatching && exceeds_limits_) {
      const uint64_t bits = AssignBuckets();
      minibatches = Minibatches(bits);
      result_.num_minibatches = std::popcount(bits) + 1;
    }
    bool exceeded = false;
    for (size_t i = 0; i < stacks_.size(); ++i) {
      exceeded |= Write(stacks_[i], minibatches, result_.stacks[i]);
    }
    if (exceeded && !options_.allow_id_dropping) return std::nullopt;
    return std::move(result_);
  }

 private:
  // The statistics, of before anything is dropped for a limit.
  void Measure(const Stack& stack, NaiveStack& out) {
    const int64_t num_local = options_.topology.local_device_count;
    out.max_ids_per_partition.resize(num_local * num_scs_);
    out.max_unique_ids_per_partition.resize(num_local * num_scs_);
    for (size_t i = 0; i < stack.cores.size(); ++i) {
      int64_t required = 0;
      const int64_t device =
          static_cast<int64_t>(i) / options_.topology.num_sc_per_device;
      for (const auto& [target, rows] : Group(stack.cores[i].occurrences)) {
        const int64_t ids = NumEntries(rows);
        const int64_t unique_ids = std::ssize(rows);
        int32_t& max_ids =
            out.max_ids_per_partition[device * num_scs_ + target];
        int32_t& max_unique_ids =
            out.max_unique_ids_per_partition[device * num_scs_ + target];
        max_ids = std::max(max_ids, static_cast<int32_t>(ids));
        max_unique_ids =
            std::max(max_unique_ids, static_cast<int32_t>(unique_ids));
        exceeds_limits_ |= ids > stack.spec.max_ids_per_partition ||
                           unique_ids > stack.spec.max_unique_ids_per_partition;
        required += UpToEight(ids);
      }
      out.required_buffer_size_per_sc.push_back(static_cast<int32_t>(required));
      out.dropped_id_count += stack.cores[i].dropped_id_count;
    }
  }

  // Sets the buckets of all ids; returns the boundaries that they ask for.
  uint64_t AssignBuckets() {
    uint64_t bits = 0;
    for (Stack& stack : stacks_) {
      for (SourceCore& core : stack.cores) {
        for (Occurrence& id : core.occurrences) {
          id.bucket =
              BucketOf(static_cast<uint32_t>(id.row * num_scs_ + id.target));
        }
        for (const auto& [target, rows] : Group(core.occurrences)) {
          std::array<int64_t, kBuckets> ids = {}, unique_ids = {};
          for (const auto& [row, samples] : rows) {
            const uint8_t bucket =
                BucketOf(static_cast<uint32_t>(row * num_scs_ + target));
            ids[bucket] += std::ssize(samples);
            ++unique_ids[bucket];
          }
          bits |= SplitBits(ids, stack.spec.max_ids_per_partition);
          bits |=
              SplitBits(unique_ids, stack.spec.max_unique_ids_per_partition);
        }
      }
    }
    return bits;
  }

  // Whether a limit or the buffer was too small.
  bool Write(Stack& stack, const std::array<int, kBuckets>& minibatches,
             NaiveStack& out) {
    const Topology& topology = options_.topology;
    const int64_t num_passes = options_.enable_minibatching ? kBuckets : 1;
    const int64_t num_local = topology.local_device_count;
    const int64_t num_sc = topology.num_sc_per_device;
    const int64_t block = std::max<int64_t>(num_scs_, 8);
    const int64_t pointers = block * num_sc * num_passes;
    const auto suggestion = stack.spec.suggested_coo_buffer_size_per_device;
    const int64_t region = 8 * num_sc;
    const int64_t cells = suggestion
                              ? (*suggestion + region - 1) / region * region
                              : UpToEight(stack.spec.max_ids_per_partition) *
                                    num_sc * num_scs_ * num_passes;
    out.row_pointers.assign(num_local * pointers, 0);
    out.embedding_ids.assign(num_local * cells,
                             std::numeric_limits<int32_t>::max());
    out.sample_ids = out.embedding_ids;
    out.gains.assign(num_local * cells, std::bit_cast<float>(0x7fc00000));
    Writer writer(stack.spec, num_scs_, out);
    for (size_t i = 0; i < stack.cores.size(); ++i) {
      const int64_t device = static_cast<int64_t>(i) / num_sc;
      const int64_t core = static_cast<int64_t>(i) % num_sc;
      std::vector<Occurrence>& ids = stack.cores[i].occurrences;
      SortIds(ids);
      if (!options_.enable_minibatching) {
        const int64_t begin = device * cells + core * (cells / num_sc);
        writer.StartRegion(begin, begin + cells / num_sc);
      } else if (core == 0) {
        writer.StartRegion(device * cells, (device + 1) * cells);
      }
      int64_t aligned = 0;
      for (int m = 0; m < result_.num_minibatches; ++m) {
        std::vector<Occurrence> of_minibatch;
        std::ranges::copy_if(ids, std::back_inserter(of_minibatch),
                             [m, &minibatches](const Occurrence& id) {
                               return minibatches[id.bucket] == m;
                             });
        std::ranges::stable_sort(of_minibatch, {}, &Occurrence::target);
        writer.WriteBlock(
            of_minibatch,
            device * pointers + (core * result_.num_minibatches + m) * block);
        for (const auto& [target, rows] : Group(of_minibatch)) {
          aligned += UpToEight(NumEntries(rows));
        }
      }
      out.minibatch_alignment_per_sc.push_back(
          static_cast<int32_t>(aligned - out.required_buffer_size_per_sc[i]));
    }
    return writer.exceeded();
  }

  const ConvertOptions options_;
  const int64_t num_scs_;
  std::vector<Stack> stacks_;
  bool exceeds_limits_ = false;
  NaiveConversion result_;
};

}  // namespace

std::optional<NaiveConversion> ConvertNaively(
    const std::vector<StackedFeature>& features,
    const ConvertOptions& options) {
  return Converter(features, options).Run();
}

}  // namespace jte::convert
