// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Running out of memory, on whichever thread, is an exception of the kernel:
// the process goes on, and so does the next call.

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/failing_allocation.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/messages.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_gradients.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::kernels {
namespace {

// A pool like XLA's: a helper may start after the call that scheduled it.
class Pool {
 public:
  int64_t num_threads() const { return 3; }

  void Schedule(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void Serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !queue_.empty(); })) {
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  std::jthread first_{[this](const std::stop_token& stop) { Serve(stop); }};
  std::jthread second_{[this](const std::stop_token& stop) { Serve(stop); }};
};

constexpr int64_t kDim = 8;
constexpr float kLearningRate[] = {0.1f};
constexpr Optimizer kAdagrad{.rule = "adagrad",
                             .hyperparameters = kLearningRate};

void Reverse(RandomCoo& coo) {
  const auto partitions = ReadPartitions(coo.buffers(), coo.geometry);
  for (const Partition& partition : *partitions) {
    const auto reverse = [&partition](auto& cells) {
      std::reverse(cells.begin() + partition.begin,
                   cells.begin() + partition.end);
    };
    reverse(coo.embedding_ids);
    reverse(coo.sample_ids);
    reverse(coo.gains);
  }
}

// Enough entries for several tasks of every kernel.
struct Data {
  explicit Data(int64_t num_scs, int64_t batch_size_per_sc = 1500,
                int ids_per_sample = 7)
      : coo(MakeRandomCoo({.num_sc_per_device = num_scs,
                           .rows_per_shard = 300,
                           .batch_size_per_sc = batch_size_per_sc,
                           .enable_minibatching = false,
                           .num_minibatches = 1},
                          ids_per_sample, /*seed=*/1)),
        table(coo.num_rows() * kDim, 0.5f),
        slot(table.size(), 1.0f),
        gradient(coo.num_samples() * kDim, 0.25f),
        activations(gradient.size()) {}

  Tables tables() {
    slots = {slot};
    return {.table = std::span(table), .slots = slots};
  }

  RandomCoo coo;
  std::vector<float> table;
  std::vector<float> slot;
  std::vector<std::span<float>> slots;
  std::vector<float> gradient;
  std::vector<float> activations;
};

// The message of one device that asks itself.
struct Message {
  explicit Message(const RandomCoo& coo)
      : requests(coo.num_rows()),
        row_pointers(RowPointersPerBlock(1)),
        places(coo.gains.size()),
        samples(coo.gains.size()),
        gains(coo.gains.size()),
        rows(coo.num_rows() * kDim) {}

  void Pack(const RandomCoo& coo, Executor& executor) {
    const std::span<int32_t> request = requests;
    PackMessages(coo.buffers(), coo.geometry, {&request, 1},
                 {row_pointers, places, samples, gains}, executor);
  }

  std::vector<int32_t> requests;
  std::vector<int32_t> row_pointers;
  std::vector<int32_t> places;
  std::vector<int32_t> samples;
  std::vector<float> gains;
  std::vector<float> rows;
};

struct Kernel {
  std::string name;
  std::function<Result<void>(Executor&)> run;
};

// Every kernel that has tasks, on each of its ways through them.
std::vector<Kernel> Kernels(Data& ordered, Data& ascending, Data& reversed,
                            Data& wide, Message& message) {
  const auto lookup = [](Data& data) {
    return [&data](Executor& executor) {
      return Lookup(data.coo.buffers(), data.coo.geometry,
                    std::span<const float>(data.table), kDim, std::nullopt,
                    data.activations, executor);
    };
  };
  const auto update = [](Data& data) {
    return [&data](Executor& executor) {
      return ApplyRows(data.coo.buffers(), data.coo.geometry, data.gradient,
                       kDim, kAdagrad, data.tables(), executor);
    };
  };
  const auto gradients = [](Data& data) {
    return [&data](Executor& executor) {
      std::vector<int32_t> rows(data.coo.num_rows());
      std::vector<float> values(data.table.size());
      return GradientsOfRows(data.coo.buffers(), data.coo.geometry,
                             data.gradient, kDim, {rows, values}, executor);
    };
  };
  const auto update_batches = [](Data& data) {
    return [&data](Executor& executor) {
      const DeviceBatch batch = {data.coo.buffers(), data.gradient.data()};
      return ApplyBatches({&batch, 1}, /*device=*/0, data.coo.geometry, kDim,
                          kAdagrad, data.tables(), executor);
    };
  };
  return {
      {"lookup", lookup(ascending)},
      {"lookup of many samples", lookup(wide)},
      {"update of one partition", update(ordered)},
      {"update of ascending runs", update(ascending)},
      {"update of entries in any order", update(reversed)},
      {"update by batches", update_batches(ascending)},
      {"update by batches in any order", update_batches(reversed)},
      {"gradients of one partition", gradients(ordered)},
      {"gradients of rows", gradients(ascending)},
      {"gradients in any order", gradients(reversed)},
      {"sums of gradients",
       [&ascending](Executor& executor) {
         const std::vector<float> ones(ascending.coo.entries.size(), 1.0f);
         const ConstSparseRows term = {
             std::span(ascending.coo.embedding_ids).first(ones.size()), ones};
         std::vector<int32_t> rows(ones.size());
         std::vector<float> sums(ones.size());
         return SumOfRows(std::vector{term, term}, /*dim=*/1, {rows, sums},
                          executor);
       }},
      {"messages",
       [&ascending, &message](Executor& executor) {
         Message(ascending.coo).Pack(ascending.coo, executor);
         const std::span<const int32_t> wanted = message.requests;
         const TableValues rows = std::span(message.rows);
         ReadRows(std::span<const float>(ascending.table), kDim, {&wanted, 1},
                  {&rows, 1}, executor);
         const std::span<float> sums = message.rows;
         SumGradients({message.row_pointers, message.places, message.samples,
                       message.gains},
                      ascending.gradient, kDim, {&sums, 1}, executor);
         return Result<void>();
       }},
      {"update by messages",
       [&ascending, &message](Executor& executor) {
         const ReceivedGradients received = {message.requests,
                                             message.rows.data()};
         return ApplyReceived({&received, 1}, ascending.coo.num_rows(), kDim,
                              kAdagrad, ascending.tables(), executor);
       }},
  };
}

TEST(OutOfMemoryTest, IsAnExceptionOfEveryKernel) {
  Data ordered(1, 4000);
  Data ascending(3);
  Data reversed(3);
  Reverse(reversed.coo);
  Data wide(1, kMaxSortedSamples + 1, /*ids_per_sample=*/1);
  Message message(ascending.coo);
  InlineExecutor inline_executor;
  message.Pack(ascending.coo, inline_executor);
  Pool pool;
  ThreadExecutor thread_executor(3);
  ffi::BasicThreadPoolExecutor pool_executor(pool);
  for (const auto& [name, run] :
       Kernels(ordered, ascending, reversed, wide, message)) {
    for (Executor* const executor : std::initializer_list<Executor*>{
             &inline_executor, &thread_executor, &pool_executor}) {
      SCOPED_TRACE(name);
      const int64_t num_thrown =
          ExpectSurvivesFailingAllocations([&run, executor] {
            const auto done = run(*executor);
            ASSERT_TRUE(done) << done.error().message;
          });
      EXPECT_GT(num_thrown, 0);
    }
  }
}

}  // namespace
}  // namespace jte::kernels
