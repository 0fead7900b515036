// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/open_file.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {
namespace {

// Of rows that a task copies: whole huge pages.
constexpr int64_t kBytesPerTask = 4 * kHugePageBytes;

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

// The rows of a part, and the memory that has them.
struct PartRows {
  Mapping memory;
  std::byte* data;
};

// Nothing, and errno says why, if there is no such memory.
Mapping Mmap(int64_t size, int flags, int descriptor, int64_t begin) {
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | flags, descriptor, begin);
  if (data == MAP_FAILED) return nullptr;
  return Mapping(static_cast<std::byte*>(data),
                 {.size = static_cast<size_t>(size)});
}

// In the pages of the file.
Result<PartRows> MapRows(const std::string& table, const FilePart& part,
                         const OpenFile& file, int64_t num_bytes) {
  const int64_t before = part.offset % sysconf(_SC_PAGESIZE);
  Mapping memory = Mmap(before + num_bytes, MAP_NORESERVE, file.descriptor(),
                        part.offset - before);
  if (memory == nullptr) {
    return FailedPrecondition("Table '", table, "': cannot map ", num_bytes,
                              " bytes of ", part.path, ": ", LastSystemError(),
                              ".");
  }
  std::byte* const data = memory.get() + before;
  return PartRows{std::move(memory), data};
}

// In new memory, from the beginning of a huge page on.
Result<PartRows> CopyRows(const std::string& table, const FilePart& part,
                          const OpenFile& file, int64_t num_bytes,
                          Executor& copier) {
  Mapping memory = Mmap(num_bytes + kHugePageBytes, MAP_ANONYMOUS, -1, 0);
  if (memory == nullptr) {
    return std::unexpected(Error{
        ErrorCode::kResourceExhausted,
        StrCat("Table '", table, "': there is no memory for a copy of ",
               num_bytes, " bytes of ", part.path, ": ", LastSystemError(),
               ". Give the process more, or open the tables without "
               "copy_to_huge_pages, which maps the file.")});
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  const std::span<std::byte> rows(
      memory.get() +
          (jte::RoundUp(address, uintptr_t{kHugePageBytes}) - address),
      num_bytes);
  AllowHugePages(rows);  // Which they get when they are written.
  const std::string expected =
      StrCat("rows ", part.first_row, " to ", part.first_row + part.rows,
             " of table '", table, "'");
  std::vector<Result<void>> done(CeilDiv(num_bytes, kBytesPerTask));
  copier.ParallelFor(std::ssize(done), [&part, &file, &expected, &done, rows,
                                        num_bytes](int64_t i) {
    const int64_t begin = i * kBytesPerTask;
    const int64_t size = std::min(kBytesPerTask, num_bytes - begin);
    done[i] =
        file.ReadTo(rows.subspan(begin, size), part.offset + begin, expected);
  });
  for (const Result<void>& result : done) JTE_RETURN_IF_ERROR(result);
  return PartRows{std::move(memory), rows.data()};
}

Result<PartRows> ReadPart(const std::string& table, const FilePart& part,
                          int64_t row_bytes, Executor* copier) {
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
  const int64_t num_bytes = part.rows * row_bytes;
  return copier == nullptr ? MapRows(table, part, file, num_bytes)
                           : CopyRows(table, part, file, num_bytes, *copier);
}

}  // namespace

void Unmap::operator()(std::byte* data) const { munmap(data, size); }

Result<MappedTable> MappedTable::Map(TableDescription description,
                                     Executor* copier) {
  JTE_RETURN_IF_ERROR(CheckDescription(description));
  MappedTable table;
  table.row_bytes_ = RowBytes(description.encoding, description.columns);
  table.zero_row_.resize(table.row_bytes_);
  table.description_ = std::move(description);
  for (const FilePart& part : table.description_.parts) {
    if (part.rows == 0) continue;
    JTE_ASSIGN_OR_RETURN(PartRows rows, ReadPart(table.description_.name, part,
                                                 table.row_bytes_, copier));
    table.mappings_.push_back(std::move(rows.memory));
    table.parts_.push_back({.first_row = part.first_row, .data = rows.data});
  }
  return table;
}

}  // namespace jte::serving
