# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A number for where each table is, by which misplaced rows are noticed.

On another number of SparseCores, or stacked in another way, arrays of the same
shapes have their rows in another order. So the number goes with the arrays.
"""

from __future__ import annotations

import hashlib
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared

# Float32, the type of what some layers keep, has all whole numbers up to this
# many bits.
_PLACE_BYTES = 3


def places_by_stack(
    feature_specs: Any, num_scs: int
) -> dict[str, dict[str, int]]:
  """Stack name -> table name -> a number below 2^24 for where its rows are.

  Two places have the same number once in 16 million times. No number is 0.

  Args:
    feature_specs: prepared.
    num_scs: SparseCores of the job.
  """
  places = {}
  for table in _prepared.get_table_specs(feature_specs).values():
    setting = table.setting_in_stack
    stack_vocab_size = (
        table.stacked_table_spec.stack_vocab_size
        if table.is_stacked()
        else setting.padded_vocab_size
    )
    place = (
        table.name,
        table.num_shards_of(num_scs),
        stack_vocab_size,
        setting.padded_vocab_size,
        setting.padded_embedding_dim,
        setting.row_offset_in_shard,
        setting.shard_rotation,
    )
    digest = hashlib.blake2b(repr(place).encode(), digest_size=_PLACE_BYTES)
    number = int.from_bytes(digest.digest(), "little")
    places.setdefault(setting.stack_name, {})[table.name] = number or 1
  return places
