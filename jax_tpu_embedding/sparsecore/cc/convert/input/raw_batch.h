// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The ids of one feature in any form that users have them in, and the step that
// makes an InputBatch of it.
//
//   std::vector<RawBatch> raw = ...;                  // views of user memory
//   if (auto done = CheckNumIds(raw[0]); !done) ...   // too many
//   auto prepared = Prepare(raw, executor);           // what had to be copied
//   (*prepared)[0].batch                              // views of both
//
// What is already as the converter reads it is viewed and not copied, except
// for the row splits of others. So another thread that writes the memory of ids
// and weights makes them any ids and weights, and that of row splits an error.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_RAW_BATCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_RAW_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"

namespace jte::convert {

// Numbers in one piece, or in several that follow each other.
using RawNumbers = std::variant<StridedArray, std::vector<StridedRun>>;

// How ids belong to samples.
//
// Each row of a StridedArray is a sample.
struct RowsOfArray {};
// Sample r has the ids [splits[r], splits[r + 1]).
struct RowSplits {
  StridedArray splits;  // integers
  // Whether nobody else writes them. Otherwise they are copied: what is checked
  // has to be what is used.
  bool are_private = false;
};
// Id i belongs to sample samples[i], and ids are in any order. Those of a
// sample keep theirs.
struct SampleIndices {
  StridedArray samples;  // integers
  int64_t num_samples = 0;
};

struct RawBatch {
  std::string_view feature_name = {};  // for messages
  // Integers, of types with a common one.
  RawNumbers ids;
  // One per id, in as many pieces of as many; none: every weight is 1.
  std::optional<RawNumbers> weights = std::nullopt;
  std::variant<RowsOfArray, RowSplits, SampleIndices> samples;
};

// The most ids of a feature: those of its stack are counted in int32.
inline constexpr int64_t kMaxIds = std::numeric_limits<int32_t>::max();

// InvalidArgument if a batch has more. Each has to be checked before it is
// prepared: an array may have 2^62 elements and one byte of memory, and the
// size of a copy would wrap.
Result<void> CheckNumIds(const RawBatch& raw);

// Memory that does not write what it hands out.
using Bytes = std::unique_ptr<std::byte[]>;

struct PreparedBatch {
  InputBatch batch;
  std::vector<Bytes> copies;  // that `batch` views
};

// Numbers that Prepare has to read, for callers that choose an executor. Zero
// if it only makes views.
int64_t PreparationWork(std::span<const RawBatch> raw);

// Throws std::bad_alloc, on the calling thread.
//
// Errors: a sample index out of range; the message names the first one.
Result<std::vector<PreparedBatch>> Prepare(std::span<const RawBatch> raw,
                                           Executor& executor);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_RAW_BATCH_H_
