// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Where the time of a lookup and of an update goes: the kernels, what they do
// before rows are moved, and the loops of the limit, in C++ alone.
//
//   parts SAMPLES IDS COLUMNS EXPONENT [ROUNDS [RULE HYPERPARAMETER...]]
//   parts 16384 20 64 1.05
//   parts 16384 20 64 0 21 adam 1e-3 0.9 0.999 1e-8
//
// looks up SAMPLES of IDS ids each, with weights and without, in a table of 256
// MiB, or of 2^20 rows if that is less, and updates it by SGD, Adagrad, and a
// rule of kernels/update/step_rule.cc if one is named. EXPONENT 0: uniform ids,
// else Zipf's. It prints CPU time on one thread, ms, medians of the rounds, and
// of updates the bytes that they have to move by it.
// Everybody takes turns in random order, with batches that are chosen at
// random. The limit, of lookups with weights, SGD and Adagrad, is the least
// median of its strategies, which limit_kernels.cc explains. Run it with
// `taskset` and nothing else.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "benchmarks/lookup/limit_kernels.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/id_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"

namespace {

namespace convert = jte::convert;
namespace kernels = jte::kernels;

constexpr int64_t kNumBatches = 8;
constexpr int64_t kEntryBytes = 12;  // row, sample and gain

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

struct Update {
  std::string rule;
  std::vector<float> hyperparameters;
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

convert::StackPlan MakePlan(const Case& c, const Batch& batch,
                            bool has_weights) {
  convert::FeatureInput feature = {.name = "feature",
                                   .vocabulary_size = c.num_rows(),
                                   .batch = {.ids = std::span(batch.ids),
                                             .num_samples = c.num_samples,
                                             .valency = c.valency}};
  if (has_weights) feature.batch.weights = batch.weights;
  return *convert::PlanStack({.name = "stack", .combiner = "sum"},
                             /*coo_cells_per_device=*/8, {feature},
                             {.local_device_count = 1,
                              .global_device_count = 1,
                              .num_sc_per_device = 1});
}

// Kept until the end. Rows begin with a cache line, as JAX's do: lookups of
// 16384 x 20 take three times as long where they do not.
std::span<float> InHugePages(int64_t size, float value) {
  const size_t bytes = jte::RoundUp(size * sizeof(float), jte::kHugePageBytes);
  auto* const values =
      static_cast<float*>(std::aligned_alloc(jte::kHugePageBytes, bytes));
  if (values == nullptr) std::abort();
  jte::AllowHugePages({reinterpret_cast<std::byte*>(values), bytes});
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

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(2);
}

void MustBe(const jte::Result<void>& done) {
  if (!done) Fail(done.error().message);
}

// What is measured, by name. Neighbours of one name are strategies of one
// limit.
using Contenders =
    std::vector<std::pair<std::string, std::function<void(int64_t batch)>>>;

class Parts {
 public:
  Parts(const Case& c, std::vector<Update> updates)
      : case_(c),
        updates_(std::move(updates)),
        table_(InHugePages(c.num_rows() * c.dim, 0.5f)),
        activations_(InHugePages(c.num_samples * c.dim, 0.0f)),
        gradient_(InHugePages(c.num_samples * c.dim, 1e-3f)),
        entries_(kNumBatches) {
    for (int64_t i = 0; i < kNumBatches; ++i) {
      batches_.push_back(MakeBatch(c, random_));
      plans_.push_back(MakePlan(c, batches_[i], /*has_weights=*/true));
      plans_without_weights_.push_back(
          MakePlan(c, batches_[i], /*has_weights=*/false));
      Read(plans_[i], 0, c.num_samples, entries_[i]);
    }
  }

  // What an update of a batch moves at least: each row of the table and its
  // slots in and out, each gradient and entry in. 0 for what is no update.
  double UpdateBytes(const std::string& name) const {
    const auto rule = kernels::FindRule(name);
    if (!rule) return 0;
    const int64_t in_slots =
        rule->has_row_slots ? sizeof(float) : case_.row_bytes();
    int64_t bytes = 0;
    for (const Batch& batch : batches_) {
      int64_t num_distinct = 0;
      for (size_t i = 0; i < batch.rows.size(); ++i) {
        num_distinct += i == 0 || batch.rows[i] != batch.rows[i - 1];
      }
      const int64_t num_entries = std::ssize(batch.rows);
      bytes +=
          2 * num_distinct * (case_.row_bytes() + rule->num_slots * in_slots) +
          num_entries * (case_.row_bytes() + kEntryBytes);
    }
    return static_cast<double>(bytes) / kNumBatches;
  }

  // The median of each, ms; of strategies the least. In their order.
  std::vector<std::pair<std::string, double>> Measure(int64_t rounds) {
    Contenders all;
    AddLookups(all);
    for (const Update& update : updates_) AddUpdate(update, all);
    for (const auto& [name, call] : all) call(0);
    std::vector<std::vector<double>> times(all.size());
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), 0);
    for (int64_t round = 0; round < rounds; ++round) {
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
  void Read(const convert::StackPlan& plan, int64_t begin, int64_t end,
            kernels::IdEntries& entries) {
    const convert::FeaturePlan& feature = plan.features.front();
    if (!entries.Read(plan, feature,
                      SliceOf(plan, feature, /*local_sc=*/0).Part(begin, end),
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
    AddLookupsOfIds("lookup from ids", plans_, values, all);
    all.emplace_back("  rows", [pool = kernels::MakePooler(
                                    {&values, 1}, case_.num_rows(), case_.dim,
                                    /*quantization=*/{}),
                                this](int64_t batch) {
      pool(entries_[batch].view(), 0, case_.num_samples, activations_.data());
    });
    AddLookupsOfIds("lookup from ids, no weights", plans_without_weights_,
                    values, all);
    all.emplace_back("lookup from buffers", [values, this](int64_t batch) {
      MustBe(kernels::Lookup(batches_[batch].buffers(), geometry(), values,
                             case_.dim, /*quantization=*/{}, activations_,
                             executor_));
    });
  }

  void AddLookupsOfIds(const std::string& name,
                       const std::vector<convert::StackPlan>& plans,
                       const kernels::LookupTable& values, Contenders& all) {
    all.emplace_back(name, [values, &plans, this](int64_t batch) {
      MustBe(kernels::LookupIds(plans[batch], {&values, 1}, case_.num_rows(),
                                case_.dim, /*quantization=*/{}, activations_,
                                executor_));
    });
    all.emplace_back("  before rows", [&plans, this](int64_t batch) {
      const int64_t at_once =
          std::max<int64_t>(1, kernels::LookupWorkPerTask(case_.row_bytes()) /
                                   (case_.valency + 1));
      for (int64_t s = 0; s < case_.num_samples; s += at_once) {
        Read(plans[batch], s, std::min(s + at_once, case_.num_samples),
             scratch_);
      }
    });
  }

  void AddUpdate(const Update& update, Contenders& all) {
    const kernels::Rule rule = *kernels::FindRule(update.rule);
    std::vector<std::span<float>> slots;
    for (int k = 0; k < rule.num_slots; ++k) {
      slots.push_back(InHugePages(
          case_.num_rows() * (rule.has_row_slots ? 1 : case_.dim), 0.5f));
    }
    if (update.rule == "sgd" || update.rule == "adagrad") {
      AddLimitOf(update.rule, slots.empty() ? nullptr : slots[0].data(), all);
    }
    all.emplace_back(update.rule, [&update, slots, this](int64_t batch) {
      MustBe(kernels::ApplyRows(
          batches_[batch].buffers(), geometry(), gradient_, case_.dim,
          {.rule = update.rule, .hyperparameters = update.hyperparameters},
          {.table = table_, .slots = slots}, executor_));
    });
  }

  void AddLimitOf(const std::string& rule, float* slot, Contenders& all) {
    for (const int64_t width : {int64_t{64}, case_.dim}) {
      for (const int64_t rows_ahead : {4096, 8192, 16384, 32768}) {
        for (const int64_t samples_ahead : {4096, 16384}) {
          all.emplace_back("limit of " + rule, [=, this](int64_t batch) {
            const Batch& b = batches_[batch];
            UpdateRows(table_.data(), slot, b.rows.data(), b.samples.data(),
                       b.gains.data(), gradient_.data(), std::ssize(b.rows),
                       case_.dim, width, rows_ahead / case_.row_bytes(),
                       samples_ahead / case_.row_bytes(),
                       /*to_first_level=*/false, /*num_threads=*/1);
          });
        }
      }
    }
  }

  kernels::CooGeometry geometry() const {
    return {.num_sc_per_device = 1,
            .rows_per_shard = case_.num_rows(),
            .batch_size_per_sc = case_.num_samples,
            .enable_minibatching = false,
            .num_minibatches = 1};
  }

  const Case case_;
  const std::vector<Update> updates_;
  std::mt19937_64 random_{1};
  const std::span<float> table_;
  const std::span<float> activations_;
  const std::span<const float> gradient_;
  std::vector<Batch> batches_;
  std::vector<convert::StackPlan> plans_;
  std::vector<convert::StackPlan> plans_without_weights_;
  std::vector<kernels::IdEntries> entries_;
  kernels::IdEntries scratch_;
  jte::InlineExecutor executor_;
};

// The number that an argument is; ends the program if it is none or not valid.
template <typename T>
T Number(const std::string& name, const std::string& text,
         const std::string& expected, const std::function<bool(T)>& is_valid) {
  T value = {};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !is_valid(value)) {
    Fail(name + " must be " + expected + ", got '" + text + "'.");
  }
  return value;
}

int64_t Count(const std::string& name, const std::string& text, int64_t most) {
  return Number<int64_t>(name, text,
                         "a whole number from 1 to " + std::to_string(most),
                         [most](int64_t n) { return 1 <= n && n <= most; });
}

Case ReadCase(std::span<const std::string> arguments) {
  constexpr int64_t kMostIds = 1 << 24;  // of a batch; all take 4 GiB
  const int64_t num_samples = Count("SAMPLES", arguments[0], kMostIds);
  return {
      .num_samples = num_samples,
      .valency = Count("IDS, of " + arguments[0] + " samples,", arguments[1],
                       kMostIds / num_samples),
      .dim = Number<int64_t>(
          "COLUMNS", arguments[2], "16, 32, 64 or 128",
          [](int64_t n) { return n == 16 || n == 32 || n == 64 || n == 128; }),
      .zipf_exponent = Number<double>(
          "EXPONENT", arguments[3], "a number from 0 to 10 other than 1",
          [](double n) { return 0 <= n && n <= 10 && n != 1; })};
}

// RULE HYPERPARAMETER...
Update ReadUpdate(std::span<const std::string> arguments) {
  const auto rule = kernels::FindRule(arguments[0]);
  if (!rule) Fail("RULE: " + rule.error().message);
  std::vector<float> hyperparameters;
  for (const std::string& text : arguments.subspan(1)) {
    hyperparameters.push_back(
        Number<float>("HYPERPARAMETER", text, "a finite number",
                      [](float x) { return std::isfinite(x); }));
  }
  return {arguments[0], hyperparameters};
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 4) {
    Fail(
        "Usage: parts SAMPLES IDS COLUMNS EXPONENT [ROUNDS [RULE "
        "HYPERPARAMETER...]]; see the head of parts.cc.");
  }
  const Case c = ReadCase(arguments);
  const int64_t rounds =
      arguments.size() > 4 ? Count("ROUNDS", arguments[4], 1'000'000) : 21;
  std::vector<Update> updates = {{"sgd", {1e-6f}}, {"adagrad", {1e-6f}}};
  if (arguments.size() > 5) {
    updates.push_back(ReadUpdate(std::span(arguments).subspan(5)));
  }
  Parts parts(c, std::move(updates));
  for (const auto& [name, median] : parts.Measure(rounds)) {
    std::printf("%-27s %8.3f", name.c_str(), median);
    if (const double bytes = parts.UpdateBytes(name); bytes > 0) {
      std::printf(" %6.1f GB/s", bytes / median / 1e6);
    }
    std::printf("\n");
  }
}
