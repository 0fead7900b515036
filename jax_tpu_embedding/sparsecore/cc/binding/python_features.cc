// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/python_features.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/python_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace jte {
namespace {

namespace py = pybind11;

void CheckLength(std::string_view name, const py::list& list,
                 const py::list& feature_specs) {
  if (list.size() == feature_specs.size()) return;
  ThrowPythonError(InvalidArgument(
      name, " has ", list.size(), " elements and feature_specs ",
      feature_specs.size(), ". Pass one per feature."));
}

// An attribute of a feature spec or of one of its parts.
template <typename T>
T ReadAttribute(const std::string& feature_name, py::handle object,
                const char* attribute) {
  const py::object value = object.attr(attribute);
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    throw py::type_error(StrCat("Feature '", feature_name, "': its ", attribute,
                                " cannot be ",
                                py::repr(value).cast<std::string>(), "."));
  }
}

}  // namespace

StackedFeature ReadFeatureSpec(py::handle spec) {
  const auto name = ReadAttribute<std::string>("?", spec, "name");
  const auto integer = [&name](py::handle object, const char* attribute) {
    return ReadAttribute<int64_t>(name, object, attribute);
  };
  const auto text = [&name](py::handle object, const char* attribute) {
    return ReadAttribute<std::string>(name, object, attribute);
  };
  const py::object transform = spec.attr("_id_transformation");
  const py::object table = spec.attr("table_spec");
  const py::object placement = table.attr("setting_in_stack");
  const py::object stack = table.attr("stacked_table_spec");
  if (placement.is_none() || stack.is_none()) {
    ThrowPythonError(FailedPrecondition(
        "Feature '", name, "': its table '", text(table, "name"),
        "' is not part of a stack. Call prepare_feature_specs_for_training "
        "on the feature specs first."));
  }
  StackedFeature result = {
      .feature = {.name = name,
                  .vocabulary_size = integer(table, "vocabulary_size")},
      .stack = {
          .name = text(placement, "stack_name"),
          .combiner = text(stack, "combiner"),
          .max_ids_per_partition = integer(stack, "max_ids_per_partition"),
          .max_unique_ids_per_partition =
              integer(stack, "max_unique_ids_per_partition"),
          .suggested_coo_buffer_size_per_device =
              ReadAttribute<std::optional<int64_t>>(
                  name, stack, "suggested_coo_buffer_size_per_device")}};
  if (!transform.is_none()) {
    result.feature.transform = {.row_offset = integer(transform, "row_offset"),
                                .col_offset = integer(transform, "col_offset"),
                                .col_shift = integer(transform, "col_shift")};
  }
  return result;
}

PythonFeatures ReadFeatures(const py::list& ids,
                            const std::optional<py::list>& weights,
                            const py::list& feature_specs) {
  CheckLength("features", ids, feature_specs);
  if (weights) CheckLength("feature_weights", *weights, feature_specs);
  PythonFeatures result;
  for (size_t i = 0; i < feature_specs.size(); ++i) {
    StackedFeature stacked = ReadFeatureSpec(feature_specs[i]);
    const py::object feature_weights =
        weights ? py::object((*weights)[i]) : py::none();
    if (weights && feature_weights.is_none()) {
      ThrowPythonError(
          InvalidArgument("Feature '", stacked.feature.name,
                          "': its weights are None. Pass weights for all "
                          "features, or None instead of the list."));
    }
    result.batches.push_back(
        ReadPythonBatch(stacked.feature.name, ids[i], feature_weights));
    stacked.feature.batch = result.batches.back().batch;
    result.features.push_back(std::move(stacked));
  }
  return result;
}

}  // namespace jte
