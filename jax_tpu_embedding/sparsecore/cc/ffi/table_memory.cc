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
    record = {.size = memory.size(), .num_uses = 0, .next = memory.size()};
  }
  if (record.num_uses % kNumUsesToRepeat == kNumUses - 1) {
    record.next = 0;
  }
  ++record.num_uses;
  const size_t begin = record.next;
  const size_t size = std::min(kBytesPerUse, record.size - begin);
  record.next += size;
  return memory.subspan(begin, size);
}

}  // namespace jte::ffi
