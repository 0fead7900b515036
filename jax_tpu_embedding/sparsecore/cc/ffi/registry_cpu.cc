// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The Python module lib/core/ffi_cpu: the CPU handlers by target name, what
// they have recorded, and what lib/core/memory.py calls. A name of a target
// that was released never changes meaning.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/keep_freed_memory.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/share_cache_budget.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/recorded_failures.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/table_memory.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"

namespace jte::ffi {
namespace {

pybind11::dict Registrations() {
  const auto capsule = [](auto* handler) {
    return pybind11::capsule(reinterpret_cast<void*>(handler));
  };
  pybind11::dict targets;
  targets["jte_check_batch_cpu"] = capsule(JteCheckBatchCpu);
  targets["jte_check_seal_cpu"] = capsule(JteCheckSealCpu);
  targets["jte_convert_ids_cpu"] = capsule(JteConvertIdsCpu);
  targets["jte_hold_cpu"] = capsule(JteHoldCpu);
  targets["jte_split_records_cpu"] = capsule(JteSplitRecordsCpu);
  targets["jte_lookup_cpu"] = capsule(JteLookupCpu);
  targets["jte_lookup_fetched_cpu"] = capsule(JteLookupFetchedCpu);
  targets["jte_lookup_ids_cpu"] = capsule(JteLookupIdsCpu);
  targets["jte_lookup_ids_of_devices_cpu"] = capsule(JteLookupIdsOfDevicesCpu);
  targets["jte_lookup_part_cpu"] = capsule(JteLookupPartCpu);
  targets["jte_new_table_cpu"] = capsule(JteNewTableCpu);
  targets["jte_pack_messages_cpu"] = capsule(JtePackMessagesCpu);
  targets["jte_publish_cpu"] = capsule(JtePublishCpu);
  targets["jte_publish_table_cpu"] = capsule(JtePublishTableCpu);
  targets["jte_random_bits_cpu"] = capsule(JteRandomBitsCpu);
  targets["jte_read_rows_cpu"] = capsule(JteReadRowsCpu);
  targets["jte_row_gradients_cpu"] = capsule(JteRowGradientsCpu);
  targets["jte_small_lookups_cpu"] = capsule(JteSmallLookupsCpu);
  targets["jte_small_updates_cpu"] = capsule(JteSmallUpdatesCpu);
  targets["jte_sum_gradients_cpu"] = capsule(JteSumGradientsCpu);
  targets["jte_sum_rows_cpu"] = capsule(JteSumRowsCpu);
  targets["jte_unstack_activations_cpu"] = capsule(JteUnstackActivationsCpu);
  targets["jte_update_batches_cpu"] = capsule(JteUpdateBatchesCpu);
  targets["jte_update_cpu"] = capsule(JteUpdateCpu);
  targets["jte_update_received_cpu"] = capsule(JteUpdateReceivedCpu);
  return targets;
}

std::vector<std::string_view> UpdateRules() {
  std::vector<std::string_view> names;
  for (const kernels::Rule& rule : kernels::Rules()) names.push_back(rule.name);
  return names;
}

// The first message, and how many failures there were.
std::pair<std::string, int64_t> TakeFailures() {
  Failures failures = RecordedFailures::OfProcess().Take();
  return {std::move(failures.first), failures.count};
}

// absl.logging.warning, imported with this module. A pending call runs in
// whatever frame the main thread is in; an import there would ask the built-ins
// of that frame for __import__, and some frames have none. It is never freed:
// there may be no interpreter any more.
pybind11::handle warning;

// A pending call of the interpreter.
int WarnOfFailure(void*) {
  const Failures failures = RecordedFailures::OfProcess().Get();
  if (failures.count == 0) return 0;  // The caller knows.
  try {
    warning(
        "%s The activations are NaN, and the batch updates no table. "
        "embedding.raise_errors() raises this, and allows the next warning.",
        failures.first);
  } catch (pybind11::error_already_set& error) {
    error.discard_as_unraisable("the warning of a batch that failed");
  }
  return 0;
}

// Handlers run in threads of XLA, without the interpreter lock, and must not
// wait for it. This has the main thread warn as soon as it runs Python code. At
// the end of the process there may be no interpreter any more.
void WarnSoon() {
  if (Py_IsInitialized()) Py_AddPendingCall(WarnOfFailure, nullptr);
}

}  // namespace
}  // namespace jte::ffi

PYBIND11_MODULE(ffi_cpu, module) {
  module.doc() = "XLA custom calls for the CPU.";
  jte::binding::ShareCacheBudget();
  module.def("registrations", &jte::ffi::Registrations,
             "Target name -> capsule for jax.ffi.register_ffi_target.");
  module.def("update_rules", &jte::ffi::UpdateRules,
             "The names of the optimizers that jte_update_cpu has.");
  const auto logging = pybind11::module_::import("absl.logging");
  jte::ffi::warning = pybind11::object(logging.attr("warning")).release();
  jte::ffi::RecordedFailures::OfProcess().SetAnnounce(&jte::ffi::WarnSoon);
  module.def("take_failures", &jte::ffi::TakeFailures,
             "The message of the first batch that failed since the last call, "
             "and how many did. Of those of check_batch and lookup_ids that "
             "keep errors.");
  module.def(
      "use_huge_pages",
      [](uintptr_t address, size_t num_bytes) {
        if (num_bytes < jte::ffi::TableMemory::kMinBytes) return size_t{0};
        return jte::UseHugePages(
            {reinterpret_cast<std::byte*>(address), num_bytes});
      },
      pybind11::arg("address"), pybind11::arg("num_bytes"),
      pybind11::call_guard<pybind11::gil_scoped_release>(),
      "Moves a table's memory into huge pages, as far as the system has them, "
      "if it is large enough to be worth it; returns how many bytes are in "
      "them.");
  // lib/core/memory.py documents these.
  module.def("keep_freed_memory", &jte::KeepFreedMemory,
             pybind11::arg("num_bytes"));
  module.def("cache_limit",
             [] { return jte::CacheBudget::OfProcess().limit_bytes(); });
  module.def(
      "set_cache_limit",
      [](size_t num_bytes) {
        jte::CacheBudget::OfProcess().SetLimitBytes(num_bytes);
      },
      pybind11::arg("num_bytes"));
  module.def("cached_bytes",
             [] { return jte::CacheBudget::OfProcess().used_bytes(); });
}
