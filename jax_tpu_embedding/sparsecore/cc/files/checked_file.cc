// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/files/checked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/files/crc32c.h"

namespace jte::files {
namespace {

// Of one call to the system: small beside a processor's cache.
constexpr size_t kSliceBytes = 128 * 1024;

using Checksum = std::array<std::byte, 4>;

Checksum Bytes(uint32_t crc) {
  Checksum bytes;
  std::memcpy(bytes.data(), &crc, sizeof(crc));
  return bytes;
}

// As 0000beef.
std::string Hexadecimal(const Checksum& checksum) {
  uint32_t crc;
  std::memcpy(&crc, checksum.data(), sizeof(crc));
  std::array<char, 9> text;
  std::snprintf(text.data(), text.size(), "%08" PRIx32, crc);
  return text.data();
}

std::unexpected<Error> SystemError(const char* what, const std::string& path) {
  return InvalidArgument("Cannot ", what, " ", path, ": ", std::strerror(errno),
                         ".");
}

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags)
      : descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }

  // Whether all of them were written; else errno says why not.
  bool Write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return false;
      bytes = bytes.subspan(count);
    }
    return true;
  }

  // Whether all of them were read; else errno says why not, 0: the file ended.
  bool Read(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = read(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        if (count == 0) errno = 0;
        return false;
      }
      bytes = bytes.subspan(count);
    }
    return true;
  }

 private:
  const int descriptor_;
};

// Calls visit(slice) for parts of the bytes; whether it always was true.
template <typename Byte, typename Visit>
bool ForSlices(std::span<Byte> bytes, Visit visit) {
  while (!bytes.empty()) {
    const auto slice = bytes.first(std::min(bytes.size(), kSliceBytes));
    if (!visit(slice)) return false;
    bytes = bytes.subspan(slice.size());
  }
  return true;
}

// The same for `num_bytes` of which `part` stands for each.
template <typename Byte, typename Visit>
bool ForRepeats(size_t num_bytes, std::span<Byte> part, Visit visit) {
  while (num_bytes > 0) {
    const auto slice = part.first(std::min(num_bytes, part.size()));
    if (!visit(slice)) return false;
    num_bytes -= slice.size();
  }
  return true;
}

}  // namespace

Result<void> WriteChecked(const std::string& path,
                          std::span<const std::byte> values, size_t num_bytes) {
  if (values.size() > num_bytes) {
    return InvalidArgument(path, ": ", values.size(),
                           " bytes do not fit into a file of ", num_bytes, ".");
  }
  const OpenFile file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.descriptor() < 0) return SystemError("create", path);
  uint32_t crc = 0;
  const auto write_slice = [&crc, &file](std::span<const std::byte> slice) {
    crc = ExtendCrc32c(crc, slice);
    return file.Write(slice);
  };
  static constexpr std::array<std::byte, 4096> kZeros{};
  if (!ForSlices(values, write_slice) ||
      !ForRepeats<const std::byte>(num_bytes - values.size(), kZeros,
                                   write_slice) ||
      !file.Write(Bytes(crc)) || fsync(file.descriptor()) != 0) {
    return SystemError("write", path);
  }
  return {};
}

Result<void> ReadChecked(const std::string& path, std::span<std::byte> values,
                         size_t num_bytes) {
  if (values.size() > num_bytes) {
    return InvalidArgument(path, ": ", values.size(),
                           " bytes are not in a file of ", num_bytes, ".");
  }
  // Nothing waits for what is no file: opening a pipe would for its writer.
  const OpenFile file(path, O_RDONLY | O_NONBLOCK);
  struct stat found;
  if (file.descriptor() < 0 || fstat(file.descriptor(), &found) != 0) {
    return SystemError("open", path);
  }
  if (!S_ISREG(found.st_mode)) {
    return InvalidArgument(path, " is no regular file.");
  }
  const size_t expected = num_bytes + sizeof(Checksum);
  if (static_cast<size_t>(found.st_size) != expected) {
    return InvalidArgument(path, " has ", found.st_size, " bytes, not ",
                           expected, ".");
  }
  uint32_t crc = 0;
  const auto read_slice = [&crc, &file](std::span<std::byte> slice) {
    if (!file.Read(slice)) return false;
    crc = ExtendCrc32c(crc, slice);
    return true;
  };
  std::array<std::byte, 4096> unused;
  Checksum stored;
  if (!ForSlices(values, read_slice) ||
      !ForRepeats<std::byte>(num_bytes - values.size(), unused, read_slice) ||
      !file.Read(stored)) {
    if (errno == 0) return InvalidArgument(path, " ended while it was read.");
    return SystemError("read", path);
  }
  if (stored != Bytes(crc)) {
    return InvalidArgument(path, ": its CRC-32C is ", Hexadecimal(stored),
                           ", and that of what it has ",
                           Hexadecimal(Bytes(crc)), ": it is damaged.");
  }
  return {};
}

}  // namespace jte::files
