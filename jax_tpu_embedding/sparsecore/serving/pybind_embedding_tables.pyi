# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups in served tables (cc/serving)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

class Tables:
  def __init__(
      self,
      tables: Sequence[tuple[Any, ...]],
      version: int,
      *,
      zero_out_of_range: bool,
      copy_to_huge_pages: bool,
      num_threads: int,
  ) -> None: ...
  version: int
  def look(self, requests: list[tuple[Any, ...]], is_held: bool) -> None: ...
  def apply(self, changes: list[tuple[Any, ...]], version: int) -> None: ...
  @property
  def version_lock(self) -> VersionLock: ...
  def is_held(self) -> bool: ...

class VersionLock:
  def __enter__(self) -> None: ...
  def __exit__(self, *error: Any) -> None: ...

def encode_rows(
    values: np.ndarray, encoding: str
) -> tuple[np.ndarray, int, int]: ...
