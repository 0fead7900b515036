// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Numbers that come list by list, as flat numbers and row splits.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_LISTED_NUMBERS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_LISTED_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"

namespace jte::binding {

class ListedNumbers {
 public:
  // Before that many more are added: without, memory grows, which takes longer
  // than all else.
  void Expect(int64_t num_lists, int64_t num_runs) {
    splits_->reserve(splits_->size() + num_lists);
    runs_.reserve(runs_.size() + num_runs);
  }

  // The next list: its numbers are the next ones that AddRun did or will add.
  void AddList(int64_t size) { splits_->push_back(splits_->back() + size); }

  // The next numbers. A run that continues the one before becomes part of it,
  // so lists cut from one array, which is how many come about, are viewed where
  // they are instead of being copied.
  [[gnu::always_inline]] void AddRun(const convert::StridedRun& run) {
    if (!runs_.empty()) {
      convert::StridedRun& last = runs_.back();
      if (last.data + last.size * last.stride == run.data &&
          last.stride == run.stride && last.type == run.type) {
        last.size += run.size;
        return;
      }
    }
    StartRun(run);
  }

  int64_t num_lists() const { return std::ssize(*splits_) - 1; }

  // Whether all lists are of the same length in both.
  bool HasLengthsOf(const ListedNumbers& other) const {
    return *splits_ == *other.splits_;
  }

  // A view of memory().
  convert::StridedArray Splits() const {
    return {.data = reinterpret_cast<const std::byte*>(splits_->data()),
            .type = {.dtype = convert::DType::kInt64},
            .shape = {std::ssize(*splits_), 1},
            .strides = {sizeof(int64_t), 0}};
  }
  std::shared_ptr<const void> memory() const { return splits_; }

  // Ends the use of this, but for the view.
  convert::RawNumbers TakeNumbers() {
    if (runs_.size() != 1) return std::move(runs_);
    const convert::StridedRun& run = runs_[0];
    return convert::StridedArray{.data = run.data,
                                 .type = run.type,
                                 .shape = {run.size, 1},
                                 .strides = {run.stride, 0}};
  }

 private:
  [[gnu::noinline]] void StartRun(const convert::StridedRun& run) {
    runs_.push_back(run);
  }

  std::vector<convert::StridedRun> runs_;
  std::shared_ptr<std::vector<int64_t>> splits_ =
      std::make_shared<std::vector<int64_t>>(1, 0);
};

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_LISTED_NUMBERS_H_
