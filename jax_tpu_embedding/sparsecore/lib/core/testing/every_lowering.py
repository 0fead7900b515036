# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every way in which lookups and updates run on a CPU, for tests.

To add a platform whose rules a CPU can run: its lines in LOWERINGS.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from unittest import mock

import jax
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import table
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import rules as kernel_rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import device_buffers
from jax_tpu_embedding.sparsecore.lib.core.testing import emulated_gpu
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

emulated_gpu.install()

# In place of a platform: kernels of SparseCores, emulated.
KERNELS = "sparsecore_kernels"

_SPLIT = jax.sharding.PartitionSpec("x")
_WHOLE = jax.sharding.PartitionSpec()

_PRIMITIVES = {
    "convert_ids": convert_ids.convert_ids_p,
    "custom_update": custom_update.custom_update_p,
    "lookup": lookup.lookup_p,
    "lookup_of_stacks": of_stacks.lookup_of_stacks_p,
    "row_gradients": row_gradients.row_gradients_p,
    "row_gradients_of_stacks": of_stacks.row_gradients_of_stacks_p,
    "update_of_stacks": of_stacks.update_of_stacks_p,
    **{
        f"update_{name}": update.UPDATE_PRIMITIVES[name]
        for name in update_rules.UPDATE_RULES
    },
}


def as_on(
    platform: str | None, operation: str, primitive: core.Primitive
) -> core.Primitive:
  """`primitive`, lowered on CPU as on `platform`.

  Args:
    platform: one of those in table.py, or None for one without rules. What it
      has no rule for is lowered as on any platform.
    operation: one of those in table.py.
    primitive: that of the operation.

  Raises:
    ValueError: if table.py has no rule for the platform at all.
  """
  result = core.Primitive(f"{primitive.name}_{platform or 'reference'}")
  result.multiple_results = primitive.multiple_results
  result.abstract_eval = primitive.abstract_eval
  if platform == KERNELS and operation in kernel_rules.RULES:
    mlir.register_lowering(
        result, kernel_rules.lowering_rule(operation, emulated=True)
    )
    return result
  tables = (table.RULES, table.NATIVE_RULES, table.MLIR_RULES)
  platforms = {name for rules in tables for _, name in rules}
  if platform not in (*platforms, KERNELS):
    names = ", ".join(sorted(name for name in platforms if name))
    raise ValueError(
        f"lowering/table.py has no rule for platform {platform!r}; it has some"
        f" for {names}. Add a line to one of its tables."
    )
  rules = table.lowering_rules(operation)
  mlir.register_lowering(result, rules.get(platform) or rules[None])
  return result


@functools.cache
def _primitive(platform: str | None, operation: str) -> core.Primitive:
  primitive = _PRIMITIVES[operation]
  # Those that programs have are lowered for CPUs anyway.
  if platform == "cpu":
    return primitive
  return as_on(platform, operation, primitive)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowering:
  """One way."""

  platform: str | None  # whose rules; None is one that has none
  num_devices: int = 1
  by_messages: bool = False  # as if every device had a process of its own
  by_batches: bool = False  # with it: of batches, however small rows are

  def bind(self, operation: str, *operands: Any, **params: Any) -> list[Any]:
    """The results of an operation of table.py, within `compiled`."""
    primitive = _primitive(self.platform, operation)
    return jax.tree.leaves(primitive.bind(*operands, **params))

  def bind_of_stacks(
      self, operation: str, each: Sequence[of_stacks.OfStack]
  ) -> list[list[Any]]:
    """The results of an operation on several stacks, within `compiled`."""
    primitive = _primitive(self.platform, operation)
    return of_stacks.bind(primitive, each, num_devices=self.num_devices)

  def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of one device, jitted for all devices together.

    Arrays are the devices' parts one after the other, and scalars are the same
    on all devices.
    """
    jitted = jax.jit(self._over_devices(function))

    def call(*operands):
      if self.platform == KERNELS and self.num_devices > 1:
        # The mesh of the program does not say which devices they are on.
        operands = jax.device_put(
            operands,
            jax.tree.map(
                lambda x: jax.sharding.NamedSharding(
                    self._mesh(), _SPLIT if np.ndim(x) else _WHOLE
                ),
                operands,
            ),
        )
      if not self.by_messages:
        return jitted(*operands)
      with (
          mock.patch.object(mesh_axis, "_is_in_one_process", lambda _: False),
          mock.patch.object(
              by_batches, "are_smaller", lambda *_: self.by_batches
          ),
      ):
        return jitted(*operands)

    return call

  def _over_devices(self, function):
    if self.num_devices == 1:
      return function

    mesh = self._mesh()
    if self.platform == KERNELS:
      mesh = pallas.on_chip(mesh)

    def on_all(*operands):
      return jax.shard_map(
          function,
          mesh=mesh,
          in_specs=jax.tree.map(
              lambda x: _SPLIT if np.ndim(x) else _WHOLE, operands
          ),
          out_specs=_SPLIT,
          check_vma=False,
      )(*operands)

    return on_all

  def _mesh(self):
    return jax.sharding.Mesh(jax.devices()[: self.num_devices], ("x",))

  def coo_operands(
      self, coo: random_coo.RandomCoo, num_scs: int
  ) -> tuple[np.ndarray, ...]:
    """What lookup and update take, from the buffers of `num_scs` SparseCores."""
    buffers = device_buffers.spread(coo, num_scs, self.num_devices)
    return (*buffers, coo.num_minibatches)


LOWERINGS = {
    "reference": Lowering(platform=None),
    "reference_messages": Lowering(platform=None, num_devices=4),
    "cpu": Lowering(platform="cpu"),
    "cpu_shared_memory": Lowering(platform="cpu", num_devices=4),
    "cpu_messages": Lowering(platform="cpu", num_devices=4, by_messages=True),
    "cpu_batches": Lowering(
        platform="cpu", num_devices=4, by_messages=True, by_batches=True
    ),
    "gpu": Lowering(platform="cuda"),
    "gpu_messages": Lowering(platform="cuda", num_devices=4),
}
# Beside these: programs of hundreds of kernels would take minutes to compile.
KERNEL_LOWERINGS = {
    "kernels": Lowering(platform=KERNELS),
    "kernels_messages": Lowering(platform=KERNELS, num_devices=4),
}
