// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Operands and attributes of convert_ids, and of lookups from ids, as the
// converter's features.
//
// Operands stand one feature after the other: ids [samples, valency], or of a
// ragged feature values [capacity] and row_splits [samples + 1]; then weights,
// if it has any. Python: lib/core/raw_ids.py.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RAW_ID_OPERANDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RAW_ID_OPERANDS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

// Attributes: an element, or a line, for each feature.
struct FeatureAttributes {
  std::string_view names;
  std::string_view out_of_range_ids;
  std::string_view non_finite_weights;
  std::span<const int64_t> row_offsets;
  std::span<const int64_t> col_offsets;
  std::span<const int64_t> col_shifts;
  std::span<const int64_t> vocabulary_sizes;
  std::span<const int64_t> is_ragged;    // 0 or 1
  std::span<const int64_t> has_weights;  // 0 or 1
};

// Attributes of a stack.
struct StackAttributes {
  std::string_view combiner;
  std::string_view feature_stacking_strategy;
  int64_t global_device_count;
  int64_t num_sc_per_device;
  FeatureAttributes features;

  // From all of these, one after the other.
  template <typename... Features>
  static StackAttributes Of(std::string_view combiner,
                            std::string_view feature_stacking_strategy,
                            int64_t global_device_count,
                            int64_t num_sc_per_device, Features... features) {
    return {combiner,
            feature_stacking_strategy,
            global_device_count,
            num_sc_per_device,
            {ToParameter(features)...}};
  }

  Topology topology() const {
    return {.local_device_count = 1,
            .global_device_count = global_device_count,
            .num_sc_per_device = num_sc_per_device};
  }
};

// `binding` with the names of these. A handler gets the arguments of
// StackAttributes::Of.
template <typename Binding>
auto WithStackAttributes(Binding binding) {
  using Numbers = xla::ffi::Span<const int64_t>;
  return std::move(binding)
      .template Attr<std::string_view>("combiner")
      .template Attr<std::string_view>("feature_stacking_strategy")
      .template Attr<int64_t>("global_device_count")
      .template Attr<int64_t>("num_sc_per_device")
      .template Attr<std::string_view>("feature_names")
      .template Attr<std::string_view>("out_of_range_ids")
      .template Attr<std::string_view>("non_finite_weights")
      .template Attr<Numbers>("row_offsets")
      .template Attr<Numbers>("col_offsets")
      .template Attr<Numbers>("col_shifts")
      .template Attr<Numbers>("vocabulary_sizes")
      .template Attr<Numbers>("is_ragged")
      .template Attr<Numbers>("has_weights");
}

// The operands of a feature, of which only shapes and types are looked at: they
// may be in the memory of a GPU.
struct FeatureOperands {
  std::string_view name;
  convert::IdPolicy id_policy;
  convert::WeightPolicy weight_policy;
  xla::ffi::AnyBuffer ids;  // of rank 1 if it is ragged, else 2
  std::optional<xla::ffi::AnyBuffer> row_splits;
  std::optional<xla::ffi::AnyBuffer> weights;

  int64_t num_ids() const { return static_cast<int64_t>(ids.element_count()); }
  int64_t num_samples() const {
    return row_splits ? static_cast<int64_t>(row_splits->element_count()) - 1
                      : ids.dimensions()[0];
  }
};

// Errors: attributes or operands of another number, rank or type, row splits
// of no element, policies that do not exist.
Result<std::vector<FeatureOperands>> ReadOperands(
    const xla::ffi::RemainingArgs& operands,
    const FeatureAttributes& attributes);

// The features, as views of the operands and of row splits that are kept here.
struct RawIdFeatures {
  std::vector<convert::FeatureInput> features;
  std::vector<std::vector<int64_t>> row_splits;
};

// Errors: those of ReadOperands, and row splits that end beyond the values.
Result<RawIdFeatures> ReadFeatures(const xla::ffi::RemainingArgs& operands,
                                   const FeatureAttributes& attributes);

// The plan of the stack with these features, on one of its devices, for buffers
// of `num_cells` that have room for all.
Result<convert::StackPlan> PlanRawIds(
    const StackAttributes& attributes,
    std::vector<convert::FeatureInput> features, int64_t num_cells);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RAW_ID_OPERANDS_H_
