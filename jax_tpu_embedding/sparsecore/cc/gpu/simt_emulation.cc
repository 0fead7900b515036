// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Every thread of a block is a fiber (ucontext), which runs until it exchanges
// a value or ends. Then another one has its turn, of those that may run.

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt_emulation.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/default_float_environment.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace jte::gpu {
namespace {

using Call = void (*)(const void* kernel, const Thread& thread);

constexpr size_t kStackBytes = size_t{1} << 16;

std::mt19937& Order() {
  const char* seed = std::getenv("JTE_SIMT_SEED");
  // Every launch goes on where the last one stopped.
  static thread_local std::mt19937 random(seed ? std::atoi(seed) : 0);
  return random;
}

template <typename Int>
std::vector<Int> Shuffled(Int n) {
  std::vector<Int> order(n);
  std::iota(order.begin(), order.end(), Int{0});
  std::ranges::shuffle(order, Order());
  return order;
}

}  // namespace

void SeedOrder(unsigned seed) { Order().seed(seed); }

LaunchCounts& Launches() {
  static thread_local LaunchCounts counts;
  return counts;
}

class EmulatedBlock {
 public:
  EmulatedBlock(int num_threads, Call call, const void* kernel)
      : fibers_(num_threads), call_(call), kernel_(kernel) {
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    }
  }

  // Runs all threads; whether they came to their end.
  bool Run(int64_t block, int64_t num_blocks) {
    block_ = block;
    num_blocks_ = num_blocks;
    const int n = static_cast<int>(fibers_.size());
    for (int i = 0; i < n; ++i) Prepare(i);
    for (bool has_run = true; has_run;) {
      has_run = false;
      for (const int i : Shuffled(n)) {
        if (fibers_[i].has_ended || !MayRun(i)) continue;
        has_run = true;
        SwitchTo(i);
      }
    }
    return std::ranges::all_of(fibers_, &Fiber::has_ended);
  }

  // Called in fiber i: waits for its tile, and takes what `lane` has brought.
  uint32_t Exchange(int i, uint32_t value, int lane, int lanes) {
    fibers_[i].value = value;
    Wait(i, lanes);
    const uint32_t result = fibers_[(i & ~(lanes - 1)) + lane].value;
    Wait(i, lanes);  // before any brings its next value
    return result;
  }

  // The same; whether any of the tile has brought true.
  bool Any(int i, bool value, int lanes) {
    fibers_[i].value = value;
    Wait(i, lanes);
    const auto first = fibers_.begin() + (i & ~(lanes - 1));
    const bool any = std::any_of(first, first + lanes, [](const Fiber& fiber) {
      return fiber.value != 0;
    });
    Wait(i, lanes);
    return any;
  }

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool has_ended;
    int lanes;          // of the tile that it waits for, or 0
    int64_t num_waits;  // so far
    uint32_t value;
    void* fake_stack;  // of the sanitizer
  };

  void Prepare(int i) {
    Fiber& fiber = fibers_[i];
    fiber.has_ended = false;
    fiber.lanes = 0;
    fiber.num_waits = 0;
    fiber.fake_stack = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
    fiber.context.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Start), 3,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32),
                i);
  }

  // makecontext passes ints.
  static void Start(unsigned low, unsigned high, int i) {
    auto* self = reinterpret_cast<EmulatedBlock*>(
        low | static_cast<uintptr_t>(high) << 32);
    self->Entered(i);
    const int size = static_cast<int>(self->fibers_.size());
    self->call_(self->kernel_,
                Thread(self, i, size, self->block_, self->num_blocks_));
    self->fibers_[i].has_ended = true;
    self->SwitchBack(i);
  }

  void Wait(int i, int lanes) {
    fibers_[i].lanes = lanes;
    ++fibers_[i].num_waits;
    SwitchBack(i);
  }

  // Whether all of the tile that it waits for have come as often, and for the
  // same tile.
  bool MayRun(int i) const {
    const Fiber& fiber = fibers_[i];
    if (fiber.lanes == 0) return true;
    const int first = i & ~(fiber.lanes - 1);
    return std::all_of(fibers_.begin() + first,
                       fibers_.begin() + first + fiber.lanes,
                       [&fiber](const Fiber& other) {
                         return other.num_waits > fiber.num_waits ||
                                (other.num_waits == fiber.num_waits &&
                                 other.lanes == fiber.lanes);
                       });
  }

#if defined(__SANITIZE_ADDRESS__)
  // The sanitizer has to know which stack is in use.
  void SwitchTo(int i) {
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fibers_[i].stack.get(),
                                   kStackBytes);
    swapcontext(&main_, &fibers_[i].context);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
  }
  void Entered(int i) {
    __sanitizer_finish_switch_fiber(fibers_[i].fake_stack, &main_stack_,
                                    &main_stack_size_);
  }
  void SwitchBack(int i) {
    // A thread that has ended gives its stack back.
    __sanitizer_start_switch_fiber(
        fibers_[i].has_ended ? nullptr : &fibers_[i].fake_stack, main_stack_,
        main_stack_size_);
    swapcontext(&fibers_[i].context, &main_);
    Entered(i);
  }
  const void* main_stack_ = nullptr;
  size_t main_stack_size_ = 0;
#else
  void SwitchTo(int i) { swapcontext(&main_, &fibers_[i].context); }
  void Entered(int) {}
  void SwitchBack(int i) { swapcontext(&fibers_[i].context, &main_); }
#endif

  std::vector<Fiber> fibers_;
  ucontext_t main_;
  Call call_;
  const void* kernel_;
  int64_t block_ = 0;
  int64_t num_blocks_ = 0;
};

uint32_t Thread::Exchange(uint32_t value, int lane, int lanes) const {
  return owner_->Exchange(index_, value, lane, lanes);
}

bool Thread::Any(bool value, int lanes) const {
  return owner_->Any(index_, value, lanes);
}

const char* EmulateGrid(int64_t num_blocks, int threads_per_block,
                        bool exchanges, Call call, const void* kernel) {
  if (num_blocks == 0) return nullptr;
  ++Launches().kernels;
  // GPUs do not flush subnormal numbers, as XLA's CPU programs do.
  const ScopedDefaultFloatEnvironment environment;
  if (!exchanges) {
    for (const int64_t block : Shuffled(num_blocks)) {
      for (const int i : Shuffled(threads_per_block)) {
        call(kernel, Thread(nullptr, i, threads_per_block, block, num_blocks));
      }
    }
    return nullptr;
  }
  EmulatedBlock emulated(threads_per_block, call, kernel);
  for (const int64_t block : Shuffled(num_blocks)) {
    if (!emulated.Run(block, num_blocks)) {
      return "A thread waits for others of its tile that do not come.";
    }
  }
  return nullptr;
}

}  // namespace jte::gpu
