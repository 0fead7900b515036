// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/collective/local_all_reduce.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte::collective {
namespace {

struct Reduction {
  std::string_view kind;
  uint64_t value = 0;
  std::vector<bool> contributed;  // by rank
  int num_to_contribute;
  int num_waiting = 0;
};

class Group {
 public:
  explicit Group(int n) : n_(n) {}

  Result<uint64_t> Reduce(int rank, std::string_view kind, int32_t sync_key,
                          uint64_t value) {
    std::unique_lock lock(mutex_);
    if (std::ranges::find(finished_, sync_key) != finished_.end()) {
      return UsedTwice(rank, sync_key);
    }
    Reduction& reduction =
        running_
            .try_emplace(sync_key,
                         Reduction{.kind = kind,
                                   .contributed = std::vector<bool>(n_),
                                   .num_to_contribute = n_})
            .first->second;
    if (reduction.contributed[rank]) return UsedTwice(rank, sync_key);
    if (reduction.kind != kind) {
      return FailedPrecondition(
          "Reduction with sync_key ", sync_key, ": participant ", rank,
          " asks for ", kind, ", another one for ", reduction.kind,
          ". Use the same keys for the same reductions everywhere.");
    }
    reduction.value |= value;
    reduction.contributed[rank] = true;
    if (--reduction.num_to_contribute == 0) changed_.notify_all();

    ++reduction.num_waiting;
    int absent = -1;
    changed_.wait(lock, [this, &reduction, &absent] {
      absent = FirstAbsent(reduction);
      return reduction.num_to_contribute == 0 || absent >= 0;
    });
    const uint64_t result = reduction.value;
    const bool is_complete = reduction.num_to_contribute == 0;
    if (--reduction.num_waiting == 0) running_.erase(sync_key);
    if (!is_complete) {
      return FailedPrecondition("Reduction with sync_key ", sync_key,
                                ": participant ", absent,
                                " left without contributing. See its error.");
    }
    Remember(sync_key);
    return result;
  }

  void Leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_.push_back(rank);
    changed_.notify_all();
  }

 private:
  static std::unexpected<Error> UsedTwice(int rank, int32_t sync_key) {
    return FailedPrecondition("Reduction with sync_key ", sync_key,
                              ": participant ", rank,
                              " contributed before. Use a batch_number once.");
  }

  // The first participant that left and is missing, or -1: those that left
  // later may have left because of it.
  int FirstAbsent(const Reduction& reduction) const {
    for (const int rank : left_) {
      if (!reduction.contributed[rank]) return rank;
    }
    return -1;
  }

  // Called by each participant that got its result.
  void Remember(int32_t sync_key) {
    if (std::ranges::find(finished_, sync_key) != finished_.end()) return;
    finished_.push_back(sync_key);
    if (std::ssize(finished_) > kNumRememberedKeys) finished_.pop_front();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const int n_;
  std::vector<int> left_;  // in the order in which they left
  // By key. A map, because waiting calls hold references to its values.
  std::map<int32_t, Reduction> running_;
  std::deque<int32_t> finished_;
};

class Participant final : public AllReduce {
 public:
  Participant(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  ~Participant() override { group_->Leave(rank_); }

  Result<bool> AnyOf(int32_t sync_key, bool value) override {
    JTE_ASSIGN_OR_RETURN(const auto result,
                         group_->Reduce(rank_, "AnyOf", sync_key, value));
    return result != 0;
  }

  Result<uint64_t> BitwiseOr(int32_t sync_key, uint64_t value) override {
    return group_->Reduce(rank_, "BitwiseOr", sync_key, value);
  }

 private:
  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<AllReduce>> MakeLocalAllReduce(int n) {
  const auto group = std::make_shared<Group>(n);
  std::vector<std::unique_ptr<AllReduce>> participants;
  for (int rank = 0; rank < n; ++rank) {
    participants.push_back(std::make_unique<Participant>(group, rank));
  }
  return participants;
}

}  // namespace jte::collective
