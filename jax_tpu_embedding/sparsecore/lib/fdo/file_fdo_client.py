# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Statistics in NumPy archives: an array [records, n] for each key."""

from __future__ import annotations

from typing import BinaryIO

from jax_tpu_embedding.sparsecore.lib.fdo import _stats_files
import numpy as np


class NPZFileFDOClient(_stats_files.FileFDOClient):
  """Publishes files fdo_stats_<process>_<time>.npz."""

  extension = "npz"

  def _write(self, file: BinaryIO, history: _stats_files.History) -> None:
    np.savez(
        file,
        **{
            key: _stats_files.stack(records) for key, records in history.items()
        },
    )

  def _read(self, file: BinaryIO) -> _stats_files.History:
    with np.load(file, allow_pickle=False) as arrays:
      return {
          key: _stats_files.unstack(array.astype(np.int64, casting="safe"))
          for key, array in arrays.items()
      }
