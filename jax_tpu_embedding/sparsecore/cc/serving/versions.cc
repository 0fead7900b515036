// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/versions.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/crc32.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/json.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/open_file.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {
namespace {

constexpr std::string_view kFormat = "jax_tpu_embedding.tables";
constexpr int64_t kFormatVersion = 1;
constexpr int64_t kCheckedBytes = 4 << 20;
constexpr int64_t kMaxHeaderBytes = 100 << 20;
// More than any writer needs. What is larger is not read, as it may not fit
// into memory.
constexpr int64_t kMaxCurrentBytes = 100;
constexpr int64_t kMaxManifestBytes = 1 << 30;
// Of any number in a file: sums of some of them fit 64 bits.
constexpr int64_t kMaxNumber = int64_t{1} << 60;

// Types of tensors that have rows of an encoding, in the order of Encoding.
constexpr std::string_view kTensorTypes[] = {"F32", "BF16", "F16", "U8", "U8"};

Result<std::vector<std::byte>> ReadFile(const std::string& path,
                                        std::string_view expected,
                                        int64_t max_bytes) {
  const OpenFile file(path);
  JTE_ASSIGN_OR_RETURN(const int64_t size, file.Size(expected));
  if (size > max_bytes) {
    return InvalidArgument(path, ": it has ", size, " bytes, expected ",
                           expected, ", of at most ", max_bytes, ".");
  }
  return file.Read(0, size, expected);
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// As 0000beef.
std::string Hexadecimal(uint32_t crc32) {
  std::array<char, 9> text;
  std::snprintf(text.data(), text.size(), "%08" PRIx32, crc32);
  return text.data();
}

// As v000007.
std::string DirectoryOf(int64_t number) {
  const std::string digits = StrCat(number);
  return "v" + std::string(std::max<int64_t>(6 - std::ssize(digits), 0), '0') +
         digits;
}

// An object of a manifest or header, whose fields are read with their types.
class Fields {
 public:
  static Result<Fields> Of(const std::string& path, std::string where,
                           const Json* value) {
    const auto* object =
        value == nullptr ? nullptr : std::get_if<JsonObject>(&value->value);
    if (object == nullptr) {
      return InvalidArgument(path, ": ", where, " is ", Described(value),
                             ", expected an object.");
    }
    return Fields(path, std::move(where), *object);
  }

  const std::string& where() const { return where_; }
  const JsonObject& object() const { return *object_; }

  template <typename... Parts>
  std::unexpected<Error> Wrong(const Parts&... parts) const {
    return InvalidArgument(path_, ": ", parts...);
  }

  bool Has(std::string_view key) const {
    return Find(*object_, key) != nullptr;
  }

  template <typename T>
  Result<const T*> Get(std::string_view key, std::string_view expected) const {
    const Json* value = Find(*object_, key);
    const T* typed = value == nullptr ? nullptr : std::get_if<T>(&value->value);
    if (typed == nullptr) {
      return Wrong("'", key, "' of ", where_, " is ", Described(value),
                   ", expected ", expected, ".");
    }
    return typed;
  }

  Result<int64_t> Integer(std::string_view key, int64_t least = 0) const {
    const std::string expected = StrCat("an integer from ", least, " to 2^60");
    JTE_ASSIGN_OR_RETURN(const int64_t* value, Get<int64_t>(key, expected));
    if (*value < least || *value > kMaxNumber) {
      return Wrong("'", key, "' of ", where_, " is ", *value, ", expected ",
                   expected, ".");
    }
    return *value;
  }

  Result<std::string> String(std::string_view key) const {
    JTE_ASSIGN_OR_RETURN(const std::string* value,
                         Get<std::string>(key, "a string"));
    return *value;
  }

  Result<Fields> Object(std::string_view key) const {
    return Of(path_, StrCat("'", key, "' of ", where_), Find(*object_, key));
  }

 private:
  Fields(const std::string& path, std::string where, const JsonObject& object)
      : path_(path), where_(std::move(where)), object_(&object) {}

  std::string path_;
  std::string where_;
  const JsonObject* object_;
};

// Errors of names in a file have the file.
template <typename T>
Result<T> InFile(const std::string& path, const std::string& where,
                 Result<T> result) {
  if (result) return result;
  return InvalidArgument(path, ": ", where, ": ", result.error().message);
}

Result<ServedFile> ReadServedFile(const std::string& version,
                                  const Fields& fields, int64_t row_bytes) {
  JTE_ASSIGN_OR_RETURN(const std::string name, fields.String("name"));
  if (name.empty() || name == "." || name == ".." ||
      name.find('/') != name.npos || name.find('\0') != name.npos) {
    return fields.Wrong("'name' of ", fields.where(), " is '", name,
                        "', expected a file beside it.");
  }
  ServedFile file;
  file.path = version + "/" + name;
  JTE_ASSIGN_OR_RETURN(file.first_row, fields.Integer("first_row"));
  JTE_ASSIGN_OR_RETURN(file.rows, fields.Integer("rows"));
  JTE_ASSIGN_OR_RETURN(file.offset, fields.Integer("offset"));
  JTE_ASSIGN_OR_RETURN(file.bytes, fields.Integer("bytes"));
  if (file.offset > file.bytes ||
      file.rows > (file.bytes - file.offset) / row_bytes) {
    return fields.Wrong(fields.where(), ": ", file.rows, " rows of ", row_bytes,
                        " bytes from byte ", file.offset, " on do not fit its ",
                        file.bytes, " bytes.");
  }
  JTE_ASSIGN_OR_RETURN(const JsonArray* checksums,
                       fields.Get<JsonArray>("crc32", "a list"));
  for (const Json& checksum : *checksums) {
    const auto* text = std::get_if<std::string>(&checksum.value);
    if (text == nullptr) {
      return fields.Wrong("'crc32' of ", fields.where(), " has ",
                          Described(&checksum), ", expected a string.");
    }
    file.crc32.push_back(*text);
  }
  const int64_t expected = CeilDiv(file.bytes, kCheckedBytes);
  if (std::ssize(file.crc32) != expected) {
    return fields.Wrong(fields.where(), " has ", file.crc32.size(),
                        " checksums, expected ", expected,
                        ", one for each 4 MiB.");
  }
  return file;
}

// `files` of a full version have all rows, those of a delta what changed.
Result<void> CheckRowsOfFiles(const ServedTable& table, const Fields& fields,
                              bool is_delta) {
  const int64_t expected = is_delta ? table.changed_rows : table.rows;
  int64_t next_row = 0;
  for (const ServedFile& file : table.files) {
    if (!is_delta && file.first_row != next_row) {
      return fields.Wrong(fields.where(), ": ", file.path, " begins with row ",
                          file.first_row, ", expected ", next_row, ".");
    }
    next_row = std::min(next_row + file.rows, kMaxNumber);
  }
  if (next_row != expected) {
    return fields.Wrong(fields.where(), ": its files have ", next_row,
                        " rows, expected ", expected, ".");
  }
  const bool has_changes = table.changed_rows + table.deleted_rows > 0;
  if (is_delta && table.files.empty() == has_changes) {
    return fields.Wrong(fields.where(), " has ", table.files.size(),
                        " files for ", table.changed_rows, " changed and ",
                        table.deleted_rows, " deleted rows.");
  }
  return {};
}

Result<ServedTable> ReadServedTable(const std::string& path,
                                    const std::string& version,
                                    const std::string& name,
                                    const Fields& fields, bool is_delta) {
  ServedTable table;
  table.name = name;
  JTE_ASSIGN_OR_RETURN(table.rows, fields.Integer("rows"));
  JTE_ASSIGN_OR_RETURN(table.columns, fields.Integer("columns", 1));
  JTE_ASSIGN_OR_RETURN(const std::string encoding, fields.String("encoding"));
  JTE_ASSIGN_OR_RETURN(table.encoding,
                       InFile(path, fields.where(), ParseEncoding(encoding)));
  JTE_ASSIGN_OR_RETURN(const std::string combiner, fields.String("combiner"));
  JTE_ASSIGN_OR_RETURN(
      table.combiner,
      InFile(path, fields.where(), convert::ParseCombiner(combiner)));
  if (table.columns >= kMaxColumns) {
    return fields.Wrong(fields.where(), " has ", table.columns,
                        " columns, expected fewer than 2^24.");
  }
  JTE_ASSIGN_OR_RETURN(table.row_bytes, fields.Integer("row_bytes"));
  const int64_t expected = RowBytes(table.encoding, table.columns);
  if (table.row_bytes != expected) {
    return fields.Wrong("'row_bytes' of ", fields.where(), " is ",
                        table.row_bytes, ", expected ", expected, " for ",
                        table.columns, " columns of ", encoding, ".");
  }
  if (is_delta) {
    JTE_ASSIGN_OR_RETURN(table.changed_rows, fields.Integer("changed_rows"));
    JTE_ASSIGN_OR_RETURN(table.deleted_rows, fields.Integer("deleted_rows"));
  }
  JTE_ASSIGN_OR_RETURN(const JsonArray* files,
                       fields.Get<JsonArray>("files", "a list"));
  for (size_t i = 0; i < files->size(); ++i) {
    JTE_ASSIGN_OR_RETURN(
        const Fields file,
        Fields::Of(path, StrCat("file ", i, " of ", fields.where()),
                   &(*files)[i]));
    JTE_ASSIGN_OR_RETURN(ServedFile read,
                         ReadServedFile(version, file, table.row_bytes));
    table.files.push_back(std::move(read));
  }
  JTE_RETURN_IF_ERROR(CheckRowsOfFiles(table, fields, is_delta));
  return table;
}

Result<std::optional<Features>> ReadFeatures(
    const Fields& manifest, const std::vector<ServedTable>& tables) {
  std::optional<Features> result;
  if (!manifest.Has("features")) return result;
  result.emplace();
  JTE_ASSIGN_OR_RETURN(const Fields features, manifest.Object("features"));
  for (const auto& [name, value] : features.object()) {
    JTE_ASSIGN_OR_RETURN(const Fields fields, features.Object(name));
    JTE_ASSIGN_OR_RETURN(const std::string name_of_table,
                         fields.String("table"));
    const auto table =
        std::ranges::find(tables, name_of_table, &ServedTable::name);
    if (table == tables.end()) {
      return fields.Wrong("'table' of ", fields.where(), " is '", name_of_table,
                          "', which is none of its tables.");
    }
    int64_t columns = table->columns;
    if (fields.Has("columns")) {
      JTE_ASSIGN_OR_RETURN(columns, fields.Integer("columns", 1));
    }
    if (columns > table->columns) {
      return fields.Wrong(fields.where(), " has ", columns,
                          " columns, expected at most the ", table->columns,
                          " of table '", table->name, "'.");
    }
    result->emplace(name, ServedFeature{table->name, columns});
  }
  return result;
}

Result<Version> ReadVersion(const std::string& directory,
                            const VersionKey& key) {
  const std::string version_path = directory + "/" + DirectoryOf(key.number);
  const std::string path = version_path + "/manifest.json";
  JTE_ASSIGN_OR_RETURN(
      const std::vector<std::byte> content,
      ReadFile(path, StrCat("the manifest of version ", key.number),
               kMaxManifestBytes));
  const std::string crc32 = Hexadecimal(Crc32(content));
  if (crc32 != key.crc32) {
    return InvalidArgument(path, ": its crc32 is ", crc32, ", expected ",
                           key.crc32, ": it is damaged, or of another version ",
                           key.number, ".");
  }
  JTE_ASSIGN_OR_RETURN(const Json json,
                       InFile(path, "it is no JSON", ParseJson(Text(content))));
  JTE_ASSIGN_OR_RETURN(const Fields manifest,
                       Fields::Of(path, "the manifest", &json));
  JTE_ASSIGN_OR_RETURN(const std::string format, manifest.String("format"));
  if (format != kFormat) {
    return manifest.Wrong("'format' of the manifest is '", format,
                          "', expected '", kFormat, "'.");
  }
  JTE_ASSIGN_OR_RETURN(const int64_t format_version,
                       manifest.Integer("format_version"));
  if (format_version != kFormatVersion) {
    return manifest.Wrong("its format has version ", format_version,
                          ", expected ", kFormatVersion,
                          ". Install a newer jax_tpu_embedding.");
  }
  if (manifest.Has("file_format")) {
    JTE_ASSIGN_OR_RETURN(const std::string files,
                         manifest.String("file_format"));
    if (files != "safetensors") {
      return manifest.Wrong("its files are '", files,
                            "', which only other programs read; expected an "
                            "export with file_format=\"safetensors\".");
    }
  }
  JTE_ASSIGN_OR_RETURN(const int64_t number, manifest.Integer("version"));
  if (number != key.number) {
    return manifest.Wrong("it is of version ", number, ", not ", key.number,
                          ".");
  }
  JTE_ASSIGN_OR_RETURN(const std::string kind, manifest.String("kind"));
  const bool is_delta = kind == "delta";
  if (!is_delta && kind != "full") {
    return manifest.Wrong("'kind' of the manifest is '", kind,
                          "', expected 'full' or 'delta'.");
  }
  Version version;
  version.path = path;
  version.key = key;
  if (is_delta) {
    JTE_ASSIGN_OR_RETURN(const Fields base, manifest.Object("base"));
    VersionKey of_base;
    JTE_ASSIGN_OR_RETURN(of_base.number, base.Integer("version"));
    JTE_ASSIGN_OR_RETURN(of_base.crc32, base.String("manifest_crc32"));
    if (of_base.number >= number) {
      return manifest.Wrong("its base is version ", of_base.number,
                            ", expected one before ", number, ".");
    }
    version.base = std::move(of_base);
  }
  JTE_ASSIGN_OR_RETURN(version.run, manifest.String("run"));
  JTE_ASSIGN_OR_RETURN(const Fields tables, manifest.Object("tables"));
  for (const auto& [name, value] : tables.object()) {
    JTE_ASSIGN_OR_RETURN(const Fields fields, tables.Object(name));
    JTE_ASSIGN_OR_RETURN(
        ServedTable table,
        ReadServedTable(path, version_path, name, fields, is_delta));
    version.tables.push_back(std::move(table));
  }
  JTE_ASSIGN_OR_RETURN(version.features,
                       ReadFeatures(manifest, version.tables));
  return version;
}

std::string Layout(const ServedTable& table) {
  constexpr std::string_view kCombiners[] = {"sum", "mean", "sqrtn"};
  return StrCat(table.rows, " x ", table.columns, " ",
                kEncodingNames[static_cast<int>(table.encoding)], ", ",
                kCombiners[static_cast<int>(table.combiner)]);
}

// The header of a safetensors file, and where its tensors begin.
struct Header {
  Json json;
  int64_t end = 0;
};

// `head` begins the file and has at least what is before its rows.
Result<Header> ParseHeader(const std::string& path,
                           std::span<const std::byte> head) {
  uint64_t length = 0;
  if (head.size() >= 8) std::memcpy(&length, head.data(), 8);
  if (head.size() < 8 || length > head.size() - 8 || length > kMaxHeaderBytes) {
    return InvalidArgument(path, ": its header has ", length,
                           " bytes, and there are ", head.size(),
                           " before its rows, expected a safetensors file.");
  }
  JTE_ASSIGN_OR_RETURN(Json json,
                       InFile(path, "its header is no JSON",
                              ParseJson(Text(head.subspan(8, length)))));
  return Header{std::move(json), static_cast<int64_t>(8 + length)};
}

// The first byte of a tensor, which must be as described.
Result<int64_t> FindTensor(const std::string& path, const Header& header,
                           const std::string& name, std::string_view dtype,
                           const std::vector<int64_t>& shape, int64_t size) {
  JTE_ASSIGN_OR_RETURN(const Fields all,
                       Fields::Of(path, "the header", &header.json));
  JTE_ASSIGN_OR_RETURN(const Fields tensor, all.Object(name));
  JTE_ASSIGN_OR_RETURN(const std::string found_dtype, tensor.String("dtype"));
  const auto numbers =
      [&tensor](std::string_view key) -> Result<std::vector<int64_t>> {
    JTE_ASSIGN_OR_RETURN(const JsonArray* array,
                         tensor.Get<JsonArray>(key, "a list"));
    std::vector<int64_t> result;
    for (const Json& value : *array) {
      const auto* number = std::get_if<int64_t>(&value.value);
      result.push_back(number == nullptr ? -1 : *number);
    }
    return result;
  };
  JTE_ASSIGN_OR_RETURN(const std::vector<int64_t> found, numbers("shape"));
  JTE_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                       numbers("data_offsets"));
  const bool is_in_place = offsets.size() == 2 && offsets[0] >= 0 &&
                           offsets[0] <= kMaxNumber &&
                           offsets[1] == offsets[0] + size;
  if (found_dtype != dtype || found != shape || !is_in_place) {
    return tensor.Wrong(tensor.where(), " is a ", found_dtype, " of ",
                        found.size(), " dimensions, expected ", dtype, "[",
                        shape[0], shape.size() > 1 ? ", " : "",
                        shape.size() > 1 ? StrCat(shape[1]) : "", "] of ", size,
                        " bytes.");
  }
  return header.end + offsets[0];
}

std::vector<int64_t> ValuesShape(const ServedTable& table, int64_t rows) {
  const bool is_coded =
      table.encoding == Encoding::kInt8 || table.encoding == Encoding::kInt4;
  return {rows, is_coded ? table.row_bytes : table.columns};
}

// `part` is what the file has from byte i * 4 MiB on, at most 4 MiB.
Result<void> CheckCrc32(const ServedFile& file, int64_t i,
                        std::span<const std::byte> part) {
  const std::string found = Hexadecimal(Crc32(part));
  if (found == file.crc32[i]) return {};
  return InvalidArgument(file.path, ": the crc32 of its bytes from ",
                         i * kCheckedBytes, " on is ", found, ", expected ",
                         file.crc32[i], ": it is damaged.");
}

Result<void> CheckSize(const ServedFile& file, int64_t size) {
  if (size == file.bytes) return {};
  return InvalidArgument(file.path, ": it has ", size, " bytes, expected ",
                         file.bytes,
                         ": it was cut off, or is of another version.");
}

Result<Changes> ReadChangesOfFile(const ServedTable& table,
                                  const ServedFile& file,
                                  int64_t deleted_rows) {
  const std::string expected = StrCat("changes of table '", table.name, "'");
  Changes changes;
  {
    const OpenFile opened(file.path);
    JTE_ASSIGN_OR_RETURN(const int64_t size, opened.Size(expected));
    JTE_RETURN_IF_ERROR(CheckSize(file, size));
    JTE_ASSIGN_OR_RETURN(changes.file, opened.Read(0, size, expected));
  }
  const std::span<const std::byte> data = changes.file;
  for (int64_t i = 0; i < std::ssize(file.crc32); ++i) {
    const int64_t begin = i * kCheckedBytes;
    const int64_t count = std::min(kCheckedBytes, file.bytes - begin);
    JTE_RETURN_IF_ERROR(CheckCrc32(file, i, data.subspan(begin, count)));
  }
  JTE_ASSIGN_OR_RETURN(const Header header,
                       ParseHeader(file.path, data.first(file.offset)));
  const auto read =
      [&](const char* suffix, std::string_view dtype,
          const std::vector<int64_t>& shape,
          int64_t row_bytes) -> Result<std::span<const std::byte>> {
    if (shape[0] > file.bytes / row_bytes) {
      return InvalidArgument(file.path, ": ", shape[0], " rows of tensor '",
                             suffix, "' do not fit its ", file.bytes,
                             " bytes.");
    }
    const int64_t size = shape[0] * row_bytes;
    JTE_ASSIGN_OR_RETURN(
        const int64_t begin,
        FindTensor(file.path, header, StrCat(table.name, ".", suffix), dtype,
                   shape, size));
    if (begin > file.bytes - size) {
      return InvalidArgument(file.path, ": tensor '", suffix, "' ends at byte ",
                             begin + size, ", beyond its ", file.bytes, ".");
    }
    return data.subspan(begin, size);
  };
  const auto read_rows = [&read](const char* suffix, int64_t count,
                                 std::vector<int64_t>& rows) -> Result<void> {
    JTE_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                         read(suffix, "I64", {count}, sizeof(int64_t)));
    rows.resize(count);
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(rows)).begin());
    return {};
  };
  JTE_RETURN_IF_ERROR(read_rows("rows", file.rows, changes.rows));
  JTE_RETURN_IF_ERROR(read_rows("deleted", deleted_rows, changes.deleted));
  JTE_ASSIGN_OR_RETURN(
      changes.values,
      read("values", kTensorTypes[static_cast<int>(table.encoding)],
           ValuesShape(table, file.rows), table.row_bytes));
  return changes;
}

}  // namespace

Result<VersionKey> ReadCurrent(const std::string& directory) {
  const std::string path = directory + "/CURRENT";
  JTE_ASSIGN_OR_RETURN(const std::vector<std::byte> content,
                       ReadFile(path, "the line that names the current version",
                                kMaxCurrentBytes));
  // "7 v000007 9f3c21aa\n"
  const std::string_view line = Text(content);
  const size_t number_end = std::min(line.find(' '), line.size());
  const std::string_view digits = line.substr(0, number_end);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_hexadecimal = [is_digit](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f');
  };
  VersionKey key;
  std::string name;
  if (!digits.empty() && digits.size() <= 18 &&
      std::ranges::all_of(digits, is_digit)) {
    key.number = std::stoll(std::string(digits));
    name = DirectoryOf(key.number);
    const std::string_view rest = line.substr(number_end);
    if (rest.size() == name.size() + 11 && rest.ends_with('\n')) {
      key.crc32 = rest.substr(name.size() + 2, 8);
    }
  }
  // Not by StrCat, whose stream leaves out what it has no memory for.
  const std::string expected =
      std::string(digits) + " " + name + " " + key.crc32 + "\n";
  if (!std::ranges::all_of(key.crc32, is_hexadecimal) || line != expected ||
      key.crc32.empty()) {
    return InvalidArgument(path, ": the line is '", line.substr(0, 80),
                           "', expected a number, the directory of this "
                           "version and the crc32 of its manifest.");
  }
  return key;
}

Result<std::vector<Version>> ReadChain(
    const std::string& directory, const std::optional<VersionKey>& stop_at) {
  JTE_ASSIGN_OR_RETURN(VersionKey key, ReadCurrent(directory));
  std::vector<Version> chain;
  while (key != stop_at) {
    JTE_ASSIGN_OR_RETURN(Version version, ReadVersion(directory, key));
    chain.push_back(std::move(version));
    if (!chain.back().base) break;
    key = *chain.back().base;
  }
  std::ranges::reverse(chain);
  return chain;
}

Result<void> CheckFollows(const Version& before, const Version& delta) {
  if (delta.run != before.run) {
    return InvalidArgument(delta.path, ": it is of run ", delta.run,
                           ", and its base of run ", before.run, ".");
  }
  for (const ServedTable& table : delta.tables) {
    const auto found =
        std::ranges::find(before.tables, table.name, &ServedTable::name);
    const std::string expected =
        found == before.tables.end() ? "no such table" : Layout(*found);
    if (Layout(table) != expected) {
      return InvalidArgument(delta.path, ": table '", table.name, "' is ",
                             Layout(table), ", expected ", expected,
                             ", as its base has it.");
    }
  }
  return {};
}

Result<void> CheckFullFile(const ServedTable& table, const ServedFile& file,
                           bool verify) {
  const std::string expected =
      StrCat("rows ", file.first_row, " to ", file.first_row + file.rows,
             " of table '", table.name, "'");
  const OpenFile opened(file.path);
  JTE_ASSIGN_OR_RETURN(const int64_t size, opened.Size(expected));
  JTE_RETURN_IF_ERROR(CheckSize(file, size));
  // The header has one tensor, and comes before the rows.
  JTE_ASSIGN_OR_RETURN(
      const std::vector<std::byte> head,
      opened.Read(0, std::min(file.offset, kMaxHeaderBytes), expected));
  JTE_ASSIGN_OR_RETURN(const Header header, ParseHeader(file.path, head));
  JTE_ASSIGN_OR_RETURN(
      const int64_t begin,
      FindTensor(file.path, header, table.name,
                 kTensorTypes[static_cast<int>(table.encoding)],
                 ValuesShape(table, file.rows), file.rows * table.row_bytes));
  if (begin != file.offset) {
    return InvalidArgument(file.path, ": its rows begin at byte ", begin,
                           ", expected ", file.offset, ".");
  }
  for (int64_t i = 0; verify && i < std::ssize(file.crc32); ++i) {
    const int64_t first = i * kCheckedBytes;
    JTE_ASSIGN_OR_RETURN(
        const std::vector<std::byte> part,
        opened.Read(first, std::min(kCheckedBytes, file.bytes - first),
                    expected));
    JTE_RETURN_IF_ERROR(CheckCrc32(file, i, part));
  }
  return {};
}

Result<std::vector<Changes>> ReadChanges(const ServedTable& table) {
  std::vector<Changes> result;
  for (const ServedFile& file : table.files) {
    // Those that are deleted are in the first file.
    JTE_ASSIGN_OR_RETURN(
        Changes changes,
        ReadChangesOfFile(table, file,
                          result.empty() ? table.deleted_rows : 0));
    result.push_back(std::move(changes));
  }
  return result;
}

}  // namespace jte::serving
