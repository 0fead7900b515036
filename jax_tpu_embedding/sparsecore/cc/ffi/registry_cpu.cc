// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The Python module lib/core/ffi_cpu: the CPU handlers by target name, and what
// lib/core/memory.py calls. A name of a target that was released never changes
// meaning.

#include <pybind11/pybind11.h>

#include <cstddef>

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"
#include "jax_tpu_embedding/sparsecore/cc/base/keep_freed_memory.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/share_cache_budget.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"

namespace jte {
namespace {

pybind11::dict Registrations() {
  const auto capsule = [](auto* handler) {
    return pybind11::capsule(reinterpret_cast<void*>(handler));
  };
  pybind11::dict targets;
  targets["jte_check_seal_cpu"] = capsule(JteCheckSealCpu);
  targets["jte_convert_ids_cpu"] = capsule(JteConvertIdsCpu);
  targets["jte_hold_cpu"] = capsule(JteHoldCpu);
  targets["jte_lookup_cpu"] = capsule(JteLookupCpu);
  targets["jte_lookup_fetched_cpu"] = capsule(JteLookupFetchedCpu);
  targets["jte_pack_messages_cpu"] = capsule(JtePackMessagesCpu);
  targets["jte_publish_cpu"] = capsule(JtePublishCpu);
  targets["jte_read_rows_cpu"] = capsule(JteReadRowsCpu);
  targets["jte_row_gradients_cpu"] = capsule(JteRowGradientsCpu);
  targets["jte_sum_gradients_cpu"] = capsule(JteSumGradientsCpu);
  targets["jte_sum_rows_cpu"] = capsule(JteSumRowsCpu);
  targets["jte_update_cpu"] = capsule(JteUpdateCpu);
  targets["jte_update_received_cpu"] = capsule(JteUpdateReceivedCpu);
  return targets;
}

}  // namespace
}  // namespace jte

PYBIND11_MODULE(ffi_cpu, module) {
  module.doc() = "XLA custom calls for the CPU.";
  jte::ShareCacheBudget();
  module.def("registrations", &jte::Registrations,
             "Target name -> capsule for jax.ffi.register_ffi_target.");
  // lib/core/memory.py documents these.
  module.def("keep_freed_memory", &jte::KeepFreedMemory);
  module.def("cache_limit",
             [] { return jte::CacheBudget::OfProcess().limit_bytes(); });
  module.def("set_cache_limit", [](size_t num_bytes) {
    jte::CacheBudget::OfProcess().SetLimitBytes(num_bytes);
  });
  module.def("cached_bytes",
             [] { return jte::CacheBudget::OfProcess().used_bytes(); });
}
