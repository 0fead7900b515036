// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/served_tables.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/versions.h"

namespace jte::serving {
namespace {

// How often a version is read again that was replaced meanwhile.
constexpr int kAttempts = 5;

Result<void> ApplyDelta(const ServedTables::Tables& tables,
                        const Version& delta, Executor& executor) {
  JTE_RETURN_IF_ERROR(CheckFollows(tables.full, delta));
  std::vector<std::vector<Changes>> read;
  std::vector<RowChanges> changes;
  for (const ServedTable& table : delta.tables) {
    JTE_ASSIGN_OR_RETURN(std::vector<Changes> of_table, ReadChanges(table));
    JTE_ASSIGN_OR_RETURN(const int number, tables.Table(table.name));
    read.push_back(std::move(of_table));
    for (const Changes& of_file : read.back()) {
      changes.push_back({.table = number,
                         .rows = of_file.rows,
                         .values = of_file.values,
                         .deleted = of_file.deleted});
    }
  }
  const auto applied = tables.rows->Apply(changes, delta.key.number, executor);
  if (applied) return {};
  return InvalidArgument(delta.path, ": ", applied.error().message);
}

}  // namespace

Result<int> ServedTables::Tables::Table(std::string_view name) const {
  const auto found = std::ranges::find(full.tables, name, &ServedTable::name);
  if (found != full.tables.end()) {
    return static_cast<int>(found - full.tables.begin());
  }
  std::string names;
  for (const ServedTable& table : full.tables) {
    names += StrCat(names.empty() ? "'" : ", '", table.name, "'");
  }
  return NotFound("There is no table '", name, "' in ", full.path,
                  "; there are ", names.empty() ? "none" : names, ".");
}

Result<ServedTables::Tables::FeatureRows> ServedTables::Tables::Feature(
    std::string_view name) const {
  if (!full.features) {
    return NotFound(full.path, " names no features, '", name,
                    "' among them. Export with feature_specs, or look up by "
                    "table.");
  }
  const auto found = full.features->find(name);
  if (found != full.features->end()) {
    JTE_ASSIGN_OR_RETURN(const int table, Table(found->second.table));
    return FeatureRows{.table = table, .columns = found->second.columns};
  }
  std::string names;
  for (const auto& [other, feature] : *full.features) {
    names += StrCat(names.empty() ? "'" : ", '", other, "'");
  }
  return NotFound("There is no feature '", name, "' in ", full.path,
                  "; there are ", names.empty() ? "none" : names, ".");
}

Result<std::unique_ptr<ServedTables>> ServedTables::Open(std::string directory,
                                                         Options options,
                                                         Executor& executor) {
  std::unique_ptr<ServedTables> served(
      new ServedTables(std::move(directory), options));
  JTE_RETURN_IF_ERROR(served->Refresh(executor));
  return served;
}

std::shared_ptr<const ServedTables::Tables> ServedTables::Now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

std::string ServedTables::Problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

Result<bool> ServedTables::Refresh(Executor& executor) {
  const std::lock_guard one_at_a_time(refreshing_);
  Result<bool> is_newer = false;
  // A thread that refreshes catches nothing, and would end the process.
  try {
    is_newer = Update(executor);
  } catch (const std::bad_alloc&) {
    is_newer = std::unexpected(
        Error{ErrorCode::kResourceExhausted,
              StrCat(directory_,
                     ": there is no memory for its current version. Give the "
                     "process more.")});
  }
  if (!is_newer) {
    const std::lock_guard lock(mutex_);
    problem_ = is_newer.error().message;
  }
  return is_newer;
}

Result<bool> ServedTables::Update(Executor& executor) {
  const std::optional<VersionKey> before = key_;
  for (int attempt = 1;; ++attempt) {
    JTE_ASSIGN_OR_RETURN(const VersionKey current, ReadCurrent(directory_));
    {
      const std::lock_guard lock(mutex_);
      problem_.clear();
    }
    if (current == key_) return key_ != before;
    const Result<void> result = GoToCurrent(executor);
    if (result) return key_ != before;
    if (attempt == kAttempts) return std::unexpected(result.error());
    // What was replaced meanwhile may be gone.
    JTE_ASSIGN_OR_RETURN(const VersionKey newer, ReadCurrent(directory_));
    if (newer == current) return std::unexpected(result.error());
  }
}

Result<void> ServedTables::GoToCurrent(Executor& executor) {
  JTE_ASSIGN_OR_RETURN(const std::vector<Version> chain,
                       ReadChain(directory_, key_));
  if (chain.empty() || chain.front().base) {
    JTE_ASSIGN_OR_RETURN(key_, Apply(Now(), *key_, chain, executor));
    return {};
  }
  const Version& full = chain.front();
  JTE_ASSIGN_OR_RETURN(std::shared_ptr<const Tables> tables,
                       Load(full, executor));
  // Seen when its deltas are there too.
  JTE_ASSIGN_OR_RETURN(
      key_, Apply(tables, full.key, std::span(chain).subspan(1), executor));
  const std::lock_guard lock(mutex_);
  now_ = std::move(tables);
  return {};
}

Result<std::shared_ptr<const ServedTables::Tables>> ServedTables::Load(
    const Version& full, Executor& executor) const {
  std::vector<TableDescription> descriptions;
  for (const ServedTable& table : full.tables) {
    TableDescription& description =
        descriptions.emplace_back(TableDescription{.name = table.name,
                                                   .rows = table.rows,
                                                   .columns = table.columns,
                                                   .encoding = table.encoding,
                                                   .combiner = table.combiner,
                                                   .parts = {}});
    for (const ServedFile& file : table.files) {
      JTE_RETURN_IF_ERROR(CheckFullFile(table, file, options_.verify));
      description.parts.push_back({.path = file.path,
                                   .first_row = file.first_row,
                                   .rows = file.rows,
                                   .offset = file.offset});
    }
  }
  JTE_ASSIGN_OR_RETURN(
      auto rows,
      EmbeddingTables::Open(std::move(descriptions), full.key.number,
                            options_.out_of_range,
                            options_.copy_to_huge_pages ? &executor : nullptr));
  return std::make_shared<const Tables>(Tables{std::move(rows), full});
}

// Applies deltas, up to one that is damaged; returns what is reached.
Result<VersionKey> ServedTables::Apply(
    const std::shared_ptr<const Tables>& tables, VersionKey key,
    std::span<const Version> deltas, Executor& executor) {
  for (const Version& delta : deltas) {
    const auto applied = ApplyDelta(*tables, delta, executor);
    if (!applied) {
      JTE_ASSIGN_OR_RETURN(const VersionKey current, ReadCurrent(directory_));
      if (current != deltas.back().key) {
        return std::unexpected(applied.error());  // It may be gone.
      }
      const std::lock_guard lock(mutex_);
      problem_ = StrCat(directory_, ": staying at version ", key.number,
                        ", since version ", delta.key.number,
                        " cannot be used: ", applied.error().message);
      return key;
    }
    key = delta.key;
    if (tables == Now()) key_ = key;  // Also if a later one is an error.
  }
  return key;
}

}  // namespace jte::serving
