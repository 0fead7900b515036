# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The primitive that puts gradients together, under its public name."""

from jax_tpu_embedding.sparsecore.lib.core.primitives import stacking

tpu_sparse_dense_matmul_gradient_stack_primitive = stacking.stack_gradients_p
