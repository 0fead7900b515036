// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Gives huge pages to tables, which XLA allocates in small ones.
//
// A table that was donated, is in a jax.Ref or is only looked up is the same
// memory in every step; one that XLA copies is not, and not worth the work. So
// memory counts as a table's after a few uses. Large memory is moved by and by,
// a part in each use.
//
// The next table often comes to the address of one that is gone. It is told by
// its pages, which are small again, and is moved after a few uses as well;
// after twice as many if the one before was gone soon after it was moved.
//
// Threading: all functions may be called at once.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_TABLE_MEMORY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_TABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"

namespace jte::ffi {

class TableMemory {
 public:
  // Less is within reach of the processor's cache of translations.
  static constexpr size_t kMinBytes = size_t{1} << 24;
  // A copy for one or two of them is not worth it.
  static constexpr int64_t kNumUses = 3;
  // Not every system tells what has huge pages, and moving what was moved costs
  // almost nothing: so all of it is moved again.
  static constexpr int64_t kNumUsesToRepeat = 1024;
  // Looking at the pages takes some microseconds.
  static constexpr int64_t kNumUsesToLook = 16;
  // About a second at most.
  static constexpr size_t kBytesPerUse = size_t{1} << 30;

  // use_huge_pages: what moves memory.
  // is_in_huge_page: tells whether a byte was moved.
  explicit TableMemory(
      std::function<void(std::span<std::byte>)> use_huge_pages = UseHugePages,
      std::function<bool(const std::byte*)> is_in_huge_page = IsInHugePage)
      : use_huge_pages_(std::move(use_huge_pages)),
        is_in_huge_page_(std::move(is_in_huge_page)) {}

  static TableMemory& OfProcess();

  // To be called in every lookup and update, with each array whose rows it
  // reads or writes at random.
  void Used(std::span<std::byte> memory);

 private:
  struct Record {
    size_t size = 0;
    int64_t num_uses = 0;
    int64_t moved_at = kNumUses;  // the use
    size_t next = 0;              // what is left to be moved begins here
    bool had_huge_pages = false;  // when it was looked at
  };

  // What to move now.
  std::span<std::byte> NextPart(std::span<std::byte> memory);

  std::function<void(std::span<std::byte>)> use_huge_pages_;
  std::function<bool(const std::byte*)> is_in_huge_page_;
  std::mutex mutex_;
  std::unordered_map<const std::byte*, Record> records_;  // guarded by mutex_
};

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_TABLE_MEMORY_H_
