# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups that stand in a traced train step for a pipeline to move.

A pipeline looks a batch up before the step that trains with it, so it has to
take lookup and update out of the step. While `are_marked`, layers do neither.
They write two markers into the program:

    stacked activations, has_failed = embedding_lookup(inputs, tables)
    ...                               what the model makes of them
    new tables                      = embedding_update(stacked gradients,
                                                       has_failed, step)

A pipeline evaluates the program and puts something in the place of each. The
value `has_failed` tells which lookup an update belongs to: what is traced once
may run twice, so no number that is made while tracing can.

Unstacking activations and stacking their gradients stay with the model. On TPU
they are its part of the time, and what a pipeline carries are whole stacks.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import dataclasses
from typing import Any

import jax
from jax.experimental import xla_metadata
from jax.extend import core
from jax.interpreters import batching
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _remat

# JAX keeps jitted functions by what they were traced under, metadata included.
# A global variable would give a pipeline the trace of a plain step, or the
# reverse.
_METADATA_KEY = "jte_marks_lookups"


def are_marked() -> bool:
  """Whether lookups that are traced now are to write markers."""
  return _METADATA_KEY in (jax_private.current_metadata() or {})


def mark() -> contextlib.AbstractContextManager[None]:
  """Lookups that are traced in it write markers."""
  return xla_metadata.set_xla_metadata(**{_METADATA_KEY: "1"})


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Site:
  """What a layer does in one place of a program."""

  stacks: tuple[str, ...]
  # Whether updates return new tables; else they write jax.Refs.
  returns_tables: bool
  # (inputs, tables) -> (stacked activations, has_failed)
  lookup: Callable[[Any, Any], Any]
  # (stacked activations, inputs) -> activations
  unstack: Callable[[Any, Any], Any]
  # (gradients of the activations, inputs) -> stacked gradients
  stack: Callable[[Any, Any], Any]
  # (inputs, tables, stacked gradients, has_failed, step) -> new tables or None
  update: Callable[..., Any]

  def __str__(self):
    return f"the lookup in {', '.join(map(repr, self.stacks))}"


def lookup(site: Site, anchor: Any, inputs: Any, tables: Any, step: Any) -> Any:
  """The activations, by markers; differentiating them writes that of an update.

  Args:
    site: what the markers stand for.
    anchor: a parameter that the loss is differentiated by, whose gradient is
      zero; None: the gradient of `tables` is what the update returns.
    inputs: the buffers of all devices.
    tables: see Site.
    step: passed to the update.
  """

  @jax.custom_vjp
  def differentiable(anchor, tables, inputs, step):
    del anchor, step
    return site.unstack(_bind_lookup(site, inputs, tables)[0], inputs)

  def forward(anchor, tables, inputs, step):
    del anchor
    stacked, has_failed = _remat.save(_bind_lookup(site, inputs, tables))
    # The tables' values are not looked at, where they are no jax.Refs.
    return site.unstack(stacked, inputs), (tables, inputs, step, has_failed)

  def backward(residuals, gradients):
    tables, inputs, step, has_failed = residuals
    stacked = site.stack(gradients, inputs)
    results = tables if anchor is None else ()
    new = _bind_update(site, results, stacked, has_failed, step)
    if anchor is None:
      return None, new, None, None
    zero = jax.numpy.zeros((), jax.numpy.result_type(anchor))
    return zero, None, None, None

  differentiable.defvjp(forward, backward)
  return differentiable(anchor, tables, inputs, step)


def _bind_lookup(site: Site, inputs: Any, tables: Any) -> Any:
  operands, structure = jax.tree.flatten((inputs, tables))
  program, results = jax.make_jaxpr(site.lookup, return_shape=True)(
      *jax.tree.map(_value_of, (inputs, tables))
  )
  return jax.tree.unflatten(
      jax.tree.structure(results),
      lookup_p.bind(
          *operands,
          site=site,
          structure=structure,
          avals=tuple(program.out_avals),
      ),
  )


def _value_of(x: Any) -> Any:
  """The type of an array, or of the one in a jax.Ref."""
  aval = jax.typeof(x)
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _bind_update(
    site: Site, results: Any, gradients: Any, has_failed: Any, step: Any
) -> Any:
  """`results`, a tree of tables, after the update."""
  operands, structure = jax.tree.flatten((gradients, has_failed, step))
  leaves, tree = jax.tree.flatten(results)
  avals = tuple(map(jax.typeof, leaves))
  new = update_p.bind(*operands, site=site, structure=structure, avals=avals)
  return tree.unflatten(new)


def _not_mapped(unused_args, unused_axes, *, site, **unused_params):
  raise NotImplementedError(
      f"{site} is inside jax.vmap, and a pipeline cannot take it out of there."
      " Look embeddings up outside of it, or use pipelined(mode='off')."
  )


def _primitive(name: str) -> core.Primitive:
  primitive = core.Primitive(name)
  primitive.multiple_results = True
  batching.primitive_batchers[primitive] = _not_mapped
  return primitive


_KEPT = jax_private.kept_effect()

lookup_p = _primitive("embedding_lookup")
lookup_p.def_abstract_eval(
    lambda *unused_operands, avals, **unused_params: list(avals)
)
update_p = _primitive("embedding_update")
update_p.def_effectful_abstract_eval(
    lambda *unused_operands, avals, **unused_params: (
        list(avals),
        # What returns tables may be left out if nothing uses them.
        set() if avals else {_KEPT},
    )
)
