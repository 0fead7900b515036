# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Kernels that are written for one core, and run on all cores of a mesh.

One call in place of jax.shard_map, pl.core_map, pl.run_scoped and the making of
results, on TPUs and, emulated, on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import contextvars
import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.pallas import chips
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import program

ENGINES = ("tpu", "emulate", "interpret")

# What `engine=None` is, if not what the devices say; see for_tpu.
_engine = contextvars.ContextVar("engine", default=None)


@contextlib.contextmanager
def for_tpu():
  """Kernels that are traced within are for a TPU, though none is here.

  For programs that are compiled and not run: `with for_tpu(): jitted.lower(...)`.
  """
  token = _engine.set("tpu")
  try:
    yield
  finally:
    _engine.reset(token)


def kernel(
    body: Callable[..., None] | None = None,
    core_mesh: Any = None,
    scratch_shapes: Sequence[Any] | Mapping[str, Any] = (),
    in_specs: Any = None,
    out_specs: Any = None,
    out_shape: Sequence[int] | None = None,
    out_dtype: Any = None,
    compiler_params: Any = None,
    *,
    mesh: chips.MeshLike | None = None,
    out_type: Any = None,
    in_place: Sequence[int] = (),
    name: str | None = None,
    engine: str | None = None,
    check: bool = True,
) -> Callable[..., Any]:
  """A function of arrays that runs `body` on every core of a device.

  `body(*operands, *results, *scratch)` gets refs: of the operands and results,
  which all cores share, in HBM; and of scratch memory, which each core has for
  itself. `jax.lax.axis_index` of the axes of `core_mesh` says which core it is.
  Operands may be trees, of which it gets trees of refs.

  Without `body` it is a decorator.

  Args:
    body: what one core does.
    core_mesh: the cores, as of tensor_core_mesh, vector_subcore_mesh or
      scalar_subcore_mesh.
    scratch_shapes: of memory, such as pltpu.VMEM(shape, dtype), and
      semaphores. A dictionary is passed by names.
    in_specs: PartitionSpecs of the operands, as of jax.shard_map. With them the
      function is jitted and sharded over `mesh`; without, it is for the arrays
      of one device, to be called inside jax.shard_map(..., check_vma=False), or
      on one device.
    out_specs: PartitionSpecs of the results, with `in_specs` only.
    out_shape: of the result on one device; that of the first operand if None.
    out_dtype: of the result; that of the first operand if None.
    compiler_params: pltpu.CompilerParams. Cores that signal to each other need
      a collective_id.
    mesh: of devices, with `in_specs`. None is that of jax.set_mesh, else that
      of the first operand.
    out_type: jax.ShapeDtypeStruct of the result on one device, or a tuple of
      them, in place of out_shape and out_dtype. An empty tuple is no result.
    in_place: numbers of operands that the body writes. They are results, after
      those of out_type, and out_type is then () if nothing is said. They are
      consumed: donated, with `in_specs`; without, donate them to the jit
      around, or they are copied.
    name: of the kernel in messages and profiles; that of `body` if None.
    engine: "tpu" compiles; "emulate" runs on CPUs (emulation/), for the chip
      that `mesh` says (chips.on_chip), or v5p; "interpret" is pltpu.InterpretParams
      of JAX, which knows TensorCores only and can look for races. None is "tpu"
      on TPUs, and "emulate" on CPUs.
    check: whether an emulated kernel raises mistakes; see emulation.emulate.

  Returns:
    A function of arrays, or of trees of them; of the results of out_type,
    then of `in_place`, as a tuple if there are several.

  Raises:
    TypeError, ValueError: now, or when it is called, for arguments that do not
      fit each other.
    NotImplementedError: when it is called, on GPUs.
  """
  if body is None:
    return functools.partial(
        kernel,
        core_mesh=core_mesh,
        scratch_shapes=scratch_shapes,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        out_dtype=out_dtype,
        compiler_params=compiler_params,
        mesh=mesh,
        out_type=out_type,
        in_place=in_place,
        name=name,
        engine=engine,
        check=check,
    )
  if not callable(body):
    raise TypeError(
        f"body must be a function of refs, got {type(body).__name__}."
    )
  name = name or getattr(body, "__name__", "kernel")
  _check_arguments(
      name,
      core_mesh,
      in_specs,
      out_specs,
      out_shape,
      out_dtype,
      mesh,
      out_type,
      in_place,
      engine,
  )
  in_place = tuple(in_place)

  def on_device(engine, *operands):
    """The kernel on one device, on arrays of that device."""
    _check_operands(name, operands, in_place)
    results = _out_type(
        name, operands, out_shape, out_dtype, out_type, in_place
    )
    run = functools.partial(
        _call,
        body,
        core_mesh,
        scratch_shapes,
        compiler_params,
        name,
        results,
        in_place,
        engine == "interpret",
    )
    if engine == "emulate":
      run = program.emulate(
          functools.partial(_checked, name, core_mesh, run), check=check
      )
    return run(*operands)

  if in_specs is None:
    return lambda *operands: on_device(
        _engine_for(name, engine, None), *operands
    )

  @functools.cache
  def sharded(mesh, engine):
    if engine != "tpu":
      mesh = chips.on_chip(mesh)
    return jax.jit(
        jax.shard_map(
            functools.partial(on_device, engine),
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        ),
        donate_argnums=in_place,
        keep_unused=True,  # Operands say which devices they are on.
    )

  def prepared(operands):
    """The jitted function for operands, and the context to call it in."""
    of_devices = mesh or _current_mesh() or _mesh_of(name, operands)
    engine_here = _engine_for(name, engine, of_devices)
    context = contextlib.nullcontext()
    if engine_here != "tpu" and not jax.sharding.get_abstract_mesh().empty:
      # jax.shard_map wants its mesh to be that of jax.set_mesh.
      context = jax.sharding.use_abstract_mesh(chips.on_chip(of_devices))
    return sharded(of_devices, engine_here), context

  def run(*operands):
    jitted, context = prepared(operands)
    with context:
      return jitted(*operands)

  def lower(*operands):
    jitted, context = prepared(operands)
    with context:
      return jitted.lower(*operands)

  run.lower = lower
  return run


def _call(
    body,
    core_mesh,
    scratch_shapes,
    compiler_params,
    name,
    out_type,
    in_place,
    interpret,
    *operands,
):
  """Runs pl.kernel on arrays, some of which it changes."""
  operands = [
      jax.tree.map(jax.new_ref, x) if number in in_place else x
      for number, x in enumerate(operands)
  ]
  leaves, structure = jax.tree.flatten(operands)
  is_tuple = isinstance(out_type, (tuple, list))
  out_leaves, out_structure = jax.tree.flatten(out_type)
  by_name = scratch_shapes if isinstance(scratch_shapes, Mapping) else {}
  scratch = tuple(by_name.values() if by_name else scratch_shapes)

  def flat_body(*refs):
    refs = list(refs)
    of_operands = refs[: len(leaves)]
    of_results = refs[len(leaves) : len(leaves) + len(out_leaves)]
    of_scratch = refs[len(leaves) + len(out_leaves) :]
    results = jax.tree.unflatten(out_structure, of_results)
    body(
        *jax.tree.unflatten(structure, of_operands),
        *(results if is_tuple else (results,)),
        *(() if by_name else of_scratch),
        **dict(zip(by_name, of_scratch)),
    )

  results = pl.kernel(
      flat_body,
      tuple(out_leaves),
      mesh=core_mesh,
      scratch_types=scratch,
      name=name,
      **(
          {}
          if compiler_params is None
          else dict(compiler_params=compiler_params)
      ),
      **(dict(interpret=pltpu.InterpretParams()) if interpret else {}),
  )(*leaves)
  results = jax.tree.unflatten(out_structure, list(results))
  results = list(results) if is_tuple else [results]
  for number in in_place:
    results.append(jax.tree.map(lambda ref: ref[...], operands[number]))
  return results[0] if len(results) == 1 else tuple(results)


def _check_arguments(
    name,
    core_mesh,
    in_specs,
    out_specs,
    out_shape,
    out_dtype,
    mesh,
    out_type,
    in_place,
    engine,
):
  """Raises what can be known before there are operands."""
  if not hasattr(core_mesh, "core_type"):
    hint = ""
    if isinstance(core_mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
      hint = " That is a mesh of devices, which is the argument mesh."
    raise TypeError(
        f"Kernel {name!r}: core_mesh must be a mesh of cores, as of"
        f" tensor_core_mesh, got {type(core_mesh).__name__}.{hint}"
    )
  if (in_specs is None) != (out_specs is None):
    given, missing = "in_specs", "out_specs"
    if in_specs is None:
      given, missing = missing, given
    raise ValueError(
        f"Kernel {name!r}: {given} without {missing}. Pass both, or neither"
        " inside jax.shard_map."
    )
  if mesh is not None and in_specs is None:
    raise ValueError(
        f"Kernel {name!r}: mesh without in_specs and out_specs. Pass these, or"
        " no mesh and call it inside jax.shard_map."
    )
  if mesh is not None and not isinstance(
      mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh)
  ):
    raise TypeError(
        f"Kernel {name!r}: mesh must be a jax.sharding.Mesh of devices, got"
        f" {type(mesh).__name__}."
    )
  if out_type is not None and (out_shape is not None or out_dtype is not None):
    raise ValueError(
        f"Kernel {name!r}: out_type={out_type} beside out_shape={out_shape}"
        f" and out_dtype={out_dtype}. Pass out_type alone."
    )
  if engine is not None and engine not in ENGINES:
    raise ValueError(
        f"Kernel {name!r}: There is no engine {engine!r}. Use one of"
        f" {', '.join(ENGINES)}, or None."
    )
  for number in in_place:
    if not isinstance(number, int) or number < 0:
      raise ValueError(
          f"Kernel {name!r}: in_place must have numbers of operands, from 0,"
          f" got {number!r}."
      )
  if len(set(in_place)) != len(tuple(in_place)):
    raise ValueError(
        f"Kernel {name!r}: in_place has an operand twice: {tuple(in_place)}."
    )


def _check_operands(name, operands, in_place):
  for number in in_place:
    if number >= len(operands):
      raise ValueError(
          f"Kernel {name!r}: in_place has operand {number}, and there are"
          f" {len(operands)}. The first is 0."
      )
  for number, operand in enumerate(operands):
    for leaf in jax.tree.leaves(operand):
      if not hasattr(leaf, "dtype"):
        raise TypeError(
            f"Kernel {name!r}: operand {number} has a"
            f" {type(leaf).__name__}, {leaf!r}. Pass arrays; a number that is"
            " fixed can be closed over, another one be an array of size 1."
        )


def _out_type(name, operands, out_shape, out_dtype, out_type, in_place):
  """What the kernel returns beside operands that it changes."""
  if out_type is not None:
    for leaf in jax.tree.leaves(out_type):
      if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(
            f"Kernel {name!r}: out_type must have jax.ShapeDtypeStructs, got"
            f" {leaf!r}."
        )
    return out_type
  if in_place and out_shape is None and out_dtype is None:
    return ()
  first = jax.tree.leaves(operands)[:1]
  if not first and (out_shape is None or out_dtype is None):
    raise ValueError(
        f"Kernel {name!r} has no operand whose shape and dtype its result"
        " could have. Pass out_type."
    )
  return jax.ShapeDtypeStruct(
      first[0].shape if out_shape is None else tuple(out_shape),
      first[0].dtype if out_dtype is None else jnp.dtype(out_dtype),
  )


def _checked(name, core_mesh, run, *operands):
  """`run` where it is known which chip is emulated."""
  _check_chip(name, core_mesh)
  return run(*operands)


def _check_chip(name, core_mesh):
  """Raises if the chip that is emulated does not have such cores."""
  chip = chips.find_chip()
  kind = str(core_mesh.core_type).lower()
  if "sc" not in kind:
    cores = chip.num_tensor_cores
  else:
    info = chip.facts.sparse_core
    cores = 0 if info is None else info.num_cores
  found = next(iter(core_mesh.shape.values()))
  if found > cores:
    raise ValueError(
        f"Kernel {name!r}: core_mesh has {found} cores, and chip"
        f" {chip.name!r} has {cores} of this kind. Make core_mesh with"
        f" chip={chip.name!r}, or say mesh=on_chip(mesh, the other chip)."
    )


def _current_mesh():
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return None
  if isinstance(mesh, jax.sharding.AbstractMesh) and mesh.abstract_device:
    return mesh
  try:
    concrete = jax.sharding.get_mesh()  # of jax.set_mesh
  except ValueError:  # in traced code
    return mesh
  return concrete if not concrete.empty else mesh


def _mesh_of(name, operands):
  for leaf in jax.tree.leaves(operands):
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, jax.sharding.NamedSharding):
      if not sharding.mesh.empty:
        return sharding.mesh
  raise ValueError(
      f"Kernel {name!r}: in_specs are for a mesh of devices, and there is none."
      " Pass mesh, call jax.set_mesh, or put the operands on a mesh."
  )


def _engine_for(name, engine, mesh):
  """The engine that is used where `mesh` is."""
  engine = engine or _engine.get()
  if engine is not None:
    return engine
  platform = jax.default_backend()
  if isinstance(mesh, jax.sharding.Mesh):
    platform = mesh.devices.flat[0].platform
  if platform in ("tpu", "cpu"):
    return {"tpu": "tpu", "cpu": "emulate"}[platform]
  raise NotImplementedError(
      f"Kernel {name!r} is for cores of TPUs, and devices are {platform!r}."
      " Use jax.numpy there, or jax.experimental.pallas.mosaic_gpu.kernel."
  )
