// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Where the time of a lookup and of an update goes: the kernels, what they do
// before rows are moved, and the loops of the limit, in C++ alone.
//
//   parts SAMPLES IDS COLUMNS EXPONENT [ROUNDS]
//
// looks up SAMPLES of IDS ids each, with weights, in a table of 256 MiB, or of
// 2^20 rows if that is less; EXPONENT 0: uniform ids, else Zipf's. It prints
// CPU time on one thread, ms, medians of the rounds. Everybody takes turns in
// random order, with batches that are chosen at random. The limit is the least
// median of its strategies, which limit_kernels.cc explains. Run it with
// `taskset` and nothing else.

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "benchmarks/lookup/limit_kernels.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/id_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"

namespace {

namespace convert = jte::convert;
namespace kernels = jte::kernels;

constexpr int64_t kNumBatches = 8;

struct Case {
  int64_t num_samples;
  int64_t valency;
  int64_t dim;
  double zipf_exponent;

  int64_t num_rows() const {
    return std::min<int64_t>(1 << 20, (256 << 20) / (4 * dim));
  }
  int64_t row_bytes() const { return 4 * dim; }
};

// Ids as they come, and as entries that are sorted by row.
struct Batch {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> row_pointers;
  std::vector<int32_t> rows;
  std::vector<int32_t> samples;
  std::vector<float> gains;

  kernels::CooBuffers buffers() const {
    return {row_pointers, rows, samples, gains};
  }
};

Batch MakeBatch(const Case& c, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform;
  const auto next_id = [&c, &random, &uniform] {
    const int64_t n = c.num_rows();
    if (c.zipf_exponent == 0) return static_cast<int32_t>(random() % n);
    // The inverse of a continuous Zipf distribution; the odd factor scatters
    // hot rows over the table.
    const double power = 1.0 - c.zipf_exponent;
    const double rank = std::pow(
        uniform(random) * (std::pow(n, power) - 1.0) + 1.0, 1.0 / power);
    return static_cast<int32_t>(static_cast<int64_t>(rank) * 0x9E3779B1 % n);
  };
  const int64_t size = c.num_samples * c.valency;
  Batch batch;
  for (int64_t i = 0; i < size; ++i) {
    batch.ids.push_back(next_id());
    batch.weights.push_back(static_cast<float>(uniform(random)));
  }
  std::vector<int32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&batch](int i) { return batch.ids[i]; });
  for (const int32_t i : order) {
    batch.rows.push_back(batch.ids[i]);
    batch.samples.push_back(static_cast<int32_t>(i / c.valency));
    batch.gains.push_back(batch.weights[i]);
  }
  batch.row_pointers.assign(8, static_cast<int32_t>(size));
  return batch;
}

// Kept until the end.
std::span<float> InHugePages(int64_t size, float value) {
  constexpr int64_t kHugePage = 2 << 20;
  void* const memory =
      mmap(nullptr, 4 * size + kHugePage, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  const auto begin = reinterpret_cast<uintptr_t>(memory) + kHugePage - 1;
  auto* const values = reinterpret_cast<float*>(begin / kHugePage * kHugePage);
  madvise(values, 4 * size, MADV_HUGEPAGE);
  std::fill_n(values, size, value);
  return {values, static_cast<size_t>(size)};
}

double CpuMilliseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * time.tv_sec + 1e-6 * time.tv_nsec;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void MustBe(const jte::Result<void>& done) {
  if (done) return;
  std::fprintf(stderr, "%s\n", done.error().message.c_str());
  std::exit(1);
}

// What is measured, by name. Neighbours of one name are strategies of one
// limit.
using Contenders =
    std::vector<std::pair<std::string, std::function<void(int64_t batch)>>>;

class Parts {
 public:
  explicit Parts(const Case& c)
      : case_(c),
        table_(InHugePages(c.num_rows() * c.dim, 0.5f)),
        slot_(InHugePages(c.num_rows() * c.dim, 0.5f)),
        activations_(c.num_samples * c.dim),
        gradient_(c.num_samples * c.dim, 1e-3f) {
    for (int64_t i = 0; i < kNumBatches; ++i) {
      batches_.push_back(MakeBatch(c, random_));
    }
    for (const Batch& batch : batches_) {
      convert::FeatureInput feature = {.name = "feature",
                                       .vocabulary_size = c.num_rows(),
                                       .batch = {.ids = std::span(batch.ids),
                                                 .num_samples = c.num_samples,
                                                 .valency = c.valency}};
      feature.batch.weights = batch.weights;
      plans_.push_back(*convert::PlanStack({.name = "stack", .combiner = "sum"},
                                           /*coo_cells_per_device=*/8,
                                           {feature},
                                           {.local_device_count = 1,
                                            .global_device_count = 1,
                                            .num_sc_per_device = 1}));
    }
    entries_.resize(kNumBatches);
    for (int64_t i = 0; i < kNumBatches; ++i) {
      Read(plans_[i], 0, c.num_samples, entries_[i]);
    }
  }

  Contenders contenders() {
    Contenders all;
    AddLookups(all);
    AddUpdates("SGD", "sgd", {}, all);
    AddUpdates("Adagrad", "adagrad", {slot_}, all);
    return all;
  }

  // The median of each, ms; of strategies the least. In their order.
  std::vector<std::pair<std::string, double>> Measure(int rounds) {
    const Contenders all = contenders();
    for (const auto& [name, call] : all) call(0);
    std::vector<std::vector<double>> times(all.size());
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < rounds; ++round) {
      std::ranges::shuffle(order, random_);
      for (const size_t i : order) {
        const auto batch = static_cast<int64_t>(random_() % kNumBatches);
        const double start = CpuMilliseconds();
        all[i].second(batch);
        times[i].push_back(CpuMilliseconds() - start);
      }
    }
    std::vector<std::pair<std::string, double>> medians;
    for (size_t i = 0; i < all.size(); ++i) {
      const double median = Median(times[i]);
      if (medians.empty() || medians.back().first != all[i].first) {
        medians.emplace_back(all[i].first, median);
      } else {
        medians.back().second = std::min(medians.back().second, median);
      }
    }
    return medians;
  }

 private:
  void Read(const convert::StackPlan& plan, int64_t first_sample, int64_t size,
            kernels::IdEntries& entries) {
    const convert::FeaturePlan& feature = plan.features.front();
    convert::Slice slice = SliceOf(plan, feature, /*local_sc=*/0);
    const int64_t first_id = first_sample * case_.valency;
    slice.samples.size = size;
    slice.ids = std::get<std::span<const int32_t>>(slice.ids).subspan(
        first_id, size * case_.valency);
    slice.weights = slice.weights->subspan(first_id, size * case_.valency);
    if (!entries.Read(plan, feature, slice,
                      kernels::RowNumbers(plan, case_.num_rows()))) {
      std::abort();
    }
  }

  void AddLookups(Contenders& all) {
    for (const int64_t width : {int64_t{64}, case_.dim}) {
      for (const int64_t ids_at_once : {0, 1024}) {
        for (const int64_t bytes_ahead : {4096, 8192, 16384, 32768}) {
          all.emplace_back("limit of lookups", [=, this](int64_t batch) {
            const Batch& b = batches_[batch];
            LookUp(table_.data(), b.ids.data(), b.weights.data(),
                   activations_.data(), case_.num_samples, case_.valency,
                   case_.dim, width, bytes_ahead / case_.row_bytes(),
                   (ids_at_once + case_.valency - 1) / case_.valency,
                   /*to_first_level=*/false, /*num_threads=*/1);
          });
        }
      }
    }
    const kernels::LookupTable values = std::span<const float>(table_);
    all.emplace_back("lookup from ids", [values, this](int64_t batch) {
      MustBe(kernels::LookupIds(plans_[batch], {&values, 1}, case_.num_rows(),
                                case_.dim, /*quantization=*/{}, activations_,
                                executor_));
    });
    all.emplace_back("  before rows", [this](int64_t batch) {
      const int64_t at_once = std::max<int64_t>(1, 4096 / case_.valency);
      for (int64_t s = 0; s < case_.num_samples; s += at_once) {
        Read(plans_[batch], s, std::min(at_once, case_.num_samples - s),
             scratch_);
      }
    });
    all.emplace_back("  rows", [pool = kernels::MakePooler(
                                    {&values, 1}, case_.num_rows(), case_.dim,
                                    /*quantization=*/{}),
                                this](int64_t batch) {
      pool(entries_[batch].view(), 0, case_.num_samples, activations_.data());
    });
    all.emplace_back("lookup from buffers", [values, this](int64_t batch) {
      MustBe(kernels::Lookup(batches_[batch].buffers(), geometry(), values,
                             case_.dim, /*quantization=*/{}, activations_,
                             executor_));
    });
  }

  void AddUpdates(const std::string& name, std::string_view rule,
                  std::vector<std::span<float>> slots, Contenders& all) {
    for (const int64_t width : {int64_t{64}, case_.dim}) {
      for (const int64_t rows_ahead : {4096, 8192, 16384, 32768}) {
        for (const int64_t samples_ahead : {4096, 16384}) {
          all.emplace_back("limit of " + name, [=, this](int64_t batch) {
            const Batch& b = batches_[batch];
            UpdateRows(table_.data(), slots.empty() ? nullptr : slots[0].data(),
                       b.rows.data(), b.samples.data(), b.gains.data(),
                       gradient_.data(), std::ssize(b.rows), case_.dim, width,
                       rows_ahead / case_.row_bytes(),
                       samples_ahead / case_.row_bytes(),
                       /*to_first_level=*/false, /*num_threads=*/1);
          });
        }
      }
    }
    all.emplace_back(
        name, [rule, slots = std::move(slots), this](int64_t batch) {
          MustBe(kernels::ApplyRows(
              batches_[batch].buffers(), geometry(), gradient_, case_.dim,
              {.rule = std::string(rule), .hyperparameters = learning_rate_},
              {.table = table_, .slots = slots}, executor_));
        });
  }

  kernels::CooGeometry geometry() const {
    return {.num_sc_per_device = 1,
            .rows_per_shard = case_.num_rows(),
            .batch_size_per_sc = case_.num_samples,
            .enable_minibatching = false,
            .num_minibatches = 1};
  }

  const Case case_;
  std::mt19937_64 random_{1};
  const std::span<float> table_;
  const std::span<float> slot_;
  std::vector<float> activations_;
  const std::vector<float> gradient_;
  const std::vector<float> learning_rate_ = {1e-6f};
  std::vector<Batch> batches_;
  std::vector<convert::StackPlan> plans_;
  std::vector<kernels::IdEntries> entries_;
  kernels::IdEntries scratch_;
  jte::InlineExecutor executor_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::fprintf(stderr,
                 "Usage: parts SAMPLES IDS COLUMNS EXPONENT [ROUNDS]; see the "
                 "head of parts.cc.\n");
    return 2;
  }
  const Case c{.num_samples = std::atoll(argv[1]),
               .valency = std::atoll(argv[2]),
               .dim = std::atoll(argv[3]),
               .zipf_exponent = std::atof(argv[4])};
  const int rounds = argc == 6 ? std::atoi(argv[5]) : 21;
  if (c.num_samples < 1 || c.valency < 1 || rounds < 1 ||
      (c.dim != 16 && c.dim != 32 && c.dim != 64 && c.dim != 128)) {
    std::fprintf(stderr,
                 "SAMPLES, IDS and ROUNDS must be positive, COLUMNS 16, 32, 64 "
                 "or 128.\n");
    return 2;
  }
  Parts parts(c);
  for (const auto& [name, median] : parts.Measure(rounds)) {
    std::printf("%-20s %8.3f\n", name.c_str(), median);
  }
}
