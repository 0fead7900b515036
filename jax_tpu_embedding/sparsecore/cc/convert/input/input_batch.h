// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The ids of one feature, and their weights, as views of the caller's memory.
//
// Ids lie sample after sample in one flat array, whatever the input was:
//   dense   every sample has `valency` ids
//   ragged  sample r has the ids [row_splits[r], row_splits[r + 1])

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_INPUT_BATCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_INPUT_BATCH_H_

#include <cstdint>
#include <optional>
#include <span>
#include <variant>

namespace jte::convert {

using IdSpan =
    std::variant<std::span<const int32_t>, std::span<const int64_t>,
                 std::span<const uint32_t>, std::span<const uint64_t>>;

inline IdSpan Subspan(const IdSpan& ids, int64_t first, int64_t size) {
  return std::visit(
      [first, size](auto all) -> IdSpan { return all.subspan(first, size); },
      ids);
}

struct InputBatch {
  IdSpan ids;
  // One per id. None: every weight is 1.
  std::optional<std::span<const float>> weights = std::nullopt;
  int64_t num_samples = 0;
  int64_t valency = 0;  // dense
  std::span<const int64_t> row_splits =
      {};  // ragged: num_samples + 1; else empty

  // Position of the first id of `sample`, which may be num_samples.
  int64_t FirstId(int64_t sample) const {
    return row_splits.empty() ? sample * valency : row_splits[sample];
  }

  int64_t num_ids() const {
    return std::visit(
        [](auto span) { return static_cast<int64_t>(span.size()); }, ids);
  }
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_INPUT_BATCH_H_
