// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Python module lib.core.pybind_input_preprocessing: the converter.
//
// Python objects become structs at the top of each function; the work itself
// runs without the interpreter lock.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/all_reduce_binding.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/interpreter_lock.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/output_arrays.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/output_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/python_features.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/share_cache_budget.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/thread_count.h"
#include "jax_tpu_embedding/sparsecore/cc/collective/all_reduce.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

enum class ShardingStrategy { kMod = 1 };

// stack name -> array, or number.
struct PythonStats {
  py::dict max_ids_per_partition;
  py::dict max_unique_ids_per_partition;
  py::dict required_buffer_sizes;
  py::dict dropped_id_count;
  py::dict minibatch_alignment;
};

struct CallOptions {
  convert::ConvertOptions convert;
  py::object all_reduce_interface;  // or None
  bool has_leading_dimension;
  ThreadLimit threads;
  OutputPool& output_pool;
};

// Makes the batches that were only described. What they refer to lives as long
// as the result.
std::vector<convert::PreparedBatch> PrepareBatches(PythonFeatures& inputs,
                                                   const ThreadLimit& threads) {
  // Row splits are copied, unless nobody else has them. Views and a few
  // numbers, which take less than a microsecond, are not worth giving up the
  // lock.
  constexpr int64_t kWorkToUnlock = 1 << 10;
  const int64_t work = convert::PreparationWork(inputs.batches);
  auto prepared = [&inputs, &threads, work] {
    std::optional<ScopedUnlock> unlocked;
    if (work > kWorkToUnlock) unlocked.emplace();
    return OnThreads(threads, work, [&inputs](Executor& executor) {
      return convert::Prepare(inputs.batches, executor);
    });
  }();
  auto batches = ValueOrThrow(std::move(prepared));
  for (size_t i = 0; i < batches.size(); ++i) {
    inputs.features[i].feature.batch = batches[i].batch;
  }
  return batches;
}

// Python's keys for what belongs to a stack.
std::vector<py::str> NamesOf(const std::vector<convert::StackPlan>& stacks) {
  std::vector<py::str> names;
  names.reserve(stacks.size());
  for (const convert::StackPlan& plan : stacks)
    names.emplace_back(plan.spec.name);
  return names;
}

PythonStats ToPython(const std::vector<convert::StackStats>& stats,
                     const std::vector<py::str>& names,
                     bool enable_minibatching) {
  PythonStats result;
  const auto copy = [](const std::vector<int32_t>& numbers) {
    return CopyOf(std::span(numbers));
  };
  for (size_t i = 0; i < stats.size(); ++i) {
    const convert::StackStats& from = stats[i];
    const py::str& name = names[i];
    result.max_ids_per_partition[name] = copy(from.max_ids_per_partition);
    result.max_unique_ids_per_partition[name] =
        copy(from.max_unique_ids_per_partition);
    result.required_buffer_sizes[name] = copy(from.required_buffer_size_per_sc);
    result.dropped_id_count[name] = from.dropped_id_count;
    if (enable_minibatching) {
      result.minibatch_alignment[name] = copy(from.minibatch_alignment_per_sc);
    }
  }
  return result;
}

py::tuple ConvertFeatures(PythonFeatures inputs, const CallOptions& options) {
  PythonAllReduce all_reduce(options.all_reduce_interface);
  const std::vector<convert::PreparedBatch> batches =
      PrepareBatches(inputs, options.threads);
  const std::vector<convert::StackPlan> stacks = ValueOrThrow(
      convert::PlanConversion(std::move(inputs.features), options.convert));
  const std::vector<py::str> names = NamesOf(stacks);
  const OutputArrays outputs =
      MakeOutputArrays(stacks, names, options.convert.enable_minibatching,
                       options.has_leading_dimension, options.output_pool);
  auto converted = [&stacks, &options, &outputs, &all_reduce] {
    collective::AllReduce* const reduce = all_reduce.get();
    const ScopedUnlock unlocked;
    return OnThreads(options.threads, convert::ConversionWork(stacks),
                     [&stacks, &options, &outputs, reduce](Executor& executor) {
                       return convert::Convert(stacks, options.convert,
                                               outputs.buffers, executor,
                                               reduce);
                     });
  }();
  all_reduce.RethrowPythonError();
  const convert::Conversion conversion = ValueOrThrow(std::move(converted));
  return py::make_tuple(
      outputs.row_pointers, outputs.embedding_ids, outputs.sample_ids,
      outputs.gains, conversion.num_minibatches,
      ToPython(conversion.stats, names, options.convert.enable_minibatching));
}

// The keywords that all forms of a call share, in Python's order.
struct Keywords {
  int64_t local_device_count;
  int64_t global_device_count;
  int64_t num_sc_per_device;
  bool has_leading_dimension;
  bool allow_id_dropping;
  int32_t batch_number;
  bool enable_minibatching;
  py::object all_reduce_interface;
  FeatureStackingStrategy feature_stacking_strategy;
  std::optional<int> num_threads;
  OutputPool* output_pool;  // null: that of the process

  CallOptions Checked() const {
    const convert::ConvertOptions convert = {
        .topology = {.local_device_count = local_device_count,
                     .global_device_count = global_device_count,
                     .num_sc_per_device = num_sc_per_device},
        .feature_stacking_strategy = feature_stacking_strategy,
        .allow_id_dropping = allow_id_dropping,
        .enable_minibatching = enable_minibatching,
        .batch_number = batch_number};
    ValueOrThrow(convert::CheckTopology(convert.topology));
    return {.convert = convert,
            .all_reduce_interface = all_reduce_interface,
            .has_leading_dimension = has_leading_dimension,
            .threads = ValueOrThrow(ThreadLimit::Of(num_threads)),
            .output_pool = output_pool != nullptr ? *output_pool
                                                  : OutputPool::OfProcess()};
  }

  int64_t max_num_samples() const {
    return kMaxSamplesPerDevice * local_device_count;
  }
};

// An argument as T; `expected` says what it is, for the message.
template <typename T>
T Argument(const py::object& value, const char* name, const char* expected) {
  py::detail::make_caster<T> caster;
  if (!caster.load(value, /*convert=*/true)) {
    throw py::type_error(StrCat(name, " must be ", expected, ", got ",
                                py::repr(value).cast<std::string>(), "."));
  }
  return py::detail::cast_op<T>(caster);
}

py::list ListOf(const py::object& value, const char* name) {
  return Argument<py::list>(value, name, "a list with one element per feature");
}

FeatureSpecs SpecsOf(const py::object& specs) {
  if (py::isinstance<FeatureSpecs>(specs)) return specs.cast<FeatureSpecs>();
  return ReadFeatureSpecs(ListOf(specs, "feature_specs"));
}

py::tuple Preprocess(const Keywords& keywords, const py::object& ids,
                     const py::object& weights,
                     const py::object& feature_specs) {
  const CallOptions options = keywords.Checked();
  std::optional<py::list> weights_list;
  if (!weights.is_none()) weights_list = ListOf(weights, "feature_weights");
  return ConvertFeatures(
      ReadFeatures(ListOf(ids, "features"), weights_list,
                   SpecsOf(feature_specs), keywords.max_num_samples()),
      options);
}

py::tuple PreprocessSparse(const Keywords& keywords, const py::object& indices,
                           const py::object& values,
                           const py::object& dense_shapes,
                           const py::object& feature_specs) {
  const CallOptions options = keywords.Checked();
  return ConvertFeatures(
      ReadSparseFeatures(ListOf(indices, "indices"), ListOf(values, "values"),
                         ListOf(dense_shapes, "dense_shapes"),
                         SpecsOf(feature_specs), keywords.max_num_samples()),
      options);
}

// For those who wonder what a form of input costs, and for tests.
int64_t NumPreparedNumbers(const py::list& ids,
                           const std::optional<py::list>& weights,
                           const py::list& feature_specs) {
  return convert::PreparationWork(
      ReadFeatures(ids, weights, ReadFeatureSpecs(feature_specs),
                   std::numeric_limits<int64_t>::max())
          .batches);
}

// Keeps the names of arguments for as long as the process lives. pybind11
// interns them in each call; one that nobody else has interned is gone again
// after it, and Python's table of such names, some 4 MB, fills up with what is
// gone and is made anew every 40,000 calls.
template <typename... Args>
void KeepNames(const Args&... args) {
  (PyUnicode_InternFromString(args.name), ...);
}

// Adds a function whose arguments are Features and then Keywords, all of them
// objects: pybind11's own error for one of the wrong type is the list of all.
template <typename... Features, typename... Args>
void DefinePreprocess(py::module_& m, const char* name, const char* doc,
                      py::tuple (*function)(const Keywords&, Features...),
                      const Args&... feature_args) {
  KeepNames(feature_args..., py::arg("sharding_strategy"));
  m.def(
      name,
      [function](Features... features, const py::object& local_device_count,
                 const py::object& global_device_count,
                 const py::object& num_sc_per_device,
                 const py::object& sharding_strategy,
                 const py::object& has_leading_dimension,
                 const py::object& allow_id_dropping,
                 const py::object& batch_number,
                 const py::object& enable_minibatching,
                 const py::object& all_reduce_interface,
                 const py::object& feature_stacking_strategy,
                 const py::object& num_threads, const py::object& output_pool) {
        constexpr const char* kInteger = "an integer";
        constexpr const char* kBool = "a bool";
        // There is only one.
        Argument<ShardingStrategy>(sharding_strategy, "sharding_strategy",
                                   "a ShardingStrategy");
        return function(
            Keywords{
                .local_device_count = Argument<int64_t>(
                    local_device_count, "local_device_count", kInteger),
                .global_device_count = Argument<int64_t>(
                    global_device_count, "global_device_count", kInteger),
                .num_sc_per_device = Argument<int64_t>(
                    num_sc_per_device, "num_sc_per_device", kInteger),
                .has_leading_dimension = Argument<bool>(
                    has_leading_dimension, "has_leading_dimension", kBool),
                .allow_id_dropping = Argument<bool>(allow_id_dropping,
                                                    "allow_id_dropping", kBool),
                .batch_number = Argument<int32_t>(batch_number, "batch_number",
                                                  "an integer below 2**31"),
                .enable_minibatching = Argument<bool>(
                    enable_minibatching, "enable_minibatching", kBool),
                .all_reduce_interface = all_reduce_interface,
                .feature_stacking_strategy = Argument<FeatureStackingStrategy>(
                    feature_stacking_strategy, "feature_stacking_strategy",
                    "a FeatureStackingStrategy"),
                .num_threads = Argument<std::optional<int>>(
                    num_threads, "num_threads", "an integer or None"),
                // pybind11 takes None for a null pointer after it has tried
                // all else, which takes half a microsecond.
                .output_pool =
                    output_pool.is_none()
                        ? nullptr
                        : Argument<OutputPool*>(output_pool, "output_pool",
                                                "an OutputPool or None")},
            features...);
      },
      doc, feature_args..., py::arg("local_device_count"),
      py::arg("global_device_count"), py::kw_only(),
      py::arg("num_sc_per_device"),
      py::arg("sharding_strategy") = ShardingStrategy::kMod,
      py::arg("has_leading_dimension") = false,
      py::arg("allow_id_dropping") = false, py::arg("batch_number") = 0,
      py::arg("enable_minibatching") = false,
      py::arg("all_reduce_interface") = py::none(),
      py::arg("feature_stacking_strategy") =
          FeatureStackingStrategy::kSplitThenStack,
      py::arg("num_threads") = py::none(), py::arg("output_pool") = py::none());
}

// For sizes alone, the local devices do not matter.
Topology CheckedTopology(int64_t global_device_count,
                         int64_t num_sc_per_device) {
  const Topology topology = {.local_device_count = 1,
                             .global_device_count = global_device_count,
                             .num_sc_per_device = num_sc_per_device};
  ValueOrThrow(convert::CheckTopology(topology));
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
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (max_ids_per_partition <= 0 || max_ids_per_partition > kMost) {
    ThrowPythonError(InvalidArgument("max_ids_per_partition must be in [1, ",
                                     kMost, "], got ", max_ids_per_partition,
                                     "."));
  }
  return MaxCooCellsPerDevice(max_ids_per_partition, topology,
                              enable_minibatching);
}

py::dict BufferSizes(const py::list& feature_specs, int64_t global_device_count,
                     int64_t num_sc_per_device, bool enable_minibatching) {
  const Topology topology =
      CheckedTopology(global_device_count, num_sc_per_device);
  py::dict sizes;
  for (const auto& [feature, stack] :
       ReadFeatureSpecs(feature_specs).features) {
    const py::str name(stack.name);
    if (sizes.contains(name)) continue;
    sizes[name] = ValueOrThrow(
        convert::CooCellsPerDevice(stack, topology, enable_minibatching));
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
      .def_readonly("dropped_id_count", &PythonStats::dropped_id_count)
      .def_readonly("minibatch_alignment", &PythonStats::minibatch_alignment);

  py::enum_<FeatureStackingStrategy>(m, "FeatureStackingStrategy")
      .value("SPLIT_THEN_STACK", FeatureStackingStrategy::kSplitThenStack)
      .value("STACK_THEN_SPLIT", FeatureStackingStrategy::kStackThenSplit);
  RegisterAllReduce(m);
  ShareCacheBudget();
  RegisterOutputPool(m);

  py::class_<FeatureSpecs>(m, "FeatureSpecs",
                           "Feature specs as they were when this was made, for "
                           "calls that all have the same.")
      .def(py::init(&ReadFeatureSpecs), py::arg("feature_specs"));

  DefinePreprocess(m, "preprocess_sparse_dense_matmul_input",
                   "Converts ids in any form; docs/reference has the list.",
                   &Preprocess, py::arg("features"), py::arg("feature_weights"),
                   py::arg("feature_specs"));
  DefinePreprocess(m, "preprocess_sparse_dense_matmul_sparse_coo_input",
                   "Converts the ids of sparse tensors.", &PreprocessSparse,
                   py::arg("indices"), py::arg("values"),
                   py::arg("dense_shapes"), py::arg("feature_specs"));
  m.def("count_prepared_numbers", &NumPreparedNumbers,
        "How many numbers have to be converted, copied or grouped by sample "
        "before they can be read. 0: the input is read where it is.",
        py::arg("features"), py::arg("feature_weights").none(true),
        py::arg("feature_specs"));
  m.def("compute_row_pointers_size_per_device", &RowPointersSize,
        py::arg("global_device_count"), py::arg("num_sc_per_device"),
        py::arg("enable_minibatching") = false);
  m.def("compute_theoretical_max_coo_buffer_size", &TheoreticalMaxBufferSize,
        py::arg("max_ids_per_partition"), py::arg("global_device_count"),
        py::arg("num_sc_per_device"), py::arg("enable_minibatching") = false);
  m.def("compute_coo_buffer_size_per_device", &BufferSizes,
        py::arg("feature_specs"), py::arg("global_device_count"),
        py::arg("num_sc_per_device"), py::arg("enable_minibatching") = false);
  m.def("num_schedulable_cpus", &NumSchedulableCpus,
        "CPUs that this process may use, by its affinity and by the quotas of "
        "its control groups.");
}

}  // namespace jte::binding
