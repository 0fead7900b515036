// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/python_features.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/python_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

void CheckLength(std::string_view name, const py::list& list,
                 const FeatureSpecs& feature_specs) {
  const size_t num_features = feature_specs.features.size();
  if (list.size() == num_features) return;
  ThrowPythonError(InvalidArgument(name, " has ", list.size(),
                                   " elements and feature_specs ", num_features,
                                   ". Pass one per feature."));
}

// Attribute names as Python's own strings: the lookup of one takes 20 ns, that
// of a C string 60. They live as long as the process.
struct Names {
  static PyObject* New(const char* name) {
    return PyUnicode_InternFromString(name);
  }

  PyObject* name = New("name");
  PyObject* transform = New("_id_transformation");
  PyObject* row_offset = New("row_offset");
  PyObject* col_offset = New("col_offset");
  PyObject* col_shift = New("col_shift");
  PyObject* out_of_range_ids = New("out_of_range_ids");
  PyObject* non_finite_weights = New("non_finite_weights");
  PyObject* table_spec = New("table_spec");
  PyObject* vocabulary_size = New("vocabulary_size");
  PyObject* setting_in_stack = New("setting_in_stack");
  PyObject* stack_name = New("stack_name");
  PyObject* stacked_table_spec = New("stacked_table_spec");
  PyObject* combiner = New("combiner");
  PyObject* max_ids_per_partition = New("max_ids_per_partition");
  PyObject* max_unique_ids_per_partition = New("max_unique_ids_per_partition");
  PyObject* suggested_coo_buffer_size_per_device =
      New("suggested_coo_buffer_size_per_device");
};

const Names& AttributeNames() {
  static const Names* const names = new Names;
  return *names;
}

py::object Attribute(py::handle object, PyObject* name) {
  PyObject* const value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

// Reads feature specs, one after the other.
class SpecReader {
 public:
  convert::StackedFeature Read(py::handle spec) {
    convert::StackedFeature result;
    feature_name_ = "?";
    feature_name_ = Text(spec, names_.name);
    convert::FeatureInput& feature = result.feature;
    feature.name = feature_name_;
    if (const py::object transform = Attribute(spec, names_.transform);
        !transform.is_none()) {
      feature.transform = {.row_offset = Integer(transform, names_.row_offset),
                           .col_offset = Integer(transform, names_.col_offset),
                           .col_shift = Integer(transform, names_.col_shift)};
    }
    feature.out_of_range_ids = Policy<convert::IdPolicy>(
        spec, names_.out_of_range_ids, convert::ParseIdPolicy);
    feature.non_finite_weights = Policy<convert::WeightPolicy>(
        spec, names_.non_finite_weights, convert::ParseWeightPolicy);
    const py::object table = Attribute(spec, names_.table_spec);
    feature.vocabulary_size = Integer(table, names_.vocabulary_size);
    const py::object placement = Attribute(table, names_.setting_in_stack);
    py::object stack = Attribute(table, names_.stacked_table_spec);
    if (placement.is_none() || stack.is_none()) {
      ThrowPythonError(FailedPrecondition(
          "Feature '", feature_name_, "': its table '",
          Text(table, names_.name),
          "' is not part of a stack. Call prepare_feature_specs_for_training "
          "on the feature specs first."));
    }
    ReadStack(std::move(stack));
    result.stack = stack_;
    result.stack.name = Text(placement, names_.stack_name);
    return result;
  }

 private:
  // The tables of a stack share one object, which is read once.
  void ReadStack(py::object stack) {
    if (stack.is(stack_object_)) return;
    stack_ = {
        .combiner = Text(stack, names_.combiner),
        .max_ids_per_partition = Integer(stack, names_.max_ids_per_partition),
        .max_unique_ids_per_partition =
            Integer(stack, names_.max_unique_ids_per_partition)};
    const py::object suggestion =
        Attribute(stack, names_.suggested_coo_buffer_size_per_device);
    if (!suggestion.is_none()) {
      stack_.suggested_coo_buffer_size_per_device =
          ToInteger(suggestion, names_.suggested_coo_buffer_size_per_device);
    }
    stack_object_ = std::move(stack);
  }

  int64_t Integer(py::handle object, PyObject* name) const {
    return ToInteger(Attribute(object, name), name);
  }

  int64_t ToInteger(const py::object& value, PyObject* name) const {
    int overflow = 0;
    const long long integer =
        PyIndex_Check(value.ptr())
            ? PyLong_AsLongLongAndOverflow(value.ptr(), &overflow)
            : -1;
    if (!PyIndex_Check(value.ptr()) || overflow != 0 ||
        (integer == -1 && PyErr_Occurred() != nullptr)) {
      ThrowCannotBe(value, name);
    }
    return integer;
  }

  std::string Text(py::handle object, PyObject* name) const {
    const py::object value = Attribute(object, name);
    return std::string(ToText(value, name));
  }

  // A view of the value.
  std::string_view ToText(const py::object& value, PyObject* name) const {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_Check(value.ptr())
                                 ? PyUnicode_AsUTF8AndSize(value.ptr(), &size)
                                 : nullptr;
    if (text == nullptr) ThrowCannotBe(value, name);
    return {text, static_cast<size_t>(size)};
  }

  // Objects that stand in for feature specs may lack policies.
  template <typename T>
  T Policy(py::handle spec, PyObject* name,
           Result<T> (*parse)(std::string_view)) const {
    const auto value =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(spec.ptr(), name));
    if (!value) {
      PyErr_Clear();
      return T::kError;
    }
    const auto policy = parse(ToText(value, name));
    if (!policy) {
      ThrowPythonError(InvalidArgument("Feature '", feature_name_,
                                       "': ", policy.error().message));
    }
    return *policy;
  }

  [[noreturn]] void ThrowCannotBe(const py::object& value,
                                  py::handle name) const {
    PyErr_Clear();
    throw py::type_error(StrCat("Feature '", feature_name_, "': its ",
                                name.cast<std::string_view>(), " cannot be ",
                                py::repr(value).cast<std::string>(), "."));
  }

  const Names& names_ = AttributeNames();
  std::string feature_name_;
  py::object stack_object_;
  convert::StackSpec stack_;
};

// Reads with read(reader, i) the batch of each feature.
template <typename Read>
PythonFeatures ReadBatches(FeatureSpecs feature_specs, int64_t max_num_samples,
                           Read read) {
  PythonFeatures result;
  result.features = std::move(feature_specs.features);
  result.batches.reserve(result.features.size());
  for (size_t i = 0; i < result.features.size(); ++i) {
    FeatureReader reader(result.features[i].feature.name, max_num_samples,
                         result.kept);
    result.batches.push_back(read(reader, i));
    ValueOrThrow(convert::CheckNumIds(result.batches.back()));
  }
  return result;
}

}  // namespace

FeatureSpecs ReadFeatureSpecs(const py::list& specs) {
  FeatureSpecs result;
  result.features.reserve(specs.size());
  SpecReader reader;
  for (const py::handle spec : specs) {
    result.features.push_back(reader.Read(spec));
  }
  return result;
}

PythonFeatures ReadFeatures(const py::list& ids,
                            const std::optional<py::list>& weights,
                            FeatureSpecs feature_specs,
                            int64_t max_num_samples) {
  CheckLength("features", ids, feature_specs);
  if (weights) CheckLength("feature_weights", *weights, feature_specs);
  return ReadBatches(std::move(feature_specs), max_num_samples,
                     [&ids, &weights](FeatureReader& reader, size_t i) {
                       return ReadPythonBatch(
                           reader, py::object(ids[i]),
                           weights ? py::object((*weights)[i]) : py::none());
                     });
}

PythonFeatures ReadSparseFeatures(const py::list& indices,
                                  const py::list& values,
                                  const py::list& dense_shapes,
                                  FeatureSpecs feature_specs,
                                  int64_t max_num_samples) {
  CheckLength("indices", indices, feature_specs);
  CheckLength("values", values, feature_specs);
  CheckLength("dense_shapes", dense_shapes, feature_specs);
  return ReadBatches(
      std::move(feature_specs), max_num_samples,
      [&indices, &values, &dense_shapes](FeatureReader& reader, size_t i) {
        return ReadSparseTensor(reader, indices[i], values[i], dense_shapes[i],
                                /*weights=*/py::none());
      });
}

}  // namespace jte::binding
