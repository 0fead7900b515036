# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How every primitive of this package is made."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any
from typing import NoReturn

import jax
from jax.extend import core
from jax.interpreters import ad
from jax.interpreters import batching
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core.lowering import table


def primitive(
    name: str,
    abstract_eval: Callable[..., Any],
    *,
    operation: str,
    multiple_results: bool,
    differentiation_hint: str,
    can_be_mapped: bool = False,
    parts: Callable[..., Any] | None = None,
) -> core.Primitive:
  """A primitive with its abstract evaluation and a lowering per platform.

  Args:
    name: the name that jaxprs show.
    abstract_eval: checks the operands and gives the shapes of the results.
    operation: the key of its lowerings in `lowering.table`.
    multiple_results: whether it returns a tuple.
    differentiation_hint: what to do instead of differentiating it.
    can_be_mapped: whether `jax.vmap` runs it once for each element. An update
      cannot: elements that share a table would each make a copy of it.
    parts: what it is on any platform, of other primitives; see table.BY_PARTS.
  """
  result = core.Primitive(name)
  result.multiple_results = multiple_results
  result.def_impl(functools.partial(_run, result))
  result.def_abstract_eval(
      functools.partial(_varying_like_operands, name, abstract_eval)
  )
  ad.primitive_jvps[result] = functools.partial(
      _refuse, f"{name} cannot be differentiated: {differentiation_hint}"
  )
  batching.primitive_batchers[result] = (
      functools.partial(_one_after_the_other, result)
      if can_be_mapped
      else functools.partial(
          _refuse,
          f"{name} has no batching rule: it already works on a whole batch."
          " Make the mapped axis part of the batch instead of using vmap.",
      )
  )
  table.install(result, operation, parts)
  return result


def _run(primitive: core.Primitive, /, *operands: Any, **params: Any) -> Any:
  """A call outside of a program: one that has nothing else."""
  program = _program(primitive, **params)
  if not jax.config.jax_disable_jit:
    return program(*operands)
  with jax.disable_jit(False):  # or the call would come here again
    return program(*operands)


@functools.lru_cache(maxsize=1024)
def _program(primitive: core.Primitive, /, **params: Any) -> Callable[..., Any]:
  """The program of one call, compiled once for operands of the same shapes."""

  def program(*operands):
    return primitive.bind(*operands, **params)

  program.__name__ = program.__qualname__ = primitive.name
  jax_private.has_one_operation(program)
  return jax.jit(program)


def _one_after_the_other(
    primitive: core.Primitive,
    operands: tuple[Any, ...],
    axes: tuple[int | None, ...],
    /,  # so that parameters may have any name
    **params: Any,
) -> tuple[Any, Any]:
  """The batching rule of a primitive whose calls are independent."""
  is_mapped = [axis is not None for axis in axes]

  def call(mapped):
    mapped = iter(mapped)
    values = [
        next(mapped) if is_here else x
        for x, is_here in zip(operands, is_mapped, strict=True)
    ]
    return primitive.bind(*values, **params)

  results = jax.lax.map(
      call,
      [
          jnp.moveaxis(x, axis, 0)
          for x, axis, is_here in zip(operands, axes, is_mapped, strict=True)
          if is_here
      ],
  )
  return results, jax.tree.map(lambda _: 0, results)


def _varying_like_operands(
    name: str,
    abstract_eval: Callable[..., Any],
    /,  # so that parameters may have any name
    *operands: Any,
    **params: Any,
) -> Any:
  """Results that vary over a mesh wherever an operand does.

  Otherwise shard_map with check_vma takes activations for equal on all devices,
  and the gradient of a psum of them is multiplied by the number of devices.
  """
  try:
    results = abstract_eval(*operands, **params)
  except (TypeError, ValueError) as error:
    error.add_note(f"In a call of {name}.")
    raise
  varying = frozenset().union(*map(jax_private.varies_over, operands))
  if not varying:
    return results
  return jax.tree.map(
      lambda result: jax_private.vary_over(result, varying), results
  )


def _refuse(
    message: str,
    /,  # so that parameters may have any name
    *unused_args: Any,
    **unused_params: Any,
) -> NoReturn:
  raise NotImplementedError(message)
