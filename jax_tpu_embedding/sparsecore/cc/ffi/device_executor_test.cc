// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/device_executor.h"

#include <cstdint>
#include <functional>
#include <vector>

#include "gtest/gtest.h"

namespace jte::ffi {
namespace {

// Counts the calls; runs tasks backwards.
class FourThreads final : public Executor {
 public:
  int num_threads() const override { return 4; }
  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    ++num_calls;
    for (int64_t i = n; i-- > 0;) task(i);
  }

  int num_calls = 0;
};

struct Case {
  int64_t num_devices;
  int num_threads;
  std::vector<int64_t> order;  // of three tasks
};

TEST(DeviceExecutorTest, TakesADevicesPartOfTheThreads) {
  for (const auto& [num_devices, num_threads, order] :
       {Case{0, 4, {2, 1, 0}}, Case{1, 4, {2, 1, 0}}, Case{2, 2, {2, 1, 0}},
        Case{3, 1, {0, 1, 2}}, Case{4, 1, {0, 1, 2}}, Case{5, 1, {0, 1, 2}}}) {
    FourThreads all_threads;
    DeviceExecutor executor(all_threads, num_devices);
    EXPECT_EQ(executor.num_threads(), num_threads);
    std::vector<int64_t> tasks;
    executor.ParallelFor(3, [&tasks](int64_t task) { tasks.push_back(task); });
    EXPECT_EQ(tasks, order);
    EXPECT_EQ(all_threads.num_calls, num_threads > 1 ? 1 : 0);
  }
}

}  // namespace
}  // namespace jte::ffi
