# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Files of encoded rows: safetensors, .npy and parquet.

Rows are written as they come; every file has a CRC-32 of each 4 MiB, and is on
the disk when it is closed.

Source: https://huggingface.co/docs/safetensors (a length of 8 bytes, a header
in JSON, the tensors without a gap), NEP 1 of NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import io
import json
import math
import os
from typing import Any
from typing import Protocol
import zlib

from jax_tpu_embedding.sparsecore import extras
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np
from numpy.lib import format as npy_format

# Rows begin at a multiple of a cache line.
_ALIGNMENT = 64

_ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I64": 8}


class RowFile(Protocol):
  """A file that rows are added to."""

  def write(self, first: int, rows: np.ndarray) -> None:
    """Adds encoded rows u8[n, row_bytes], of which the first has an id."""

  def close(self) -> dict[str, Any]:
    """Finishes the file; what the manifest says of it, but for its rows."""


class ChecksummedFile(io.RawIOBase):
  """A new file of which each 4 MiB get a CRC-32.

  Attributes:
    num_bytes: written so far.
  """

  def __init__(self, path: str):
    super().__init__()
    # Not buffered: blocks are large.
    self._file = open(path, "xb", buffering=0)
    self._checksums = []
    self._current = 0
    self.num_bytes = 0

  def writable(self) -> bool:
    return True

  def write(self, data: Any) -> int:
    view = memoryview(data).cast("B")
    begin = 0
    while begin < len(view):
      left = _versions.CHECKED_BYTES - self.num_bytes % _versions.CHECKED_BYTES
      # The system may take less than it is given.
      written = self._file.write(view[begin : begin + left])
      part = view[begin : begin + written]
      self._current = zlib.crc32(part, self._current)
      begin += written
      self.num_bytes += written
      if self.num_bytes % _versions.CHECKED_BYTES == 0:
        self._end_part()
    return len(view)

  def tell(self) -> int:
    return self.num_bytes

  def _end_part(self) -> None:
    self._checksums.append(f"{self._current:08x}")
    self._current = 0

  def close(self) -> None:
    if not self._file.closed:
      with self._file:
        os.fsync(self._file.fileno())
    super().close()

  def entry(self) -> dict[str, Any]:
    """Size and checksums, of a file that is complete."""
    if self.num_bytes % _versions.CHECKED_BYTES:
      self._end_part()
    return {"bytes": self.num_bytes, "crc32": self._checksums}


def safetensors_header(
    tensors: Mapping[str, tuple[str, Sequence[int]]],
) -> bytes:
  """What precedes tensors: name -> (type, shape), in the order of the file."""
  header, begin = {}, 0
  for name, (kind, shape) in tensors.items():
    end = begin + math.prod(shape) * _ELEMENT_BYTES[kind]
    header[name] = {
        "dtype": kind,
        "shape": list(shape),
        "data_offsets": [begin, end],
    }
    begin = end
  text = json.dumps(header).encode()
  text += b" " * (-(8 + len(text)) % _ALIGNMENT)
  return len(text).to_bytes(8, "little") + text


class SafetensorsFile:
  """One tensor with the name of its table, [rows, elements of a row]."""

  def __init__(self, path: str, table: _sources.Table, rows: int):
    self._file = ChecksummedFile(path)
    encoding = table.encoding
    shape = (rows, encoding.row_elements(table.columns))
    self._file.write(
        safetensors_header({table.name: (encoding.tensor_type, shape)})
    )
    self._offset = self._file.num_bytes

  def write(self, first: int, rows: np.ndarray) -> None:
    del first  # they follow one another
    self._file.write(rows.reshape(-1))

  def close(self) -> dict[str, Any]:
    self._file.close()
    return {"offset": self._offset} | self._file.entry()


class NpyFile:
  """An array [rows, elements of a row]; int8 and int4 as bytes."""

  def __init__(self, path: str, table: _sources.Table, rows: int):
    self._file = ChecksummedFile(path)
    encoding = table.encoding
    npy_format.write_array_header_1_0(
        self._file,
        {
            "descr": npy_format.dtype_to_descr(encoding.element),
            "fortran_order": False,
            "shape": (rows, encoding.row_elements(table.columns)),
        },
    )
    self._offset = self._file.num_bytes

  write = SafetensorsFile.write
  close = SafetensorsFile.close


class ParquetFile:
  """Columns `id` int64 and `embedding`, lists of the columns of the table."""

  def __init__(self, path: str, table: _sources.Table, rows: int):
    del rows
    extras.require("export", "pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    self._pa = pa
    self._columns = table.columns
    self._element = table.encoding.element
    self._file = ChecksummedFile(path)
    value = pa.from_numpy_dtype(self._element)
    self._schema = pa.schema(
        [("id", pa.int64()), ("embedding", pa.list_(value, table.columns))]
    )
    self._writer = parquet.ParquetWriter(
        pa.PythonFile(self._file, mode="w"),
        self._schema,
        # Values of tables hardly repeat.
        use_dictionary=False,
        compression="none",
    )

  def write(self, first: int, rows: np.ndarray) -> None:
    values = self._pa.array(rows.reshape(-1).view(self._element))
    ids = self._pa.array(np.arange(first, first + len(rows), dtype=np.int64))
    lists = self._pa.FixedSizeListArray.from_arrays(values, self._columns)
    self._writer.write_table(
        self._pa.Table.from_arrays([ids, lists], schema=self._schema)
    )

  def close(self) -> dict[str, Any]:
    self._writer.close()
    self._file.close()
    return self._file.entry()


# Name -> the end of file names, what writes it, and encodings that it can have;
# NumPy and pyarrow have no bfloat16.
FILE_FORMATS = {
    "safetensors": (
        ".safetensors",
        SafetensorsFile,
        ("float32", "bfloat16", "float16", "int8", "int4"),
    ),
    "npy": (".npy", NpyFile, ("float32", "float16", "int8", "int4")),
    "parquet": (".parquet", ParquetFile, ("float32", "float16")),
}


def check_format(
    file_format: str, tables: Mapping[str, _sources.Table]
) -> None:
  """Raises ValueError unless tables can be written in this format."""
  if file_format not in list(FILE_FORMATS):
    raise ValueError(
        f"file_format must be one of {', '.join(FILE_FORMATS)}, got"
        f" {file_format!r}."
    )
  if file_format == "parquet":
    extras.require("export", "pyarrow")
  encodings = FILE_FORMATS[file_format][2]
  for name, table in tables.items():
    if table.encoding.name not in encodings:
      raise ValueError(
          f"Table {name!r}: files of {file_format} have the encodings"
          f" {', '.join(encodings)}, not {table.encoding.name}. Use"
          " file_format='safetensors', or another encoding."
      )
