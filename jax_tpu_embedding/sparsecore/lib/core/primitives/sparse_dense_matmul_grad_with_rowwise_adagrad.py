# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The update primitive of rowwise_adagrad under its public name."""

from jax_tpu_embedding.sparsecore.lib.core.primitives import update

tpu_sparse_dense_matmul_grad_with_rowwise_adagrad_primitive = (
    update.UPDATE_PRIMITIVES["rowwise_adagrad"]
)
