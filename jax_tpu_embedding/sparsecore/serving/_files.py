# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Files of a directory that others write: read with care, or a named error.

A file is read if it is a regular one of no more than the bytes it may have, and
fields of the objects in it if they have their types.
"""

from __future__ import annotations

from collections.abc import Sequence
import errno
import os
import pathlib
import stat
from typing import Any
from typing import BinaryIO

import numpy as np

# Of any number, as in C++, where sums of some of them fit 64 bits.
_MAX_NUMBER = 1 << 60


class ServedFileError(ValueError):
  """A file of a served version is missing, damaged or of another version."""


def require(claim: bool, path: pathlib.Path, found: str) -> None:
  """Raises ServedFileError with what was found in a file, and is expected."""
  if not claim:
    raise ServedFileError(f"{path}: {found}")


class Fields:
  """An object of JSON, whose fields are read with their types."""

  def __init__(self, path: pathlib.Path, where: str, value: Any):
    require(
        isinstance(value, dict),
        path,
        f"{where} is {value!r:.80}, expected an object.",
    )
    self.path, self.where, self.value = path, where, value

  def get(self, key: str, *kinds: type, least: int = 0) -> Any:
    """The field; numbers are at least `least`, and bools are no numbers."""
    value = self.value.get(key)
    fits = type(value) in kinds and (
        type(value) is not int or least <= value <= _MAX_NUMBER
    )
    names = " or ".join(
        "null" if kind is type(None) else kind.__name__ for kind in kinds
    )
    require(
        fits,
        self.path,
        f"{key!r} of {self.where} is {value!r:.80}, expected {names}"
        + (f" from {least} to 2^60." if int in kinds else "."),
    )
    return value

  def choice(self, key: str, choices: Sequence[str]) -> str:
    value = self.get(key, str)
    require(
        value in choices,
        self.path,
        f"{key!r} of {self.where} is {value!r}, expected one of"
        f" {', '.join(choices)}.",
    )
    return value

  def objects(self, key: str) -> list[tuple[str, Fields]]:
    return [
        (name, Fields(self.path, f"{name!r} of {self.where}", value))
        for name, value in self.get(key, dict).items()
    ]


def as_directory(path: str | os.PathLike[str]) -> pathlib.Path:
  """The path of a directory, which need not be there.

  Raises:
    ValueError: none can have this name.
  """
  directory = pathlib.Path(path)
  try:
    is_name = b"\0" not in os.fsencode(directory)
  except UnicodeEncodeError:
    is_name = False
  if not is_name:
    raise ValueError(f"{str(directory)!r} is no name of a directory.")
  return directory


def open_file(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
  """Opens a regular file.

  Raises:
    OSError: it cannot be opened, or is something else, such as a pipe, which
      might be waited for.
  """
  file = open(path, "rb", buffering, opener=_open_at_once)
  if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
    file.close()
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
  return file


def _open_at_once(path: str, flags: int) -> int:
  # Windows has no such pipes.
  return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read(path: pathlib.Path, expected: str, max_bytes: int) -> bytes:
  """A whole file; `expected` is what it has, for errors."""
  try:
    with open_file(path) as file:
      size = os.fstat(file.fileno()).st_size
      require(
          size <= max_bytes,
          path,
          f"it has {size} bytes, expected {expected}, of at most {max_bytes}.",
      )
      return file.read()
  except OSError as error:
    raise unreadable(path, expected, error) from error
  except MemoryError as error:
    raise MemoryError(
        f"{path}: there is no memory for its {size} bytes, {expected}. Give the"
        " process more."
    ) from error


def unreadable(
    path: pathlib.Path, expected: str, error: OSError
) -> ServedFileError:
  return ServedFileError(
      f"{path}: cannot be read ({error.strerror}), expected {expected}."
  )


def mapped(path: pathlib.Path, expected: str) -> np.ndarray:
  """The bytes of a file where they are; `expected` as above."""
  try:
    with open_file(path) as file:
      return np.memmap(file, np.uint8, "r")
  except (OSError, ValueError) as error:  # ValueError: it is empty
    raise ServedFileError(
        f"{path}: cannot be mapped ({error}), expected {expected}."
    ) from error
