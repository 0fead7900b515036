// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Versions of served tables on disk: which one is current, and what it is.
//
// What is read is checked before it is used, and is an error, which names the
// file, if it is not what docs/reference/served_tables.md says or what the file
// that names it says: sizes, headers, checksums of manifests and of deltas.
// serving/_versions.py is the same in Python.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_VERSIONS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_VERSIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {

// Number of a version, and the CRC-32 of its manifest, as in CURRENT.
struct VersionKey {
  int64_t number = 0;
  std::string crc32;

  bool operator==(const VersionKey&) const = default;
};

struct ServedFile {
  std::string path;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t offset = 0;  // the first byte of the rows
  int64_t bytes = 0;
  std::vector<std::string> crc32;  // of each 4 MiB
};

// A table of a version; of a delta, its changes.
struct ServedTable {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_bytes = 0;
  Encoding encoding = Encoding::kFloat32;
  convert::Combiner combiner = convert::Combiner::kSum;
  std::vector<ServedFile> files;  // in the order of rows
  int64_t changed_rows = 0;
  int64_t deleted_rows = 0;
};

struct ServedFeature {
  std::string table;
  int64_t columns = 0;  // of its activations: the first ones of the table
};

using Features = std::map<std::string, ServedFeature, std::less<>>;

// A manifest.
struct Version {
  std::string path;  // of the manifest
  VersionKey key;
  std::optional<VersionKey> base;  // of deltas
  std::string run;
  std::vector<ServedTable> tables;
  // None: they are not known.
  std::optional<Features> features;
};

// Rows of a table that a file of a delta changes.
struct Changes {
  std::vector<int64_t> rows;
  std::span<const std::byte> values;  // in `file`
  std::vector<int64_t> deleted;
  std::vector<std::byte> file;
};

Result<VersionKey> ReadCurrent(const std::string& directory);

// The current version and those that it is made of, the oldest first: a full
// one and deltas; or, if it is made of `stop_at`, the deltas after that.
Result<std::vector<Version>> ReadChain(
    const std::string& directory, const std::optional<VersionKey>& stop_at);

// Errors: a delta is of another run than a version that it follows, or has
// tables that are other ones there.
Result<void> CheckFollows(const Version& before, const Version& delta);

// Errors: a file of a full version has another size or header than it should
// have, or, if `verify`, other bytes.
Result<void> CheckFullFile(const ServedTable& table, const ServedFile& file,
                           bool verify);

// The changes of a table of a delta, file by file, every byte checked.
Result<std::vector<Changes>> ReadChanges(const ServedTable& table);

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_VERSIONS_H_
