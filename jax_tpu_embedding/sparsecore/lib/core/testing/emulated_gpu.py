# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for GPUs on a CPU, thread by thread.

The GPU's calls, for programs on the CPU, and the rules that make them for
platform "cuda". The kernels are those of a GPU, compiled for the CPU
(cc/gpu/simt_emulation.h).
"""

from __future__ import annotations

import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering import gpu
from jax_tpu_embedding.sparsecore.lib.core.lowering import table
from jax_tpu_embedding.sparsecore.lib.core.testing import ffi_emulated_gpu


def install() -> None:
  """Registers calls and rules; again is nothing new."""
  for name, handler in ffi_emulated_gpu.registrations().items():
    jax.ffi.register_ffi_target(name, handler, platform="cpu")
  for operation, rule in gpu.rules(ffi_emulated_gpu).items():
    table.NATIVE_RULES[operation, "cuda"] = rule
