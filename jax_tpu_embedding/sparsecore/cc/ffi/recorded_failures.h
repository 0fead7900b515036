// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What was wrong with batches of programs that must not fail.
//
// JAX gives the arrays that a program mutates to XLA, and if the program fails,
// they are gone: one id out of range would cost all tables. So the programs of
// layers go on with NaN for activations, and what was wrong is kept here, one
// record for the process, until the caller asks for it.
//
// Threading: all methods may be called at once.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RECORDED_FAILURES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RECORDED_FAILURES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace jte::ffi {

struct Failures {
  std::string first;  // its message
  int64_t count = 0;  // of all
};

class RecordedFailures {
 public:
  static RecordedFailures& OfProcess();

  // `announce` is called for a failure that is the first one since the start,
  // or since Take, by the thread that has found it. It is not to wait.
  void SetAnnounce(void (*announce)());

  void Add(std::string_view message);

  // The failures so far.
  Failures Get() const;

  // The same, and forgets them.
  Failures Take();

 private:
  mutable std::mutex mutex_;
  Failures failures_;
  void (*announce_)() = nullptr;
};

// Records what is wrong on one of the devices of an axis.
void RecordFailureOf(int32_t device, int64_t num_devices,
                     std::string_view message);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RECORDED_FAILURES_H_
