// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/output_pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

constexpr int64_t kAlignment = OutputPool::kAlignment;

// Blocks of at least two huge pages are made of them. Measured on 64 MiB: 4.7
// ms to touch every new page instead of 19, and scattered writes, which are
// what the converter does, in two thirds of the time.
int64_t AlignmentOf(int64_t num_bytes) {
  constexpr auto kHugePage = static_cast<int64_t>(kHugePageBytes);
  return num_bytes >= 2 * kHugePage ? kHugePage : kAlignment;
}

// Sizes of blocks are multiples of this; the size of a block is its class.
int64_t BlockSize(int64_t num_bytes) {
  return RoundUp(num_bytes, AlignmentOf(num_bytes));
}

struct Free {
  void operator()(void* data) const { std::free(data); }
};
using Memory = std::unique_ptr<void, Free>;

Memory Allocate(int64_t size) {
  const int64_t alignment = AlignmentOf(size);
  Memory memory(std::aligned_alloc(alignment, size));
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment > kAlignment) {
    AllowHugePages(
        {static_cast<std::byte*>(memory.get()), static_cast<size_t>(size)});
  }
  return memory;
}

int64_t NumBytes(int64_t item_size, const std::vector<int64_t>& shape) {
  int64_t num_bytes = item_size;
  for (const int64_t length : shape) {
    if (length < 0) {
      throw py::value_error(
          StrCat("An array's lengths must not be negative, got ", length, "."));
    }
    if (__builtin_mul_overflow(num_bytes, length, &num_bytes)) {
      throw std::bad_alloc();
    }
  }
  // Room for the rounding; no memory is larger.
  if (num_bytes > std::numeric_limits<int64_t>::max() / 2) {
    throw std::bad_alloc();
  }
  return num_bytes;
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t MaxIdleBytes(std::optional<int64_t> max_bytes) {
  if (max_bytes && *max_bytes < 0) {
    throw py::value_error(StrCat("OutputPool: max_bytes must not be negative, ",
                                 "got ", *max_bytes, "."));
  }
  return max_bytes.value_or(kNoLimit);
}

}  // namespace

class OutputPool::Blocks {
 public:
  // budget: of what is idle, besides max_idle_bytes; none: nullptr.
  Blocks(int64_t max_idle_bytes, CacheBudget* budget)
      : max_idle_bytes_(max_idle_bytes), budget_(budget) {}

  Memory Take(int64_t size) {
    const auto found = idle_.find(size);
    if (found == idle_.end() || found->second.empty()) {
      Memory memory = Allocate(size);
      allocated_bytes += size;
      ++num_allocated;
      return memory;
    }
    Memory memory = std::move(found->second.back().memory);
    found->second.pop_back();
    RemoveIdle(size);
    ++num_reused;
    return memory;
  }

  // Runs in destructors: memory that cannot be kept is freed.
  void Return(Memory memory, int64_t size) noexcept {
    if (size <= max_idle_bytes_ && AddIdle(size)) {
      try {
        idle_[size].push_back({std::move(memory), ++num_returned_});
        FreeExcess();
        return;
      } catch (const std::bad_alloc&) {
        RemoveIdle(size);
      }
    }
    allocated_bytes -= size;
  }

  void Clear() {
    idle_.clear();
    allocated_bytes -= idle_bytes;
    RemoveIdle(idle_bytes);
  }

  int64_t max_idle_bytes() const { return max_idle_bytes_; }
  void SetMaxIdleBytes(int64_t max_idle_bytes) {
    max_idle_bytes_ = max_idle_bytes;
    FreeExcess();
  }

  int64_t allocated_bytes = 0;
  int64_t idle_bytes = 0;
  int64_t num_allocated = 0;
  int64_t num_reused = 0;

 private:
  struct Idle {
    Memory memory;
    int64_t returned;  // its place in the order of return
  };

  // Whether there may be so much more idle memory; older one makes room.
  bool AddIdle(int64_t size) noexcept {
    while (budget_ != nullptr && !budget_->Take(size)) {
      if (idle_bytes == 0) return false;
      FreeOldest();
    }
    idle_bytes += size;
    return true;
  }

  void RemoveIdle(int64_t size) noexcept {
    idle_bytes -= size;
    if (budget_ != nullptr) budget_->Return(size);
  }

  void FreeExcess() noexcept {
    while (idle_bytes > max_idle_bytes_) FreeOldest();
    if (idle_bytes == 0) idle_.clear();
  }

  // What returned first goes first: its size may be that of batches that come
  // no more, and would keep those of today out. Requires: there is some.
  void FreeOldest() noexcept {
    auto oldest = idle_.end();
    for (auto blocks = idle_.begin(); blocks != idle_.end(); ++blocks) {
      if (blocks->second.empty()) continue;
      if (oldest == idle_.end() ||
          blocks->second.front().returned < oldest->second.front().returned) {
        oldest = blocks;
      }
    }
    oldest->second.pop_front();
    RemoveIdle(oldest->first);
    allocated_bytes -= oldest->first;
  }

  int64_t max_idle_bytes_;
  CacheBudget* const budget_;
  int64_t num_returned_ = 0;
  // By size, and in the order in which they returned. The last one goes out
  // first: it may still be in a cache.
  std::unordered_map<int64_t, std::deque<Idle>> idle_;
};

OutputPool::OutputPool(std::optional<int64_t> max_bytes)
    : OutputPool(max_bytes, /*budget=*/nullptr) {}

OutputPool::OutputPool(std::optional<int64_t> max_bytes, CacheBudget* budget)
    : blocks_(std::make_shared<Blocks>(MaxIdleBytes(max_bytes), budget)) {}

OutputPool& OutputPool::OfProcess() {
  // Never destroyed: arrays may go while the process exits.
  static OutputPool& pool =
      *new OutputPool(kMaxIdleBytesOfProcess, &CacheBudget::OfProcess());
  return pool;
}

OutputPool::Block OutputPool::Take(int64_t num_bytes) {
  // What the owner of a block owns.
  struct Owned {
    ~Owned() { owner->Return(std::move(memory), size); }
    std::shared_ptr<Blocks> owner;
    int64_t size;
    Memory memory;
  };
  const int64_t size = std::max(BlockSize(num_bytes), kAlignment);
  auto owned = std::make_unique<Owned>(blocks_, size, blocks_->Take(size));
  void* const data = owned->memory.get();
  py::capsule owner(owned.get(),
                    [](void* owned) { delete static_cast<Owned*>(owned); });
  owned.release();  // the capsule's now
  return {.owner = std::move(owner), .data = data};
}

py::array OutputPool::Take(const py::dtype& dtype,
                           const std::vector<int64_t>& shape) {
  // What the last user left in the memory is no reference. Strings without a
  // length get one from NumPy, which is more than none.
  if (dtype.attr("hasobject").cast<bool>() || dtype.itemsize() == 0) {
    throw py::type_error(
        StrCat("OutputPool: dtype must be of numbers, got ",
               py::repr(dtype).cast<std::string>(),
               ". Use np.empty, whose arrays are of memory of their own."));
  }
  const Block block = Take(NumBytes(dtype.itemsize(), shape));
  return py::array(dtype, shape, block.data, block.owner);
}

void OutputPool::Clear() { blocks_->Clear(); }
void OutputPool::SetMaxBytes(std::optional<int64_t> max_bytes) {
  blocks_->SetMaxIdleBytes(MaxIdleBytes(max_bytes));
}
std::optional<int64_t> OutputPool::max_bytes() const {
  const int64_t max_bytes = blocks_->max_idle_bytes();
  return max_bytes == kNoLimit ? std::nullopt : std::optional(max_bytes);
}
int64_t OutputPool::allocated_bytes() const { return blocks_->allocated_bytes; }
int64_t OutputPool::idle_bytes() const { return blocks_->idle_bytes; }
int64_t OutputPool::num_allocated() const { return blocks_->num_allocated; }
int64_t OutputPool::num_reused() const { return blocks_->num_reused; }

void RegisterOutputPool(py::module_& module) {
  py::class_<OutputPool>(
      module, "OutputPool",
      "Memory of arrays that are gone, for the next ones.\n\n"
      "Memory returns to a pool when the last array, view or zero-copy JAX "
      "array over it goes, so nothing that is still referred to is "
      "overwritten. Threads may share a pool; arrays may outlive it; a forked "
      "process has its own copy.\n\n"
      "Preprocessing calls that are not passed a pool share of_process(), "
      "which keeps at most 128 MiB, and no more than lib.core.memory's cache "
      "limit has room for.\n\n"
      "Args:\n"
      "  max_bytes: idle memory beyond this is freed, the oldest first; "
      "default: all is kept until clear().")
      .def_static("of_process", &OutputPool::OfProcess,
                  py::return_value_policy::reference,
                  "The pool of all calls without one. With max_bytes = 0 it "
                  "keeps nothing.")
      .def(py::init<std::optional<int64_t>>(), py::kw_only(),
           py::arg("max_bytes") = py::none())
      .def(
          "empty",
          [](OutputPool& pool, const std::vector<int64_t>& shape,
             py::object dtype) {
            return pool.Take(py::dtype::from_args(std::move(dtype)), shape);
          },
          py::arg("shape"), py::arg("dtype"),
          "An array of unspecified contents.")
      .def("clear", &OutputPool::Clear, "Frees what no array uses.")
      .def_property("max_bytes", &OutputPool::max_bytes,
                    &OutputPool::SetMaxBytes,
                    "How many idle bytes are kept; None: all. Less frees the "
                    "rest at once.")
      .def_property_readonly("allocated_bytes", &OutputPool::allocated_bytes,
                             "Bytes of all memory, used or idle.")
      .def_property_readonly("idle_bytes", &OutputPool::idle_bytes,
                             "Bytes that no array uses.")
      .def_property_readonly("num_allocated", &OutputPool::num_allocated,
                             "How many arrays got new memory.")
      .def_property_readonly("num_reused", &OutputPool::num_reused,
                             "How many arrays got memory of an earlier one.")
      .def("__repr__", [](const OutputPool& pool) {
        return StrCat("OutputPool(allocated_bytes=", pool.allocated_bytes(),
                      ", idle_bytes=", pool.idle_bytes(),
                      ", num_allocated=", pool.num_allocated(),
                      ", num_reused=", pool.num_reused(), ")");
      });
}

}  // namespace jte::binding
