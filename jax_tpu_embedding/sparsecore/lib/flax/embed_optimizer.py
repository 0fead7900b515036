# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The Linen layer's optimizer under the name that older programs import."""

from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer

apply_updates_for_sc_model = embed_optimizer.apply_updates_for_sc_model
create_optimizer_for_sc_model = embed_optimizer.create_optimizer_for_sc_model
