// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/recorded_failures.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace jte::ffi {

RecordedFailures& RecordedFailures::OfProcess() {
  // Never destroyed: a step may still run when the process ends.
  static auto& failures = *new RecordedFailures();
  return failures;
}

void RecordedFailures::SetAnnounce(void (*announce)()) {
  const std::lock_guard lock(mutex_);
  announce_ = announce;
}

void RecordedFailures::Add(std::string_view message) {
  void (*announce)() = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (failures_.count++ > 0) return;
    failures_.first = message;
    announce = announce_;
  }
  // Without the lock, which it may want.
  if (announce != nullptr) announce();
}

Failures RecordedFailures::Get() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

Failures RecordedFailures::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failures_, {});
}

void RecordFailureOf(int32_t device, int64_t num_devices,
                     std::string_view message) {
  std::string prefix;
  if (num_devices > 1) {
    prefix = "Device " + std::to_string(device) + " of the axis: ";
  }
  RecordedFailures::OfProcess().Add(prefix.append(message));
}

}  // namespace jte::ffi
