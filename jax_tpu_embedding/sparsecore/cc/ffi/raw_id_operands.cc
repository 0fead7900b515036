// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/raw_id_operands.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

std::vector<std::string_view> SplitLines(std::string_view lines) {
  std::vector<std::string_view> result;
  while (true) {
    const size_t end = lines.find('\n');
    result.push_back(lines.substr(0, end));
    if (end == std::string_view::npos) return result;
    lines.remove_prefix(end + 1);
  }
}

template <typename T>
std::span<const T> ElementsOf(const xffi::AnyBuffer& buffer) {
  return {buffer.typed_data<T>(), buffer.element_count()};
}

// Hands the operands out, one after the other.
class OperandReader {
 public:
  explicit OperandReader(const xffi::RemainingArgs& operands)
      : operands_(operands) {}

  bool AtEnd() const { return next_ == operands_.size(); }

  // The next operand, which must have the rank.
  Result<xffi::AnyBuffer> Next(std::string_view feature, std::string_view name,
                               size_t rank) {
    const auto operand = operands_.get<xffi::AnyBuffer>(next_);
    if (!operand || operand->dimensions().size() != rank) {
      return InvalidArgument("Feature '", feature, "': ", name,
                             " must be an operand of rank ", rank,
                             ", and operand ", next_, " is not.");
    }
    ++next_;
    return *operand;
  }

  // The same, of a type.
  Result<xffi::AnyBuffer> Next(std::string_view feature, std::string_view name,
                               size_t rank, xffi::DataType type) {
    JTE_ASSIGN_OR_RETURN(const auto operand, Next(feature, name, rank));
    if (operand.element_type() != type) {
      return InvalidArgument("Feature '", feature, "': ", name,
                             " must not have the XLA type ",
                             static_cast<int>(operand.element_type()), ".");
    }
    return operand;
  }

 private:
  const xffi::RemainingArgs& operands_;
  size_t next_ = 0;
};

Result<convert::IdSpan> ToIdSpan(const xffi::AnyBuffer& ids,
                                 std::string_view feature) {
  switch (ids.element_type()) {
    case xffi::DataType::S32:
      return ElementsOf<int32_t>(ids);
    case xffi::DataType::S64:
      return ElementsOf<int64_t>(ids);
    case xffi::DataType::U32:
      return ElementsOf<uint32_t>(ids);
    case xffi::DataType::U64:
      return ElementsOf<uint64_t>(ids);
    default:
      return InvalidArgument("Feature '", feature,
                             "': ids must be int32, int64, uint32 or uint64.");
  }
}

// Cuts the values off that belong to no sample. The planner checks that the
// splits ascend.
Result<void> SetRowSplits(std::span<const int32_t> splits,
                          convert::FeatureInput& feature,
                          std::vector<int64_t>& row_splits) {
  convert::InputBatch& batch = feature.batch;
  if (splits.back() < 0 || splits.back() > batch.num_ids()) {
    return InvalidArgument("Feature '", feature.name,
                           "': row_splits must end in [0, ", batch.num_ids(),
                           "], the number of values that there is room for, "
                           "got ",
                           splits.back(), ".");
  }
  row_splits.assign(splits.begin(), splits.end());
  batch.num_samples = std::ssize(row_splits) - 1;
  batch.row_splits = row_splits;
  const int64_t num_ids = row_splits.back();
  batch.ids = std::visit(
      [num_ids](auto ids) -> convert::IdSpan { return ids.first(num_ids); },
      batch.ids);
  return {};
}

}  // namespace

Result<std::vector<FeatureOperands>> ReadOperands(
    const xffi::RemainingArgs& operands, const FeatureAttributes& attributes) {
  const auto names = SplitLines(attributes.names);
  const auto id_policies = SplitLines(attributes.out_of_range_ids);
  const auto weight_policies = SplitLines(attributes.non_finite_weights);
  const size_t num_features = names.size();
  for (const size_t size :
       {id_policies.size(), weight_policies.size(),
        attributes.row_offsets.size(), attributes.col_offsets.size(),
        attributes.col_shifts.size(), attributes.vocabulary_sizes.size(),
        attributes.is_ragged.size(), attributes.has_weights.size()}) {
    if (size == num_features) continue;
    return InvalidArgument("convert_ids has ", num_features,
                           " feature names and ", size,
                           " values of another attribute. Each feature needs "
                           "one of each.");
  }

  OperandReader reader(operands);
  std::vector<FeatureOperands> result;
  for (size_t f = 0; f < num_features; ++f) {
    const std::string_view name = names[f];
    const bool is_ragged = attributes.is_ragged[f] != 0;
    const size_t rank = is_ragged ? 1 : 2;
    JTE_ASSIGN_OR_RETURN(const auto id_policy,
                         convert::ParseIdPolicy(id_policies[f]));
    JTE_ASSIGN_OR_RETURN(const auto weight_policy,
                         convert::ParseWeightPolicy(weight_policies[f]));
    JTE_ASSIGN_OR_RETURN(const auto ids, reader.Next(name, "ids", rank));
    FeatureOperands feature = {.name = name,
                               .id_policy = id_policy,
                               .weight_policy = weight_policy,
                               .ids = ids,
                               .row_splits = std::nullopt,
                               .weights = std::nullopt};
    if (is_ragged) {
      JTE_ASSIGN_OR_RETURN(
          feature.row_splits,
          reader.Next(name, "row_splits", /*rank=*/1, xffi::DataType::S32));
      if (feature.row_splits->element_count() == 0) {
        return InvalidArgument("Feature '", name,
                               "': row_splits must have one element more than "
                               "there are samples, and are empty.");
      }
    }
    if (attributes.has_weights[f] != 0) {
      JTE_ASSIGN_OR_RETURN(feature.weights, reader.Next(name, "weights", rank,
                                                        xffi::DataType::F32));
      if (feature.weights->element_count() != ids.element_count()) {
        return InvalidArgument("Feature '", name, "': has ",
                               ids.element_count(), " ids and ",
                               feature.weights->element_count(),
                               " weights. Pass one weight per id.");
      }
    }
    result.push_back(feature);
  }
  if (!reader.AtEnd()) {
    return InvalidArgument("convert_ids has ", operands.size(),
                           " operands, more than its features have.");
  }
  return result;
}

Result<RawIdFeatures> ReadFeatures(const xffi::RemainingArgs& operands,
                                   const FeatureAttributes& attributes) {
  JTE_ASSIGN_OR_RETURN(const auto features, ReadOperands(operands, attributes));
  RawIdFeatures result;
  result.row_splits.resize(features.size());
  for (size_t f = 0; f < features.size(); ++f) {
    const FeatureOperands& of_feature = features[f];
    convert::FeatureInput feature = {
        .name = std::string(of_feature.name),
        .vocabulary_size = attributes.vocabulary_sizes[f],
        .transform = {.row_offset = attributes.row_offsets[f],
                      .col_offset = attributes.col_offsets[f],
                      .col_shift = attributes.col_shifts[f]},
        .batch = {},
        .out_of_range_ids = of_feature.id_policy,
        .non_finite_weights = of_feature.weight_policy};
    JTE_ASSIGN_OR_RETURN(feature.batch.ids,
                         ToIdSpan(of_feature.ids, of_feature.name));
    if (of_feature.row_splits) {
      JTE_RETURN_IF_ERROR(
          SetRowSplits(ElementsOf<int32_t>(*of_feature.row_splits), feature,
                       result.row_splits[f]));
    } else {
      feature.batch.num_samples = of_feature.ids.dimensions()[0];
      feature.batch.valency = of_feature.ids.dimensions()[1];
    }
    if (of_feature.weights) {
      feature.batch.weights =
          ElementsOf<float>(*of_feature.weights).first(feature.batch.num_ids());
    }
    result.features.push_back(std::move(feature));
  }
  return result;
}

Result<convert::StackPlan> PlanRawIds(
    const StackAttributes& attributes,
    std::vector<convert::FeatureInput> features, int64_t num_cells) {
  const Topology topology = attributes.topology();
  JTE_RETURN_IF_ERROR(convert::CheckTopology(topology));
  JTE_ASSIGN_OR_RETURN(
      const auto strategy,
      ParseFeatureStackingStrategy(attributes.feature_stacking_strategy));
  constexpr int64_t kNoLimit = std::numeric_limits<int32_t>::max();
  convert::StackSpec spec = {.name = features.front().name,
                             .combiner = std::string(attributes.combiner),
                             .max_ids_per_partition = kNoLimit,
                             .max_unique_ids_per_partition = kNoLimit};
  return convert::PlanStack(std::move(spec), num_cells, std::move(features),
                            topology, strategy);
}

}  // namespace jte::ffi
