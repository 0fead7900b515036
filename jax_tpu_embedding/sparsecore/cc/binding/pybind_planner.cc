// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Python module lib.nn.pybind_planner: the planner, message in, message out.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/interpreter_lock.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/pack.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/plan_proto.h"
#include "jax_tpu_embedding/sparsecore/lib/proto/planner.pb.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

Result<std::string> PlanSerialized(std::string_view serialized_request) {
  proto::PlanRequest request;
  if (!request.ParseFromArray(serialized_request.data(),
                              serialized_request.size())) {
    return InvalidArgument(serialized_request.size(),
                           " bytes that are not a serialized PlanRequest.");
  }
  JTE_ASSIGN_OR_RETURN(proto::Plan plan, planner::MakePlan(request));
  return plan.SerializeAsString();
}

py::bytes PlanBytes(const py::bytes& serialized_request) {
  const std::string_view request = serialized_request;
  Result<std::string> plan = [request] {
    const ScopedUnlock unlocked;
    return PlanSerialized(request);
  }();
  return py::bytes(ValueOrThrow(std::move(plan)));
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

}  // namespace
}  // namespace jte::binding

PYBIND11_MODULE(pybind_planner, m) {
  m.doc() = "The C++ planner (cc/planner).";
  m.def("plan", &jte::binding::PlanBytes, pybind11::arg("request"),
        "The Plan message that answers a PlanRequest message, both as bytes.");
  m.def("place_tables", &jte::binding::PlacePairs,
        pybind11::arg("padded_vocabulary_sizes"), pybind11::arg("num_shards"),
        pybind11::arg("rotation"),
        "(row_offset_in_shard, shard_rotation) of each table of a stack.");
  m.def("first_fit", &jte::binding::FirstFitBytes,
        pybind11::arg("activation_bytes"), pybind11::arg("limit"),
        "The tables of each stack, by index, packed first fit.");
}
