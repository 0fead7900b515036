# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is the same for all conversions of a run."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter

OutputPool = converter.OutputPool


class Conversion(NamedTuple):
  """What is the same for all batches of a run.

  Each has the name of its keyword argument in preprocessing and AdaptiveLimits.

  Attributes:
    local_device_count: as in preprocess_sparse_dense_matmul_input, like the
      others.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device.
    has_leading_dimension: whether buffers are [devices, size].
    enable_minibatching: whether a batch may take several passes.
    all_reduce_interface: how processes agree on passes.
    feature_stacking_strategy: a name of FeatureStackingStrategy.
    num_threads: how many threads work.
    output_pool: where the buffers' memory comes from.
  """

  local_device_count: int
  global_device_count: int
  num_sc_per_device: int
  has_leading_dimension: bool
  enable_minibatching: bool
  all_reduce_interface: Any | None
  feature_stacking_strategy: str
  num_threads: int | None
  output_pool: OutputPool | None

  @property
  def topology(self) -> layout.Topology:
    """Raises ValueError if the counts cannot be."""
    return layout.Topology(
        local_device_count=self.local_device_count,
        global_device_count=self.global_device_count,
        num_sc_per_device=self.num_sc_per_device,
    )

  @property
  def is_of_one_process(self) -> bool:
    return self.local_device_count == self.global_device_count


def sharding_strategy_to_enum(name: str) -> converter.ShardingStrategy:
  """The strategy called `name`, in any letter case.

  Raises:
    TypeError: if it is no string.
    ValueError: if there is none.
  """
  if not isinstance(name, str):
    raise TypeError(f"sharding_strategy must be 'MOD', got {name!r}.")
  if name.upper() != "MOD":
    raise ValueError(
        f"Unsupported sharding strategy {name!r}. The choices are: 'MOD'."
    )
  return converter.ShardingStrategy.MOD
