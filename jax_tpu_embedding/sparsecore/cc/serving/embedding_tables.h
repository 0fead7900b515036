// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Lookups in served tables, for servers in C++ and for the Python module
// `serving.embedding_tables`: no Python, no XLA, no messages.
//
// The caller says where rows are, as served_tables.h does for a directory that
// was exported or published to; rows are used where the page cache has them,
// or are copied to huge pages.
//
//   JTE_ASSIGN_OR_RETURN(const auto tables,
//                        EmbeddingTables::Open({{.name = "items", ...}}, 7));
//   Request request = {.table = 0, .kind = Request::Kind::kSplits, ...};
//   JTE_RETURN_IF_ERROR(tables->Look({&request, 1}, executor));
//
// Threading: everything may be called by any thread at any time. A call of Look
// sees one version of all tables; Apply waits for the calls that run, and those
// that begin later wait for it.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_EMBEDDING_TABLES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_EMBEDDING_TABLES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/sample_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/writer_first_lock.h"

namespace jte::serving {

// Ids of one feature, and where its floats go.
struct Request {
  enum class Kind {
    kRows,    // out[i] = the row of id i, as it is
    kMatrix,  // sample s has the ids [s * valency, (s + 1) * valency)
    kSplits,  // sample s has the ids [row_splits[s], row_splits[s + 1])
  };

  int table = 0;
  Kind kind = Kind::kRows;
  Ids ids;
  int64_t valency = 1;                       // kMatrix
  std::span<const int64_t> row_splits = {};  // kSplits: samples + 1
  std::optional<std::span<const float>> weights = std::nullopt;  // one per id
  std::optional<convert::Combiner> combiner = std::nullopt;  // else the table's
  std::optional<int64_t> columns = std::nullopt;  // the first ones; else all
  std::span<float> out = {};  // a row of these columns for each sample

  int64_t num_samples() const;
};

// Rows of one table that another version has.
struct RowChanges {
  int table = 0;
  std::span<const int64_t> rows = {};      // ascending
  std::span<const std::byte> values = {};  // encoded, one after the other
  std::span<const int64_t> deleted = {};   // ascending; they read as zeros
};

class EmbeddingTables {
 public:
  // What becomes of ids that are in no row of their table.
  enum class OutOfRange {
    kError,
    kZero,  // rows of zeros, which count in a mean
  };

  // With a `copier`, rows are copied to huge pages (mapped_table.h).
  static Result<std::unique_ptr<EmbeddingTables>> Open(
      std::vector<TableDescription> tables, int64_t version,
      OutOfRange out_of_range = OutOfRange::kError, Executor* copier = nullptr);

  std::span<const MappedTable> tables() const { return tables_; }
  int64_t version() const { return version_; }

  // Keeps the version while it is in scope, for several calls of LookHeld. A
  // thread that has it must call neither Look nor Apply.
  std::shared_lock<WriterFirstLock> Hold() const {
    return std::shared_lock(lock_);
  }

  // What Hold locks, for those who cannot keep its result.
  WriterFirstLock& lock() const { return lock_; }

  // Answers all requests; the bits do not depend on the executor. Every float
  // of every `out` is written.
  //
  // Errors: InvalidArgument, nothing useful in `out`, for a table that is not
  // there, sizes that do not fit each other, row splits that do not ascend from
  // 0 to the number of ids, weights that are not finite or that are divided by
  // more than float32 can hold, and ids out of range if these are errors. Of
  // wrong ids it names the first.
  Result<void> Look(std::span<const Request> requests,
                    Executor& executor) const {
    const auto held = Hold();
    return LookHeld(requests, executor);
  }
  Result<void> LookHeld(std::span<const Request> requests,
                        Executor& executor) const;

  // Makes another version of the tables. Changes of one table may come in
  // several pieces, of which rows and deleted rows ascend from piece to piece.
  // Lookups are kept out only while rows are copied: pages of files are made
  // private before.
  //
  // Errors: InvalidArgument, nothing changed, if something does not fit.
  Result<void> Apply(std::span<const RowChanges> changes, int64_t version,
                     Executor& executor);

 private:
  EmbeddingTables(std::vector<MappedTable> tables, int64_t version,
                  OutOfRange out_of_range)
      : tables_(std::move(tables)),
        out_of_range_(out_of_range),
        version_(version) {}

  Result<void> Check(const Request& request) const;
  Result<void> Check(const RowChanges& changes) const;
  // Samples [begin, end) of a request.
  Result<void> LookUp(const Request& request, int64_t begin, int64_t end,
                      SampleRows& scratch) const;
  // The same, with all columns of the table, to `out`.
  Result<void> LookUpWhole(const Request& request, int64_t begin, int64_t end,
                           SampleRows& scratch, float* out) const;
  Result<void> WrongId(const Request& request, int64_t first_id,
                       int64_t last_id) const;

  const std::vector<MappedTable> tables_;
  const OutOfRange out_of_range_;
  mutable WriterFirstLock lock_;  // of the rows of all tables
  std::atomic<int64_t> version_;  // written under the lock
};

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_EMBEDDING_TABLES_H_
