# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Large embedding tables for JAX.

The modules under `lib` are imported by name; importing this package loads
nothing but its version.
"""

from jax_tpu_embedding.sparsecore import version

__version__ = version.__version__
