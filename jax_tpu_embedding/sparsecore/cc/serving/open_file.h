// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A file that is open for reading, until the end of its scope.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_OPEN_FILE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_OPEN_FILE_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte::serving {

// What errno says.
inline std::string LastSystemError() {
  return std::generic_category().message(errno);
}

// `expected` of all functions is what should be in the file, for messages.
// Nothing waits for what is no file: opening a pipe would for its writer.
class OpenFile {
 public:
  // If it cannot be opened, descriptor() is negative and Size an error.
  explicit OpenFile(std::string path)
      : path_(std::move(path)),
        descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }

  Result<int64_t> Size(std::string_view expected) const {
    struct stat status = {};
    if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) {
      return Unreadable(expected);
    }
    if (!S_ISREG(status.st_mode)) {
      return InvalidArgument(path_, ": it is no regular file, expected ",
                             expected, ".");
    }
    return status.st_size;
  }

  // `num_bytes` bytes from `begin` on, which the file has.
  Result<std::vector<std::byte>> Read(int64_t begin, int64_t num_bytes,
                                      std::string_view expected) const {
    std::vector<std::byte> result(num_bytes);
    JTE_RETURN_IF_ERROR(ReadTo(result, begin, expected));
    return result;
  }

  // The bytes from `begin` on, which the file has, to all of `out`.
  Result<void> ReadTo(std::span<std::byte> out, int64_t begin,
                      std::string_view expected) const {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t count = pread(descriptor_, out.data() + done,
                                  out.size() - done, begin + done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Unreadable(expected);
      if (count == 0) {
        return InvalidArgument(path_, ": it was cut off at byte ", begin + done,
                               " while it was read, expected ", expected, ".");
      }
      done += count;
    }
    return {};
  }

 private:
  std::unexpected<Error> Unreadable(std::string_view expected) const {
    return InvalidArgument(path_, ": cannot be read (", LastSystemError(),
                           "), expected ", expected, ".");
  }

  const std::string path_;
  const int descriptor_;
};

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_OPEN_FILE_H_
