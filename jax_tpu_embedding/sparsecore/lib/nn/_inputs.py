# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What preprocessing hands to lookup and update."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import math
from typing import Any
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.nn import _plan
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

ArrayLike = jax.typing.ArrayLike


class SparseDenseMatmulInput(NamedTuple):
  """CSR-wrapped COO buffers, each a dict by stack name.

  For L local devices with R row pointers and B cells each; the layout is that
  of cc/layout/csr_layout.h.
  """

  lhs_row_pointers: Mapping[str, ArrayLike]  # i32[L * R] (or [L, R])
  lhs_embedding_ids: Mapping[str, ArrayLike]  # i32[L * B]: rows within a shard
  lhs_sample_ids: Mapping[str, ArrayLike]  # i32[L * B]: within a SparseCore
  lhs_gains: Mapping[str, ArrayLike]  # f32[L * B]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PreprocessedInput:
  """The buffers of a batch and the number of minibatches that they hold."""

  sparse_dense_matmul_input: SparseDenseMatmulInput
  # i32[L], all equal, or a scalar.
  num_minibatches: ArrayLike = dataclasses.field(
      default_factory=lambda: np.array(1, np.int32)
  )

  @property
  def lhs_row_pointers(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_row_pointers

  @property
  def lhs_embedding_ids(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_embedding_ids

  @property
  def lhs_sample_ids(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_sample_ids

  @property
  def lhs_gains(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_gains

  def replace(self, **changes) -> PreprocessedInput:
    """A copy with some fields replaced."""
    return dataclasses.replace(self, **changes)

  def __iter__(self) -> Iterator[Mapping[str, ArrayLike]]:
    warnings.warn(
        "Iterating over PreprocessedInput is deprecated: use its attributes.",
        DeprecationWarning,
        stacklevel=2,
    )
    return iter(self.sparse_dense_matmul_input)


class DeviceBuffers(NamedTuple):
  """The buffers of one stack on one device: operands of the primitives."""

  row_pointers: jax.Array  # i32[R]
  embedding_ids: jax.Array  # i32[B]
  sample_ids: jax.Array  # i32[B]
  gains: jax.Array  # f32[B]
  num_minibatches: jax.Array  # i32[]


def device_buffers(
    preprocessed_inputs: PreprocessedInput | SparseDenseMatmulInput,
) -> dict[str, DeviceBuffers]:
  """The operands of the primitives for every stack.

  Args:
    preprocessed_inputs: one device's part of a preprocessed batch.

  Raises:
    ValueError: if num_minibatches has more than one dimension.
  """
  if isinstance(preprocessed_inputs, SparseDenseMatmulInput):
    warnings.warn(
        "SparseDenseMatmulInput as input of a lookup or update is deprecated:"
        " pass the PreprocessedInput.",
        DeprecationWarning,
        stacklevel=4,
    )
    preprocessed_inputs = PreprocessedInput(preprocessed_inputs)
  num_minibatches = jnp.asarray(preprocessed_inputs.num_minibatches, jnp.int32)
  if num_minibatches.ndim > 1:
    raise ValueError(
        "num_minibatches must be a scalar or have one entry per device, got"
        f" shape {num_minibatches.shape}."
    )
  if num_minibatches.ndim == 1:
    num_minibatches = num_minibatches[0]
  arrays = preprocessed_inputs.sparse_dense_matmul_input
  return {
      stack_name: DeviceBuffers(
          *(jnp.asarray(by_stack[stack_name]) for by_stack in arrays),
          num_minibatches,
      )
      for stack_name in arrays.lhs_row_pointers
  }


def device_topology(
    feature_specs: Any,
    buffers: Mapping[str, DeviceBuffers],
    embedding_variables: Mapping[str, Any],
    *,
    enable_minibatching: bool,
    global_device_count: int | None,
    num_sc_per_device: int | None,
) -> layout.Topology:
  """The topology that one device's buffers and tables were made for.

  A device holds 1 / global_device_count of a stack's rows, and the number of
  its row pointers depends on the SparseCores, so both counts can be told from
  the shapes. Callers may leave them out; what they do pass must agree.

  Args:
    feature_specs: the prepared specs.
    buffers: stack name -> the buffers of one device.
    embedding_variables: stack name -> (table f32[rows, D], slots), one device's
      shards.
    enable_minibatching: whether the buffers have the layout of minibatches.
    global_device_count: the count that the caller believes in, or None.
    num_sc_per_device: the count that the caller believes in, or None.

  Raises:
    ValueError: if stacks are missing, or the shapes fit no topology, or not the
      one that is passed or that the tables were prepared for.
  """
  stacks = _plan.get_stacked_table_specs(feature_specs)
  check_stack_names(
      stacks,
      preprocessed_inputs=buffers,
      embedding_variables=embedding_variables,
  )
  for name, stack in stacks.items():
    row_pointers, table = (
        buffers[name].row_pointers,
        embedding_variables[name][0],
    )
    found = _topology_of_shapes(stack, row_pointers, table, enable_minibatching)
    for field, expected in (
        ("global_device_count", global_device_count),
        ("num_sc_per_device", num_sc_per_device),
    ):
      if expected is not None and expected != getattr(found, field):
        raise ValueError(
            f"Stack {name!r}: {field} is {expected}, but the shapes of table"
            f" {table.shape} and row pointers {row_pointers.shape} are those of"
            f" {getattr(found, field)}. Preprocess, initialize and look up with"
            " the same numbers, inside shard_map when there are several"
            " devices."
        )
    # The later stacks must have the topology of the first.
    global_device_count = found.global_device_count
    num_sc_per_device = found.num_sc_per_device
  _plan.check_planned_for(_plan.get_table_specs(feature_specs), found.num_scs)
  _check_mesh(found.global_device_count)
  return found


def _check_mesh(global_device_count: int) -> None:
  """Raises ValueError if a surrounding shard_map has other devices.

  The primitives exchange rows along an axis of its mesh, or along the axes that
  the caller named.
  """
  mesh = jax.sharding.get_abstract_mesh()
  sizes = {
      name: mesh.shape[name]
      for name in mesh.manual_axes
      if mesh.shape[name] > 1
  }
  named = mesh_axis.named_axes()
  if named is None:
    possible = sizes.values()
  else:
    possible = [math.prod(mesh.shape[name] for name in named)]
  if sizes and global_device_count not in possible:
    raise ValueError(
        f"The tables are split for {global_device_count} device(s), and"
        f" shard_map has the mesh axes {sizes}"
        f"{'' if named is None else f', of which {named} split the rows'}."
        " Preprocess and initialize with"
        " the size of the axis that splits the tables as global_device_count."
    )


def _topology_of_shapes(
    stack: embedding_spec.StackedTableSpec,
    row_pointers: jax.Array,
    table: jax.Array,
    enable_minibatching: bool,
) -> layout.Topology:
  """The only topology in which a device has arrays of these shapes."""
  rows = table.shape[0]
  if rows == 0 or stack.stack_vocab_size % rows:
    raise ValueError(
        f"Stack {stack.stack_name!r}: a device's part of the table has {rows}"
        " rows, which does not divide the stack's"
        f" {stack.stack_vocab_size} rows. Pass the table that"
        " init_embedding_variables made for these feature specs."
    )
  global_device_count = stack.stack_vocab_size // rows
  return layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=layout.num_sc_per_device_from_row_pointers(
          row_pointers.size, global_device_count, enable_minibatching
      ),
  )


def check_stack_names(expected: Mapping, **by_stack: Mapping) -> None:
  """Checks that mappings by stack name have the stacks of the feature specs.

  Raises:
    ValueError: naming the argument and the missing and unknown stacks.
  """
  for name, mapping in by_stack.items():
    if set(mapping) != set(expected):
      raise ValueError(
          f"{name} must have one entry per stack of the feature specs, which"
          f" are {sorted(expected)}, got {sorted(mapping)}."
      )
