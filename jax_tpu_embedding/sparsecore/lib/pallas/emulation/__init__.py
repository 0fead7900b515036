# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Kernels for TPU cores on CPUs."""

from jax_tpu_embedding.sparsecore.lib.pallas.emulation.mistakes import KernelMistake
from jax_tpu_embedding.sparsecore.lib.pallas.emulation.program import emulate
from jax_tpu_embedding.sparsecore.lib.pallas.emulation.program import install

__all__ = (
    "KernelMistake",
    "emulate",
    "install",
)
