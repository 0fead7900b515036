# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs with kernels for TPU cores, run on a CPU.

The program is traced as for the chip, which its mesh says (chips.on_chip). Then
its equations run as they are, but for kernels: phases.py runs those.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.pallas import chips
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import memory
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import phases
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import worker


def emulate(
    f: Callable[..., Any],
    *,
    check: bool = True,
    chip: str | chips.MeshLike | None = None,
) -> Callable[..., Any]:
  """`f`, whose kernels run on the devices that there are, CPUs for example.

  Kernels are those of pl.kernel and pl.core_map over cores of a TPU. They may
  be in functions that `f` calls, under jax.jit and pl.run_state, and not in
  loops; call what this returns in a loop instead. For several devices, it is
  what jax.shard_map is given: jax.shard_map(emulate(f), mesh=on_chip(mesh),
  check_vma=False, ...).

  Args:
    f: a function of (trees of) arrays.
    check: whether to raise mistakes (mistakes.KernelMistake). They arrive as
      jax.errors.JaxRuntimeError when results are waited for. Programs without
      are smaller and faster.
    chip: as of chips.find_chip; None is the chip of the mesh of jax.shard_map
      around, which on_chip makes, or v5p where there is none.

  Raises:
    ValueError: when it is called on a mesh that does not say the chip.
    NotImplementedError: when it is called, for what is not emulated, by name:
      copies to other devices, random bits and matrix units of TensorCores,
      kernels of several bodies (MPMD); and for loads and stores of HBM.
    KernelMistake: when it is called, if scratch memory does not fit, or for a
      copy between different shapes or types, or into an operand that is no
      result.
  """

  def run(*args):
    chip_here = chips.find_chip()
    with jax_versions.pipelines_as_loops():
      jaxpr, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    results = _run(
        jaxpr.jaxpr, jaxpr.consts, jax.tree.leaves(args), chip_here, check
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  @functools.wraps(f)
  def emulated(*args):
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
      _check_mesh(mesh, chip)
      return run(*args)
    one_device = chips.on_chip(
        jax.sharding.AbstractMesh((1,), ("device",)),
        chips.find_chip(chip).name,
    )
    spec = jax.sharding.PartitionSpec()
    sharded = jax.shard_map(
        run, mesh=one_device, in_specs=spec, out_specs=spec, check_vma=False
    )
    return jax.jit(sharded)(*args)

  return emulated


def _check_mesh(mesh: jax.sharding.AbstractMesh, chip: Any) -> None:
  """Raises if programs on `mesh` are not traced as for the chip."""
  device = mesh.abstract_device
  platform = None if device is None else device.platform
  if platform != "tpu":
    raise ValueError(
        f"Kernels are emulated on a mesh of {platform!r}, which does not say"
        " what chip they are for. Pass mesh=on_chip(mesh, 'v5p'), or another"
        " chip, to jax.shard_map around them."
    )
  if chip is not None and chips.find_chip(chip) != chips.find_chip(mesh):
    raise ValueError(
        f"Kernels are emulated for {chips.find_chip(chip).name!r} on a mesh of"
        f" {chips.find_chip(mesh).name!r}. Leave chip out, or make the mesh"
        " by on_chip with the same."
    )


def install(*, check: bool = True) -> Callable[[], None]:
  """Makes pl.kernel run on CPUs, in programs as they are.

  Their meshes have to be of a chip: jax.shard_map(..., mesh=on_chip(mesh)).
  A setting of the whole process. Kernels that use emit_pipeline need emulate.

  Args:
    check: as of emulate.

  Returns:
    A function that takes the setting back.
  """

  def run(operands, params):
    chip_here = chips.find_chip()
    results = _run_kernel(params, operands, chip_here, check)
    return results

  return jax_versions.register_kernel_lowering("cpu", run)


def _run(jaxpr, consts, args, chip, check) -> list[Any]:
  """Runs a jaxpr with kernels in it."""
  return jax_versions.run_jaxpr(
      jaxpr,
      consts,
      args,
      lambda equation, operands: _run_equation(equation, operands, chip, check),
  )


def _run_equation(equation, operands, chip, check):
  name = equation.primitive.name
  if name in jax_versions.KERNEL_PRIMITIVES:
    if name == "core_map":
      return _run_core_map(equation, operands, chip, check)
    return _run_kernel(equation.params, operands, chip, check)
  if not any(map(_has_kernel, jax_versions.jaxprs_of(equation))):
    return jax_versions.evaluate(equation, operands)
  if name in ("jit", "pjit"):
    jaxpr, consts = jax_versions.open_jaxpr(equation.params["jaxpr"])
    return _run(jaxpr, consts, operands, chip, check)
  if name == "run_state":
    jaxpr, consts = jax_versions.open_jaxpr(equation.params["jaxpr"])
    refs = [jax.new_ref(x) for x in operands]
    _run(jaxpr, consts, refs, chip, check)
    return [ref[...] for ref in refs]
  raise NotImplementedError(
      f"{jax_versions.source_line(equation)}: A kernel inside {name!r} is not"
      " emulated. Emulate what is inside: emulate(f) in the loop."
  )


def _has_kernel(jaxpr) -> bool:
  return any(
      equation.primitive.name in jax_versions.KERNEL_PRIMITIVES
      or any(map(_has_kernel, jax_versions.jaxprs_of(equation)))
      for equation in jaxpr.eqns
  )


def _run_core_map(equation, operands, chip, check):
  """The core_map of JAX 0.10.2: it closes over refs, and returns nothing."""
  mesh, jaxpr = equation.params["mesh"], equation.params["jaxpr"]
  jaxpr, consts = jax_versions.open_jaxpr(jaxpr)
  kernel = _kernel(equation.params, mesh, chip, check)
  if len(jaxpr.constvars) == len(operands):
    consts = [
        _block(x, v.aval, check) for x, v in zip(operands, jaxpr.constvars)
    ]
    phases.run_kernel(kernel, jaxpr, consts, [])
  else:
    refs = [_block(x, v.aval, check) for x, v in zip(operands, jaxpr.invars)]
    phases.run_kernel(kernel, jaxpr, consts, refs)
  return []


def _run_kernel(params, operands, chip, check):
  """A kernel of operands, results and scratch memory."""
  if len(params["meshes"]) != 1:
    raise NotImplementedError(
        f"Kernel {params.get('name')!r} has {len(params['meshes'])} bodies."
        " Kernels of several bodies (MPMD) are not emulated."
    )
  (mesh,), (jaxpr,) = params["meshes"], params["jaxprs"]
  jaxpr, consts = jax_versions.open_jaxpr(jaxpr)
  kernel = _kernel(params, mesh, chip, check)
  in_memory_of = {
      result: operand
      for operand, result in dict(
          params.get("input_output_aliases", ())
      ).items()
  }
  refs = [
      _block(x, v.aval, check, is_result=number in in_memory_of.values())
      for number, (x, v) in enumerate(zip(operands, jaxpr.invars))
  ]
  results = []
  for number, aval in enumerate(params["out_avals"]):
    if number in in_memory_of:
      results.append(refs[in_memory_of[number]])
    else:
      blank = memory.unwritten(aval.shape, aval.dtype)
      variable = jaxpr.invars[len(refs) + number]
      results.append(_block(jax.new_ref(blank), variable.aval, check))
  phases.run_kernel(kernel, jaxpr, consts, [*refs, *results])
  return [result.array[...] for result in results]


def _kernel(params, mesh, chip, check):
  name = params.get("name") or "kernel"
  return worker.Kernel(str(name), mesh, chip, check)


def _block(x: Any, aval: Any, check: bool, is_result: bool = False) -> Any:
  """An operand of a kernel as memory of all workers; scalars as they are."""
  if not isinstance(aval, jax_versions.AbstractRef):
    return x
  is_mutable = jax_versions.is_ref(x)
  array = x if is_mutable else jax.new_ref(x)
  space = memory.Space.HBM  # where arrays are that say nothing else
  if aval.memory_space is not None:
    space = memory.space_of(aval)
  is_read_only = not (is_mutable or is_result)
  owners = None
  if check and space is memory.Space.HBM and not is_read_only:
    owners = jax.new_ref(jnp.zeros(aval.shape, jnp.uint8))
  return memory.Memory(
      array=array,
      aval=aval,
      space=space,
      is_read_only=is_read_only,
      owners=owners,
  )
