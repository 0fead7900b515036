# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which matrix products of a compiled TPU program run beside SparseCore calls.

XLA fixes the order of instructions when it compiles, so this is known without a
TPU. How long a SparseCore call takes is not; of the TensorCore's instructions
libtpu writes its estimate in cycles. A call with no matrix product between its
start and its end is exposed: the TensorCore has nothing to do but wait.
"""

from __future__ import annotations

import dataclasses
import os
import re

import jax

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%(\S+) = .+? ([a-z][\w-]*)\((.*)")
_FIRST_OPERAND = re.compile(r"[^%]*%([\w.-]+)")
_CALLED = re.compile(r"calls=%?([\w.-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_PRODUCT = re.compile(r" (?:convolution|dot)\(")
_OPERATION = re.compile(r'op_name="[^"]*?([^"/]+)"')
_SPARSE_CORE = 'async_execution_thread="sparsecore"'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
  """What the TensorCore does, one after the other. Times are in its cycles."""

  name: str
  start: int  # the sum of the estimates before
  cycles: int
  is_matmul: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
  """An asynchronous call of SparseCores. Cycles are TensorCore's estimates."""

  name: str
  # Of the program that was compiled, such as sparse_dense_matmul_csr. A call
  # that XLA merged from several has the name of one of them.
  operation: str
  start: int  # where in the TensorCore's time it may begin
  end: int  # and where the TensorCore waits for it
  matmul_cycles: int  # of the matrix products between

  @property
  def is_exposed(self) -> bool:
    return not self.matmul_cycles


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverlapReport:
  """What runs at the same time in a program. `str()` of it is for people."""

  calls: tuple[Call, ...]  # in the order of their starts
  instructions: tuple[Instruction, ...]  # with an estimate, in order
  matmul_cycles: int  # of all matrix products
  overlapped_matmul_cycles: int  # of those beside any call, each once

  @property
  def exposed_calls(self) -> tuple[Call, ...]:
    return tuple(call for call in self.calls if call.is_exposed)

  def __str__(self):
    lines = [
        f"matrix products: {self.matmul_cycles} estimated cycles,"
        f" {self.overlapped_matmul_cycles} of them beside SparseCore calls"
    ]
    for call in self.calls:
      beside = f"beside {call.matmul_cycles} cycles of matrix products"
      lines.append(f"{call.name}: {'exposed' if call.is_exposed else beside}")
    return "\n".join(lines)

  def plot(self, path: str | os.PathLike[str]) -> None:
    """Draws two lanes, TensorCore and SparseCores, over estimated cycles.

    Args:
      path: the file to write; its suffix says the format (.png, .svg, .pdf).

    Raises:
      ImportError: if matplotlib is not there. It comes with the extra `plots`.
    """
    # Here, since matplotlib is an extra.
    from jax_tpu_embedding.sparsecore.lib.core.tpu import _overlap_picture

    _overlap_picture.plot(self, path)


def overlap_report(compiled: jax.stages.Compiled) -> OverlapReport:
  """The overlap in a program for TPU, from `.lower(...).compile()`.

  Raises:
    ValueError: if the program is not scheduled, or for another platform.
  """
  return overlap_in(compiled.as_text())


def overlap_in(hlo: str) -> OverlapReport:
  """The overlap in the entry computation of a scheduled program.

  Args:
    hlo: its text.

  Raises:
    ValueError: if the program is not scheduled, or a call does not end.
  """
  if "is_scheduled=true" not in hlo.partition("\n")[0]:
    raise ValueError(
        "The program is not scheduled, so nothing says what runs beside what."
        " Pass what `.compile()` of a program for TPU returned."
    )
  entry, with_products = _read(hlo)
  instructions, running, calls, time, overlapped = [], {}, {}, 0, 0
  for line in entry:
    instruction = _INSTRUCTION.match(line)
    if instruction is None:
      continue
    name, operation, operands = instruction.groups()
    if operation.endswith("-start") and _SPARSE_CORE in line:
      of_program = _OPERATION.search(line)
      running[name] = name
      calls[name] = dict(
          name=name,
          operation=of_program[1] if of_program else "",
          start=time,
          end=time,
          matmul_cycles=0,
      )
    elif operation.endswith(("-update", "-done")):
      started = _FIRST_OPERAND.match(operands)
      call = running.pop(started[1], None) if started else None
      if call and operation.endswith("-update"):
        # It runs from here on: operands come with the update.
        running[name] = call
        calls[call] |= dict(start=time, matmul_cycles=0)
      elif call:
        calls[call]["end"] = time
    called, cycles = _CALLED.search(line), _CYCLES.search(line)
    cycles = int(cycles[1]) if cycles else 0
    is_matmul = bool(called) and called[1] in with_products
    if cycles:
      instructions.append(
          Instruction(name=name, start=time, cycles=cycles, is_matmul=is_matmul)
      )
    time += cycles
    if is_matmul:
      overlapped += cycles if running else 0
      for call in running.values():
        calls[call]["matmul_cycles"] += cycles
  if running:
    raise ValueError(
        f"The SparseCore calls {sorted(running.values())} start and do not end"
        " in the entry computation. This libtpu spells them in a way that is"
        " not known here."
    )
  return OverlapReport(
      calls=tuple(Call(**call) for call in calls.values()),
      instructions=tuple(instructions),
      matmul_cycles=sum(x.cycles for x in instructions if x.is_matmul),
      overlapped_matmul_cycles=overlapped,
  )


def _read(hlo: str) -> tuple[list[str], set[str]]:
  """Lines of the entry computation, and computations with matrix products."""
  entry, with_products, name, is_entry = [], set(), "", False
  for line in hlo.splitlines():
    if line.endswith("{") and not line.startswith(" "):
      is_entry = line.startswith("ENTRY")
      name = line.split()[0].lstrip("%")
    elif is_entry:
      entry.append(line)
    elif _PRODUCT.search(line):
      with_products.add(name)
  return entry, with_products
