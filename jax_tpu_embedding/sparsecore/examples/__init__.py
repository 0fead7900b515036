# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Models that are trained for real. They need the extra `examples`."""

from jax_tpu_embedding.sparsecore import extras

extras.require(
    "examples", "flax", "matplotlib", "optax", "orbax", "pyarrow", "tqdm"
)
