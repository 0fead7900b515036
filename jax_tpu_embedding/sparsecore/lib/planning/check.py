# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether a model runs on TPUs that are not there: it is compiled for them.

python -m jax_tpu_embedding.sparsecore.lib.planning.check specs.py \
    --topology v5p:2x2x1

Each stack is compiled by itself: its lookup, and its update with the step of
its optimizer, which may be the user's own. A program that the compiler cannot
take may end the process, so that this happens in others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math
import multiprocessing
import os
import re
import sys
from typing import Any
import warnings

from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import standard_output
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.step import _compile_check
from jax_tpu_embedding.sparsecore.lib.planning import model_file
from jax_tpu_embedding.sparsecore.lib.planning import prepared_specs

_MIB, _GIB = 2**20, 2**30
# Of one stack; a compiler that takes longer is ended.
_SECONDS = 600
_DIMENSIONS = re.compile(r"\w\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackCheck:
  """What became of a stack, on each device. Bytes."""

  name: str
  description: str  # tables, sizes, dtype, optimizer
  table_bytes: int  # with slots, by the plan
  part_bytes: int  # the same without slots: what a copy of the table would be
  # How many numbers that has, and so has a slot; None for a replicated stack,
  # whose gradient is as large, and is moved in any step.
  part_size: int | None
  choices: tuple[choice.Choice, ...] = ()
  kernels: tuple[subcores.KernelMemory, ...] = ()
  memory: memory_report.MemoryReport | None = None  # None: does not compile
  problems: tuple[str, ...] = ()  # each with what to change

  @property
  def bytes_at_rest(self) -> int:
    """Of tables, slots, and what pads them."""
    if self.memory is None:
      return self.table_bytes
    return self.memory.aliased_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """A model on a topology. `str()` of it is for people."""

  topology: str
  num_devices: int
  memory_bytes: int  # of a device
  stacks: tuple[StackCheck, ...]

  @property
  def total_bytes(self) -> int:
    """Of a device: what is there all the time, and the largest temporaries."""
    memories = [stack.memory for stack in self.stacks if stack.memory]
    return (
        sum(stack.bytes_at_rest for stack in self.stacks)
        + sum(x.argument_bytes - x.aliased_bytes for x in memories)
        + max((x.temporary_bytes for x in memories), default=0)
    )

  @property
  def problems(self) -> tuple[str, ...]:
    """What does not fit or is slow, each with what to change."""
    found = [
        f"{stack.name}: {problem}"
        for stack in self.stacks
        for problem in stack.problems
    ]
    if self.total_bytes > self.memory_bytes:
      at_rest = sum(stack.bytes_at_rest for stack in self.stacks)
      rest = self.memory_bytes - (self.total_bytes - at_rest)
      devices = "more devices"
      if rest > 0:
        devices = f"{math.ceil(at_rest * self.num_devices / rest)} devices"
      found.append(
          f"Tables and slots do not fit: a device has {_gib(self.memory_bytes)}"
          f" and needs {_gib(self.total_bytes)}. Use {devices}, dtype bfloat16,"
          " or an optimizer with fewer slots."
      )
    return tuple(found)

  def __str__(self):
    lines = [
        f"{self.topology}: {self.num_devices} devices of"
        f" {_gib(self.memory_bytes)} each. Compiled, not run."
    ]
    for stack in self.stacks:
      lines += ["", f"{stack.name}: {stack.description}"]
      for of in stack.choices:
        reason = f" ({of.reason})" if of.reason else ""
        lines.append(f"  {of.operation:22} by {of.way}{reason}")
      lines.append(f"  tables and slots       {_mib(stack.bytes_at_rest)}")
      if stack.memory is not None:
        buffers = stack.memory.argument_bytes - stack.memory.aliased_bytes
        lines += [
            f"  buffers of a batch     {_mib(buffers)}",
            f"  temporaries            {_mib(stack.memory.temporary_bytes)}",
        ]
      lines += [
          f"  subcore, {x.name:13} {x.words:7} of {x.words_of_subcore} words"
          for x in stack.kernels
      ]
      if stack.memory and any(x.way == "calls" for x in stack.choices):
        lines.append("  subcore, calls         fits; XLA divides it")
      lines += [f"  ! {problem}" for problem in stack.problems]
    lines += [
        "",
        f"Memory: {_gib(self.total_bytes)} of {_gib(self.memory_bytes)}, with"
        " the temporaries of one stack, without the model's own.",
    ]
    shown = {f"{s.name}: {p}" for s in self.stacks for p in s.problems}
    lines += [f"! {x}" for x in self.problems if x not in shown]
    if not self.problems:
      lines.append("Everything fits.")
    return "\n".join(lines)


def check(
    model: str,
    topology_name: str,
    *,
    batch: int | None = None,
    enable_minibatching: bool = False,
) -> Check:
  """Compiles each stack of a model, in processes of its own.

  Args:
    model: what model_file.HELP says: processes have to read it again.
    topology_name: "v5p:2x2x1", "v6e:4x4", "v5e:2x2", ...
    batch: samples of all devices, in place of those of the specs.
    enable_minibatching: the layout of the buffers.

  Raises:
    ValueError: if there is no such model or topology.
    RuntimeError: if libtpu is not installed.
  """
  arguments = (model, topology_name, batch, enable_minibatching)
  mesh, _, plans = _read(*arguments)
  chip = pallas.find_chip(topology_name.partition(":")[0].removeprefix("tpu"))
  stacks: list[StackCheck] = []
  while len(stacks) < len(plans):
    stacks += _in_a_process(arguments, len(stacks))
    if len(stacks) < len(plans):
      stacks.append(
          dataclasses.replace(
              plans[len(stacks)],
              problems=(
                  "The compiler ended its process, or took longer than"
                  f" {_SECONDS} s; what it printed is above. Compile it with"
                  " other limits, or ask for 'plain' in the environment"
                  " variable JAX_TPU_EMBEDDING_TPU.",
              ),
          )
      )
  return Check(
      topology=topology_name,
      num_devices=mesh.size,
      memory_bytes=chip.facts.hbm_capacity_bytes * chip.num_tensor_cores,
      stacks=tuple(stacks),
  )


def _read(model, topology_name, batch, unused_enable_minibatching):
  """Mesh, prepared specs, and of each stack what is known before it compiles."""
  mesh = topology.topology_mesh(topology_name)
  num_sc = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  features = prepared_specs.prepared(
      model_file.load(model, batch=batch), mesh.size, num_sc
  )
  stacks = _prepared.get_stacked_table_specs(features)
  plans = [_plan_of(stack, features, mesh.size) for stack in stacks.values()]
  return mesh, features, plans


def _plan_of(
    stack: embedding_spec.StackedTableSpec, features: Any, num_devices: int
) -> StackCheck:
  rows, columns = stack.stack_vocab_size, stack.stack_embedding_dim
  num_parts = 1 if stack.is_replicated else num_devices
  of_rows = stack.optimizer.slot_variables_of_rows()
  numbers = columns * stack.dtype.itemsize + sum(
      4 if is_of_rows else 4 * columns for is_of_rows in of_rows
  )
  tables = sorted(
      {
          x.table_spec.name
          for x in _compile_check.features_of_stack(
              features, stack.stack_name
          ).values()
      }
  )
  return StackCheck(
      name=stack.stack_name,
      description=(
          f"{rows:,} x {columns} {stack.dtype.name},"
          f" {stack.optimizer.short_name()}, {len(of_rows)} slots; tables"
          f" {', '.join(tables)}"
      ),
      table_bytes=rows * numbers // num_parts,
      part_bytes=rows * columns * stack.dtype.itemsize // num_parts,
      part_size=None if stack.is_replicated else rows * columns // num_parts,
  )


def _in_a_process(arguments: Any, first: int) -> Iterator[StackCheck]:
  """The checks of stacks from `first` on, until one ends the process."""
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  process = context.Process(target=_send, args=(sender, arguments, first))
  process.start()
  sender.close()
  try:
    while receiver.poll(_SECONDS):
      yield receiver.recv()
  except EOFError:
    pass
  finally:
    if process.is_alive():
      process.join(10)
      process.kill()
    process.join()


def _send(sender: Any, arguments: Any, first: int) -> None:
  """In a process of its own: sends the checks of stacks from `first` on."""
  mesh, features, plans = _read(*arguments)
  for plan in plans[first:]:
    sender.send(_check_stack(plan, features, mesh, arguments[-1]))


def _check_stack(plan, features, mesh, enable_minibatching) -> StackCheck:
  memory, problems = None, []
  try:
    with (
        choice.recorded() as choices,
        subcores.recorded() as kernels,
        warnings.catch_warnings(),
    ):
      warnings.simplefilter("ignore")  # what choices say
      compiled = _compile_check.lower_step(
          _compile_check.features_of_stack(features, plan.name),
          mesh,
          mesh.axis_names[0],
          enable_minibatching=enable_minibatching,
      ).compile()
    memory = memory_report.memory_report(
        compiled, min_move_bytes=max(plan.part_bytes, _MIB)
    )
  except Exception as error:  # pylint: disable=broad-exception-caught
    # A step may be the user's own, and raise whatever it likes.
    problems.append(_why(error, plan, features, mesh))
  if moves := _moves_of_table(memory and memory.moves, plan.part_size):
    moved = sum(move.size_bytes for move in moves)
    largest = max(moves, key=lambda move: move.size_bytes)
    problems.append(
        f"A step moves {_mib(moved)} of the table beside its update, the"
        f" largest {largest}. Use a dtype, a number of columns or a step that"
        " calls or kernels take; see what is said of them."
    )
  by_kernels = any(x.way == "kernels" for x in choices)
  return dataclasses.replace(
      plan,
      choices=tuple(choices),
      # Where others were chosen, those that were traced before.
      kernels=tuple(dict.fromkeys(kernels)) if by_kernels else (),
      memory=memory,
      problems=tuple(problems),
  )


def _moves_of_table(
    moves: Sequence[memory_report.Move] | None, part_size: int | None
) -> list[memory_report.Move]:
  """Those with as many numbers as a device has of the table, in any order.

  Where a table has few rows, arrays of a batch are as large as it or larger.
  """
  sizes = lambda move: (
      math.prod(int(x) for x in dimensions.split(",") if x)
      for dimensions in _DIMENSIONS.findall(move.result)
  )
  return [move for move in moves or () if part_size in sizes(move)]


def _why(error, plan, features, mesh) -> str:
  """What is to be changed about a stack that does not compile."""
  said = str(error).strip().partition("\n")[0][:300]
  if "memory space hbm" in str(error) or "Exceeded hbm" in str(error):
    return (
        f"{_gib(plan.table_bytes)} of tables and slots do not fit into the"
        " memory of a device. Use more devices, dtype bfloat16, or an optimizer"
        f" with fewer slots. The compiler: {said}"
    )
  if not _compile_check.does_not_fit(error):
    return f"It does not compile: {type(error).__name__}: {said}"
  specs = _compile_check.features_of_stack(features, plan.name)
  (stack,) = _prepared.get_stacked_table_specs(specs).values()
  compiles = embedding.compile_check(features, mesh, mesh.axis_names[0])
  limit = stack.max_unique_ids_per_partition
  num_sc = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  limits = _limits.Limits.of(specs, mesh.size, num_sc)[plan.name]
  fitting = limit
  while fitting > 8:
    fitting = 2 ** (math.ceil(math.log2(fitting)) - 1)
    changed = dataclasses.replace(limits, max_unique_ids_per_partition=fitting)
    if compiles(plan.name, changed):
      return (
          f"max_unique_ids_per_partition={limit} does not fit into the memory"
          f" of SparseCores; {fitting} does. Set that, with"
          " enable_minibatching=True for batches that need more."
      )
  return (
      "Rows do not fit into the memory of SparseCores, whatever the limits."
      f" Use fewer columns. The compiler: {said}"
  )


def _gib(size: float) -> str:
  return f"{size / _GIB:.2f} GiB"


def _mib(size: float) -> str:
  return f"{size / _MIB:.2f} MiB"


class _Parser(argparse.ArgumentParser):
  """Ends with 1 for wrong arguments: 2 is that of what does not fit."""

  def error(self, message):
    self.print_usage(sys.stderr)
    self.exit(1, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the check; returns 0 if everything fits, 2 if not, 1 for errors.

  Raises:
    SystemExit: with 1 for arguments that it does not have, or lacks; with 0 for
      --help.
  """
  parser = _Parser(
      prog="python -m jax_tpu_embedding.sparsecore.lib.planning.check",
      description=(
          "Compiles a model's tables for TPUs that are not there. The exit"
          " status is 0 if everything fits, 2 if not, 1 for errors."
      ),
  )
  parser.add_argument("model", help=model_file.HELP)
  parser.add_argument(
      "--topology", required=True, help="v5p:2x2x1, v6e:4x4, v5e:2x2, ..."
  )
  parser.add_argument("--batch", type=int, help="samples of all devices")
  parser.add_argument(
      "--minibatching", action="store_true", help="buffers of several passes"
  )
  arguments = parser.parse_args(argv)
  # No device is used, here or in the processes.
  os.environ["JAX_PLATFORMS"] = "cpu"
  try:
    result = check(
        arguments.model,
        arguments.topology,
        batch=arguments.batch,
        enable_minibatching=arguments.minibatching,
    )
  except (OSError, RuntimeError, TypeError, ValueError) as error:
    print(error, file=sys.stderr)
    return 1
  print(result)
  return 2 if result.problems else 0


if __name__ == "__main__":
  standard_output.run(main)
