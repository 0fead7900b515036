// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"

namespace jte::kernels {

namespace {

// 2048 buckets: the counters (16 KiB) and the ends of the buckets that a pass
// writes to stay in the caches of a core.
constexpr int kMaxDigitBits = 11;

template <typename Source>
std::unique_ptr<Entry[]> Sort(const Source& source, int64_t num_entries,
                              int64_t num_rows, Executor& executor) {
  const int key_bits =
      std::bit_width(static_cast<uint64_t>(num_rows > 1 ? num_rows - 1 : 1));
  const int num_digits = CeilDiv(key_bits, kMaxDigitBits);
  const int digit_bits = CeilDiv(key_bits, num_digits);
  const int64_t num_buckets = int64_t{1} << digit_bits;

  auto out = std::make_unique_for_overwrite<Entry[]>(num_entries);
  auto in = num_digits > 1
                ? std::make_unique_for_overwrite<Entry[]>(num_entries)
                : nullptr;
  for (int digit = 0; digit < num_digits; ++digit) {
    const int shift = digit * digit_bits;
    const auto bucket_of = [shift, num_buckets](const Entry& entry) {
      return (entry.row >> shift) & (num_buckets - 1);
    };
    const std::span<Entry> to(out.get(), num_entries);
    if (digit == 0) {
      DistributeEntries(source, num_entries, num_buckets, bucket_of, to,
                        executor);
    } else {
      const SpanEntries from{{in.get(), static_cast<size_t>(num_entries)}};
      DistributeEntries(from, num_entries, num_buckets, bucket_of, to,
                        executor);
    }
    if (digit + 1 < num_digits) std::swap(in, out);
  }
  return out;
}

}  // namespace

std::unique_ptr<Entry[]> SortByRow(const BufferEntries& source,
                                   int64_t num_entries, int64_t num_rows,
                                   Executor& executor) {
  return Sort(source, num_entries, num_rows, executor);
}

std::unique_ptr<Entry[]> SortByRow(std::span<const Entry> source,
                                   int64_t num_rows, Executor& executor) {
  return Sort(SpanEntries{source}, std::ssize(source), num_rows, executor);
}

}  // namespace jte::kernels
