# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from collections.abc import Sequence

def plan(request: bytes) -> bytes: ...
def place_tables(
    padded_vocabulary_sizes: Sequence[int], num_shards: int, rotation: int
) -> list[tuple[int, int]]: ...
def first_fit(
    activation_bytes: Sequence[int], limit: int
) -> list[list[int]]: ...
