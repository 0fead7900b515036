# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What kernels use of JAX that has moved, or that JAX makes no promise about.

No other module of this room imports `jax._src`, or asks how old JAX is. So this
is the one file to mend when a release changes such a name; jax_versions_test.py
says which. Written for JAX 0.10.2 to 0.12.

lib/core/jax_private.py is the same for the rest of the library, which is above
this room.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

import jax
from jax._src import config
from jax._src import source_info_util
from jax._src.state import indexing
from jax._src.state import primitives as state_primitives
from jax._src.state import types as state_types
from jax.experimental.pallas import tpu as pltpu
from jax.extend import core
from jax.interpreters import mlir

# A ref, what selects a part of it, and the selections that copies may have.
# jax.Ref has `.at`, but there is no public name for what it returns.
AbstractRef = state_types.AbstractRef
TransformedRef = state_types.TransformedRef
Selection = indexing.NDIndexer
Slice = indexing.Slice

# The primitives that are kernels: pl.core_map has one of its own in 0.10.2.
KERNEL_PRIMITIVES = ("mpmd_map", "core_map")


def tensor_core_mesh(axis: str, num_cores: int) -> Any:
  """A mesh of TensorCores. 0.11 renamed create_tensorcore_mesh."""
  if hasattr(pltpu, "TensorCoreMesh"):
    return pltpu.TensorCoreMesh(axis_name=axis, num_cores=num_cores)
  return pltpu.create_tensorcore_mesh(axis, num_cores=num_cores)


@contextlib.contextmanager
def pipelines_as_loops() -> Iterator[None]:
  """emit_pipeline is traced as loops and copies, not as one primitive.

  The flag that says so is not public (JAX 0.10.2 to 0.12).
  """
  with config.use_emit_pipeline_primitive(False):
    yield


def source_line(equation: Any) -> str:
  """The line of the user's program that made an equation, as "file.py:12".

  Tracebacks of equations have no public reader (JAX 0.10.2 to 0.12). Empty if
  JAX does not know.
  """
  path = source_info_util.summarize(equation.source_info).split(" ")[0]
  return ":".join(path.rsplit("/", 1)[-1].split(":")[:2])


def is_ref(x: Any) -> bool:
  """Whether `x` is a mutable array, in traced code too."""
  return isinstance(getattr(x, "aval", None), AbstractRef)


def has_stride(transform: Any) -> bool:
  """Whether it selects every second element of an axis, or fewer."""
  return isinstance(transform, Selection) and any(
      isinstance(index, Slice) and index.stride != 1
      for index in transform.indices
  )


def readable(transform: Any) -> tuple[Any, ...]:
  """Selections, one after another, with which a jax.Ref can be read.

  In one selection with a stride JAX takes no index that is a constant (0.10.2).
  """
  if not has_stride(transform) or transform.int_indexer_shape:
    return (transform,)
  axes = list(zip(transform.indices, transform.shape))
  slices = [(x, n) for x, n in axes if isinstance(x, Slice)]
  return (
      Selection(
          tuple(Slice(0, n) if isinstance(x, Slice) else x for x, n in axes),
          transform.shape,
          (),
      ),
      Selection(tuple(x for x, _ in slices), tuple(n for _, n in slices), ()),
  )


def store(place: jax.Ref | TransformedRef, value: jax.Array) -> jax.Array:
  """Writes `value` to a whole ref, or a part of one, and returns the old value.

  Assignment, `ref[...] = value`, does not return it.
  """
  if isinstance(place, TransformedRef):
    return state_primitives.ref_swap(place, (), value)
  return state_primitives.ref_swap(place, (...,), value)


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
  """A jaxpr, closed or not, and its constants; 0.12 has one class for both."""
  if hasattr(jaxpr, "eqns"):
    return jaxpr, getattr(jaxpr, "consts", ())
  return jaxpr.jaxpr, jaxpr.consts


def scoped_jaxpr(
    equation: Any, operands: Sequence[Any]
) -> tuple[Any, Sequence[Any]]:
  """The jaxpr of run_scoped, and its constants, which are its operands."""
  jaxpr, consts = open_jaxpr(equation.params["jaxpr"])
  if len(jaxpr.constvars) == len(operands):
    return jaxpr, operands
  return jaxpr, consts


def jaxprs_of(equation: Any) -> Iterator[Any]:
  """The jaxprs among the parameters of an equation."""
  for parameter in equation.params.values():
    many = isinstance(parameter, (tuple, list))
    for value in parameter if many else (parameter,):
      if hasattr(value, "eqns"):
        yield value
      elif hasattr(value, "jaxpr"):
        yield value.jaxpr


def is_literal(variable: Any) -> bool:
  """Whether an operand of an equation is a constant."""
  return isinstance(variable, core.Literal)


def run_jaxpr(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    run_equation: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> list[Any]:
  """The results of a jaxpr each of whose equations is run by a function.

  Args:
    jaxpr: see open_jaxpr.
    consts: its constants, values of any kind.
    args: its arguments, the same.
    run_equation: of an equation and the values of its operands: its results.
  """
  values = dict(zip(jaxpr.constvars, consts))
  values.update(zip(jaxpr.invars, args))

  def value_of(variable):
    return variable.val if is_literal(variable) else values[variable]

  for equation in jaxpr.eqns:
    results = run_equation(equation, [value_of(x) for x in equation.invars])
    values.update(zip(equation.outvars, results))
  return [value_of(x) for x in jaxpr.outvars]


def evaluate(equation: Any, operands: Sequence[Any]) -> list[Any]:
  """Runs one equation of a jaxpr: its list of results.

  `get_bind_params` returned functions beside parameters until 0.12.
  """
  params = equation.params
  functions = ()
  if hasattr(equation.primitive, "get_bind_params"):
    params = equation.primitive.get_bind_params(params)
    if isinstance(params, tuple):
      functions, params = params
  results = equation.primitive.bind(*functions, *operands, **params)
  return list(results) if equation.primitive.multiple_results else [results]


def scan_operands(
    equation: Any, operands: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
  """Constants, carry and elements of a scan; its parameters changed in 0.12."""
  params = equation.params
  if "ft_in" in params:
    groups = params["ft_in"].update(list(operands)).unpack()
    return tuple(list(group) for group in groups)
  first = params["num_consts"]
  second = first + params["num_carry"]
  return operands[:first], operands[first:second], operands[second:]


def scan_results(
    equation: Any, results: Sequence[Any], num_carry: int
) -> tuple[list[Any], list[Any]]:
  """Carry and elements of what the body of a scan returned."""
  if "ft_out" in equation.params:
    groups = equation.params["ft_out"].update(list(results)).unpack()
    return tuple(list(group) for group in groups)
  return list(results[:num_carry]), list(results[num_carry:])


def register_kernel_lowering(
    platform: str, rule: Callable[..., Any]
) -> Callable[[], None]:
  """Lowers pl.kernel by `rule(operands, equation_params)` on a platform.

  The primitive has no public name (JAX 0.10.2 to 0.12). Calls with `interpret`
  go to JAX.

  Returns:
    What makes pl.kernel as it was.
  """
  # Not at the top: it takes long, and few programs need it.
  from jax._src.pallas import mpmd  # pylint: disable=g-import-not-at-top

  def lower(ctx, *operands, interpret, **params):
    if not (interpret or is_enabled):
      raise NotImplementedError(
          f"Kernel {params.get('name')!r} is for cores of TPUs. On CPUs it runs"
          " by emulation.emulate, or after emulation.install()."
      )
    if interpret:
      # pylint: disable-next=protected-access
      return mpmd._mpmd_map_lowering(
          ctx, *operands, interpret=interpret, **params
      )
    function = mlir.lower_fun(
        lambda *values: rule(values, params), multiple_results=True
    )
    return function(ctx, *operands)

  is_enabled = True

  def disable():
    nonlocal is_enabled
    is_enabled = False

  mlir.register_lowering(mpmd.mpmd_map_p, lower, platform=platform)
  return disable
