// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Python module lib.core.pybind_input_preprocessing: the converter.
//
// Python objects become structs at the top of each function; the work itself
// runs without the interpreter lock.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/python_features.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/buffer_size.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace jte {
namespace {

namespace py = pybind11;

enum class ShardingStrategy { kMod = 1 };

// stack name -> array, or number.
struct PythonStats {
  py::dict max_ids_per_partition;
  py::dict max_unique_ids_per_partition;
  py::dict required_buffer_sizes;
  py::dict dropped_id_count;
};

// The number of threads that a call may use. Needs the interpreter lock, under
// which os.environ changes the environment.
int NumThreads() {
  int num_threads = NumSchedulableCpus();
  const char* value = std::getenv("SPARSECORE_INPUT_PREPROCESSING_THREADS");
  if (value == nullptr) return num_threads;
  const std::string_view text(value);
  int limit = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), limit);
  const bool is_number =
      error == std::errc() && end == text.data() + text.size();
  if (is_number && limit > 0 && limit < num_threads) num_threads = limit;
  return num_threads;
}

// Ids plus cells that make one more thread worth its start: some 45 us of work.
// Measured on 2 cores, one thread against two: 42 and 44 us for 17 k of them,
// 86 and 76 us for 33 k, 173 and 126 us for 66 k.
constexpr int64_t kMinWorkPerThread = 1 << 14;

Result<std::vector<StackStats>> ConvertOnThreads(
    const std::vector<StackPlan>& stacks, bool allow_id_dropping,
    const std::vector<CsrBuffers>& buffers, int max_threads) {
  const int64_t num_threads = std::min<int64_t>(
      max_threads, ConversionWork(stacks) / kMinWorkPerThread);
  if (num_threads <= 1) {
    InlineExecutor executor;
    return Convert(stacks, allow_id_dropping, buffers, executor);
  }
  ThreadExecutor executor(static_cast<int>(num_threads));
  return Convert(stacks, allow_id_dropping, buffers, executor);
}

// A new array of num_devices parts, and a view of it.
template <typename T>
std::pair<py::array_t<T>, std::span<T>> NewArray(int64_t num_devices,
                                                 int64_t size_per_device,
                                                 bool has_leading_dimension) {
  const int64_t size = num_devices * size_per_device;
  auto array = has_leading_dimension
                   ? py::array_t<T>({num_devices, size_per_device})
                   : py::array_t<T>(size);
  const std::span<T> view(array.mutable_data(), size);
  return {std::move(array), view};
}

py::array_t<int32_t> ToArray(const std::vector<int32_t>& numbers) {
  return py::array_t<int32_t>(numbers.size(), numbers.data());
}

// row pointers, embedding ids, sample ids and gains, each stack name -> array.
struct PythonBuffers {
  py::dict row_pointers;
  py::dict embedding_ids;
  py::dict sample_ids;
  py::dict gains;

  // Makes the arrays of one stack and returns views of them.
  CsrBuffers Add(const StackPlan& plan, bool has_leading_dimension) {
    const int64_t num_devices = plan.topology.local_device_count;
    const auto add = [&plan, num_devices, has_leading_dimension]<typename T>(
                         py::dict& arrays, int64_t size_per_device, T) {
      auto [array, view] =
          NewArray<T>(num_devices, size_per_device, has_leading_dimension);
      arrays[py::str(plan.spec.name)] = std::move(array);
      return view;
    };
    const int64_t cells = plan.coo_cells_per_device;
    return {
        .row_pointers = add(row_pointers,
                            RowPointersPerDevice(plan.topology,
                                                 /*enable_minibatching=*/false),
                            int32_t{}),
        .embedding_ids = add(embedding_ids, cells, int32_t{}),
        .sample_ids = add(sample_ids, cells, int32_t{}),
        .gains = add(gains, cells, float{})};
  }
};

// batch_number and all_reduce_interface only matter to minibatching.
py::tuple Preprocess(const py::list& ids,
                     const std::optional<py::list>& weights,
                     const py::list& feature_specs, int64_t local_device_count,
                     int64_t global_device_count, int64_t num_sc_per_device,
                     ShardingStrategy, bool has_leading_dimension,
                     bool allow_id_dropping, int64_t /*batch_number*/,
                     bool enable_minibatching,
                     const py::object& /*all_reduce_interface*/) {
  const PythonFeatures inputs = ReadFeatures(ids, weights, feature_specs);
  const std::vector<StackPlan> stacks = ValueOrThrow(PlanConversion(
      inputs.features, {.topology = {.local_device_count = local_device_count,
                                     .global_device_count = global_device_count,
                                     .num_sc_per_device = num_sc_per_device},
                        .allow_id_dropping = allow_id_dropping,
                        .enable_minibatching = enable_minibatching}));
  PythonBuffers outputs;
  std::vector<CsrBuffers> buffers;
  for (const StackPlan& plan : stacks) {
    buffers.push_back(outputs.Add(plan, has_leading_dimension));
  }

  const int num_threads = NumThreads();
  auto stats = [&stacks, allow_id_dropping, &buffers, num_threads] {
    const py::gil_scoped_release unlocked;
    return ConvertOnThreads(stacks, allow_id_dropping, buffers, num_threads);
  }();
  const std::vector<StackStats> all_stats = ValueOrThrow(std::move(stats));

  PythonStats python_stats;
  for (size_t i = 0; i < stacks.size(); ++i) {
    const py::str name(stacks[i].spec.name);
    const StackStats& from = all_stats[i];
    python_stats.max_ids_per_partition[name] =
        ToArray(from.max_ids_per_partition);
    python_stats.max_unique_ids_per_partition[name] =
        ToArray(from.max_unique_ids_per_partition);
    python_stats.required_buffer_sizes[name] =
        ToArray(from.required_buffer_size_per_sc);
    python_stats.dropped_id_count[name] = from.dropped_id_count;
  }
  constexpr int kNumMinibatches = 1;
  return py::make_tuple(outputs.row_pointers, outputs.embedding_ids,
                        outputs.sample_ids, outputs.gains, kNumMinibatches,
                        std::move(python_stats));
}

// For sizes alone, the local devices do not matter.
Topology CheckedTopology(int64_t global_device_count,
                         int64_t num_sc_per_device) {
  const Topology topology = {.local_device_count = 1,
                             .global_device_count = global_device_count,
                             .num_sc_per_device = num_sc_per_device};
  ValueOrThrow(CheckTopology(topology));
  return topology;
}

int64_t RowPointersSize(int64_t global_device_count, int64_t num_sc_per_device,
                        bool enable_minibatching) {
  return RowPointersPerDevice(
      CheckedTopology(global_device_count, num_sc_per_device),
      enable_minibatching);
}

int64_t TheoreticalMaxBufferSize(int64_t max_ids_per_partition,
                                 int64_t global_device_count,
                                 int64_t num_sc_per_device,
                                 bool enable_minibatching) {
  const Topology topology =
      CheckedTopology(global_device_count, num_sc_per_device);
  if (max_ids_per_partition <= 0) {
    ThrowPythonError(
        InvalidArgument("max_ids_per_partition must be positive, "
                        "got ",
                        max_ids_per_partition, "."));
  }
  return MaxCooCellsPerDevice(max_ids_per_partition, topology,
                              enable_minibatching);
}

py::dict BufferSizes(const py::list& feature_specs, int64_t global_device_count,
                     int64_t num_sc_per_device, bool enable_minibatching) {
  const Topology topology =
      CheckedTopology(global_device_count, num_sc_per_device);
  py::dict sizes;
  for (const py::handle spec : feature_specs) {
    const StackSpec stack = ReadFeatureSpec(spec).stack;
    const py::str name(stack.name);
    if (sizes.contains(name)) continue;
    sizes[name] =
        ValueOrThrow(CooCellsPerDevice(stack, topology, enable_minibatching));
  }
  return sizes;
}

}  // namespace

PYBIND11_MODULE(pybind_input_preprocessing, m) {
  m.doc() = "Ids of a batch to the buffers that a lookup reads.";

  py::enum_<ShardingStrategy>(m, "ShardingStrategy")
      .value("MOD", ShardingStrategy::kMod)
      .export_values();

  py::class_<PythonStats>(m, "SparseDenseMatmulInputStats")
      .def(py::init<>())
      .def_readonly("max_ids_per_partition",
                    &PythonStats::max_ids_per_partition)
      .def_readonly("max_unique_ids_per_partition",
                    &PythonStats::max_unique_ids_per_partition)
      .def_readonly("required_buffer_sizes",
                    &PythonStats::required_buffer_sizes)
      .def_readonly("dropped_id_count", &PythonStats::dropped_id_count);

  m.def("preprocess_sparse_dense_matmul_input", &Preprocess,
        py::arg("features"), py::arg("feature_weights").none(true),
        py::arg("feature_specs"), py::arg("local_device_count"),
        py::arg("global_device_count"), py::kw_only(),
        py::arg("num_sc_per_device"),
        py::arg("sharding_strategy") = ShardingStrategy::kMod,
        py::arg("has_leading_dimension") = false,
        py::arg("allow_id_dropping") = false, py::arg("batch_number") = 0,
        py::arg("enable_minibatching") = false,
        py::arg("all_reduce_interface") = py::none());
  m.def("compute_row_pointers_size_per_device", &RowPointersSize,
        py::arg("global_device_count"), py::arg("num_sc_per_device"),
        py::arg("enable_minibatching") = false);
  m.def("compute_theoretical_max_coo_buffer_size", &TheoreticalMaxBufferSize,
        py::arg("max_ids_per_partition"), py::arg("global_device_count"),
        py::arg("num_sc_per_device"), py::arg("enable_minibatching") = false);
  m.def("compute_coo_buffer_size_per_device", &BufferSizes,
        py::arg("feature_specs"), py::arg("global_device_count"),
        py::arg("num_sc_per_device"), py::arg("enable_minibatching") = false);
}

}  // namespace jte
