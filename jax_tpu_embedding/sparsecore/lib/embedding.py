# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""lib.nn.embedding under the name that older programs import."""

from jax_tpu_embedding.sparsecore.lib.nn.embedding import *  # noqa: F403
