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
#include <new>
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

// Of a file or a table: more than any has, and the sum of two is a number.
constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max() / 2;

int64_t PageBytes() { return sysconf(_SC_PAGESIZE); }

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

// Nothing, and errno says why, if there is no such memory.
Mapping Mmap(int64_t size, int flags, int descriptor, int64_t begin) {
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | flags, descriptor, begin);
  if (data == MAP_FAILED) return nullptr;
  return Mapping(static_cast<std::byte*>(data),
                 {.size = static_cast<size_t>(size)});
}

// New memory; from the beginning of a huge page on, if it has room for one.
Mapping NewMemory(int64_t size) {
  constexpr auto kHugePage = static_cast<int64_t>(kHugePageBytes);
  if (size < kHugePage) return Mmap(size, MAP_ANONYMOUS, -1, 0);
  Mapping memory = Mmap(size + kHugePage, MAP_ANONYMOUS, -1, 0);
  if (memory == nullptr) return nullptr;
  // What is too much before and after it goes back.
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  const auto before = static_cast<int64_t>(
      jte::RoundUp(address, uintptr_t{kHugePageBytes}) - address);
  const int64_t end = jte::RoundUp<int64_t>(before + size, PageBytes());
  const int64_t after = size + kHugePage - end;
  std::byte* const data = memory.release();
  if (before > 0) munmap(data, before);
  if (after > 0) munmap(data + end, after);
  Mapping result(data + before, {.size = static_cast<size_t>(size)});
  AllowHugePages({result.get(), result.get_deleter().size});
  return result;
}

std::unexpected<Error> CannotOpen(const std::string& table,
                                  const FilePart& part) {
  return InvalidArgument("Table '", table, "': cannot open ", part.path, ": ",
                         LastSystemError(), ".");
}

// There is no memory `what` the files, for `why`; `or_what` is what else to do.
std::unexpected<Error> NoMemory(const TableDescription& table,
                                const std::string& what, const std::string& why,
                                const char* or_what = "") {
  std::string files = table.parts.empty() ? "no file" : table.parts[0].path;
  if (table.parts.size() > 1) {
    files += StrCat(" and ", table.parts.size() - 1, " more");
  }
  return std::unexpected(
      Error{ErrorCode::kResourceExhausted,
            StrCat("Table '", table.name, "': there is no memory ", what, files,
                   ": ", why, ". Give the process more", or_what, ".")});
}

// Errors: the file is not there, or is shorter than its rows need.
Result<void> CheckPart(const std::string& table, const FilePart& part,
                       const OpenFile& file, int64_t row_bytes) {
  struct stat status = {};
  if (file.descriptor() < 0 || fstat(file.descriptor(), &status) != 0) {
    return CannotOpen(table, part);
  }
  const bool is_possible = part.offset >= 0 && part.offset < kMostBytes &&
                           part.rows <= kMostBytes / row_bytes;
  if (!is_possible || status.st_size < part.offset + part.rows * row_bytes) {
    return InvalidArgument(
        "Table '", table, "': ", part.path, " has ", status.st_size,
        " bytes, expected ", part.rows, " rows of ", row_bytes,
        " bytes from byte ", part.offset,
        " on. It was cut off or is of another version; export it again.");
  }
  return {};
}

// What one task copies: bytes of a file to those of the table, from `to` on.
struct Piece {
  const FilePart* part;
  int64_t begin;  // in the file
  int64_t size;
  int64_t to;
};

Result<void> CopyPiece(const std::string& table, const Piece& piece,
                       std::byte* rows) {
  const FilePart& part = *piece.part;
  // By each task: a table may have more files than a process may open.
  const OpenFile file(part.path);
  if (file.descriptor() < 0) return CannotOpen(table, part);
  return file.ReadTo(
      {rows + piece.to, static_cast<size_t>(piece.size)}, piece.begin,
      StrCat("rows ", part.first_row, " to ", part.first_row + part.rows,
             " of table '", table, "'"));
}

}  // namespace

void Unmap::operator()(std::byte* data) const { munmap(data, size); }

Result<MappedTable> MappedTable::Map(TableDescription description,
                                     Executor* copier) {
  JTE_RETURN_IF_ERROR(CheckDescription(description));
  MappedTable table;
  table.row_bytes_ = RowBytes(description.encoding, description.columns);
  table.description_ = std::move(description);
  try {
    JTE_RETURN_IF_ERROR(copier == nullptr ? table.MapFiles()
                                          : table.CopyFiles(*copier));
    table.zero_row_.resize(table.row_bytes());
  } catch (const std::bad_alloc&) {
    return NoMemory(table.description_, "to open ", "allocation failed");
  }
  return table;
}

Result<void> MappedTable::MapFiles() {
  for (const FilePart& part : description_.parts) {
    if (part.rows == 0) continue;
    const OpenFile file(part.path);
    JTE_RETURN_IF_ERROR(CheckPart(name(), part, file, row_bytes()));
    const int64_t before = part.offset % PageBytes();
    const int64_t num_bytes = part.rows * row_bytes();
    Mapping memory = Mmap(before + num_bytes, MAP_NORESERVE, file.descriptor(),
                          part.offset - before);
    if (memory == nullptr) {
      return InvalidArgument("Table '", name(), "': cannot map ", num_bytes,
                             " bytes of ", part.path, ": ", LastSystemError(),
                             ".");
    }
    parts_.push_back(
        {.first_row = part.first_row, .data = memory.get() + before});
    mappings_.push_back(std::move(memory));
  }
  return {};
}

Result<void> MappedTable::CopyFiles(Executor& copier) {
  if (rows() == 0) return {};
  // Of all files, for all threads at once; and to one piece of memory, so that
  // no lookup has to find the file of a row.
  std::vector<Piece> pieces;
  for (const FilePart& part : description_.parts) {
    if (part.rows == 0) continue;
    JTE_RETURN_IF_ERROR(
        CheckPart(name(), part, OpenFile(part.path), row_bytes()));
    const int64_t size = part.rows * row_bytes();
    for (int64_t begin = 0; begin < size; begin += kBytesPerTask) {
      pieces.push_back({.part = &part,
                        .begin = part.offset + begin,
                        .size = std::min(kBytesPerTask, size - begin),
                        .to = part.first_row * row_bytes() + begin});
    }
  }
  if (rows() > kMostBytes / row_bytes()) {
    return InvalidArgument("Table '", name(), "' has ", rows(), " rows of ",
                           row_bytes(), " bytes, expected at most ", kMostBytes,
                           " bytes in all.");
  }
  const int64_t num_bytes = rows() * row_bytes();
  Mapping memory = NewMemory(num_bytes);
  if (memory == nullptr) {
    return NoMemory(
        description_, StrCat("for a copy of ", num_bytes, " bytes of "),
        LastSystemError(),
        ", or open the tables without copy_to_huge_pages, which maps files");
  }
  std::vector<Result<void>> done(pieces.size());
  copier.ParallelFor(std::ssize(pieces),
                     [this, &pieces, &done, &memory](int64_t i) {
                       done[i] = CopyPiece(name(), pieces[i], memory.get());
                     });
  for (const Result<void>& result : done) JTE_RETURN_IF_ERROR(result);
  parts_.push_back({.first_row = 0, .data = memory.get()});
  mappings_.push_back(std::move(memory));
  return {};
}

}  // namespace jte::serving
