# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One writer of a path at a time, of all processes that see it.

orbax gives all saves to a path one temporary directory, and removes what it
finds there, as left by a save that was killed. So of two jobs that save to one
path at once, each would write files among those of the other, with checksums
that are right.

    <directory>/.<name>.lock    "host pid", while somebody writes <name>
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import os
import re
import socket
from typing import IO

from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks

# What flock says where the file system has no locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
# What is in a lock; nothing if the disk was full.
_OWNER = re.compile(r"(\S+ \d+\n)?")


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
  """Keeps other processes from writing to a path; its directory is there then.

  The system lets go of the lock when a process dies. Object stores, and some
  file systems, have no locks: nobody is kept out of them.

  Raises:
    ValueError: somebody else is writing to it, or there is a file with the name
      of the lock that is none.
    CheckpointError: its directory cannot be made, or not be written to.
  """
  if "://" in path:
    yield
    return
  path = os.path.realpath(path)
  directory, name = os.path.split(path)
  lock = os.path.join(directory, f".{name}.lock")
  try:
    os.makedirs(directory, exist_ok=True)
    file = _open_locked(lock, path)
  except OSError as error:
    raise _row_blocks.CheckpointError(
        f"Cannot write to {path}: {error}"
    ) from error
  with file:
    try:
      yield
    finally:
      with contextlib.suppress(FileNotFoundError):
        if _is_at(lock, file):  # and not the lock of somebody else by now
          os.unlink(lock)


def _open_locked(lock: str, path: str) -> IO[str]:
  while True:
    file = open(lock, "a+", encoding="utf-8", errors="replace", opener=_open)
    try:
      _lock(file, path)
      # The one before may have removed it since it was opened.
      if _is_at(lock, file):
        file.seek(0)
        if not _OWNER.fullmatch(file.read(1000)):
          raise ValueError(
              f"{lock} is not a lock of this library, whose name it has. Save"
              f" to another path than {path}, or give the file another name."
          )
        file.truncate(0)
        file.write(f"{socket.gethostname()} {os.getpid()}\n")
        file.flush()
        return file
    except FileNotFoundError:
      pass
    except BaseException:
      file.close()
      raise
    file.close()


def _open(path: str, flags: int) -> int:
  # What a link leads to is not a lock, and would be emptied.
  return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _is_at(path: str, file: IO[str]) -> bool:
  return os.path.samestat(os.fstat(file.fileno()), os.stat(path))


def _lock(file: IO[str], path: str) -> None:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    file.seek(0)
    host, _, pid = file.read().strip().partition(" ")
    raise ValueError(
        f"{path} is being saved to by process {pid or '?'} on host"
        f" {host or '?'}. Save to another path, or wait for it."
    ) from error
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
