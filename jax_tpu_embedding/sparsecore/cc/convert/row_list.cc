// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/row_list.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

constexpr size_t kBlock = 8;

// Returns the number of rows.
JTE_VECTOR_CLONES
size_t WriteRows(std::span<const uint64_t> elements, const SortKey& sort_key,
                 uint32_t num_scs, uint32_t* columns, uint32_t* ends) {
  if (elements.empty()) return 0;
  const SortKey key_parts = sort_key;  // no other name for it: not reloaded
  const auto column = [&key_parts, num_scs](uint64_t element) {
    const uint32_t key = SortKey::KeyOf(element);
    return key_parts.RowOf(key) * num_scs + key_parts.PartitionOfKey(key);
  };
  columns[0] = column(elements[0]);
  ends[0] = 1;
  size_t row = 0;  // of the last element
  size_t done = 1;
  while (done < elements.size()) {
    const uint64_t* const block = elements.data() + done;
    const uint64_t* const before = block - 1;
    const size_t size = std::min(elements.size() - done, kBlock);
    uint32_t repeats = size < kBlock;
    if (size == kBlock) {
      // Not unrolled, or GCC 12 does not vectorize it.
#pragma GCC unroll 1
      for (size_t i = 0; i < kBlock; ++i) {
        repeats |= SortKey::KeyOf(block[i]) == SortKey::KeyOf(before[i]);
      }
    }
    if (repeats == 0) {
#pragma GCC unroll 1
      for (size_t i = 0; i < kBlock; ++i) {
        columns[row + 1 + i] = column(block[i]);
        ends[row + 1 + i] = static_cast<uint32_t>(done + i + 1);
      }
      row += kBlock;
    } else {
      // An element begins a row, or overwrites what the one before it wrote: no
      // branch on the data.
      for (size_t i = 0; i < size; ++i) {
        row += SortKey::KeyOf(block[i]) != SortKey::KeyOf(before[i]);
        columns[row] = column(block[i]);
        ends[row] = static_cast<uint32_t>(done + i + 1);
      }
    }
    done += size;
  }
  return row + 1;
}

}  // namespace

RowList ListRows(std::span<const uint64_t> elements, const SortKey& sort_key,
                 uint32_t num_scs, const RowList& memory) {
  const size_t num_rows = WriteRows(elements, sort_key, num_scs,
                                    memory.columns.data(), memory.ends.data());
  return {.columns = memory.columns.first(num_rows),
          .ends = memory.ends.first(num_rows)};
}

}  // namespace jte
