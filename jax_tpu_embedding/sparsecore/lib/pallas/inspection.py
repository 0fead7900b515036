# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a kernel becomes on a TPU, on any machine that has libtpu.

A program that the compiler cannot take may end the process, so it is compiled
in one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import multiprocessing
import os
import pathlib
import pickle
import re
import tempfile
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.pallas import chips
from jax_tpu_embedding.sparsecore.lib.pallas.kernel import for_tpu

_SECONDS = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """A compiled program, on each device. `str()` of it is for people."""

  chip: str
  # Instructions ("bundles") of its SparseCore programs, by the processor that
  # runs them. Those of vector subcores are "tile_execute_core_sequencer".
  bundles: Mapping[str, int]
  temporary_bytes: int
  aliased_bytes: int  # results that are in the memory of donated arguments
  # Results of 1 MiB or more that the program around kernels makes; None if this
  # JAX cannot read programs of this libtpu.
  moves: tuple[memory_report.Move, ...] | None

  def __str__(self):
    lines = [f"compiled for {self.chip}"]
    lines += [f"{n} bundles of {name}" for name, n in self.bundles.items()]
    lines.append(f"temporary bytes    {self.temporary_bytes}")
    lines.append(f"aliased bytes      {self.aliased_bytes}")
    return "\n".join(lines + memory_report.lines_of_moves(self.moves))


def inspect(
    f: Callable[..., Any],
    *shapes: Any,
    chip: str = "v5p",
    donate: Sequence[int] = (),
) -> Report:
  """Compiles `f`, as what one device runs, and reports what it needs.

  Args:
    f: a function of arrays, with kernels in it, that a new process can import:
      at the top of a module. It is traced for the chip.
    *shapes: jax.ShapeDtypeStructs of its arguments on one device.
    chip: a name of chips.CHIPS, or of a slice ("v6e:2x2").
    donate: numbers of the arguments that are donated.

  Raises:
    ValueError: if there is no such chip, or a new process cannot import `f`.
    RuntimeError: if the compiler does not take it, or ends the process, with
      what it said; or if libtpu is not installed.
  """
  name = chip.split(":")[0].removeprefix("tpu")
  slice_name = chip if ":" in chip else chips.find_chip(name).topology
  chips.find_chip(name)
  try:
    pickle.dumps(f)
  except (AttributeError, TypeError, pickle.PicklingError) as error:
    raise ValueError(
        f"{_name_of(f)} cannot be imported by the process that compiles it:"
        f" {error}. Pass a function at the top of a module, which may call it."
    ) from error
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  process = context.Process(
      target=_inspect_here, args=(sender, f, shapes, slice_name, tuple(donate))
  )
  platforms = os.environ.get("JAX_PLATFORMS")
  os.environ["JAX_PLATFORMS"] = "cpu"  # for the process that starts here
  try:
    process.start()
  finally:
    if platforms is None:
      del os.environ["JAX_PLATFORMS"]
    else:
      os.environ["JAX_PLATFORMS"] = platforms
  sender.close()
  try:
    is_in_time = receiver.poll(_SECONDS)
    result = receiver.recv() if is_in_time else None
  except EOFError:
    result = None
  if result is None and process.is_alive():
    process.kill()
  process.join()
  if not is_in_time:
    raise RuntimeError(
        f"{_name_of(f)} for {slice_name}: the compiler took longer than"
        f" {_SECONDS} s."
    )
  if result is None:
    raise RuntimeError(
        f"{_name_of(f)} for {slice_name}: the compiler ended its process with"
        f" exit code {process.exitcode}. What it printed is above."
    )
  if isinstance(result, str):
    raise RuntimeError(f"{_name_of(f)} for {slice_name}: {result}")
  return result


def _name_of(f):
  return repr(getattr(f, "__name__", f))


def _inspect_here(sender, f, shapes, slice_name, donate):
  """In a process of its own: sends the report, or the text of an error."""
  try:
    sender.send(_report(f, shapes, slice_name, donate))
  except Exception as error:  # pylint: disable=broad-exception-caught
    sender.send(f"{type(error).__name__}: {error}")


def _report(f, shapes, slice_name, donate):
  mesh = topology.topology_mesh(slice_name, ("device",))
  everywhere = jax.sharding.PartitionSpec()
  sharding = jax.sharding.NamedSharding(mesh, everywhere)
  arguments = jax.tree.map(lambda x: x.update(sharding=sharding), shapes)
  jitted = jax.jit(
      jax.shard_map(
          functools.partial(_call, f),
          mesh=mesh,
          in_specs=everywhere,
          out_specs=everywhere,
          check_vma=False,
      ),
      donate_argnums=donate,
  )
  with for_tpu(), tempfile.TemporaryDirectory() as directory:
    compiled = jitted.lower(*arguments).compile(
        compiler_options={
            "xla_dump_to": directory,
            "xla_dump_hlo_as_text": True,
        }
    )
    bundles = bundles_in(pathlib.Path(directory))
  memory = memory_report.memory_report(compiled)
  return Report(
      chip=slice_name,
      bundles=bundles,
      temporary_bytes=memory.temporary_bytes,
      aliased_bytes=memory.aliased_bytes,
      moves=memory.moves,
  )


def _call(f, *args):
  return f(*args)


_METADATA = re.compile(
    r"(start_bundle_number|end_bundle_number|sequencer_type): (\w+)"
)


def bundles_in(directory: pathlib.Path) -> dict[str, int]:
  """What the compiler wrote about its SparseCore programs, summed.

  The text has, for each sequencer, ranges of bundles, and then its name.
  """
  bundles: dict[str, int] = {}
  for path in directory.rglob("*sparse_core_specific_metadata.txt"):
    count = 0
    for field, value in _METADATA.findall(path.read_text()):
      if field == "start_bundle_number":
        count -= int(value)
      elif field == "end_bundle_number":
        count += int(value)
      elif count:
        name = value.removeprefix("TPU_SEQUENCER_TYPE_SPARSE_CORE_").lower()
        bundles[name] = bundles.get(name, 0) + count
        count = 0
  return bundles


_BUNDLES_OF_SUBCORES = re.compile(r"^tec$(.*)", re.MULTILINE | re.DOTALL)
_BUNDLE = re.compile(
    r"^\.L(?P<label>BB\w+):|^0x(?P<address>[0-9a-f]+): |\.L(?P<target>BB\w+)-",
    re.MULTILINE,
)
# Bundles after one with a branch, which run whether or not it is taken.
_DELAY_SLOTS = 2


def loops_in(directory: pathlib.Path) -> list[int]:
  """How many bundles a turn takes of each innermost loop of vector subcores.

  Those without a branch inside: what a kernel does most.

  Args:
    directory: where libtpu wrote its SparseCore programs, as it does if
      LIBTPU_INIT_ARGS has --xla_sc_dump_bundles_to when it is loaded.
  """
  loops = []
  for path in sorted(directory.rglob("*_bundles.txt")):
    program = _BUNDLES_OF_SUBCORES.search(path.read_text())
    label, start, address = None, 0, 0
    for found in _BUNDLE.finditer(program[1] if program else ""):
      if found["label"]:
        label, start = found["label"], None
      elif found["address"]:
        address = int(found["address"], 16)
        start = address if start is None else start
      elif found["target"] == label:
        loops.append(address - start + 1 + _DELAY_SLOTS)
  return loops
