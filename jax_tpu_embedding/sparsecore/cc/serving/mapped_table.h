// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The encoded rows of one table, in files that are mapped into memory.
//
// Mappings are private: changed rows are in pages of this process, all others
// in those of the page cache, which every process shares. Nothing is read when
// a table is mapped. Files may be renamed or removed meanwhile, but nobody may
// shorten them: what was cut off ends the process.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_MAPPED_TABLE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_MAPPED_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {

// Consecutive rows in a file: row first_row begins at byte `offset`.
struct FilePart {
  std::string path;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t offset = 0;
};

struct TableDescription {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  Encoding encoding = Encoding::kFloat32;
  convert::Combiner combiner = convert::Combiner::kSum;
  std::vector<FilePart> parts;  // in the order of rows, which they all have
};

class MappedTable {
 public:
  // Errors: parts that leave rows out or have them twice; a file that cannot be
  // read, or is shorter than its rows need.
  static Result<MappedTable> Map(TableDescription description);

  ~MappedTable();
  MappedTable(MappedTable&& other) noexcept { *this = std::move(other); }
  MappedTable& operator=(MappedTable&& other) noexcept {
    std::swap(description_, other.description_);
    std::swap(row_bytes_, other.row_bytes_);
    std::swap(parts_, other.parts_);
    std::swap(mappings_, other.mappings_);
    std::swap(zero_row_, other.zero_row_);
    return *this;
  }

  const std::string& name() const { return description_.name; }
  int64_t rows() const { return description_.rows; }
  int64_t columns() const { return description_.columns; }
  Encoding encoding() const { return description_.encoding; }
  convert::Combiner combiner() const { return description_.combiner; }
  int64_t row_bytes() const { return row_bytes_; }

  // Requires: 0 <= row <= rows(). That of rows() reads as zeros.
  const std::byte* Row(int64_t row) const {
    if (row == rows()) return zero_row_.data();
    return MutableRow(row);
  }

  // Requires: 0 <= row < rows().
  std::byte* MutableRow(int64_t row) const {
    const Part* part = parts_.data();
    if (parts_.size() > 1) {
      part =
          &*(std::ranges::upper_bound(parts_, row, {}, &Part::first_row) - 1);
    }
    return part->data + (row - part->first_row) * row_bytes_;
  }

 private:
  struct Part {
    int64_t first_row;
    std::byte* data;
  };

  MappedTable() = default;

  TableDescription description_;
  int64_t row_bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<std::span<std::byte>> mappings_;
  std::vector<std::byte> zero_row_;
};

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_MAPPED_TABLE_H_
