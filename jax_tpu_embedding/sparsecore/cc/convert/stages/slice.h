// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The samples of one feature that one SparseCore gets, with their ids: as users
// gave them, and as the feature's policies leave them.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_SLICE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_SLICE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte::convert {

// Views of the plan's batches, or of memory that replaces them.
struct Slice {
  SampleRange samples;
  IdSpan ids;  // of these samples only, like the weights
  std::optional<std::span<const float>> weights = std::nullopt;
  int64_t valency = 0;  // dense
  // Ragged: samples.size + 1, from any number on; else empty.
  std::span<const int64_t> row_splits = {};

  // Position in `ids` of the first id of the r-th sample; r <= samples.size.
  int64_t FirstId(int64_t r) const {
    return row_splits.empty() ? r * valency : row_splits[r] - row_splits[0];
  }
  int64_t num_ids() const { return FirstId(samples.size); }

  // Its samples [begin, end).
  Slice Part(int64_t begin, int64_t end) const {
    Slice part = *this;
    part.samples = {.first = samples.first + begin,
                    .size = end - begin,
                    .first_sample_id = samples.first_sample_id + begin};
    const int64_t first = FirstId(begin);
    const int64_t size = FirstId(end) - first;
    part.ids = Subspan(ids, first, size);
    if (weights) part.weights = weights->subspan(first, size);
    if (!row_splits.empty()) {
      part.row_splits = row_splits.subspan(begin, end - begin + 1);
    }
    return part;
  }
};

// What SparseCore `local_sc` of this process, counted device by device, gets of
// a feature: how many ids, and the slice.
//
// The slice is made in place: a copy of what was just written waits for it, 15
// ns, which is a good part of what a few ids take.
inline int64_t NumIdsOf(const StackPlan& plan, const FeaturePlan& feature,
                        int64_t local_sc) {
  const InputBatch& batch = feature.input.batch;
  const SampleRange samples = plan.SamplesOf(feature, local_sc);
  return batch.FirstId(samples.first + samples.size) -
         batch.FirstId(samples.first);
}
inline Slice SliceOf(const StackPlan& plan, const FeaturePlan& feature,
                     int64_t local_sc) {
  const InputBatch& batch = feature.input.batch;
  const SampleRange samples = plan.SamplesOf(feature, local_sc);
  const int64_t first = batch.FirstId(samples.first);
  const int64_t size = batch.FirstId(samples.first + samples.size) - first;
  return {.samples = samples,
          .ids = Subspan(batch.ids, first, size),
          .weights = batch.weights
                         ? std::optional(batch.weights->subspan(first, size))
                         : std::nullopt,
          .valency = batch.valency,
          .row_splits =
              batch.row_splits.empty()
                  ? batch.row_splits
                  : batch.row_splits.subspan(samples.first, samples.size + 1)};
}

// The sample of each id of a slice. They are handed out block by block, small
// enough that a block stays in the L1 cache until its reader is done.
//
//   SampleIds samples(slice);
//   samples.Next(512, block);  // of the first 512 ids
//   samples.Next(100, block);  // of the next 100
class SampleIds {
 public:
  // How far Next may write beyond the samples it was asked for.
  static constexpr int64_t kSlack = 32;

  // `slice` outlives this.
  explicit SampleIds(const Slice& slice);

  // Writes the samples of the next n ids; there are as many.
  void Next(int64_t n, uint32_t* samples);

 private:
  void Repeat(int64_t n, uint32_t* samples);

  const Slice& slice_;
  int64_t position_ = 0;  // the next id
  int64_t row_ = 0;       // its sample, if looked up
  // If computed, for samples of v ids: ceil(2^32 / v); else 0.
  uint64_t multiplier_ = 0;
};

// ---- What policies make of ids outside of a table and of weights that are not
// finite. The usual slice has neither, which extraction sees at no cost; only
// the others come here, to be copied.

// A slice in memory of its own. All ids are in range.
struct CleanSlice {
  SampleRange samples;
  std::vector<int32_t> ids;
  std::vector<float> weights;  // empty unless has_weights
  std::vector<int64_t> row_splits;
  bool has_weights = false;
  int64_t dropped_id_count = 0;

  // A view of this.
  Slice View() const;
};

// Applies the policies of `feature` to its ids and then, to those that are not
// dropped, to their weights.
//
// Errors: what a policy calls an error; the message names the first one. Where
// weights that are not finite are one, so are weights of a sample whose
// WeightDivisor is not: with it, the sample would read zeros.
Result<CleanSlice> Clean(const FeatureInput& feature, Combiner combiner,
                         const Slice& slice);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_SLICE_H_
