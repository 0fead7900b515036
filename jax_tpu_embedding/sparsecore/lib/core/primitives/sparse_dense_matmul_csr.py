# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookup primitive under its public name."""

from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup

tpu_sparse_dense_matmul_csr_primitive = lookup.lookup_p
