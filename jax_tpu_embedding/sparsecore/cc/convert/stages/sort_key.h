// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The 64-bit element that the converter sorts: one per id of a SparseCore.
//
//     63            32 + local_bits             32                        0
//     | partition     | row in the partition     | payload                |
//     |<--------------- key: 32 bits ----------->|<------- 32 bits ------>|
//
// Ascending elements are in the order of the buffers: by partition (the
// SparseCore that owns the row), by row, and by payload. The payload grows with
// the sample, so ties are in order of samples.
//
// The two parts of the key are as wide as the stack needs: a sort looks at
// num_bits() bits only. They always fit. A stack row, row * num_scs +
// partition, is below 2^31, so with p = ceil(log2(num_scs)) > 0 a row is below
// 2^31 / num_scs < 2^(32 - p).

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_SORT_KEY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_SORT_KEY_H_

#include <bit>
#include <cstdint>

namespace jte::convert {

class SortKey {
 public:
  // num_scs >= 1 partitions of rows 0 to max_row, where
  // max_row * num_scs < 2^31.
  constexpr SortKey(uint32_t num_scs, uint32_t max_row)
      : local_bits_(std::bit_width(max_row)),
        num_bits_(local_bits_ + std::bit_width(num_scs - 1)) {}

  // How many low bits of a key can be set; at most 32.
  constexpr int num_bits() const { return num_bits_; }

  constexpr uint32_t Key(uint32_t partition, uint32_t row) const {
    return (partition << local_bits_) | row;
  }

  static constexpr uint64_t Element(uint32_t key, uint32_t payload) {
    return (uint64_t{key} << 32) | payload;
  }

  static constexpr uint32_t KeyOf(uint64_t element) {
    return static_cast<uint32_t>(element >> 32);
  }

  static constexpr uint32_t PayloadOf(uint64_t element) {
    return static_cast<uint32_t>(element);
  }

  constexpr uint32_t PartitionOf(uint64_t element) const {
    return static_cast<uint32_t>(element >> (32 + local_bits_));
  }

  constexpr uint32_t PartitionOfKey(uint32_t key) const {
    return key >> local_bits_;  // rows have at most 31 bits
  }

  // The bits of a key that are its row.
  constexpr uint32_t row_mask() const {
    return (uint32_t{1} << local_bits_) - 1;
  }

  constexpr uint32_t RowOf(uint32_t key) const { return key & row_mask(); }

 private:
  int local_bits_;
  int num_bits_;
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_SORT_KEY_H_
