# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What libtpu made of programs, kept for the next run of a test.

It takes up to a minute for a program, and of one for a slice that is not there
a test reads the text, and what memory it needs. JAX's own cache writes such
programs and cannot read them: to load them it wants the devices.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import os
import pathlib
import tempfile
import types
from typing import Any
from unittest import mock
import zlib

import jax

# So that of the places that a program is from, it has the names of operations
# and no lines of files: one that has moved would make it another.
jax.config.update("jax_traceback_in_locations_limit", 0)

_compile = jax.stages.Lowered.compile


def compile_for(
    mesh: jax.sharding.Mesh, lowered: jax.stages.Lowered
) -> jax.stages.Compiled:
  """`lowered.compile()`, or what that was before: its text and its memory.

  What XLA compiles for tests is kept in JAX's cache where bazelw made one; this
  is a folder in it. Without one, the program is compiled.

  Args:
    mesh: of the devices that `lowered` is for, which need not be there.
    lowered: the program.

  Raises:
    JaxRuntimeError: if the compiler does not take it, or did not.
  """
  cache = jax.config.jax_compilation_cache_dir
  if not cache:
    return _compile(lowered)
  path = pathlib.Path(cache, "libtpu", _name(mesh, lowered))
  kept = _read(path)
  if kept is None:
    try:
      compiled = _compile(lowered)
    except jax.errors.JaxRuntimeError as error:
      _write(path, {"error": str(error)})
      raise
    _write(path, _described(compiled))
    return compiled
  if "error" in kept:
    raise jax.errors.JaxRuntimeError(kept["error"])
  return _KeptProgram(mesh, kept)


@contextlib.contextmanager
def all_for(mesh: jax.sharding.Mesh) -> Iterator[None]:
  """Within, `.compile()` is compile_for: for programs that the library lowers."""
  with mock.patch.object(
      jax.stages.Lowered, "compile", lambda lowered: compile_for(mesh, lowered)
  ):
    yield


class _KeptProgram(jax.stages.Compiled):
  """What reports ask of a compiled program."""

  def __init__(self, mesh: jax.sharding.Mesh, kept: dict[str, Any]):
    # Not that of JAX, which wants a program.
    self._mesh = mesh
    self._kept = kept

  def as_text(self) -> str:
    if self._kept["text"] is None:
      raise jax.errors.JaxRuntimeError(self._kept["no_text"])
    return self._kept["text"]

  def memory_analysis(self) -> Any:
    return types.SimpleNamespace(**self._kept["memory"])

  @property
  def input_shardings(self) -> Any:
    """One, which says for what platform the program is."""
    return [jax.sharding.NamedSharding(self._mesh, jax.P())]

  @property
  def output_shardings(self) -> Any:
    return []


def _described(compiled: jax.stages.Compiled) -> dict[str, Any]:
  text, no_text = None, ""
  try:
    text = compiled.as_text()
  except jax.errors.JaxRuntimeError as error:
    no_text = str(error)
  memory = compiled.memory_analysis()
  sizes = {name: getattr(memory, name) for name in dir(memory)}
  return {
      "text": text,
      "no_text": no_text,
      "memory": {n: x for n, x in sizes.items() if isinstance(x, int)},
  }


def _name(mesh: jax.sharding.Mesh, lowered: jax.stages.Lowered) -> str:
  """Of all that the result depends on: program, slice, versions and flags."""
  devices = list(mesh.devices.flat)
  parts = [
      lowered.as_text(debug_info=True),
      devices[0].client.platform_version,
      devices[0].device_kind,
      *map(repr, devices),
      *map(importlib.metadata.version, ("jax", "jaxlib", "libtpu")),
      *map(str, map(os.environ.get, ("LIBTPU_INIT_ARGS", "XLA_FLAGS"))),
  ]
  return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: pathlib.Path) -> dict[str, Any] | None:
  try:
    return json.loads(gzip.decompress(path.read_bytes()))
  except (OSError, EOFError, ValueError, zlib.error):
    return None  # It is not there, or not whole.


def _write(path: pathlib.Path, kept: dict[str, Any]) -> None:
  """Whole or not at all, as others may read it meanwhile."""
  with contextlib.suppress(OSError):  # The next run compiles it again.
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
      file.write(gzip.compress(json.dumps(kept).encode()))
    os.replace(file.name, path)
