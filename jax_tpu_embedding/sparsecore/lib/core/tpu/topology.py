# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The devices of a TPU slice, on any machine that has libtpu.

They are good for compiling, not for running.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from typing import Any

import jax
from jax.experimental import topologies
import numpy as np

# What libtpu would look for on a machine without TPUs: a metadata server, other
# workers, a place for log files, and other processes that use the chips.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_LOG_DIR": "disabled",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def topology_mesh(
    name: str, axis_names: str | Sequence[str] = ("x",), **options: Any
) -> jax.sharding.Mesh:
  """A mesh of all devices of a TPU slice, along the first of its axes.

  A program that is lowered for arrays on it can be compiled, with `jax.jit(f)
  .lower(*args).compile()`, but not called. Sets environment variables for
  libtpu where there is no TPU.

  Args:
    name: of the slice, as in "v5p:2x2x1", "v6e:4x4" or "tpu7x:2x2x1".
    axis_names: those of the mesh, or the one that it has; all but the first
      have size 1.
    **options: of jax.experimental.topologies.get_topology_desc, such as
      num_slices.

  Raises:
    ValueError: if there is no such slice.
    RuntimeError: if libtpu is not installed.
  """
  if jax.default_backend() != "tpu":
    for variable, value in _ENVIRONMENT.items():
      os.environ.setdefault(variable, value)
  try:
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=name, **options
    )
  except jax.errors.JaxRuntimeError as error:
    raise ValueError(
        f"There is no TPU slice {name!r}. Names are like 'v5p:2x2x1', 'v6e:4x4'"
        f" or 'tpu7x:2x2x1'. libtpu: {error}"
    ) from error
  except (AttributeError, ImportError, RuntimeError) as error:
    raise RuntimeError(
        "Compiling for TPU needs libtpu, which cannot be loaded. Install it"
        f" with: pip install 'jax[tpu]'. JAX: {error}"
    ) from error
  if isinstance(axis_names, str):
    axis_names = (axis_names,)  # as jax.sharding.Mesh does
  devices = np.array(topology.devices)
  return jax.sharding.Mesh(
      devices.reshape(-1, *(1,) * (len(axis_names) - 1)), tuple(axis_names)
  )
