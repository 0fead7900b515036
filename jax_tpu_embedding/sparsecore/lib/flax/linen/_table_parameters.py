# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables as parameters: how Linen is told the way they are laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
from jax.experimental import layout
from jax_tpu_embedding.sparsecore.lib.core import table_layouts

LogicalNames = tuple[str | tuple[str, ...] | None, ...]


class WithSparseCoreLayout(nn.Partitioned):
  """A parameter of tables and slots, split by rows, in the SparseCore layout.

  Attributes:
    value: any tree of arrays that are laid out alike.
    names: the mesh axes that each dimension is split over.
    mesh: of these axes; None: that of the context.
    replicated: of a value by stack name, the stacks that every device has as a
      whole. What is said of a sharding then is said stack by stack.
  """

  replicated: tuple[str, ...] = flax.struct.field(default=(), pytree_node=False)

  def get_partition_spec(self) -> Any:
    """How the value is split: one PartitionSpec, or one for each stack."""
    by_rows = super().get_partition_spec()
    if not self.replicated:
      return by_rows
    return {
        name: jax.sharding.PartitionSpec()
        if name in self.replicated
        else by_rows
        for name in self.value
    }

  def get_sharding(
      self, mesh: jax.sharding.Mesh
  ) -> jax.sharding.Sharding | layout.Format | Any:
    """The sharding on `mesh`; with SparseCores, and their layout.

    Returns:
      One for all arrays of the value; or the value's tree of them if layouts
      differ, as those of tables of 16 bits and of their slots.

    Raises:
      ValueError: if there is no mesh.
    """
    if mesh is None:
      raise ValueError(
          "WithSparseCoreLayout.get_sharding needs the mesh that the tables are"
          f" split over by {self.get_partition_spec()}, got None."
      )
    if self.replicated:
      return {
          name: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
          if name in self.replicated
          else self.replace(value=of_stack, replicated=()).get_sharding(mesh)
          for name, of_stack in self.value.items()
      }
    sharding = jax.sharding.NamedSharding(mesh, self.get_partition_spec())

    def of(x):
      return table_layouts.embedding_table_format_with_sharding(
          sharding, x.shape, x.dtype
      )

    formats = [of(x) for x in jax.tree.leaves(self.value)]
    if not formats:
      return table_layouts.embedding_table_format_with_sharding(sharding)
    if all(x == formats[0] for x in formats):
      return formats[0]
    return jax.tree.map(of, self.value)

  def unbox(self, apply_constraint: bool = True) -> Any:
    """The value as it is.

    A constraint would say again what the shard_map of the lookup says, and to
    XLA it is a place where to copy the table.
    """
    del apply_constraint
    return self.value


def with_sparsecore_layout(
    fn: Callable[..., Any],
    names: LogicalNames,
    mesh: jax.sharding.Mesh | None = None,
    replicated: tuple[str, ...] = (),
) -> Callable[..., WithSparseCoreLayout]:
  """The initializer `fn` with its result boxed in WithSparseCoreLayout.

  Args:
    fn: makes the parameter.
    names: for each dimension the mesh axes that it is split over.
    mesh: of these axes.
    replicated: stacks that are not split.
  """

  def initializer(*args, **kwargs):
    return WithSparseCoreLayout(
        fn(*args, **kwargs), names, mesh=mesh, replicated=replicated
    )

  return initializer
