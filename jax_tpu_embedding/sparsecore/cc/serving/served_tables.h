// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Served tables by their directory alone, for servers in C++.
//
//   JTE_ASSIGN_OR_RETURN(const auto served,
//                        ServedTables::Open("/served", {}, executor));
//   // For each request, by any thread:
//   const auto now = served->Now();
//   JTE_ASSIGN_OR_RETURN(const auto clicked, now->Feature("clicked"));
//   Request request = {.table = clicked.table,
//                      .kind = Request::Kind::kMatrix,
//                      .columns = clicked.columns, ...};
//   JTE_RETURN_IF_ERROR(now->rows->Look({&request, 1}, executor));
//   // From time to time, by one thread:
//   JTE_ASSIGN_OR_RETURN(const bool is_newer, served->Refresh(executor));
//
// It reads what lib/export writes (versions.h), and goes from version to
// version as the Python module serving.embedding_tables does: deltas change
// rows in place, and where that cannot be done a full version takes the place
// of the tables.
//
// Threading: everything may be called by any thread at any time. Calls of
// Refresh wait for each other, and lookups for neither.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_SERVED_TABLES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_SERVED_TABLES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/versions.h"

namespace jte::serving {

class ServedTables {
 public:
  struct Options {
    // Whether to read all rows and compare them with their checksums. Deltas
    // always are.
    bool verify = false;
    EmbeddingTables::OutOfRange out_of_range =
        EmbeddingTables::OutOfRange::kError;
    // Whether to copy the rows to huge pages, where they are found faster than
    // in most files of a disk, instead of mapping the files. Every process then
    // needs memory for all rows, and a Refresh that loads a full version for
    // both versions.
    bool copy_to_huge_pages = false;
  };

  // A full version in memory, which deltas change in place. It stays usable
  // after another full one has taken its place.
  struct Tables {
    std::unique_ptr<EmbeddingTables> rows;
    Version full;

    // What Request::table and Request::columns are for a feature.
    struct FeatureRows {
      int table;
      int64_t columns;
    };

    // What Request::table is for a table, and what a request is for a feature.
    //
    // Errors: NotFound, with the names that there are.
    Result<int> Table(std::string_view name) const;
    Result<FeatureRows> Feature(std::string_view name) const;
  };

  // The current version of a directory.
  //
  // Errors: InvalidArgument, with the file, if one is missing, damaged or of
  // another version. ResourceExhausted, with the table or the directory: there
  // is no memory.
  static Result<std::unique_ptr<ServedTables>> Open(std::string directory,
                                                    Options options,
                                                    Executor& executor);

  std::shared_ptr<const Tables> Now() const;

  // Goes to the current version; whether that is another one. A delta that is
  // damaged is not used, nor are those after it: Problem says why, and the next
  // call tries again.
  //
  // Errors: as of Open; the tables stay as they are.
  Result<bool> Refresh(Executor& executor);

  // Why the last Open or Refresh did not get to the current version, its error
  // if that was one; else empty.
  std::string Problem() const;

 private:
  ServedTables(std::string directory, Options options)
      : directory_(std::move(directory)), options_(options) {}

  // Refresh, but for the Problem of an error.
  Result<bool> Update(Executor& executor);
  Result<void> GoToCurrent(Executor& executor);
  Result<std::shared_ptr<const Tables>> Load(const Version& full,
                                             Executor& executor) const;
  Result<VersionKey> Apply(const std::shared_ptr<const Tables>& tables,
                           VersionKey key, std::span<const Version> deltas,
                           Executor& executor);

  const std::string directory_;
  const Options options_;
  std::mutex refreshing_;
  std::optional<VersionKey> key_;  // of the version; under refreshing_

  mutable std::mutex mutex_;
  std::shared_ptr<const Tables> now_;  // under mutex_
  std::string problem_;                // under mutex_
};

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_SERVED_TABLES_H_
