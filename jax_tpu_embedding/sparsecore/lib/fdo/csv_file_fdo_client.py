# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Statistics in text: a line `key,values` for each record."""

from __future__ import annotations

import csv
import io
from typing import BinaryIO

from jax_tpu_embedding.sparsecore.lib.fdo import _stats_files
import numpy as np

_HEADER = ["key", "values"]


class CSVFileFDOClient(_stats_files.FileFDOClient):
  """Publishes files fdo_stats_<process>_<time>.csv.

  The format has no checksum: a digit that a disk changes is not found. That is
  what archives (NPZFileFDOClient) are for.
  """

  extension = "csv"

  def _write(self, file: BinaryIO, history: _stats_files.History) -> None:
    with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
      writer = csv.writer(text)
      writer.writerow(_HEADER)
      for key, records in history.items():
        for record in records:
          values = np.atleast_1d(record)
          writer.writerow([key, " ".join(map(str, values))])

  def _read(self, file: BinaryIO) -> _stats_files.History:
    with io.TextIOWrapper(file, encoding="utf-8", newline="") as stream:
      text = stream.read()
      if text and not text.endswith("\n"):
        raise ValueError("The last line is incomplete.")
      rows = csv.reader(io.StringIO(text, newline=""), strict=True)
      if next(rows, None) != _HEADER:
        raise ValueError(f"The first line is not {','.join(_HEADER)!r}.")
      history: _stats_files.History = {}
      for key, values in rows:
        record = np.array(values.split(), np.int64)
        history.setdefault(key, []).append(record)
      return history
