# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A train step as a list of instructions, of which parts can be run.

The step is traced with markers in place of lookups and updates, see
lib/flax/bridge/_sites.py. Calls that hold a marker are inlined, which leaves
one list. What a lookup needs to know, and what the rest of the step is, are
then slices of it: an instruction runs if something that is wanted needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax.extend import core
from jax.extend import source_info_util
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _remat
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _sites

# Calls that mean no more than the program they hold, and where they hold it.
_INLINED = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Value:
  """One array of the program, before there is one."""

  # Leaves of arguments that are not of the batch, which it depends on.
  depends_on: frozenset[int] = frozenset()
  # What it depends on that must not run twice, for messages; see
  # jax_private.may_run_twice.
  runs_once: frozenset[str] = frozenset()
  leaf: int | None = None  # of the arguments, if it is one as it is
  constant: Any = None  # if it is neither that nor a result

  @property
  def array(self) -> Any:
    """Equal for values that are one argument, or one jax.Ref; None: neither."""
    if self.leaf is not None:
      return "argument", self.leaf
    if isinstance(self.constant, jax.Ref):
      return "constant", id(self.constant)
    return None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Instruction:
  run: Callable[[Sequence[Any]], Sequence[Any]]
  operands: Sequence[_Value]
  results: Sequence[_Value]
  has_effects: bool = False


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Lookup:
  """A lookup of the step."""

  site: _sites.Site
  inputs: Any  # tree of values
  tables: Any  # the same
  results: Sequence[_Value]  # leaves of stacked activations and has_failed
  has_failed: _Value


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Update:
  """What the step gives to an update."""

  lookup: int  # which
  gradients: Any  # of stacks
  has_failed: Any
  step: Any


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Step:
  """A train step for arguments of certain shapes."""

  instructions: Sequence[_Instruction]
  arguments: Sequence[_Value]
  results: Sequence[_Value]
  results_tree: jax.tree_util.PyTreeDef
  lookups: Sequence[Lookup]

  @property
  def updates(self) -> list[_UpdateInstruction]:
    return [x for x in self.instructions if isinstance(x, _UpdateInstruction)]

  def inputs(self, arguments: Sequence[Any]) -> list[Any]:
    """The buffers of every lookup.

    Args:
      arguments: leaves; those that are not of the batch are not looked at.
    """
    wanted, tree = jax.tree.flatten([x.inputs for x in self.lookups])
    return tree.unflatten(self._run(wanted, arguments))

  def tables(self, lookup: int, arguments: Sequence[Any]) -> Any:
    """Those of a lookup, from the leaves of the arguments."""
    return jax.tree.map(
        lambda x: x.constant if x.leaf is None else arguments[x.leaf],
        self.lookups[lookup].tables,
    )

  def rest(
      self,
      arguments: Sequence[Any],
      looked_up: Sequence[Any],
      update: Callable[[Update], Any],
  ) -> Any:
    """The results of the step.

    Args:
      arguments: leaves.
      looked_up: of every lookup, the stacked activations and has_failed.
      update: called in the place of every update; what it returns takes the
        place of the new tables.
    """
    given = {}
    for lookup, values in zip(self.lookups, looked_up, strict=True):
      given |= zip(lookup.results, jax.tree.leaves(values), strict=True)
    results = self._run(self.results, arguments, given, update)
    return self.results_tree.unflatten(results)

  def _run(
      self,
      wanted: Sequence[_Value],
      arguments: Sequence[Any],
      given: Mapping[_Value, Any] | None = None,
      update: Callable[[Update], Any] | None = None,
  ) -> list[Any]:
    """`wanted`, and with an `update` also what has effects."""
    known = dict(given or {}) | dict(zip(self.arguments, arguments))
    needed, instructions = set(wanted), []
    for instruction in reversed(self.instructions):
      is_needed = not needed.isdisjoint(set(instruction.results) - set(known))
      if is_needed or (update is not None and instruction.has_effects):
        instructions.append(instruction)
        needed.update(instruction.operands)

    def value(x):
      return known[x] if x in known else x.constant

    for instruction in reversed(instructions):
      operands = [value(x) for x in instruction.operands]
      if isinstance(instruction, _UpdateInstruction):
        new = update(instruction.arguments(operands))
        results = jax.tree.leaves(new)
      else:
        results = instruction.run(operands)
      known |= zip(instruction.results, results, strict=True)
    return [value(x) for x in wanted]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _UpdateInstruction(_Instruction):
  """The marker of an update."""

  lookup: int
  structure: jax.tree_util.PyTreeDef  # of operands

  def arguments(self, operands: Sequence[Any]) -> Update:
    gradients, has_failed, step = self.structure.unflatten(operands)
    return Update(
        lookup=self.lookup,
        gradients=gradients,
        has_failed=has_failed,
        step=step,
    )


def cut(
    train_step: Callable[..., Any],
    arguments: Mapping[int, Any],
    batch_argnums: Sequence[int],
) -> Step:
  """Traces a train step, for arguments of these shapes.

  Args:
    train_step: any function of trees of arrays and jax.Refs.
    arguments: position, for messages -> argument. What is in them is not
      looked at.
    batch_argnums: which of them are the batch.

  Raises:
    ValueError: if the step looks nothing up, or ids or tables are not what a
      lookup a step ahead can know.
    NotImplementedError: if a lookup is in a loop or the like.
  """
  with _sites.mark():
    program, shapes = jax.make_jaxpr(train_step, return_shape=True)(
        *arguments.values()
    )
  names, values = [], []
  for i, argument in arguments.items():
    for path, _ in jax.tree.leaves_with_path(argument):
      leaf = len(names)
      names.append(f"argument {i}{jax.tree_util.keystr(path)}")
      depends_on = () if i in batch_argnums else (leaf,)
      values.append(_Value(depends_on=frozenset(depends_on), leaf=leaf))
  flat = _Flat(names, batch_argnums)
  results = flat.add(program.jaxpr, program.consts, values)
  if not flat.lookups:
    raise ValueError(
        "train_step looks no embeddings up, or not with a layer of"
        " lib/flax. Call it on the batch,"
        f" arguments {_numbers(batch_argnums)}, inside of"
        " pipelined(train_step)."
    )
  return Step(
      instructions=flat.instructions,
      arguments=values,
      results=results,
      results_tree=jax.tree.structure(shapes),
      lookups=flat.lookups,
  )


def _numbers(argnums: Iterable[int]) -> str:
  return f"({', '.join(map(str, argnums))})"


class _Flat:
  """The list of instructions as it grows."""

  def __init__(self, names: Sequence[str], batch_argnums: Sequence[int]):
    self._names = names  # of leaves of arguments
    self._batch_argnums = batch_argnums
    self._updated = set()  # arrays of tables
    self._written = {}  # array of a jax.Ref -> which operation of the step
    self.instructions = []
    self.lookups = []

  def add(
      self,
      jaxpr: core.Jaxpr,
      consts: Sequence[Any],
      operands: Sequence[_Value],
  ) -> list[_Value]:
    """Adds a program that is called with `operands`; its results."""
    env = dict(zip(jaxpr.constvars, [_Value(constant=x) for x in consts]))
    env |= zip(jaxpr.invars, operands, strict=True)

    def value(atom):
      if isinstance(atom, core.Literal):
        return _Value(constant=atom.val)
      return env[atom]

    for eqn in jaxpr.eqns:
      # Without names of arguments, which are those of the whole.
      debug_info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
      results = self._add_equation(
          eqn, [value(atom) for atom in eqn.invars], debug_info
      )
      env |= zip(eqn.outvars, results, strict=True)
    return [value(atom) for atom in jaxpr.outvars]

  def _add_equation(
      self, eqn: core.JaxprEqn, operands: Sequence[_Value], debug_info: Any
  ) -> Sequence[_Value]:
    if eqn.primitive is _sites.lookup_p:
      return self._add_lookup(eqn, operands)
    if eqn.primitive is _sites.update_p:
      return self._add_update(eqn, operands)
    if eqn.primitive is _remat.save_p:
      return operands
    has_marker = _has_marker(eqn)
    # Of such a call, some results may be known ahead, and others not; or it
    # has effects, which its results need not depend on.
    is_mixed = eqn.primitive.name == "jit" and (
        len({bool(x.depends_on) for x in operands}) > 1
        or not jax_private.may_run_twice(eqn)
    )
    if has_marker or is_mixed:
      if eqn.primitive.name not in _INLINED:
        raise NotImplementedError(
            f"A lookup is inside of {_describe(eqn)}, where a pipeline cannot"
            " take it out. Look embeddings up outside of it, or use"
            " pipelined(mode='off')."
        )
      return self._inline(eqn, operands)
    for i in jax_private.written_operands(eqn):
      if operands[i].array is not None:  # else the step has made it
        self._written.setdefault(operands[i].array, _describe(eqn))
    return self._append(
        lambda values: _run_equation(eqn, values, debug_info),
        operands,
        len(eqn.outvars),
        bool(eqn.effects),
        () if jax_private.may_run_twice(eqn) else (_describe(eqn),),
    )

  def _inline(
      self, eqn: core.JaxprEqn, operands: Sequence[_Value]
  ) -> list[_Value]:
    program = eqn.params[_INLINED[eqn.primitive.name]]
    consts = ()
    if isinstance(program, core.ClosedJaxpr):
      program, consts = program.jaxpr, program.consts
    if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
      # What jax.checkpoint does so that XLA does not merge what is computed a
      # second time with the first.
      operands = list(operands)
      floats = [
          i
          for i, atom in enumerate(eqn.invars)
          if isinstance(atom.aval, jax.core.ShapedArray)
          and jnp.issubdtype(atom.aval.dtype, jnp.inexact)
      ]
      kept = self._append(
          lambda values: jax.lax.optimization_barrier(list(values)),
          [operands[i] for i in floats],
          len(floats),
      )
      for i, result in zip(floats, kept):
        # Not tables, which have to reach their lookup as they are.
        if operands[i].leaf is None:
          operands[i] = result
    return self.add(program, consts, operands)

  def _append(
      self,
      run: Callable[[Sequence[Any]], Sequence[Any]],
      operands: Sequence[_Value],
      num_results: int,
      has_effects: bool = False,
      runs_once: Iterable[str] = (),
  ) -> list[_Value]:
    results = _results_of(operands, num_results, runs_once)
    self.instructions.append(
        _Instruction(
            run=run,
            operands=operands,
            results=results,
            has_effects=has_effects,
        )
    )
    return results

  def _add_lookup(
      self, eqn: core.JaxprEqn, operands: Sequence[_Value]
  ) -> list[_Value]:
    site = eqn.params["site"]
    inputs, tables = eqn.params["structure"].unflatten(operands)
    state = set().union(*(x.depends_on for x in jax.tree.leaves(inputs)))
    if state:
      names = ", ".join(self._names[leaf] for leaf in sorted(state)[:3])
      raise ValueError(
          f"The ids or weights of {site} depend on {names}. They are looked up"
          " a step ahead and must come from the batch, arguments"
          f" {_numbers(self._batch_argnums)}."
      )
    runs_once = set().union(*(x.runs_once for x in jax.tree.leaves(inputs)))
    if runs_once:
      raise ValueError(
          f"The ids or weights of {site} depend on"
          f" {', '.join(sorted(runs_once)[:3])}, which has effects: a pipeline"
          " would run it once to look them up and again to train. Do it before"
          " the step, and pass what it returns as a part of the batch, arguments"
          f" {_numbers(self._batch_argnums)}."
      )
    for table in jax.tree.leaves(tables):
      if table.leaf is None and table.constant is None:
        raise ValueError(
            f"The tables of {site} reach it changed. Pass them to train_step as"
            " they are, and look up what they were at its beginning."
        )
      if table.array in self._updated:
        raise ValueError(
            f"{site} reads {self._name(table)} after an update in the"
            " same step. A pipeline looks everything up before. Make two steps"
            " of it, or use pipelined(mode='off')."
        )
    if not site.returns_tables:
      self._check_not_written(site, tables)
    results = _results_of(operands, len(eqn.outvars))
    self.lookups.append(
        Lookup(
            site=site,
            inputs=inputs,
            tables=tables,
            results=results,
            has_failed=results[-1],
        )
    )
    return results

  def _check_not_written(self, site: _sites.Site, tables: Any) -> None:
    """Raises if the step writes jax.Refs and then looks up in them."""
    for variables in tables.values():
      # The second are slots, which only updates read.
      for x in jax.tree.leaves((variables[0], variables[2:])):
        if x.array in self._written:
          raise ValueError(
              f"{site} reads {self._name(x)} after the step has written it, by"
              f" {self._written[x.array]}. A pipeline looks up a step ahead,"
              " before that. Write it in pipelined(before_lookup=), or use"
              " pipelined(mode='off')."
          )

  def _name(self, value: _Value) -> str:
    """That of an argument or a constant, for messages."""
    if value.leaf is not None:
      return self._names[value.leaf]
    return f"{jax.typeof(value.constant)}, which train_step closes over,"

  def _add_update(
      self, eqn: core.JaxprEqn, operands: Sequence[_Value]
  ) -> list[_Value]:
    structure = eqn.params["structure"]
    _, has_failed, _ = structure.unflatten(operands)
    (lookup,) = [
        i for i, x in enumerate(self.lookups) if x.has_failed is has_failed
    ]
    for table in jax.tree.leaves(self.lookups[lookup].tables):
      if table.array is not None:
        self._updated.add(table.array)
    results = _results_of(operands, len(eqn.outvars))
    self.instructions.append(
        _UpdateInstruction(
            run=lambda values: values,
            operands=operands,
            results=results,
            has_effects=bool(eqn.effects),
            lookup=lookup,
            structure=structure,
        )
    )
    return results


def _results_of(
    operands: Sequence[_Value], num_results: int, runs_once: Iterable[str] = ()
) -> list[_Value]:
  """New values, which depend on what the operands do, and on `runs_once`."""
  depends_on = frozenset().union(*(x.depends_on for x in operands))
  runs_once = frozenset(runs_once).union(*(x.runs_once for x in operands))
  return [
      _Value(depends_on=depends_on, runs_once=runs_once)
      for _ in range(num_results)
  ]


def _describe(eqn: core.JaxprEqn) -> str:
  """An operation and where it stands, for messages."""
  where = source_info_util.summarize(eqn.source_info)
  return f"{eqn.primitive.name} ({where})"


def _has_marker(eqn: core.JaxprEqn) -> bool:
  if eqn.primitive in (_sites.lookup_p, _sites.update_p):
    return True
  return any(
      _has_marker(inner)
      for program in core.jaxprs_in_params(eqn.params)
      for inner in program.eqns
  )


def _run_equation(
    eqn: core.JaxprEqn, values: Sequence[Any], debug_info: Any
) -> list[Any]:
  """What one equation returns.

  How parameters of a primitive become those of its `bind` changed between JAX
  0.10.2 and 0.12. Evaluating a program of one equation is the same in all.
  """
  operands = {
      atom: value
      for atom, value in zip(eqn.invars, values, strict=True)
      if not isinstance(atom, core.Literal)
  }
  jaxpr = core.Jaxpr(
      (), list(operands), eqn.outvars, [eqn], eqn.effects, debug_info
  )
  run = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))
  return run(*operands.values())
