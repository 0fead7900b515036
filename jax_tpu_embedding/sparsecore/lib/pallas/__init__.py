# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Pallas kernels for the cores of TPUs, which run on CPUs too."""

from jax_tpu_embedding.sparsecore.lib.pallas.chips import CHIPS
from jax_tpu_embedding.sparsecore.lib.pallas.chips import find_chip
from jax_tpu_embedding.sparsecore.lib.pallas.chips import on_chip
from jax_tpu_embedding.sparsecore.lib.pallas.emulation.mistakes import KernelMistake
from jax_tpu_embedding.sparsecore.lib.pallas.emulation.program import emulate
from jax_tpu_embedding.sparsecore.lib.pallas.inspection import inspect
from jax_tpu_embedding.sparsecore.lib.pallas.kernel import for_tpu
from jax_tpu_embedding.sparsecore.lib.pallas.kernel import kernel
from jax_tpu_embedding.sparsecore.lib.pallas.meshes import scalar_subcore_mesh
from jax_tpu_embedding.sparsecore.lib.pallas.meshes import tensor_core_mesh
from jax_tpu_embedding.sparsecore.lib.pallas.meshes import vector_subcore_mesh

__all__ = (
    "CHIPS",
    "KernelMistake",
    "emulate",
    "find_chip",
    "for_tpu",
    "inspect",
    "kernel",
    "on_chip",
    "scalar_subcore_mesh",
    "tensor_core_mesh",
    "vector_subcore_mesh",
)
