# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which matrix products of a compiled program run beside lookups and updates.

XLA fixes the order of instructions when it compiles, so this is known without
the devices. On a TPU, calls of SparseCores run beside the TensorCore; on GPUs,
collectives, which exchange rows, beside other kernels. How long a call takes is
not known. Of the TensorCore's instructions libtpu writes its estimate in
cycles; of a GPU's, the FLOPs of matrix products are counted. A call with no
matrix product between its start and its end is exposed: there is nothing large
to do but wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import math
import re

import jax
from jax_tpu_embedding.sparsecore.lib.core.tpu import _overlap

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%(\S+) = (.+?) ([a-z][\w-]*)\((.*)")
_FIRST_OPERAND = re.compile(r"[^%]*%([\w.-]+)")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_PRODUCT = re.compile(r" (?:convolution|dot)\(")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
# The last, as a pipeline has scopes of such names of its own.
_OF_STACK = re.compile(r'op_name="[^"]*/((?:lookup|update)/[^/"]+)/')
_SPARSE_CORE = 'async_execution_thread="sparsecore"'

_COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    }
)
_SIZES = re.compile(r"\w+\[([\d,]*)\]")
# Of a dot, and of what XLA makes of one for cuBLAS.
_CONTRACTED = (
    re.compile(r"lhs_contracting_dims=\{([\d,]*)\}"),
    re.compile(r'"lhs_contracting_dimensions":\[([\d,"]*)\]'),
)
_CUBLAS = 'custom_call_target="__cublas$'

Platform = _overlap.Platform
Instruction = _overlap.Instruction
Call = _overlap.Call
OverlapReport = _overlap.OverlapReport


def overlap_report(compiled: jax.stages.Compiled) -> OverlapReport:
  """The overlap in a program for TPU or GPU, from `.lower(...).compile()`.

  Raises:
    ValueError: as overlap_in, or if the program has no arrays.
    TypeError: if it is not compiled.
  """
  if not isinstance(compiled, jax.stages.Compiled):
    raise TypeError(
        "Pass what `.lower(...).compile()` of a train step returned, got"
        f" {type(compiled).__name__}."
    )
  shardings = jax.tree.leaves(
      (compiled.input_shardings, compiled.output_shardings)
  )
  if not shardings:
    raise ValueError(
        "The program takes no arrays that it uses and returns none, so it does"
        " nothing. Pass a train step."
    )
  platform = next(iter(shardings[0].device_set)).platform
  return overlap_in(compiled.as_text(), platform)


def overlap_in(hlo: str, platform: Platform = "tpu") -> OverlapReport:
  """The overlap in the entry computation of a scheduled program.

  Args:
    hlo: its text.
    platform: that it was compiled for.

  Raises:
    ValueError: if the program is not scheduled, is not as XLA writes programs
      for the platform, or the platform is another.
  """
  if platform not in ("tpu", "gpu"):
    raise ValueError(
        f"The program is for platform {platform!r}, and reports are about 'tpu'"
        " and 'gpu': a CPU runs one operation after the other."
    )
  if "is_scheduled=true" not in hlo.partition("\n")[0]:
    raise ValueError(
        "The program is not scheduled, so nothing says what runs beside what."
        " Pass what `.compile()` of a program for TPU or GPU returned."
    )
  computations, entry = _read(hlo)
  if not entry:
    raise ValueError(
        "The program has no computation that begins with ENTRY. Pass all of the"
        " text that `.compile().as_text()` returned."
    )
  of_platform = (_TpuProgram if platform == "tpu" else _GpuProgram)(
      computations, entry
  )
  try:
    return _overlap_of(of_platform, platform)
  except (LookupError, TypeError, StopIteration) as error:
    raise ValueError(
        "The text is not what XLA writes of programs for platform"
        f" {platform!r}: an operand, a computation or a dimension that it names"
        f" is missing ({error}). Pass all of what `.compile().as_text()`"
        " returned."
    ) from error


def _overlap_of(
    of_platform: _TpuProgram | _GpuProgram, platform: Platform
) -> OverlapReport:
  """The overlap in the lines of a program.

  Raises:
    ValueError: if a call does not end.
    LookupError, TypeError, StopIteration: if something that a line names is
      missing.
  """
  instructions, running, calls, time, overlapped = [], {}, {}, 0, 0
  for line in of_platform.lines():
    instruction = _INSTRUCTION.match(line)
    if instruction is None:
      continue
    name, _, operation, operands = instruction.groups()
    if of_platform.is_call(operation, line):
      calls[name] = dict(
          name=name,
          operation=of_platform.operation(line),
          start=time,
          end=time,
          matmul_cost=0,
          of_tables=of_platform.is_of_tables(line),
      )
      if operation.endswith("-start"):
        running[name] = name
    elif operation.endswith(("-update", "-done")):
      started = _FIRST_OPERAND.match(operands)
      call = running.pop(started[1], None) if started else None
      if call and operation.endswith("-update"):
        # It runs from here on: operands come with the update.
        running[name] = call
        calls[call] |= dict(start=time, matmul_cost=0)
      elif call:
        calls[call]["end"] = time
    cost, is_matmul = of_platform.cost(line)
    if cost:
      instructions.append(
          Instruction(name=name, start=time, cost=cost, is_matmul=is_matmul)
      )
    time += cost
    if is_matmul:
      is_beside = any(calls[call]["of_tables"] for call in running.values())
      overlapped += cost if is_beside else 0
      for call in running.values():
        calls[call]["matmul_cost"] += cost
  if running:
    raise ValueError(
        f"The calls {sorted(running.values())} start and do not end in the"
        " entry computation. This compiler spells them in a way that is not"
        " known here."
    )
  return OverlapReport(
      platform=platform,
      calls=tuple(Call(**call) for call in calls.values()),
      instructions=tuple(instructions),
      matmul_cost=sum(x.cost for x in instructions if x.is_matmul),
      overlapped_matmul_cost=overlapped,
  )


def _read(hlo: str) -> tuple[dict[str, list[str]], str]:
  """The lines of every computation by its name, and the name of the entry."""
  computations, entry, lines = {}, "", []
  for line in hlo.splitlines():
    if line.endswith("{") and not line.startswith(" "):
      words = line.split()
      name = words[words[0] == "ENTRY"].lstrip("%")
      if words[0] == "ENTRY":
        entry = name
      computations[name] = lines = []
    else:
      lines.append(line)
  return computations, entry


class _TpuProgram:
  """What libtpu writes: costs, and on which cores a call runs."""

  def __init__(self, computations: Mapping[str, Sequence[str]], entry: str):
    self._entry = computations.get(entry, ())
    self._with_products = {
        name
        for name, lines in computations.items()
        if name != entry and any(map(_PRODUCT.search, lines))
    }

  def lines(self) -> Iterator[str]:
    return iter(self._entry)

  def is_call(self, operation: str, line: str) -> bool:
    return operation.endswith("-start") and _SPARSE_CORE in line

  def is_of_tables(self, unused_line: str) -> bool:
    return True

  def operation(self, line: str) -> str:
    op_name = _OP_NAME.search(line)
    return op_name[1].split("/")[-1] if op_name else ""

  def cost(self, line: str) -> tuple[int, bool]:
    called, cycles = _CALLED.search(line), _CYCLES.search(line)
    is_matmul = bool(called) and called[1] in self._with_products
    return int(cycles[1]) if cycles else 0, is_matmul


class _GpuProgram:
  """What XLA writes for GPUs: no costs, so products are counted."""

  def __init__(self, computations: Mapping[str, Sequence[str]], entry: str):
    self._computations = computations
    self._entry = entry
    # The name of an instruction -> the sizes of its result. Names are those of
    # one in all of the program.
    self._sizes = {}
    for line in (x for lines in computations.values() for x in lines):
      if instruction := _INSTRUCTION.match(line):
        name, result, _, _ = instruction.groups()
        self._sizes[name] = _sizes(result)

  def lines(self) -> Iterator[str]:
    return self._lines_of(self._entry)

  def _lines_of(self, computation: str) -> Iterator[str]:
    for line in self._computations.get(computation, ()):
      instruction = _INSTRUCTION.match(line)
      # A graph of kernels that is launched as one.
      if instruction and instruction[3] == "call":
        yield from self._lines_of(_CALLED.search(line)[1])
      else:
        yield line

  def is_call(self, operation: str, line: str) -> bool:
    if operation.removesuffix("-start") in _COLLECTIVES:
      return True
    if operation != "async-start":
      return False
    called = _CALLED.search(line)
    instructions = map(
        _INSTRUCTION.match, self._computations.get(called[1], ())
    )
    return any(x and x[3] in _COLLECTIVES for x in instructions)

  def is_of_tables(self, line: str) -> bool:
    return _OF_STACK.search(line) is not None

  def operation(self, line: str) -> str:
    op_name = _OP_NAME.search(line)
    if op_name is None:
      return ""
    last = op_name[1].split("/")[-1]
    stack = _OF_STACK.search(line)
    return f"{stack[1]}/{last}" if stack else last

  def cost(self, line: str) -> tuple[int, bool]:
    flops = self._flops(line)
    return flops, bool(flops)

  def _flops(self, line: str) -> int:
    instruction = _INSTRUCTION.match(line)
    if instruction is None:
      return 0
    _, result, operation, operands = instruction.groups()
    if operation == "fusion":
      called = _CALLED.search(line)[1]
      return sum(map(self._flops, self._computations[called]))
    if operation != "dot" and _CUBLAS not in line:
      return 0
    dims = next(x for x in (p.search(line) for p in _CONTRACTED) if x)
    left = self._sizes[_FIRST_OPERAND.match(operands)[1]]
    contracted = [left[int(i)] for i in re.findall(r"\d+", dims[1])]
    return 2 * math.prod(_sizes(result)) * math.prod(contracted)


def _sizes(result: str) -> list[int]:
  """Of an array, or of the first in a tuple."""
  sizes = _SIZES.search(result)
  return [int(x) for x in sizes[1].split(",") if x] if sizes else []
