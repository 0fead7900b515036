# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The Linen layer under the name that older programs import."""

from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

EMBEDDING_COLLECTION = embed.EMBEDDING_COLLECTION
EMBEDDING_PARAM_NAME = embed.EMBEDDING_PARAM_NAME
EmbeddingLookupInput = embed.EmbeddingLookupInput
LogicalNames = embed.LogicalNames
Nested = embed.Nested
SparseCoreEmbed = embed.SparseCoreEmbed
on_every_device = embed.on_every_device
WithSparseCoreLayout = embed.WithSparseCoreLayout
with_sparsecore_layout = embed.with_sparsecore_layout
