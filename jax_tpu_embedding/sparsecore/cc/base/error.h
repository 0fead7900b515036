// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Errors that input can cause, as values.
//
// Functions return Result<T>; nothing aborts, and nothing throws but
// std::bad_alloc. A message says what was wrong, with which object, the value
// found, the value expected and what to do. Two places turn an Error into
// something else: binding/error_to_python.h (a Python exception) and
// ffi/run_handler.h (ffi::Error).
//
//   Result<int> Half(int n) {
//     if (n % 2 != 0) return InvalidArgument("n must be even, got ", n, ".");
//     return n / 2;
//   }
//
//   Result<int> Quarter(int n) {
//     JTE_RETURN_IF_ERROR(CheckPositive(n));
//     JTE_ASSIGN_OR_RETURN(const int half, Half(n));
//     return Half(half);
//   }
//
// These are macros because no function can return from its caller.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_ERROR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_ERROR_H_

#include <cstddef>
#include <expected>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

// Evaluates an expression of a type Result<T> once. If it is an error, the
// enclosing function, which must return a Result too, returns that error. A
// value is dropped.
#define JTE_RETURN_IF_ERROR(...)                                   \
  do {                                                             \
    auto&& jte_result = (__VA_ARGS__);                             \
    if (!jte_result) {                                             \
      return std::unexpected(                                      \
          std::forward<decltype(jte_result)>(jte_result).error()); \
    }                                                              \
  } while (false)

// The same, and moves the value of the Result to `target`: a declaration, as
// `const int half`, or something that is there already. Two statements or more,
// so it needs braces in an `if` or a loop. A target with a comma that is in no
// parentheses, as a structured binding has, does not work; expressions with
// commas do.
#define JTE_ASSIGN_OR_RETURN(target, ...) \
  JTE_ASSIGN_OR_RETURN_AS(JTE_JOIN(jte_result_, __LINE__), target, __VA_ARGS__)

// Parts of the macro above. Another macro in between replaces __LINE__ by the
// number before it becomes a part of a name.
#define JTE_ASSIGN_OR_RETURN_AS(result, target, ...)              \
  auto result = (__VA_ARGS__);                                    \
  if (!result) return std::unexpected(std::move(result).error()); \
  target = *std::move(result)
#define JTE_JOIN(a, b) JTE_JOIN_REPLACED(a, b)
#define JTE_JOIN_REPLACED(a, b) a##b

namespace jte {

enum class ErrorCode {
  kInvalidArgument,     // Python: ValueError
  kFailedPrecondition,  // Python: RuntimeError (called at the wrong time)
  kNotFound,            // Python: KeyError
  kResourceExhausted,   // Python: MemoryError
};

struct Error {
  ErrorCode code;
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;

// Concatenates anything that can be written to a stream. For messages, not for
// hot paths.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <typename... Parts>
std::unexpected<Error> InvalidArgument(const Parts&... parts) {
  return std::unexpected(Error{ErrorCode::kInvalidArgument, StrCat(parts...)});
}

template <typename... Parts>
std::unexpected<Error> FailedPrecondition(const Parts&... parts) {
  return std::unexpected(
      Error{ErrorCode::kFailedPrecondition, StrCat(parts...)});
}

template <typename... Parts>
std::unexpected<Error> NotFound(const Parts&... parts) {
  return std::unexpected(Error{ErrorCode::kNotFound, StrCat(parts...)});
}

// `text`, or as many of its characters (UTF-8) as `size` bytes have room for.
inline std::string_view FirstCharacters(std::string_view text, size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && (text[size] & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

// body(), a Result; or an error if it runs out of memory. For those who must go
// on: others wait for a device or a host that stops in the middle of a step.
template <typename Body>
auto CatchOutOfMemory(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return std::unexpected(
        Error{ErrorCode::kResourceExhausted,
              "Out of memory for scratch space. Use smaller batches."});
  }
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_ERROR_H_
