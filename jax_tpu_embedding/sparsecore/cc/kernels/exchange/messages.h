// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a device does with the rows that it has to ask other devices for.
//
//   PackMessages   which rows it asks each device for, and its entries, in
//                  terms of the answers
//   ReadRows       answers: the rows of its table that the others ask for
//   SumGradients   the gradient of each row that it asked for
//
// XLA sends these blocks to and fro: one for each device, with room for the
// same number C of rows each. What comes is pooled (LookupInTables) or steps
// rows (ApplyReceived). A row has a place in a block; places are
// numbered as in spread_rows.h. lib/core/lowering/exchange/messages.py is the
// same in jnp, and says what is correct.
//
// None of these fails for what is in the buffers: a device that did would leave
// the others waiting in a collective. If partitions or entries are not valid,
// those of a failed conversion among them, or more than C rows are wanted of a
// device, then the entries are marked, and all that depends on them is NaN:
// activations, and the gradients of all rows that the device asks for. It then
// asks for the rows that lowering/reference/corrupt_buffers.py says.
//
// Requires: spans fit the geometry and each other in size; places have 31 bits.
// Guarantees: every element of the results is written, with the same bits for
//   any executor; rows that nobody sent are NaN, and gradients zero, so that
//   no block has anything that was in the memory before.
// Complexity: the entries and the size of the blocks.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_EXCHANGE_MESSAGES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_EXCHANGE_MESSAGES_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

// Where a block asks for no row.
inline constexpr int32_t kNoRow = -1;

// A device's entries, in the order of the buffers; `Int` and `Float` are const
// for those who read them.
template <typename Int, typename Float>
struct EntriesOfPlaces {
  // RowPointersPerBlock(G). The entries are the first of G partitions, the
  // others are empty; the first is negative if the entries are marked.
  std::span<Int> row_pointers;
  std::span<Int> places;
  std::span<Int> samples;  // in the device's batch
  std::span<Float> gains;

  bool are_marked() const { return row_pointers[0] < 0; }
};
using PackedEntries = EntriesOfPlaces<int32_t, float>;
using ConstPackedEntries = EntriesOfPlaces<const int32_t, const float>;

// Each SparseCore asks for each of its rows once. `requests`: for each device,
// rows of its table, or kNoRow. Entries take a multiple of kAlignment cells;
// the last ones are zero.
void PackMessages(const CooBuffers& buffers, const CooGeometry& geometry,
                  std::span<const std::span<int32_t>> requests,
                  const PackedEntries& entries, Executor& executor);

// `blocks[k]` has the rows that `wanted[k]` names, NaN for those that the table
// does not have. Of one type.
void ReadRows(ConstTableValues table, int64_t dim,
              std::span<const std::span<const int32_t>> wanted,
              std::span<const TableValues> blocks, Executor& executor);

// `blocks`: for each device, the sums over the entries of the rows asked for.
void SumGradients(const ConstPackedEntries& entries,
                  std::span<const float> activation_gradient, int64_t dim,
                  std::span<const std::span<float>> blocks, Executor& executor);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_EXCHANGE_MESSAGES_H_
