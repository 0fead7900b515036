// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Python module lib.nn.pybind_planner: the structs and functions of the planner
// (cc/planner), which say what they mean, under the same names.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/interpreter_lock.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/explain.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/pack.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/planner.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

// An integer of Python or NumPy. TypeError for what is none, ValueError for one
// that does not fit: pybind11 would say that no signature matches.
int64_t ToInt64(const char* name, const py::object& object) {
  const auto integer = py::reinterpret_steal<py::object>(
      PyBool_Check(object.ptr()) ? nullptr : PyNumber_Index(object.ptr()));
  if (!integer) {
    PyErr_Clear();
    throw py::type_error(StrCat(name, " must be an integer, got ",
                                std::string(py::repr(object)), "."));
  }
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  if (overflow != 0) {
    ThrowPythonError(InvalidArgument(name, " must fit 64 bits, got ",
                                     std::string(py::str(integer)), "."));
  }
  return value;
}

// A rotation, or None.
std::optional<int64_t> ToRotation(const py::object& rotation) {
  if (rotation.is_none()) return std::nullopt;
  return ToInt64("rotation", rotation);
}

// What `make_plan`, a function without arguments, returns. It runs without the
// interpreter lock.
template <typename MakePlan>
auto Unlocked(const MakePlan& make_plan) {
  auto result = [&make_plan] {
    const ScopedUnlock unlocked;
    return make_plan();
  }();
  return ValueOrThrow(std::move(result));
}

planner::Plan PlanAutoStack(const planner::Model& model,
                            const py::object& activation_mem_bytes_limit,
                            const py::object& rotation) {
  const planner::AutoStackOptions options = {
      .activation_mem_bytes_limit =
          ToInt64("activation_mem_bytes_limit", activation_mem_bytes_limit),
      .rotation = ToRotation(rotation)};
  return Unlocked(
      [&model, &options] { return planner::PlanAutoStack(model, options); });
}

planner::Plan PlanStackTables(const planner::Model& model,
                              std::vector<std::string> table_names,
                              const py::str& stack_name,
                              const py::object& rotation,
                              bool fail_on_excess_padding) {
  const planner::StackTablesOptions options = {
      .table_names = std::move(table_names),
      .stack_name = stack_name,
      .rotation = ToRotation(rotation),
      .fail_on_excess_padding = fail_on_excess_padding};
  return Unlocked(
      [&model, &options] { return planner::PlanStackTables(model, options); });
}

planner::Plan PlanStackAlone(const planner::Model& model) {
  return Unlocked([&model] { return planner::PlanStackAlone(model); });
}

std::vector<planner::StackReport> ExplainStacks(
    const planner::Model& model,
    const std::vector<std::pair<std::string, int64_t>>& stacks) {
  std::vector<planner::StackQuestion> questions;
  for (const auto& [name, limit] : stacks) {
    questions.push_back(
        {.stack_name = name, .activation_mem_bytes_limit = limit});
  }
  return Unlocked([&model, &questions] {
    return planner::ExplainStacks(model, questions);
  });
}

std::vector<std::pair<int64_t, int64_t>> PlacePairs(
    const std::vector<int64_t>& padded_vocabulary_sizes, int64_t num_shards,
    int64_t rotation) {
  if (num_shards <= 0) {
    ThrowPythonError(
        InvalidArgument("num_shards must be positive, got ", num_shards, "."));
  }
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const planner::ShardPosition& position :
       planner::PlaceTables(padded_vocabulary_sizes, num_shards, rotation)) {
    pairs.emplace_back(position.row_offset_in_shard, position.shard_rotation);
  }
  return pairs;
}

std::vector<std::vector<size_t>> FirstFitBytes(
    const std::vector<int64_t>& activation_bytes, int64_t limit) {
  std::vector<planner::Load> loads;
  for (const int64_t bytes : activation_bytes) {
    loads.push_back({.activation_bytes = bytes});
  }
  return planner::FirstFit(loads, {.activation_bytes = limit});
}

// What Python fills in.
void BindModel(py::module_& m) {
  using planner::Feature;
  using planner::Model;
  using planner::Quantization;
  using planner::Table;
  py::class_<Quantization>(m, "Quantization")
      .def(py::init([](double min_value, double max_value,
                       const py::object& num_buckets) {
             return Quantization{min_value, max_value,
                                 ToInt64("num_buckets", num_buckets)};
           }),
           py::kw_only(), py::arg("min_value"), py::arg("max_value"),
           py::arg("num_buckets"));
  py::class_<Table>(m, "Table")
      .def(py::init([](const py::str& name, const py::object& vocabulary_size,
                       const py::object& embedding_dim, const py::str& combiner,
                       int64_t optimizer_id, const py::str& optimizer,
                       std::optional<Quantization> quantization,
                       const py::str& stack_name, bool is_stacked) {
             return Table{
                 .name = name,
                 .vocabulary_size = ToInt64("vocabulary_size", vocabulary_size),
                 .embedding_dim = ToInt64("embedding_dim", embedding_dim),
                 .combiner = combiner,
                 .optimizer_id = optimizer_id,
                 .optimizer = optimizer,
                 .quantization = quantization,
                 .stack_name = stack_name,
                 .is_stacked = is_stacked};
           }),
           py::kw_only(), py::arg("name"), py::arg("vocabulary_size"),
           py::arg("embedding_dim"), py::arg("combiner"),
           py::arg("optimizer_id"), py::arg("optimizer"),
           py::arg("quantization"), py::arg("stack_name"),
           py::arg("is_stacked"));
  py::class_<Feature>(m, "Feature")
      .def(py::init([](const py::str& name, int64_t table,
                       const py::object& num_samples) {
             return Feature{
                 .name = name,
                 .table = table,
                 .num_samples = ToInt64("The number of samples", num_samples)};
           }),
           py::kw_only(), py::arg("name"), py::arg("table"),
           py::arg("num_samples"));
  py::class_<Model>(m, "Model")
      .def(py::init([](const py::object& global_device_count,
                       const py::object& num_sc_per_device,
                       std::vector<Table> tables,
                       std::vector<Feature> features) {
             const int64_t num_devices =
                 ToInt64("global_device_count", global_device_count);
             return Model{
                 .topology = {.local_device_count = num_devices,
                              .global_device_count = num_devices,
                              .num_sc_per_device = ToInt64("num_sc_per_device",
                                                           num_sc_per_device)},
                 .tables = std::move(tables),
                 .features = std::move(features)};
           }),
           py::kw_only(), py::arg("global_device_count"),
           py::arg("num_sc_per_device"), py::arg("tables"),
           py::arg("features"));
}

// What Python reads.
void BindPlan(py::module_& m) {
  using planner::FeaturePlacement;
  using planner::Plan;
  using planner::Stack;
  using planner::StackReport;
  using planner::TablePlacement;
  py::class_<TablePlacement>(m, "TablePlacement")
      .def_readonly("table", &TablePlacement::table)
      .def_readonly("padded_vocabulary_size",
                    &TablePlacement::padded_vocabulary_size)
      .def_readonly("row_offset_in_shard", &TablePlacement::row_offset_in_shard)
      .def_readonly("shard_rotation", &TablePlacement::shard_rotation);
  py::class_<IdTransform>(m, "IdTransform")
      .def_readonly("row_offset", &IdTransform::row_offset)
      .def_readonly("col_offset", &IdTransform::col_offset)
      .def_readonly("col_shift", &IdTransform::col_shift);
  py::class_<FeaturePlacement>(m, "FeaturePlacement")
      .def_readonly("feature", &FeaturePlacement::feature)
      .def_readonly("transform", &FeaturePlacement::transform);
  py::class_<Stack>(m, "Stack")
      .def_readonly("name", &Stack::name)
      .def_readonly("vocabulary_size", &Stack::vocabulary_size)
      .def_readonly("embedding_dim", &Stack::embedding_dim)
      .def_readonly("num_samples", &Stack::num_samples)
      .def_readonly("tables", &Stack::tables)
      .def_readonly("features", &Stack::features);
  py::class_<Plan>(m, "Plan")
      .def_readonly("stacks", &Plan::stacks)
      .def_readonly("warnings", &Plan::warnings);
  py::class_<StackReport>(m, "StackReport")
      .def_readonly("stack_name", &StackReport::stack_name)
      .def_readonly("activation_bytes_per_sc",
                    &StackReport::activation_bytes_per_sc)
      .def_readonly("why_apart", &StackReport::why_apart);
}

}  // namespace
}  // namespace jte::binding

PYBIND11_MODULE(pybind_planner, m) {
  namespace binding = jte::binding;
  namespace py = pybind11;
  m.doc() = "The C++ planner (cc/planner).";
  binding::BindModel(m);
  binding::BindPlan(m);
  m.def("plan_auto_stack", &binding::PlanAutoStack, py::arg("model"),
        py::kw_only(), py::arg("activation_mem_bytes_limit"),
        py::arg("rotation"),
        "Stacks all tables that are alike, while their activations fit.");
  m.def("plan_stack_tables", &binding::PlanStackTables, py::arg("model"),
        py::kw_only(), py::arg("table_names"), py::arg("stack_name"),
        py::arg("rotation"), py::arg("fail_on_excess_padding"),
        "Stacks the named tables, in this order.");
  m.def("plan_stack_alone", &binding::PlanStackAlone, py::arg("model"),
        "Gives each table that is in no stack yet a stack of its own.");
  m.def("explain_stacks", &binding::ExplainStacks, py::arg("model"),
        py::arg("stacks"),
        "A report on each (stack name, activation_mem_bytes_limit).");
  m.def("place_tables", &binding::PlacePairs,
        py::arg("padded_vocabulary_sizes"), py::arg("num_shards"),
        py::arg("rotation"),
        "(row_offset_in_shard, shard_rotation) of each table of a stack.");
  m.def("first_fit", &binding::FirstFitBytes, py::arg("activation_bytes"),
        py::arg("limit"),
        "The tables of each stack, by index, packed first fit.");
}
