// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The encoded rows of one table: in files that are mapped into memory, or
// copied from them to huge pages.
//
// Mappings of files are private: changed rows are in pages of this process, all
// others in those of the page cache, which every process shares. Nothing is
// read when a table is mapped. Files may be renamed or removed meanwhile, but
// nobody may shorten them: what was cut off ends the process.
//
// A copy is memory of this process alone, as much as the rows have bytes. Files
// are not used once it is made, and one that is shortened before is an error.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_MAPPED_TABLE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_MAPPED_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
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

// Memory that mmap gave.
struct Unmap {
  size_t size = 0;
  void operator()(std::byte* data) const;
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

class MappedTable {
 public:
  // Maps the files; with a `copier`, reads them to one piece of memory in huge
  // pages, or in small ones where the system has no others.
  //
  // Errors: InvalidArgument, with the file, for parts that leave rows out or
  // have them twice; a file that cannot be read, or is shorter than its rows
  // need. ResourceExhausted: there is no memory, for a copy or to open files.
  static Result<MappedTable> Map(TableDescription description,
                                 Executor* copier = nullptr);

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

  // Fill parts_ and mappings_.
  Result<void> MapFiles();
  Result<void> CopyFiles(Executor& copier);

  TableDescription description_;
  int64_t row_bytes_ = 0;
  std::vector<Part> parts_;  // of a copy, one
  std::vector<Mapping> mappings_;
  std::vector<std::byte> zero_row_;
};

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_MAPPED_TABLE_H_
