# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What preprocessing hands to lookup and update."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
import numpy as np

ArrayLike = jax.typing.ArrayLike

# In place of an id, where a sample has fewer than another.
NO_ID = constants.PADDING_VALUE

_DEFAULT_STRATEGY = "SPLIT_THEN_STACK"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleIds:
  """The ids of one replicated stack, of B samples with up to K ids.

  For L local devices B is L times the device batch, or arrays are [L, B, K].
  Where ids were ragged inside of a program, arrays are of N entries in place of
  B samples: K is 1, and `sample` says whose each entry is.

  Attributes:
    ids: i32[B, K], rows of the table; 2^31 - 1 where there is none.
    gains: f32[B, K], what each row is multiplied with; 0 where there is no id.
    has_failed: bool[L] (or [L, 1]), whether an id or weight is wrong, and
      nobody has said so yet.
    sample: i32[N], the number of the sample of each entry in the device batch;
      None if there are no entries.
  """

  ids: ArrayLike
  gains: ArrayLike
  has_failed: ArrayLike
  sample: ArrayLike | None = None

  @classmethod
  def of_rows(cls, rows: jax.Array) -> SampleIds:
    """Rows i32[B] as the ids of B samples of one id, with gain one."""
    return cls(
        ids=rows[:, None],
        gains=jnp.ones((rows.shape[0], 1), jnp.float32),
        has_failed=jnp.zeros(1, bool),
    )

  def wait_for(self, num_minibatches: jax.Array) -> SampleIds:
    """The samples, which cannot be looked up before there is a number.

    Args:
      num_minibatches: i32[], positive, of a check that may fail the program.
    """
    return dataclasses.replace(
        self, has_failed=self.has_failed | (num_minibatches < 1)
    )

  def without_ids_if(self, condition: jax.Array) -> SampleIds:
    """The samples; if the condition bool[] holds, without any id."""
    return dataclasses.replace(self, ids=jnp.where(condition, NO_ID, self.ids))


class SparseDenseMatmulInput(NamedTuple):
  """CSR-wrapped COO buffers, each a dict by stack name.

  For L local devices with R row pointers and B cells each; the layout is that
  of cc/layout/csr_layout.h.

  Attributes:
    lhs_row_pointers: i32[L * R] (or [L, R]), where the ids of a partition end.
    lhs_embedding_ids: i32[L * B], rows within a shard.
    lhs_sample_ids: i32[L * B], samples within a SparseCore.
    lhs_gains: f32[L * B], what each row is multiplied with.
  """

  lhs_row_pointers: Mapping[str, ArrayLike]
  lhs_embedding_ids: Mapping[str, ArrayLike]
  lhs_sample_ids: Mapping[str, ArrayLike]
  lhs_gains: Mapping[str, ArrayLike]


class StackLayout(NamedTuple):
  """Where the samples of features are among those of their stack.

  Attributes:
    stack_name: of the stack.
    num_samples: of the stack in a global batch, those that are no feature's
      included.
    features: name, first sample and number of samples of each, by the first.
  """

  stack_name: str
  num_samples: int
  features: tuple[tuple[str, int, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferSettings:
  """What the buffers of a batch were made for.

  Hashable: as a static part of PreprocessedInput it is part of the type of a
  traced value, so that a program that was compiled for other limits is compiled
  anew.

  Attributes:
    global_device_count: devices that share the tables.
    num_sc_per_device: SparseCores per device.
    limits: stack name and limits of every stack. No batch of this type exceeds
      them.
    enable_minibatching: whether the buffers have the layout of minibatches.
    feature_stacking_strategy: which samples each SparseCore has, the name of a
      FeatureStackingStrategy.
    batches: feature name and batch, over all devices, of features that have
      another batch than their specs declare.
    layouts: of stacks that are not laid out as planned: for another batch, or
      for some of the features that they were planned with.
  """

  global_device_count: int
  num_sc_per_device: int
  limits: tuple[tuple[str, layout.PartitionLimits], ...]
  enable_minibatching: bool = False
  feature_stacking_strategy: str = _DEFAULT_STRATEGY
  batches: tuple[tuple[str, int], ...] = ()
  layouts: tuple[StackLayout, ...] = ()

  @property
  def topology(self) -> layout.Topology:
    """That of one device: all that a program needs."""
    return layout.Topology(
        local_device_count=1,
        global_device_count=self.global_device_count,
        num_sc_per_device=self.num_sc_per_device,
    )

  @functools.cached_property
  def _limits_by_stack(self) -> dict[str, layout.PartitionLimits]:
    return dict(self.limits)

  def limits_of(self, stack_name: str) -> layout.PartitionLimits:
    return self._limits_by_stack[stack_name]


@dataclasses.dataclass(frozen=True)
class PreprocessedInput:
  """The buffers of a batch, and what a lookup has to know about them.

  A pytree of buffers, num_minibatches and, if there are any, samples.

  Attributes:
    sparse_dense_matmul_input: the buffers.
    num_minibatches: that the buffers hold; i32[L], all equal, or a scalar.
      Batches share the array of NumPy, which cannot be written to.
    settings: what the buffers were made for, a static part of the pytree. None
      for buffers of unknown origin: lookups then go by the shapes, their
      arguments and the limits of the specs.
    samples: the ids of replicated stacks, which have no buffers, by stack name.
  """

  sparse_dense_matmul_input: SparseDenseMatmulInput
  num_minibatches: ArrayLike = dataclasses.field(
      default_factory=lambda: np.array(1, np.int32)
  )
  settings: BufferSettings | None = None
  samples: Mapping[str, SampleIds] = dataclasses.field(default_factory=dict)

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


_CHILD_KEYS = tuple(
    jax.tree_util.GetAttrKey(name)
    for name in ("sparse_dense_matmul_input", "num_minibatches", "samples")
)


def _children(inputs: PreprocessedInput) -> tuple[tuple[Any, ...], tuple[Any]]:
  """What jax.tree_util flattens to.

  Programs that were exported before there were samples know two children, and
  take inputs that have no others.
  """
  children = inputs.sparse_dense_matmul_input, inputs.num_minibatches
  if inputs.samples or not isinstance(inputs.samples, dict):
    children += (inputs.samples,)
  return children, (inputs.settings,)


def _children_with_keys(
    inputs: PreprocessedInput,
) -> tuple[list[tuple[Any, Any]], tuple[Any]]:
  children, static_fields = _children(inputs)
  return list(zip(_CHILD_KEYS, children)), static_fields


def _from_children(
    static_fields: tuple[Any], children: Iterable[Any]
) -> PreprocessedInput:
  arrays, num_minibatches, *samples = children
  return PreprocessedInput(arrays, num_minibatches, *static_fields, *samples)


jax.tree_util.register_pytree_with_keys(
    PreprocessedInput, _children_with_keys, _from_children, _children
)


@functools.lru_cache(maxsize=256)
def settings(
    global_device_count: int,
    num_sc_per_device: int,
    limits: tuple[tuple[str, layout.PartitionLimits], ...],
    enable_minibatching: bool,
    feature_stacking_strategy: str,
    batches: tuple[tuple[str, int], ...],
    layouts: tuple[StackLayout, ...],
) -> BufferSettings:
  """BufferSettings, one object for equal ones: each batch asks for them."""
  return BufferSettings(
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      limits=limits,
      enable_minibatching=enable_minibatching,
      feature_stacking_strategy=feature_stacking_strategy,
      batches=batches,
      layouts=layouts,
  )
