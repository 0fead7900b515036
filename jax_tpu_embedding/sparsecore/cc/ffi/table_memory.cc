// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/table_memory.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>

namespace jte::ffi {
namespace {

// Where XLA copies tables, addresses of long ago are forgotten.
constexpr size_t kMaxRecords = 4096;

}  // namespace

TableMemory& TableMemory::OfProcess() {
  // Never destroyed: a step may still run when the process ends.
  static auto& memory = *new TableMemory();
  return memory;
}

void TableMemory::Used(std::span<std::byte> memory) {
  if (memory.size() < kMinBytes) return;
  const std::span<std::byte> part = NextPart(memory);
  if (!part.empty()) use_huge_pages_(part);
}

std::span<std::byte> TableMemory::NextPart(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  if (records_.size() >= kMaxRecords) records_.clear();
  Record& record = records_[memory.data()];
  if (record.size != memory.size()) {
    record = {.size = memory.size(), .next = memory.size()};
  }
  // For the first time just after it was moved.
  if (record.num_uses % kNumUsesToLook == record.moved_at % kNumUsesToLook) {
    const bool has_huge_pages = is_in_huge_page_(&memory[memory.size() / 2]);
    if (record.had_huge_pages && !has_huge_pages) {  // other memory
      // The one before was there at a second look.
      const bool lived_on = record.num_uses > record.moved_at + kNumUsesToLook;
      record = {.size = memory.size(),
                .moved_at =
                    lived_on ? kNumUses
                             : std::min(2 * record.moved_at, kNumUsesToRepeat),
                .next = memory.size()};
    }
    record.had_huge_pages = has_huge_pages;
  }
  ++record.num_uses;
  if (record.num_uses % kNumUsesToRepeat ==
      record.moved_at % kNumUsesToRepeat) {
    record.next = 0;
  }
  const size_t begin = record.next;
  const size_t size = std::min(kBytesPerUse, record.size - begin);
  record.next += size;
  return memory.subspan(begin, size);
}

}  // namespace jte::ffi
