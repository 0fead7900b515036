// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Operands and attributes of convert_ids as the converter's features.
//
// Operands stand one feature after the other: ids [samples, valency], or of a
// ragged feature values [capacity] and row_splits [samples + 1]; then weights,
// if it has any. Python: lib/core/raw_ids.py.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RAW_ID_OPERANDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RAW_ID_OPERANDS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

// Attributes: an element, or a line, for each feature.
struct FeatureAttributes {
  std::string_view names;
  std::string_view out_of_range_ids;
  std::string_view non_finite_weights;
  xla::ffi::Span<const int64_t> row_offsets;
  xla::ffi::Span<const int64_t> col_offsets;
  xla::ffi::Span<const int64_t> col_shifts;
  xla::ffi::Span<const int64_t> vocabulary_sizes;
  xla::ffi::Span<const int64_t> is_ragged;    // 0 or 1
  xla::ffi::Span<const int64_t> has_weights;  // 0 or 1
};

// The features, as views of the operands and of row splits that are kept here.
struct RawIdFeatures {
  std::vector<convert::FeatureInput> features;
  std::vector<std::vector<int64_t>> row_splits;
};

// Errors: attributes or operands of another number or type, policies that do
// not exist, row splits that end beyond the values.
Result<RawIdFeatures> ReadFeatures(const xla::ffi::RemainingArgs& operands,
                                   const FeatureAttributes& attributes);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RAW_ID_OPERANDS_H_
