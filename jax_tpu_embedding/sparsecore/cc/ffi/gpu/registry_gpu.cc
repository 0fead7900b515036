// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The Python module lib/core/ffi_cuda, or with JTE_EMULATED_GPU
// lib/core/testing/ffi_emulated_gpu: the GPU's handlers by target name, and the
// sizes of what calls need. A name of a target that was released never changes
// meaning.

#include <pybind11/pybind11.h>

#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/plans.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/driver.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"

#ifdef JTE_EMULATED_GPU
#define JTE_MODULE ffi_emulated_gpu
#else
#define JTE_MODULE ffi_cuda
#endif

namespace jte::ffi {
namespace {

pybind11::dict Registrations() {
  const auto capsule = [](auto* handler) {
    return pybind11::capsule(reinterpret_cast<void*>(handler));
  };
  pybind11::dict targets;
  targets["jte_convert_ids_cuda"] = capsule(JteConvertIdsCuda);
  targets["jte_group_by_row_cuda"] = capsule(JteGroupByRowCuda);
  targets["jte_group_by_sample_cuda"] = capsule(JteGroupBySampleCuda);
  targets["jte_group_known_by_sample_cuda"] =
      capsule(JteGroupKnownBySampleCuda);
  targets["jte_group_rows_cuda"] = capsule(JteGroupRowsCuda);
  targets["jte_pack_messages_cuda"] = capsule(JtePackMessagesCuda);
  targets["jte_pool_samples_cuda"] = capsule(JtePoolSamplesCuda);
  targets["jte_read_rows_cuda"] = capsule(JteReadRowsCuda);
  targets["jte_step_rows_cuda"] = capsule(JteStepRowsCuda);
  targets["jte_sum_rows_cuda"] = capsule(JteSumRowsCuda);
  targets["jte_write_rows_cuda"] = capsule(JteWriteRowsCuda);
  return targets;
}

}  // namespace
}  // namespace jte::ffi

PYBIND11_MODULE(JTE_MODULE, module) {
  namespace py = pybind11;
  module.doc() = "XLA custom calls for GPUs.";
  module.def("registrations", &jte::ffi::Registrations,
             "Target name -> capsule for jax.ffi.register_ffi_target.");
  module.def("driver_version", &jte::gpu::DriverVersion,
             "The newest CUDA of this machine's driver, as 13000; 0 without.");
  module.attr("OLDEST_DRIVER") = jte::gpu::kOldestDriver;
  module.def("oldest_gpu", &jte::gpu::OldestGpu,
             "The least compute capability of visible GPUs, as 80; 0 without.");
  module.attr("OLDEST_GPU") = jte::gpu::OldestGpuOfKernels();
  module.def("sample_groups_scratch_bytes", &jte::ffi::SampleGroupsScratchBytes,
             py::arg("num_cells"), py::arg("num_row_pointers"));
  module.def("row_groups_scratch_bytes", &jte::ffi::RowGroupsScratchBytes,
             py::arg("num_cells"), py::arg("num_row_pointers"));
  module.def("pack_scratch_bytes", &jte::ffi::PackScratchBytes,
             py::arg("num_cells"), py::arg("num_row_pointers"));
  module.def("conversion_scratch_bytes", &jte::ffi::ConversionScratchBytes,
             py::arg("num_ids"), py::arg("num_samples"), py::arg("num_blocks"),
             py::arg("num_features"));
  module.def("max_row_blocks", &jte::gpu::MaxRowBlocks, py::arg("num_cells"),
             py::arg("block_size"), py::arg("num_sources"));
  module.def("max_long_rows", &jte::gpu::MaxLongRows, py::arg("num_cells"),
             py::arg("block_size"));
}
