# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One of several processes that look up and update together, for a test."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math
from typing import Any
from unittest import mock

import jax
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.testing import device_buffers
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

_NUM_SCS = 8

# Where an array has values, and which.
Part = tuple[tuple[slice, ...], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """An update, and the devices that share its rows."""

  rule: str = "adagrad"
  # One of update_programs, or "row_gradients".
  implementation: str = "cpu"
  setting: update_programs.Setting = update_programs.Setting(num_sc=_NUM_SCS)
  sends_rows: bool = False  # even if batches are smaller
  # Of all devices, those of a process last. The axes are x and y.
  mesh_shape: tuple[int, ...] = (4,)
  # What splits rows and samples, in this order.
  axes: tuple[str, ...] = ("x",)


def _setting(**changes: Any) -> update_programs.Setting:
  return update_programs.Setting(num_sc=_NUM_SCS, **changes)


CASES = {
    "adagrad": Case(),
    "adagrad_by_rows": Case(sends_rows=True),
    "minibatched": Case(setting=_setting(num_minibatches=3)),
    "adam": Case(rule="adam"),
    "momentum_with_options": Case(
        rule="momentum",
        setting=_setting(row_options=row_options.ROW_OPTIONS, max_value=0.25),
    ),
    "bfloat16_rounded_at_random": Case(
        setting=_setting(dtype="bfloat16", stochastic_rounding=True)
    ),
    "custom": Case(rule="adam", implementation="custom"),
    "row_gradients": Case(rule="sgd", implementation="row_gradients"),
    # The axis that joins processes, if one has several devices. Along the other,
    # work is repeated.
    "one_of_two_axes": Case(mesh_shape=(2, 2), axes=("x",)),
    "axis_of_a_process": Case(mesh_shape=(2, 2), axes=("y",)),
    "two_axes": Case(mesh_shape=(2, 2), axes=("y", "x")),
}


def parts_of_all() -> dict[str, list[list[Part]]]:
  """Activations, table and slots of each of CASES: this process's parts."""
  parts = {}
  for name, case in CASES.items():
    try:
      parts[name] = _parts(case)
    except Exception as error:
      error.add_note(f"In case {name!r}.")
      raise
  return parts


def _parts(case: Case) -> list[list[Part]]:
  """Over the devices of all processes."""
  mesh = jax.sharding.Mesh(
      np.reshape(jax.devices(), case.mesh_shape),
      ("x", "y")[: len(case.mesh_shape)],
  )
  num_devices = math.prod(mesh.shape[name] for name in case.axes)
  split, whole = jax.P(case.axes), jax.P()
  operands = _operands(case, num_devices)
  specs = jax.tree.map(lambda x: split if np.ndim(x) else whole, operands)

  def over_devices(operands):
    with mesh_axis.rows_are_split_over(case.axes):
      return _two_steps(case, num_devices)(operands)

  run = jax.jit(
      jax.shard_map(
          over_devices,
          mesh=mesh,
          in_specs=(specs,),
          out_specs=split,
          check_vma=False,
      )
  )
  operands = jax.tree.map(
      lambda x, spec: jax.make_array_from_callback(
          x.shape, jax.sharding.NamedSharding(mesh, spec), x.__getitem__
      ),
      operands,
      specs,
  )
  with mock.patch.object(
      by_batches, "are_smaller", lambda *_: not case.sends_rows
  ):
    several = run(operands)
  return [
      [(part.index, np.asarray(part.data)) for part in x.addressable_shards]
      for x in several
  ]


def on_one_device(case: Case) -> list[np.ndarray]:
  """Activations, table and slots."""
  results = jax.jit(_two_steps(case, 1))(_operands(case, 1))
  return [np.asarray(x) for x in results]


def _operands(case: Case, num_devices: int) -> update_rules.UpdateOperands:
  """Those of an update, for all devices together."""
  given = update_programs.random_update(
      update_cases.CASES[case.rule], case.setting
  )
  buffers = device_buffers.spread(given.coo, _NUM_SCS, num_devices)
  coo = (*buffers, given.coo.num_minibatches)
  return jax.tree.map(np.asarray, given.operands._replace(coo=coo))


def _two_steps(case: Case, num_devices: int) -> Callable[..., tuple[Any, ...]]:
  """operands -> activations, table and slots; activations are gradients too."""
  if case.implementation == "row_gradients":
    update = _gradients_become_rows(case, num_devices)
  else:
    of_rule = update_cases.CASES[case.rule]
    update = update_programs.IMPLEMENTATIONS[case.implementation](
        of_rule.rule, of_rule.static_params, case.setting
    )

  def step(operands):
    activations = lookup.lookup_p.bind(
        *operands.coo,
        operands.table,
        device_batch_size=operands.gradient.shape[0],
        enable_minibatching=case.setting.num_minibatches is not None,
        **update_programs.LIMITS,
    )
    table, *slots = update(operands._replace(gradient=activations))
    operands = operands._replace(table=table, slots=tuple(slots))
    return activations, operands

  def two_steps(operands):
    _, operands = step(operands)
    activations, operands = step(operands)
    return activations, operands.table, *operands.slots

  return two_steps


def _gradients_become_rows(
    case: Case, num_devices: int
) -> Callable[[update_rules.UpdateOperands], tuple[jax.Array]]:
  """An "update" that writes the gradient of each row in its place."""

  def update(operands):
    num_rows = operands.table.shape[0]
    rows, gradients = row_gradients.row_gradients_p.bind(
        *operands.coo,
        operands.gradient,
        global_device_count=num_devices,
        rows_per_device=num_rows,
        max_unique_ids_per_partition=num_rows,
    )
    device = jax.lax.axis_index(case.axes) if num_devices > 1 else 0
    places = rows - device * num_rows
    return (operands.table.at[places].set(gradients, mode="drop"),)

  return update
