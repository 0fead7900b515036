# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A version, from its first file until it is current, by all processes.

The first process makes its directory, all write their parts to it, and when all
have, the first one writes the manifest and makes the version current. So there
is a whole version or none, whichever process fails or dies.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import pathlib
from typing import Any

from jax_tpu_embedding.sparsecore.lib.checkpoint import _agreement
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.export import _parts
from jax_tpu_embedding.sparsecore.lib.export import _published
from jax_tpu_embedding.sparsecore.lib.export import _served_directory
from jax_tpu_embedding.sparsecore.lib.export import _sources


def new_agreement(*, is_alone: bool = False) -> _agreement.Agreement:
  """Of all processes of the job, made by all in the same order.

  Args:
    is_alone: whether this process writes without the others.
  """
  kinds = RuntimeError, ValueError, TypeError, OSError
  return _agreement.Agreement(
      "export", [*kinds, _row_blocks.CheckpointError], is_alone=is_alone
  )


def write(
    agreement: _agreement.Agreement,
    served: _served_directory.ServedDirectory | None,
    source: _sources.Source,
    runs: dict[str, _parts.Runs],
    new_writer: Callable[..., _parts.TableWriter],
    manifest_of: Callable[[int, dict[str, Any]], dict[str, Any]],
    *,
    is_delta: bool = False,
) -> _published.PublishedVersion:
  """Writes the next version of a directory.

  Args:
    agreement: of the processes, which all call this.
    served: the directory, locked, of the first process; None of the others.
    source: the tables.
    runs: which process writes which rows of each table.
    new_writer: FullTable or ChangedRows, but for what is known here: directory,
      table, runs, index and part.
    manifest_of: (number, what it says of tables) -> the manifest.
    is_delta: whether files have changed rows alone.

  Raises:
    ValueError: rows cannot be encoded. There is no new version.
    OSError: files cannot be written, by this process or by another one; or a
      process does not see what another has written. There is no new version,
      unless what failed came after it was current.
  """
  with contextlib.ExitStack() as until_done:
    with agreement.stage() as begun:
      if served is not None:
        number = served.next_number()
        path = until_done.enter_context(served.new_version(number))
        begun.value = str(path)
    directory = pathlib.Path(begun.first)
    with agreement.stage():
      if not directory.is_dir():
        raise _not_shared(directory)
    with agreement.stage() as written, _named(directory):
      parts = _parts.write(
          "publishing" if is_delta else "exporting",
          source,
          runs,
          agreement,
          functools.partial(new_writer, directory),
      )
      written.value = {
          name: dataclasses.asdict(part) for name, part in parts.items()
      }
    with agreement.stage() as committed, _named(directory):
      if served is not None:
        parts = _parts.together(source.tables, runs, written.values)
        _check_files(directory, parts)
        manifest = manifest_of(
            number,
            {
                name: _parts.table_entry(
                    source.tables[name], part, is_delta=is_delta
                )
                for name, part in parts.items()
            },
        )
        served.commit(number, manifest)
        version = _published.of(directory, manifest)
        committed.value = dataclasses.asdict(version)
  return _published.from_fields(committed.first)


@contextlib.contextmanager
def _named(directory: pathlib.Path) -> Iterator[None]:
  """Errors of a disk that is full, or gone, say where that is."""
  try:
    yield
  except OSError as error:
    if error.errno is not None and error.filename is None:
      error.filename = str(directory)
    raise


def _check_files(
    directory: pathlib.Path, parts: dict[str, _parts.Part]
) -> None:
  """Raises OSError unless this process sees the files of all processes."""
  for part in parts.values():
    for file in part.files:
      path = directory / file["name"]
      if not path.is_file() or path.stat().st_size != file["bytes"]:
        raise _not_shared(path)


def _not_shared(path: pathlib.Path) -> OSError:
  return OSError(
      f"{path}, which another process has written, is not here as it was"
      " written. Give a directory on a file system that all processes share,"
      " by the same path."
  )
