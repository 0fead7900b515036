# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The update primitive of custom optimizers under its public name."""

from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update

tpu_sparse_dense_matmul_optimizer_grad_primitive = custom_update.custom_update_p
