# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The local lookup primitive under its public name."""

from jax_tpu_embedding.sparsecore.lib.core.primitives import local_lookup

tpu_local_sparse_dense_matmul_primitive = local_lookup.local_lookup_p
