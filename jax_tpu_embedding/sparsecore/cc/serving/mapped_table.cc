// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/open_file.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {
namespace {

Result<void> CheckDescription(const TableDescription& table) {
  if (table.rows < 0 || table.columns < 1 || table.columns >= kMaxColumns) {
    return InvalidArgument("Table '", table.name, "' has ", table.rows,
                           " rows and ", table.columns,
                           " columns, expected no fewer than 0 rows and 1 to ",
                           kMaxColumns - 1, " columns.");
  }
  int64_t next_row = 0;
  for (const FilePart& part : table.parts) {
    if (part.first_row != next_row || part.rows < 0 ||
        part.rows > table.rows - next_row) {
      return InvalidArgument("Table '", table.name, "': ", part.path, " has ",
                             part.rows, " rows from ", part.first_row,
                             " on, expected those from ", next_row,
                             " on, up to row ", table.rows, ".");
    }
    next_row += part.rows;
  }
  if (next_row != table.rows) {
    return InvalidArgument("Table '", table.name, "': its files have ",
                           next_row, " rows, expected ", table.rows, ".");
  }
  return {};
}

// Maps the pages that the rows of a part are in.
Result<std::span<std::byte>> MapPart(const std::string& table,
                                     const FilePart& part, int64_t row_bytes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const OpenFile file(part.path);
  struct stat status = {};
  if (file.descriptor() < 0 || fstat(file.descriptor(), &status) != 0) {
    return NotFound("Table '", table, "': cannot open ", part.path, ": ",
                    LastSystemError(), ".");
  }
  const bool is_possible = part.offset >= 0 && part.offset < kMost / 2 &&
                           part.rows <= kMost / 2 / row_bytes;
  if (!is_possible || status.st_size < part.offset + part.rows * row_bytes) {
    return InvalidArgument(
        "Table '", table, "': ", part.path, " has ", status.st_size,
        " bytes, expected ", part.rows, " rows of ", row_bytes,
        " bytes from byte ", part.offset,
        " on. It was cut off or is of another version; export it again.");
  }
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t begin = part.offset / page * page;
  const auto size =
      static_cast<size_t>(part.offset - begin + part.rows * row_bytes);
  void* const data =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
           file.descriptor(), begin);
  if (data == MAP_FAILED) {
    return FailedPrecondition("Table '", table, "': cannot map ", size,
                              " bytes of ", part.path, ": ", LastSystemError(),
                              ".");
  }
  return std::span(static_cast<std::byte*>(data), size);
}

}  // namespace

Result<MappedTable> MappedTable::Map(TableDescription description) {
  JTE_RETURN_IF_ERROR(CheckDescription(description));
  MappedTable table;
  table.row_bytes_ = RowBytes(description.encoding, description.columns);
  table.zero_row_.resize(table.row_bytes_);
  table.description_ = std::move(description);
  table.mappings_.reserve(table.description_.parts.size());
  for (const FilePart& part : table.description_.parts) {
    if (part.rows == 0) continue;
    JTE_ASSIGN_OR_RETURN(
        const std::span<std::byte> mapping,
        MapPart(table.description_.name, part, table.row_bytes_));
    table.mappings_.push_back(mapping);
    // The rows are what ends the mapping.
    table.parts_.push_back({.first_row = part.first_row,
                            .data = mapping.data() + mapping.size() -
                                    part.rows * table.row_bytes_});
  }
  return table;
}

MappedTable::~MappedTable() {
  for (const std::span<std::byte> mapping : mappings_) {
    munmap(mapping.data(), mapping.size());
  }
}

}  // namespace jte::serving
