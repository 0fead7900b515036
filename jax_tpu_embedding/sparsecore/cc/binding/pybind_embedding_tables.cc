// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// serving.pybind_embedding_tables: lookups in served tables (cc/serving).

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/interpreter_lock.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/thread_count.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/encode_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace jte::binding {
namespace {

namespace py = pybind11;
using serving::EmbeddingTables;
using serving::Request;
using serving::RowChanges;

// About what an id and a changed row cost, in nanoseconds (thread_count.h).
constexpr int64_t kWorkPerId = 15;
constexpr int64_t kWorkPerChange = 30;

// The elements of an aligned, C-contiguous array of this type.
template <typename T>
std::span<const T> Elements(py::handle array, const char* what) {
  using Array = py::array_t<T, py::array::c_style>;
  const auto is_aligned = [array] {
    const auto* const data = py::reinterpret_borrow<Array>(array).data();
    return reinterpret_cast<uintptr_t>(data) % alignof(T) == 0;
  };
  if (!Array::check_(array) || !is_aligned()) {
    ThrowPythonError(InvalidArgument(
        what, " must be an aligned, C-contiguous NumPy array of ",
        py::str(py::dtype::of<T>()).cast<std::string>(), ", got ",
        py::str(py::type::of(array)).cast<std::string>(), "."));
  }
  const auto typed = py::reinterpret_borrow<Array>(array);
  return {typed.data(), static_cast<size_t>(typed.size())};
}

// (table, ids, row_splits | None, weights | None, combiner | None, out). Ids
// without row splits are samples if they have two dimensions, else rows.
Request ReadRequest(py::handle object) {
  const auto fields = py::cast<py::tuple>(object);
  if (fields.size() != 6) {
    ThrowPythonError(
        InvalidArgument("A request has 6 fields, got ", fields.size(), "."));
  }
  Request request;
  request.table = fields[0].cast<int>();
  if (py::array_t<int32_t, py::array::c_style>::check_(fields[1])) {
    request.ids = Elements<int32_t>(fields[1], "ids");
  } else {
    request.ids = Elements<int64_t>(fields[1], "ids");
  }
  const auto ids = py::reinterpret_borrow<py::array>(fields[1]);
  if (!fields[2].is_none()) {
    request.kind = Request::Kind::kSplits;
    request.row_splits = Elements<int64_t>(fields[2], "row_splits");
  } else if (ids.ndim() == 2) {
    request.kind = Request::Kind::kMatrix;
    request.valency = ids.shape(1);
  }
  if (!fields[3].is_none()) {
    request.weights = Elements<float>(fields[3], "weights");
  }
  if (!fields[4].is_none()) {
    request.combiner = ValueOrThrow(
        convert::ParseCombiner(fields[4].cast<std::string_view>()));
  }
  const std::span<const float> out = Elements<float>(fields[5], "out");
  auto array = py::reinterpret_borrow<py::array_t<float>>(fields[5]);
  request.out = {array.mutable_data(), out.size()};
  return request;
}

serving::TableDescription ReadDescription(py::handle object) {
  auto [name, rows, columns, encoding, combiner, parts] =
      object.cast<std::tuple<
          std::string, int64_t, int64_t, std::string, std::string,
          std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>>>>();
  serving::TableDescription table = {
      .name = std::move(name),
      .rows = rows,
      .columns = columns,
      .encoding = ValueOrThrow(serving::ParseEncoding(encoding)),
      .combiner = ValueOrThrow(convert::ParseCombiner(combiner)),
      .parts = {}};
  for (auto& [path, first_row, part_rows, offset] : parts) {
    table.parts.push_back({.path = std::move(path),
                           .first_row = first_row,
                           .rows = part_rows,
                           .offset = offset});
  }
  return table;
}

class Tables {
 public:
  Tables(const py::list& tables, int64_t version, bool zero_out_of_range,
         bool copy_to_huge_pages, int num_threads)
      : threads_(ValueOrThrow(ThreadLimit::Of(num_threads))) {
    std::vector<serving::TableDescription> descriptions;
    for (const py::handle table : tables) {
      descriptions.push_back(ReadDescription(table));
    }
    // By all threads, or by this one; others look up in another version
    // meanwhile.
    const int64_t work =
        copy_to_huge_pages ? std::numeric_limits<int64_t>::max() : 0;
    tables_ = ValueOrThrow(
        WithoutLock(work, [&descriptions, version, zero_out_of_range,
                           copy_to_huge_pages](Executor& executor) {
          return EmbeddingTables::Open(
              std::move(descriptions), version,
              zero_out_of_range ? EmbeddingTables::OutOfRange::kZero
                                : EmbeddingTables::OutOfRange::kError,
              copy_to_huge_pages ? &executor : nullptr);
        }));
  }

  // Others go on while memory is given back: 60 to 76 ms per GiB of a copy in
  // small pages.
  ~Tables() {
    const ScopedUnlock unlock;
    tables_.reset();
  }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  int64_t version() const { return tables_->version(); }

  void Look(const py::list& requests, bool is_held) const {
    std::vector<Request> read;
    read.reserve(requests.size());
    int64_t num_ids = 0;
    for (const py::handle request : requests) {
      read.push_back(ReadRequest(request));
      num_ids += serving::NumIds(read.back().ids);
    }
    ValueOrThrow(WithoutLock(
        num_ids * kWorkPerId, [this, &read, is_held](Executor& executor) {
          return is_held ? tables_->LookHeld(read, executor)
                         : tables_->Look(read, executor);
        }));
  }

  // (table, rows, values, deleted) of each table.
  void Apply(const py::list& changes, int64_t version) {
    std::vector<RowChanges> read;
    int64_t num_rows = 0;
    for (const py::handle object : changes) {
      const auto fields = py::cast<py::tuple>(object);
      if (fields.size() != 4) {
        ThrowPythonError(
            InvalidArgument("Changes have 4 fields, got ", fields.size(), "."));
      }
      const std::span<const uint8_t> values =
          Elements<uint8_t>(fields[2], "values");
      read.push_back({.table = fields[0].cast<int>(),
                      .rows = Elements<int64_t>(fields[1], "rows"),
                      .values = std::as_bytes(values),
                      .deleted = Elements<int64_t>(fields[3], "deleted")});
      num_rows += std::ssize(read.back().rows);
    }
    ValueOrThrow(WithoutLock(num_rows * kWorkPerChange,
                             [this, &read, version](Executor& executor) {
                               return tables_->Apply(read, version, executor);
                             }));
  }

  // The lock of a version, for Look with is_held; of this thread, which has it
  // until it was released as often. Returns the thread.
  std::thread::id Hold() {
    const std::thread::id thread = std::this_thread::get_id();
    int& count = holds_[thread];
    if (count == 0) {
      const ScopedUnlock unlock;
      tables_->Hold().release();
    }
    ++count;
    return thread;
  }
  void Release(std::thread::id thread) {
    const auto found = holds_.find(thread);
    if (found == holds_.end() || --found->second > 0) return;
    holds_.erase(found);
    // The other half of Hold.
    const std::shared_lock<serving::WriterFirstLock> held(tables_->lock(),
                                                          std::adopt_lock);
  }
  bool IsHeld() const { return holds_.contains(std::this_thread::get_id()); }

 private:
  template <typename Function>
  std::invoke_result_t<Function, Executor&> WithoutLock(
      int64_t work, Function function) const {
    const ScopedUnlock unlock;
    return CatchOutOfMemory([this, work, &function] {
      return OnThreads(threads_, work, function);
    });
  }

  const ThreadLimit threads_;
  std::unique_ptr<EmbeddingTables> tables_;
  std::map<std::thread::id, int> holds_;  // under the interpreter lock
};

// A block of a thread in which the version stays, which another thread may end.
class VersionLock {
 public:
  explicit VersionLock(Tables& tables) : tables_(tables) {}
  void Enter() { thread_ = tables_.Hold(); }
  void Exit(const py::args&) {
    if (thread_) tables_.Release(*thread_);
    thread_.reset();
  }

 private:
  Tables& tables_;
  std::optional<std::thread::id> thread_;
};

// Bytes of rows, the first that the encoding does not have, and how many.
std::tuple<py::array_t<uint8_t>, int64_t, int64_t> EncodeRows(
    const py::array_t<float, py::array::c_style>& values,
    const std::string& encoding) {
  const serving::Encoding kind = ValueOrThrow(serving::ParseEncoding(encoding));
  if (values.ndim() != 2 || values.shape(1) < 1) {
    ThrowPythonError(InvalidArgument("Rows must be float32[rows, columns]."));
  }
  const int64_t columns = values.shape(1);
  py::array_t<uint8_t> bytes(
      {int64_t{values.shape(0)}, serving::RowBytes(kind, columns)});
  const std::span<const float> from(values.data(), values.size());
  const std::span<std::byte> to(
      reinterpret_cast<std::byte*>(bytes.mutable_data()), bytes.size());
  serving::RefusedRows refused;
  {
    const ScopedUnlock unlock;
    refused = serving::EncodeRows(kind, columns, from, to);
  }
  return {bytes, refused.first, refused.count};
}

}  // namespace
}  // namespace jte::binding

PYBIND11_MODULE(pybind_embedding_tables, m) {
  namespace binding = jte::binding;
  namespace py = pybind11;
  using binding::Tables;
  m.doc() = "Lookups in served tables (cc/serving).";
  py::class_<Tables>(m, "Tables")
      .def(py::init<const py::list&, int64_t, bool, bool, int>(),
           py::arg("tables"), py::arg("version"), py::kw_only(),
           py::arg("zero_out_of_range"), py::arg("copy_to_huge_pages"),
           py::arg("num_threads"))
      .def_property_readonly("version", &Tables::version)
      .def("look", &Tables::Look, py::arg("requests"), py::arg("is_held"),
           "Writes the `out` of every request.")
      .def("apply", &Tables::Apply, py::arg("changes"), py::arg("version"),
           "Makes another version: all of the changes, or none.")
      .def_property_readonly(
          "version_lock",
          py::cpp_function(
              [](Tables& tables) { return binding::VersionLock(tables); },
              py::keep_alive<0, 1>()),
          "Keeps the version in a `with` block.")
      .def("is_held", &Tables::IsHeld,
           "Whether this thread keeps the version.");
  py::class_<binding::VersionLock>(m, "VersionLock")
      .def("__enter__", &binding::VersionLock::Enter)
      .def("__exit__", &binding::VersionLock::Exit);
  m.def("encode_rows", &binding::EncodeRows, py::arg("values"),
        py::arg("encoding"),
        "Bytes of rows, the first one that cannot be encoded or -1, and how "
        "many cannot.");
}
