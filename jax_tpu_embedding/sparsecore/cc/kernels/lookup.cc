// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table_value.h"

namespace jte {
namespace {

// A block of activations that stays in a first-level cache while rows are added
// to it, and the number of blocks that one pass distributes entries over.
constexpr int64_t kBlockFloats = 4096;
constexpr int64_t kMaxBlocks = 256;

// log2 of the samples per block.
int BlockShift(int64_t num_samples, int64_t dim) {
  const int64_t samples =
      std::max({CeilDiv(num_samples, kMaxBlocks),
                kBlockFloats / std::max<int64_t>(dim, 1), int64_t{1}});
  return std::bit_width(static_cast<uint64_t>(samples) - 1);
}

// The values of rows as they are.
struct AsStored {
  [[gnu::always_inline]] float operator()(float value) const { return value; }
};

// Rounded to the nearest of some values; in float32 and in this association,
// which is that of reference.lookup.
class Quantized {
 public:
  explicit Quantized(const Quantization& quantization)
      : min_(static_cast<float>(quantization.min_value)),
        max_(static_cast<float>(quantization.max_value)) {
    const auto span =
        static_cast<float>(quantization.max_value - quantization.min_value);
    const auto steps = static_cast<float>(quantization.num_buckets - 1);
    scale_ = steps / span;
    step_ = span / steps;
  }

  [[gnu::always_inline]] float operator()(float value) const {
    // In this order of arguments a NaN stays one.
    const float above = std::min(std::max(value, min_), max_) - min_;
    return std::floor(above * scale_ + 0.5f) * step_ + min_;
  }

 private:
  float min_;
  float max_;
  float scale_;
  float step_;
};

// The rows of one array: what SpreadRows has to find out takes a tenth of the
// time of a lookup.
template <typename T>
struct ArrayRows {
  const T* values;
  int64_t dim;

  [[gnu::always_inline]] const T* operator[](int32_t row) const {
    return values + row * dim;
  }
};

// Zeroes `activations`, the rows of the samples from `first_sample` on, and
// adds the entries to them.
//
// Rows: what has the rows of the table, of type T.
template <typename T, typename Rows, typename Read>
JTE_VECTOR_CLONES void PoolBlock(std::span<const Entry> entries,
                                 const Rows& all_rows, int64_t dim,
                                 const Read& read_value, int64_t first_sample,
                                 std::span<float> activations) {
  // Copies stay in registers, whatever is written.
  const Rows rows = all_rows;
  const Read read = read_value;
  std::ranges::fill(activations, 0.0f);
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(T));
  const int64_t distance = PrefetchDistance(row_bytes);
  const int64_t size = std::ssize(entries);
  for (int64_t i = 0; i < std::min(distance, size); ++i) {
    PrefetchTableRow(rows[entries[i].row], row_bytes);
  }
  for (int64_t i = 0; i < size; ++i) {
    if (i + distance < size) {
      PrefetchTableRow(rows[entries[i + distance].row], row_bytes);
    }
    const T* __restrict row = rows[entries[i].row];
    float* __restrict out =
        activations.data() + (entries[i].sample - first_sample) * dim;
    const float gain = entries[i].gain;
    for (int64_t d = 0; d < dim; ++d) out[d] += gain * read(ToFloat(row[d]));
  }
}

// The entries of a batch by blocks of samples.
struct SampleBlocks {
  std::unique_ptr<Entry[]> entries;
  std::vector<int64_t> starts;  // of the blocks in the entries
  int64_t block_size;           // samples
  int64_t num_samples;
  int64_t num_tasks;
};

template <typename T, typename Rows, typename Read>
void PoolAll(const SampleBlocks& blocks, const Rows& rows, int64_t dim,
             const Read& read, std::span<float> activations,
             Executor& executor) {
  executor.ParallelFor(blocks.num_tasks, [&blocks, &rows, &read, activations,
                                          dim](int64_t task) {
    const int64_t num_blocks = std::ssize(blocks.starts) - 1;
    const int64_t last = num_blocks * (task + 1) / blocks.num_tasks;
    for (int64_t b = num_blocks * task / blocks.num_tasks; b < last; ++b) {
      const int64_t first_sample = b * blocks.block_size;
      const int64_t size =
          std::min(blocks.block_size, blocks.num_samples - first_sample);
      PoolBlock<T>({blocks.entries.get() + blocks.starts[b],
                    blocks.entries.get() + blocks.starts[b + 1]},
                   rows, dim, read, first_sample,
                   activations.subspan(first_sample * dim, size * dim));
    }
  });
}

// The lookup, once the partitions are read and the entries checked.
void Pool(const CooBuffers& buffers, std::span<const Partition> partitions,
          const CooGeometry& geometry, std::span<const ConstTableValues> tables,
          int64_t dim, const std::optional<Quantization>& quantization,
          std::span<float> activations, Executor& executor) {
  const int64_t num_entries = CountEntries(partitions);
  const int64_t num_samples = geometry.batch_size();
  const int shift = BlockShift(num_samples, dim);
  const int64_t block_size = int64_t{1} << shift;
  const int64_t num_blocks = CeilDiv(num_samples, block_size);
  SampleBlocks blocks{
      .entries = std::make_unique_for_overwrite<Entry[]>(num_entries),
      .starts = {},
      .block_size = block_size,
      .num_samples = num_samples,
      .num_tasks = NumChunks(num_entries, executor) == 1 ? 1 : num_blocks};
  blocks.starts = DistributeEntries(
      BufferEntries{buffers, partitions}, num_entries, num_blocks,
      [shift](const Entry& entry) { return entry.sample >> shift; },
      std::span(blocks.entries.get(), num_entries), executor);

  std::visit(
      [&blocks, &geometry, &quantization, &executor, tables, dim,
       activations]<typename T>(std::span<const T>) {
        std::vector<const T*> arrays;
        for (const ConstTableValues& table : tables) {
          arrays.push_back(std::get<std::span<const T>>(table).data());
        }
        const auto pool = [&blocks, &quantization, &executor, dim,
                           activations](const auto& rows) {
          if (quantization) {
            PoolAll<T>(blocks, rows, dim, Quantized(*quantization), activations,
                       executor);
          } else {
            PoolAll<T>(blocks, rows, dim, AsStored(), activations, executor);
          }
        };
        if (arrays.size() == 1) {
          pool(ArrayRows<T>{arrays[0], dim});
        } else {
          pool(SpreadRows<T>(arrays, geometry.rows_per_device(), dim));
        }
      },
      tables.front());
}

}  // namespace

Result<void> Lookup(const CooBuffers& buffers, const CooGeometry& geometry,
                    ConstTableValues table, int64_t dim,
                    const std::optional<Quantization>& quantization,
                    std::span<float> activations, Executor& executor) {
  const auto partitions = ReadPartitions(buffers, geometry);
  if (!partitions) return std::unexpected(partitions.error());
  if (auto checked = CheckEntries(buffers, *partitions, geometry, executor);
      !checked) {
    return checked;
  }
  Pool(buffers, *partitions, geometry, std::span(&table, 1), dim, quantization,
       activations, executor);
  return {};
}

Result<void> LookupInTables(const CooBuffers& buffers,
                            const CooGeometry& geometry,
                            std::span<const ConstTableValues> tables,
                            int64_t dim,
                            const std::optional<Quantization>& quantization,
                            std::span<float> activations, Executor& executor) {
  if (!NumbersFit(geometry.num_devices, geometry.rows_per_device(), 32)) {
    return InvalidArgument("The tables of ", geometry.num_devices,
                           " devices have ", geometry.rows_per_device(),
                           " rows each, expected numbers of 32 bits.");
  }
  auto partitions = ReadPartitions(buffers, geometry);
  if (!partitions) return std::unexpected(partitions.error());
  const int bits = RowBits(geometry.num_devices, geometry.rows_per_device());
  for (Partition& partition : *partitions) {
    partition.first_row += partition.device << bits;
  }
  Pool(buffers, *partitions, geometry, tables, dim, quantization, activations,
       executor);
  return {};
}

}  // namespace jte
