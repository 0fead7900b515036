# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Large embedding tables for JAX, trained in place on CPU, GPU and TPU.

Everything is under `jax_tpu_embedding.sparsecore`:

- `lib.flax.embed`, `lib.flax.nnx.embed`: layers.
- `lib.nn.embedding_spec`: what describes tables and features.
- `lib.nn.embedding`: the functions that layers call.
- `lib.nn.table_stacking`: tables fused into one.

Importing this package loads nothing but its version.
"""

from jax_tpu_embedding.sparsecore import version

__version__ = version.__version__
