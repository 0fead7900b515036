# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a compiled TPU program needs on each device, and what it moves.

A table that is copied, because its layout is not the one that SparseCores read
or because it is not donated, shows up twice: in the temporary memory, and as a
move of its size.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax

_MIB = 2**20

# `%name = type operation(`; a type may be a tuple of types.
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%\S+ = (.+?) ([a-z][\w-]*)\(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")
_WHILE_BODY = re.compile(r" while\(.*body=%?([\w.-]+)")

# Bits of the types that XLA programs have; s4 and the like are rare in tables.
_BITS = re.compile(r"(?:pred|[a-z]+(\d+))")

# What moves nothing, and the calls of SparseCores, which are asynchronous: what
# they read and write is what they are for.
_FREE = frozenset(
    (
        "async-done",
        "async-start",
        "async-update",
        "bitcast",
        "call-done",
        "call-start",
        "call-update",
        "constant",
        "copy-done",
        # The same as calls, as JAX 0.12 writes those of libtpu 0.0.51.
        "custom-call-done",
        "custom-call-start",
        "custom-call-update",
        "get-tuple-element",
        "parameter",
        "tuple",
        "while",
    )
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
  """An instruction with a large result."""

  size_bytes: int
  operation: str
  result: str  # type and layout

  def __str__(self):
    return (
        f"{self.size_bytes / _MIB:.1f} MiB by {self.operation}: {self.result}"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryReport:
  """Memory of one device. `str()` of it is for people."""

  argument_bytes: int
  output_bytes: int
  aliased_bytes: int  # outputs that are in the memory of donated arguments
  temporary_bytes: int
  code_bytes: int
  # None if this JAX cannot read the programs of this libtpu.
  moves: tuple[Move, ...] | None

  @property
  def total_bytes(self) -> int:
    """What has to be free on a device for the program to run."""
    return (
        self.argument_bytes
        + self.output_bytes
        - self.aliased_bytes
        + self.temporary_bytes
        + self.code_bytes
    )

  def __str__(self):
    lines = [
        f"{title:<10} {size / _MIB:12.1f} MiB"
        for title, size in (
            ("arguments", self.argument_bytes),
            ("outputs", self.output_bytes),
            ("aliased", -self.aliased_bytes),
            ("temporary", self.temporary_bytes),
            ("code", self.code_bytes),
            ("total", self.total_bytes),
        )
    ]
    return "\n".join(lines + lines_of_moves(self.moves))


def lines_of_moves(moves: tuple[Move, ...] | None) -> list[str]:
  """What a report says of them; None: they are not known."""
  if moves is None:
    return ["moves: not known; JAX cannot read programs of this libtpu"]
  return [f"moves {move}" for move in moves] or ["no large moves"]


def memory_report(
    compiled: jax.stages.Compiled, *, min_move_bytes: int = _MIB
) -> MemoryReport:
  """What `compiled` needs on each device.

  Args:
    compiled: a program for TPU, from `.lower(...).compile()`.
    min_move_bytes: instructions with results that are smaller are not moves.
  """
  memory = compiled.memory_analysis()
  return MemoryReport(
      argument_bytes=memory.argument_size_in_bytes,
      output_bytes=memory.output_size_in_bytes,
      aliased_bytes=memory.alias_size_in_bytes,
      temporary_bytes=memory.temp_size_in_bytes,
      code_bytes=memory.generated_code_size_in_bytes,
      moves=_moves(compiled, min_move_bytes),
  )


def _moves(compiled: Any, min_bytes: int) -> tuple[Move, ...] | None:
  try:
    text = compiled.as_text()
  except jax.errors.JaxRuntimeError:
    return None
  return large_moves(text, min_bytes)


def large_moves(hlo: str, min_bytes: int) -> tuple[Move, ...]:
  """The moves of an optimized program, and of the loops in it.

  Args:
    hlo: its text.
    min_bytes: smaller results are left out. Padding does not count.
  """
  computations = _computations(hlo)
  moves, waiting = [], [""]
  while waiting:
    for line in computations[waiting.pop()]:
      if body := _WHILE_BODY.search(line):
        waiting.append(body[1])
      instruction = _INSTRUCTION.match(line)
      if instruction and instruction[2] not in _FREE:
        size = max(map(_size_bytes, _ARRAY.finditer(instruction[1])), default=0)
        if size >= min_bytes:
          moves.append(
              Move(
                  size_bytes=size,
                  operation=instruction[2],
                  result=instruction[1],
              )
          )
  return tuple(moves)


def _computations(hlo: str) -> dict[str, list[str]]:
  """Name -> lines; the entry computation has the name ""."""
  computations, lines = {}, []
  for line in hlo.splitlines():
    if line.endswith("{") and not line.startswith(" "):
      name = "" if line.startswith("ENTRY") else line.split()[0].lstrip("%")
      lines = computations.setdefault(name, [])
    else:
      lines.append(line)
  return computations


def _size_bytes(array: re.Match[str]) -> int:
  dtype, dimensions = array[1], array[2]
  bits = _BITS.match(dtype)
  if bits is None:
    return 0
  return (
      math.prod(int(d) for d in dimensions.split(",") if d)
      * int(bits[1] or 8)
      // 8
  )
