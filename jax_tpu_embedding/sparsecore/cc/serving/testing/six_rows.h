// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Small tables in files, for tests.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_TESTING_SIX_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_TESTING_SIX_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {

// A file with rows after `offset` other bytes.
inline std::string WriteRows(const std::string& name, Encoding encoding,
                             int64_t columns, const std::vector<float>& values,
                             int64_t offset) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream file(path, std::ios::binary);
  file << std::string(offset, 'x');
  std::string row(RowBytes(encoding, columns), '\0');
  for (size_t i = 0; i < values.size(); i += columns) {
    EncodeRow(encoding, std::span(values).subspan(i, columns),
              reinterpret_cast<std::byte*>(row.data()));
    file << row;
  }
  return path;
}

inline std::vector<std::byte> Encoded(Encoding encoding, int64_t columns,
                                      const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < values.size(); i += columns) {
    bytes.resize(bytes.size() + RowBytes(encoding, columns));
    EncodeRow(encoding, std::span(values).subspan(i, columns),
              bytes.data() + bytes.size() - RowBytes(encoding, columns));
  }
  return bytes;
}

// 6 rows of 2 columns, (10 r, 10 r + 1), in two files.
inline TableDescription SixRows() {
  const std::string first =
      WriteRows("first", Encoding::kFloat32, 2, {0, 1, 10, 11}, 64);
  const std::string second = WriteRows("second", Encoding::kFloat32, 2,
                                       {20, 21, 30, 31, 40, 41, 50, 51}, 4160);
  return {.name = "items",
          .rows = 6,
          .columns = 2,
          .encoding = Encoding::kFloat32,
          .combiner = convert::Combiner::kMean,
          .parts = {{first, 0, 2, 64}, {second, 2, 4, 4160}}};
}

// The error of opening a table; empty: there is none.
inline std::string OpenError(TableDescription table,
                             Executor* copier = nullptr) {
  const auto tables = EmbeddingTables::Open(
      {std::move(table)}, 0, EmbeddingTables::OutOfRange::kError, copier);
  return tables ? "" : tables.error().message;
}

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_TESTING_SIX_ROWS_H_
