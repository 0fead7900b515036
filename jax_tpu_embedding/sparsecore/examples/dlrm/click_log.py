# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Click logs in Criteo's format.

One sample per line, 40 columns separated by tabs: the label (1 for a click),
13 whole numbers, and 26 categories, each a hexadecimal number of up to eight
digits. An empty column means that the value is missing. Files whose name ends
in .gz are compressed.

Source: the format of the Criteo Display Advertising Challenge data set and of
the Criteo 1TB Click Logs.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import gzip
import hashlib
import io
import itertools
import pathlib
import re
from typing import BinaryIO
from typing import NamedTuple
import zlib

from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.dlrm import hexadecimal
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np
import pyarrow as pa
from pyarrow import csv

_DENSE = samples_lib.DENSE_NAMES
_CATEGORIES = samples_lib.CATEGORY_NAMES
_COLUMNS = ("label", *_DENSE, *_CATEGORIES)
# Some 15,000 lines: large enough that what pyarrow does per block and column
# does not count, small enough that the first batch comes soon.
_BLOCK_BYTES = 1 << 22

_PLAIN = {
    "label": (re.compile(rb"[01]"), "0 or 1"),
    **dict.fromkeys(
        _DENSE, (re.compile(rb"(-?[0-9]{1,18})?"), "a whole number or nothing")
    ),
    **dict.fromkeys(
        _CATEGORIES,
        (
            re.compile(rb"[0-9a-fA-F]{0,8}"),
            "up to eight hexadecimal digits or nothing",
        ),
    ),
}


class MalformedLineError(command_line.UsageError):
  """A line that is not of the format; names the file and the line."""


class Index(NamedTuple):
  """What passing over a log once says about it, and where its pieces are.

  A piece is `lines_per_piece` lines; the last one has what is left.
  """

  num_samples: int
  # Of the uncompressed text, so that a checkpoint can tell two logs apart.
  sha256: str
  lines_per_piece: int
  starts: np.ndarray  # i64[pieces + 1]: the first byte of each, and the end


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[BinaryIO]:
  """The uncompressed bytes of a file; what goes wrong becomes a UsageError."""
  try:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as stream:
      yield stream
  except FileNotFoundError:
    raise command_line.UsageError(f"--data: there is no file {path}.") from None
  except (OSError, EOFError, zlib.error) as error:
    reason = getattr(error, "strerror", None) or error
    raise command_line.UsageError(
        f"--data: cannot read {path}: {reason}."
    ) from None


def write(path: pathlib.Path, blocks: Iterable[samples_lib.Samples]) -> None:
  """Writes a log; compressed if the name says so."""
  schema = pa.schema(
      [("label", pa.int8())]
      + [(name, pa.int64()) for name in _DENSE]
      + [(name, pa.string()) for name in _CATEGORIES]
  )
  options = csv.WriteOptions(
      include_header=False, delimiter="\t", quoting_style="none"
  )
  with (
      pa.output_stream(str(path)) as stream,
      csv.CSVWriter(stream, schema, write_options=options) as writer,
  ):
    for block in blocks:
      writer.write(pa.record_batch(_to_columns(block), schema))


def _to_columns(block: samples_lib.Samples) -> list[pa.Array]:
  missing = np.isnan(block.dense)
  dense = np.where(missing, 0, block.dense).astype(np.int64)
  return [
      pa.array(block.labels.astype(np.int8)),
      *(pa.array(dense[:, i], mask=missing[:, i]) for i in range(len(_DENSE))),
      *(hexadecimal.encode(column) for column in block.categories.T),
  ]


def index(
    path: pathlib.Path, max_samples: int = 0, lines_per_piece: int = 10_000
) -> Index:
  """Counts the samples of a log, and finds its pieces.

  Args:
    path: the log.
    max_samples: lines after so many are ignored; 0 means none are.
    lines_per_piece: how finely the log can be divided.

  Raises:
    UsageError: the file cannot be read.
  """
  digest = hashlib.sha256()
  num_lines, starts = 0, [0]
  with _opened(path) as stream:
    # Lines, not blocks: a part of a log is then as easy as all of it, and
    # 4 M lines/s are a hundred times what training takes.
    lines = itertools.islice(stream, max_samples or None)
    while group := list(itertools.islice(lines, lines_per_piece)):
      num_lines += len(group)
      piece = b"".join(group)
      starts.append(starts[-1] + len(piece))
      digest.update(piece)
  return Index(num_lines, digest.hexdigest(), lines_per_piece, np.array(starts))


class _Part(NamedTuple):
  """Lines that follow each other."""

  first: int  # Lines of the file before them.
  lines: bytes


def read(
    path: pathlib.Path,
    first: int = 0,
    count: int | None = None,
    log: Index | None = None,
) -> Iterator[samples_lib.Samples]:
  """Samples of a log, block by block.

  Args:
    path: the log.
    first: number of lines to pass over.
    count: number of lines to read, or None for all that follow. What follows
      those is not parsed.
    log: its index, by which to pass over lines without reading them.

  Raises:
    MalformedLineError: a line is not of the format. The samples of the blocks
      before have been returned then.
    UsageError: the file cannot be read.
  """
  done = 0
  with _opened(path) as stream:
    passed_over = 0
    if log is not None:
      piece = min(first // log.lines_per_piece, len(log.starts) - 1)
      stream.seek(log.starts[piece])
      passed_over = piece * log.lines_per_piece
    collections.deque(
        itertools.islice(stream, max(0, first - passed_over)), maxlen=0
    )
    # The readers of pyarrow read ahead in threads of their own. One that is
    # left before the end of the log, as most are, can keep the process from
    # ending.
    while done != count:
      lines = stream.read(_BLOCK_BYTES) + stream.readline()
      if count is not None:
        # Before they are parsed: what is wrong with the others is no matter.
        lines = b"".join(itertools.islice(io.BytesIO(lines), count - done))
      if not lines:
        return
      block = _samples(path, [_Part(first + done, lines)])
      yield block
      done += len(block)


def read_pieces(
    path: pathlib.Path, log: Index, pieces: Iterable[int]
) -> Iterator[samples_lib.Samples]:
  """Samples of pieces of a log, block by block; reads no other piece.

  (Of a compressed log, what is between them has to be read, but not parsed.)

  Args:
    path: the log.
    log: its index.
    pieces: their numbers, in ascending order.

  Raises:
    MalformedLineError: a line of the pieces is not of the format.
    UsageError: the file cannot be read, or has become shorter.
  """
  block, num_bytes = [], 0
  with _opened(path) as stream:
    for piece in pieces:
      start, end = log.starts[piece : piece + 2].tolist()
      stream.seek(start)
      lines = stream.read(end - start)
      if len(lines) < end - start:
        raise command_line.UsageError(
            f"--data: {path} became shorter while it was read: it ends at byte"
            f" {start + len(lines)}, and had {log.starts[-1]}."
        )
      block.append(_Part(piece * log.lines_per_piece, lines))
      num_bytes += len(lines)
      if num_bytes >= _BLOCK_BYTES:
        yield _samples(path, block)
        block, num_bytes = [], 0
  if block:
    yield _samples(path, block)


def _samples(path: pathlib.Path, parts: Sequence[_Part]) -> samples_lib.Samples:
  """Raises MalformedLineError for the first line that is not of the format."""
  lines = b"".join(part.lines for part in parts)
  try:
    samples = _parsed(lines)
    # For pyarrow, a carriage return by itself ends a line, too.
    if len(samples) != lines.count(b"\n") + (not lines.endswith(b"\n")):
      raise ValueError("a line has another end than a line feed")
    return samples
  except ValueError as error:  # pyarrow.ArrowInvalid is one, too.
    # pyarrow's errors count from the start of the block, or not at all.
    raise _malformed_line(path, parts, error) from None


def _parsed(lines: bytes) -> samples_lib.Samples:
  types = dict.fromkeys(_DENSE, pa.int64()) | dict.fromkeys(
      _CATEGORIES, pa.string()
  )
  table = csv.read_csv(
      pa.BufferReader(lines),
      read_options=csv.ReadOptions(
          column_names=_COLUMNS, block_size=len(lines), use_threads=False
      ),
      parse_options=csv.ParseOptions(
          delimiter="\t", quote_char=False, ignore_empty_lines=False
      ),
      convert_options=csv.ConvertOptions(
          check_utf8=False,
          column_types=types | {"label": pa.int8()},
          null_values=[""],
          strings_can_be_null=False,
      ),
  )
  (batch,) = table.to_batches()
  return _from_columns(batch)


def _from_columns(batch: pa.RecordBatch) -> samples_lib.Samples:
  """Raises ValueError for what pyarrow takes and the format does not."""
  label = batch["label"]
  if label.null_count:
    raise ValueError("a label is missing")
  labels = label.to_numpy()
  if not np.isin(labels, (0, 1)).all():
    raise ValueError("a label is neither 0 nor 1")
  dense = np.empty((batch.num_rows, len(_DENSE)), np.float32)
  for i, name in enumerate(_DENSE):
    # Where there are nulls, this is f64 with NaN for them.
    dense[:, i] = batch[name].to_numpy(zero_copy_only=False)
  categories = np.empty((batch.num_rows, len(_CATEGORIES)), np.int64)
  for i, name in enumerate(_CATEGORIES):
    categories[:, i] = hexadecimal.decode(batch[name])
  return samples_lib.Samples(
      labels=labels.astype(np.float32), dense=dense, categories=categories
  )


def _malformed_line(
    path: pathlib.Path, parts: Sequence[_Part], error: Exception
) -> Exception:
  """The error of the first malformed line of `parts`, slowly."""
  for part in parts:
    for number, line in enumerate(io.BytesIO(part.lines), part.first + 1):
      if problem := line_problem(line):
        return MalformedLineError(f"{path}:{number}: {problem}.")
  return error


def line_problem(line: bytes) -> str | None:
  """What is wrong with a line, or None: the format, said plainly.

  >>> line_problem(b"0\\t1\\n")
  'expected 40 columns separated by tabs, found 2'
  """
  fields = line.rstrip(b"\r\n").split(b"\t")
  if len(fields) != len(_COLUMNS):
    return (
        f"expected {len(_COLUMNS)} columns separated by tabs, found"
        f" {len(fields)}"
    )
  for number, (name, field) in enumerate(zip(_COLUMNS, fields), start=1):
    pattern, expected = _PLAIN[name]
    if not pattern.fullmatch(field):
      text = field.decode("utf-8", "backslashreplace")
      return f"column {number} ({name}) must be {expected}, found '{text}'"
  return None
