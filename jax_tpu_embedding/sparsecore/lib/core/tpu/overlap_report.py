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
import re

import jax

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%(\S+) = .+? ([a-z][\w-]*)\((.*)")
_FIRST_OPERAND = re.compile(r"[^%]*%([\w.-]+)")
_CALLED = re.compile(r"calls=%?([\w.-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_PRODUCT = re.compile(r" (?:convolution|dot)\(")
_SPARSE_CORE = 'async_execution_thread="sparsecore"'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
  """An asynchronous call of SparseCores. Cycles are TensorCore's estimates."""

  name: str
  matmul_cycles: int  # of the matrix products between its start and its end

  @property
  def is_exposed(self) -> bool:
    return not self.matmul_cycles


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverlapReport:
  """What runs at the same time in a program. `str()` of it is for people."""

  calls: tuple[Call, ...]  # in the order of their starts
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
  running, beside, total, overlapped = {}, {}, 0, 0
  for line in entry:
    instruction = _INSTRUCTION.match(line)
    if instruction is None:
      continue
    name, operation, operands = instruction.groups()
    if operation.endswith("-start") and _SPARSE_CORE in line:
      running[name] = name
      beside[name] = 0
    elif operation.endswith(("-update", "-done")):
      started = _FIRST_OPERAND.match(operands)
      call = running.pop(started[1], None) if started else None
      if call and operation.endswith("-update"):
        # It runs from here on: operands come with the update.
        running[name], beside[call] = call, 0
    called = _CALLED.search(line)
    if called and called[1] in with_products:
      cycles = _CYCLES.search(line)
      cycles = int(cycles[1]) if cycles else 0
      total += cycles
      overlapped += cycles if running else 0
      for call in running.values():
        beside[call] += cycles
  if running:
    raise ValueError(
        f"The SparseCore calls {sorted(running.values())} start and do not end"
        " in the entry computation. This libtpu spells them in a way that is"
        " not known here."
    )
  return OverlapReport(
      calls=tuple(Call(name=k, matmul_cycles=v) for k, v in beside.items()),
      matmul_cycles=total,
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
