# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A directory of versions of tables, of which one is current.

    <served>/CURRENT                 "7 v000007 9f3c21aa": number, directory, and
                                     CRC-32 of its manifest
    <served>/LOCK                    who writes: "host pid"
    <served>/v000006/manifest.json   a full version
    <served>/v000007/manifest.json   a delta, with the number and the CRC-32 of
                                     the manifest of the version before

A version is complete before CURRENT names it, by a rename; so whoever follows
CURRENT finds whole versions, whenever the writer dies. What it does not lead to
is left by a writer that died, and is removed by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import re
import shutil
import socket
from typing import Any
import zlib

from jax_tpu_embedding.sparsecore.serving import _files
from jax_tpu_embedding.sparsecore.serving import _versions

_CURRENT = "CURRENT"
_NEW_CURRENT = "CURRENT.new"
_LOCK = "LOCK"
_MANIFEST = "manifest.json"
_VERSION_NAME = re.compile(r"v([0-9]{6,})")
# What flock says where the file system has no locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


class ServedDirectory:
  """A directory that belongs to one writer at a time.

  Args:
    path: that may not be there yet, in which nothing else is.

  Raises:
    ValueError: something else is there, or the path is a URL or no name.
  """

  def __init__(self, path: str | os.PathLike[str]):
    if "://" in str(path):
      raise ValueError(
          f"Tables for servers are written to file systems, not to {path}. Give"
          " a directory, and upload what is in it."
      )
    self.path = _files.as_directory(os.path.abspath(path))
    if self.path.exists() and not self.path.is_dir():
      raise ValueError(f"{self.path} is a file, not a directory for tables.")
    entries = list(self.path.iterdir()) if self.path.exists() else []
    # Versions are removed in time. A directory with the name of one, such as
    # v202406, is someone else's where no writer has been, who makes LOCK first.
    has_versions = any(entry.name in (_CURRENT, _LOCK) for entry in entries)
    others = [
        entry.name
        for entry in entries
        if entry.name not in (_CURRENT, _NEW_CURRENT, _LOCK)
        and not (
            has_versions
            and _number_of(entry.name) is not None
            and entry.is_dir()
        )
    ]
    if others:
      raise ValueError(
          f"{self.path} has what is not of served tables: {sorted(others)[:5]}."
          " Give a new or empty directory, or one that was exported or"
          " published to."
      )

  def version_path(self, number: int) -> pathlib.Path:
    return self.path / _versions.directory_of(number)

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """Keeps other writers out; the directory is there then.

    The system lets go of the lock when a process dies. File systems of several
    hosts may not, or may not even have locks, so the file also says who it is.
    Where there are no locks that is all that tells: the name of a writer that
    died keeps others out, and two that begin at the same moment both write.

    Raises:
      RuntimeError: there is another writer.
    """
    self.path.mkdir(parents=True, exist_ok=True)
    path = self.path / _LOCK
    # Whoever it names, in letters or not, keeps others out.
    with open(path, "a+", encoding="utf-8", errors="replace") as file:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who wrote from this host has let go of the lock.
        hosts_that_ended = ("", socket.gethostname())
      except BlockingIOError:
        hosts_that_ended = ()
      except OSError as error:
        if error.errno not in _NO_LOCKS:
          raise
        hosts_that_ended = ("",)  # Who has a name may still write.
      file.seek(0)
      host, _, pid = file.read().strip().partition(" ")
      if host not in hosts_that_ended:
        raise RuntimeError(
            f"{self.path} is being written by process {pid or '?'} on host"
            f" {host or '?'}. One at a time may: wait for it, or write to"
            f" another directory. If that process has ended, remove {path}."
        )
      file.truncate(0)
      file.write(f"{socket.gethostname()} {os.getpid()}\n")
      file.flush()
      os.fsync(file.fileno())  # Other hosts may read it only then.
      owner = os.getpid()
      try:
        yield
      finally:
        # A process that was forked meanwhile has the file open, too: it is not
        # to give the lock away, nor to keep it.
        if os.getpid() == owner:
          # Not removed: someone else may have it open.
          file.truncate(0)
          with contextlib.suppress(OSError):  # where there are no locks
            fcntl.flock(file, fcntl.LOCK_UN)

  def exists(self) -> bool:
    """Whether there was ever a complete version, also if CURRENT was lost."""
    if (self.path / _CURRENT).exists():
      return True
    return self.path.exists() and bool(self.full_numbers())

  def next_number(self) -> int:
    """Of the next version: no reader has seen another one with it.

    Raises:
      NewerFormatError: readers may understand what this library does not.
    """
    try:
      chain = self.chain()
    except _versions.NewerFormatError:
      raise
    except _files.ServedFileError:
      return max(self.numbers(), default=-1) + 1
    return chain[-1].number + 1 if chain else 0

  def chain(self) -> list[_versions.Version]:
    """As readers see it: the last full version, and the deltas after it.

    Empty before the first version.

    Raises:
      ServedFileError: one of them cannot be read.
    """
    return _versions.read_chain(self.path) if self.exists() else []

  def _is_current(self, number: int) -> bool:
    try:
      return _versions.read_current(self.path)[0] == number
    except _files.ServedFileError:
      return False

  def numbers(self) -> list[int]:
    """Of all directories of versions, complete or not."""
    numbers = (_number_of(entry.name) for entry in self.path.iterdir())
    return sorted(number for number in numbers if number is not None)

  def full_numbers(self) -> list[int]:
    """Of the full versions whose manifests can be read."""
    result = []
    for number in self.numbers():
      try:
        path = self.version_path(number) / _MANIFEST
        with _files.open_file(path) as file:
          if json.load(file)["kind"] == "full":
            result.append(number)
      except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # of a writer that died, or no manifest
    return result

  @contextlib.contextmanager
  def new_version(self, number: int) -> Iterator[pathlib.Path]:
    """An empty directory for a version; removed if it cannot be finished.

    Raises:
      FileNotFoundError: the served directory was removed.
    """
    path = self.version_path(number)
    if path.exists():
      shutil.rmtree(path)  # of a writer that died
    try:
      path.mkdir()
    except FileNotFoundError as error:
      raise FileNotFoundError(
          f"{self.path} was removed, and with it what kept other writers out."
          " Close the publisher and make another one."
      ) from error
    try:
      yield path
    except BaseException:
      # Not if it is what readers see: then it was complete before.
      if not self._is_current(number):
        shutil.rmtree(path, ignore_errors=True)
      raise

  def commit(self, number: int, manifest: Mapping[str, Any]) -> None:
    """Makes a version, whose files are there, the current one."""
    content = json.dumps(manifest, indent=1, sort_keys=True).encode()
    checksum = f"{zlib.crc32(content):08x}"
    path = self.version_path(number)
    write_durably(path / _MANIFEST, content)
    sync_directory(path)
    sync_directory(self.path)
    line = f"{number} {path.name} {checksum}\n"
    write_durably(self.path / _NEW_CURRENT, line.encode())
    os.replace(self.path / _NEW_CURRENT, self.path / _CURRENT)
    sync_directory(self.path)

  def remove_others(self, numbers: Set[int]) -> None:
    """Removes all versions but these."""
    for number in self.numbers():
      if number not in numbers:
        # First what makes it one, so that half a version is none.
        (self.version_path(number) / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.version_path(number))


def _number_of(name: str) -> int | None:
  """Of the version whose directory has this name; None: of no version."""
  found = _VERSION_NAME.fullmatch(name)
  if not found or _versions.directory_of(int(found[1])) != name:
    return None
  return int(found[1])


def write_durably(path: pathlib.Path, content: bytes) -> None:
  with open(path, "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: pathlib.Path) -> None:
  """Makes the names in a directory as durable as the files."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
