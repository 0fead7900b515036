// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/cpu_quota.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor_contract.h"

namespace jte {
namespace {

TEST(InlineExecutorTest, KeepsTheContract) {
  InlineExecutor executor;
  ExpectKeepsExecutorContract(executor);
}

TEST(ThreadExecutorTest, KeepsTheContract) {
  for (int num_threads : {1, 2, 7}) {
    ThreadExecutor executor(num_threads);
    ExpectKeepsExecutorContract(executor);
  }
}

// The threads that `n` tasks run on, each of which waits for all others.
std::set<std::thread::id> ThreadsOf(int64_t n, Executor& executor) {
  std::vector<std::thread::id> threads(n);
  std::barrier<> all(n);
  executor.ParallelFor(n, [&threads, &all](int64_t i) {
    threads[i] = std::this_thread::get_id();
    all.arrive_and_wait();
  });
  return {threads.begin(), threads.end()};
}

TEST(ThreadExecutorTest, KeepsItsThreads) {
  ThreadExecutor executor(4);
  EXPECT_EQ(executor.num_helpers(), 0);
  // No more than there is work for.
  ThreadsOf(2, executor);
  EXPECT_EQ(executor.num_helpers(), 1);
  const auto threads = ThreadsOf(4, executor);
  EXPECT_EQ(threads.size(), 4);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ThreadsOf(4, executor), threads);
  EXPECT_EQ(executor.num_helpers(), 3);
}

void LetNoMemoryBeMapped() {
  const rlimit limit = {.rlim_cur = 1, .rlim_max = 1};
  setrlimit(RLIMIT_AS, &limit);
}

// Whether that does it: QEMU has no such limit.
bool CanLetNoMemoryBeMapped() {
  const pid_t child = fork();
  if (child == 0) {
    LetNoMemoryBeMapped();
    _exit(mmap(nullptr, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
                  MAP_FAILED
              ? 0
              : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Ends the process: 0 if tasks run although no thread can be started.
[[noreturn]] void RunWithoutMemoryForStacks() {
  LetNoMemoryBeMapped();
  ThreadExecutor executor(4);
  int64_t sum = 0;
  executor.ParallelFor(10, [&sum](int64_t i) { sum += i; });
  std::_Exit(sum == 45 && executor.num_helpers() == 0 ? 0 : 1);
}

TEST(ThreadExecutorDeathTest, DoesWithoutThreadsThatCannotBeStarted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "Sanitizers need address space.";
#endif
  if (!CanLetNoMemoryBeMapped()) {
    GTEST_SKIP() << "Here the address space of a process has no limit.";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunWithoutMemoryForStacks(), testing::ExitedWithCode(0), "");
}

TEST(NumSchedulableCpusTest, IsThatOfTheProcess) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(NumSchedulableCpus(),
            std::min(CPU_COUNT(&all), CpuQuota().value_or(CPU_COUNT(&all))));
  int cpu = 0;
  while (!CPU_ISSET(cpu, &all)) ++cpu;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(NumSchedulableCpus(), 1);
  EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

}  // namespace
}  // namespace jte
