# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Statistics in NumPy archives: an array [records, n] for each key."""

from __future__ import annotations

import io
from typing import BinaryIO
import zipfile

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
    with zipfile.ZipFile(file) as archive:
      return {
          name.removesuffix(".npy"): _records(archive.read(name))
          for name in archive.namelist()
      }


def _records(data: bytes) -> list[np.ndarray]:
  """The records of one array file.

  np.load would read as much as the header asks for, and the archive's checksum
  is compared only when all of a file is read.
  """
  file = io.BytesIO(data)
  array = np.lib.format.read_array(file, allow_pickle=False)
  if file.read(1):
    raise ValueError("There are bytes behind an array.")
  return _stats_files.unstack(array.astype(np.int64, casting="safe"))
