# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Device facts and table layouts under the names that the public API promises.

The definitions are in lib.core; this module exists for compatibility.
"""

from jax.experimental import layout
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import table_layouts

Layout = layout.Layout

NUM_SC_PER_DEVICE_MAP = hardware.NUM_SC_PER_DEVICE_MAP
DeviceLike = hardware.DeviceLike
num_sparsecores_per_device = hardware.num_sparsecores_per_device

MeshLike = table_layouts.MeshLike
embedding_table_format = table_layouts.embedding_table_format
embedding_table_format_with_sharding = (
    table_layouts.embedding_table_format_with_sharding
)
shard_emb_table = table_layouts.shard_emb_table
unshard_emb_table = table_layouts.unshard_emb_table
