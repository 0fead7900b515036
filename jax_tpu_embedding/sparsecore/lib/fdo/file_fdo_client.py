# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Statistics in NumPy archives: an array [records, n] for each key."""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO
import zipfile

from jax_tpu_embedding.sparsecore.lib.fdo import _stats_files
import numpy as np

# What the archive's comment starts with: the SHA-256 of what is before it. The
# archive's own checksums are of its files only, and not of their list.
_COMMENT = b"sha256:"
# Of the comment's length, which stands between the two.
_LENGTH_BYTES = 2


class NPZFileFDOClient(_stats_files.FileFDOClient):
  """Publishes files fdo_stats_<process>_<time>.npz."""

  extension = "npz"

  def _write(self, file: BinaryIO, history: _stats_files.History) -> None:
    archive = io.BytesIO()
    np.savez(
        archive,
        **{
            key: _stats_files.stack(records) for key, records in history.items()
        },
    )
    content = archive.getvalue()[:-_LENGTH_BYTES]
    with zipfile.ZipFile(archive, "a") as appended:
      appended.comment = _comment(content)
    file.write(archive.getvalue())

  def _read(self, file: BinaryIO) -> _stats_files.History:
    with zipfile.ZipFile(file) as archive:
      _check_comment(archive.comment, file)
      return {
          name.removesuffix(".npy"): _records(archive.read(name))
          for name in archive.namelist()
      }


def _comment(content: bytes) -> bytes:
  return _COMMENT + hashlib.sha256(content).hexdigest().encode()


def _check_comment(comment: bytes, file: BinaryIO) -> None:
  """Raises ValueError if the archive is not the one that was written."""
  if not comment:
    return  # of another writer
  file.seek(0)
  content = file.read()[: -len(comment) - _LENGTH_BYTES]
  if comment != _comment(content):
    raise ValueError("It does not have the SHA-256 that its comment states.")


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
