// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Pooled sums of encoded rows, ns per id: 16384 x 20 uniform ids of 1 M x 64,
// and of 1,000 rows, which are in a cache. The limit of the first is a row's
// cache lines; that of the second what the loops take.

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {
namespace {

constexpr int64_t kRows = 1 << 20;
constexpr int64_t kColumns = 64;
constexpr int64_t kSamples = 16384;
constexpr int64_t kIds = 20;

void BM_PoolRows(benchmark::State& state, Encoding encoding, int64_t rows) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-1, 1);
  const int64_t row_bytes = RowBytes(encoding, kColumns);
  std::vector<std::byte> table(rows * row_bytes);
  std::vector<float> row(kColumns);
  for (int64_t i = 0; i < rows; ++i) {
    for (float& value : row) value = values(random);
    EncodeRow(encoding, row, table.data() + i * row_bytes);
  }
  std::vector<WeightedRow> named(kSamples * kIds);
  for (WeightedRow& id : named) {
    id = {table.data() + random() % rows * row_bytes, 1.0f};
  }
  std::vector<int64_t> ends(kSamples);
  for (int64_t s = 0; s < kSamples; ++s) ends[s] = (s + 1) * kIds;
  std::vector<float> out(kSamples * kColumns);
  for (auto _ : state) {
    PoolRows(encoding, kColumns, named, ends, out.data());
    benchmark::ClobberMemory();
  }
  state.counters["ns_per_id"] = benchmark::Counter(
      1e-9 * kSamples * kIds, benchmark::Counter::kIsIterationInvariantRate |
                                  benchmark::Counter::kInvert);
}

const bool kRegistered = [] {
  for (size_t e = 0; e < kEncodingNames.size(); ++e) {
    for (const int64_t rows : {kRows, int64_t{1000}}) {
      benchmark::RegisterBenchmark(
          (std::string(kEncodingNames[e]) + "/" + std::to_string(rows)).c_str(),
          [e, rows](benchmark::State& state) {
            BM_PoolRows(state, static_cast<Encoding>(e), rows);
          });
    }
  }
  return true;
}();

}  // namespace
}  // namespace jte::serving
