# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""GPUs by their name, on any machine that has JAX's CUDA plugin.

They are good for compiling, not for running. No driver is needed, and none is
asked.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import re

import jax
from jax.experimental import topologies
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Gpu:
  """What XLA asks of a GPU: what fits, and what its models of cost count with.

  Attributes:
    device_kind: what the driver calls it.
    compute_capability: major version; the minor one is 0.
    multiprocessors: how many there are.
    fpus: of float32, per multiprocessor.
    shared_kib: memory that the blocks of a multiprocessor share; one block has
      1 KiB less at most.
    l2_mib: the cache before the memory.
    clock_ghz: at most.
    memory_bytes: what a program has of it is a little less.
    memory_bytes_per_second: from it.
  """

  device_kind: str
  compute_capability: int
  multiprocessors: int
  fpus: int
  shared_kib: int
  l2_mib: int
  clock_ghz: float
  memory_bytes: int
  memory_bytes_per_second: int


# Source: NVIDIA's white papers of each architecture and data sheets of the SXM
# modules, and the table of compute capabilities in the CUDA programming guide.
_GPUS = {
    "a100": _Gpu(
        device_kind="NVIDIA A100-SXM4-80GB",
        compute_capability=8,
        multiprocessors=108,
        fpus=64,
        shared_kib=164,
        l2_mib=40,
        clock_ghz=1.41,
        memory_bytes=80 * 2**30,
        memory_bytes_per_second=2_039 * 10**9,
    ),
    "h100": _Gpu(
        device_kind="NVIDIA H100 80GB HBM3",
        compute_capability=9,
        multiprocessors=132,
        fpus=128,
        shared_kib=228,
        l2_mib=50,
        clock_ghz=1.98,
        memory_bytes=80 * 2**30,
        memory_bytes_per_second=3_350 * 10**9,
    ),
    "h200": _Gpu(
        device_kind="NVIDIA H200",
        compute_capability=9,
        multiprocessors=132,
        fpus=128,
        shared_kib=228,
        l2_mib=50,
        clock_ghz=1.98,
        memory_bytes=141 * 10**9,
        memory_bytes_per_second=4_800 * 10**9,
    ),
    "b200": _Gpu(
        device_kind="NVIDIA B200",
        compute_capability=10,
        multiprocessors=148,
        fpus=128,
        shared_kib=228,
        l2_mib=126,
        clock_ghz=1.965,
        memory_bytes=180 * 10**9,
        memory_bytes_per_second=8_000 * 10**9,
    ),
}


def topology_mesh(
    name: str, axis_names: Sequence[str] = ("x",)
) -> jax.sharding.Mesh:
  """A mesh of GPUs of one machine, along the first of its axes.

  A program that is lowered for arrays on it can be compiled, with `jax.jit(f)
  .lower(*args).compile()`, but not called.

  Args:
    name: kind and number, as in "h100:1" or "h100:8".
    axis_names: those of the mesh; all but the first have size 1.

  Raises:
    ValueError: if there is no such kind, or the number is none.
    RuntimeError: if JAX's CUDA plugin is not installed.
  """
  match = re.fullmatch(r"(\w+):([1-9]\d*)", name)
  if match is None or match[1] not in _GPUS:
    raise ValueError(
        f"There are no GPUs {name!r}. Names are a kind, of"
        f" {', '.join(sorted(_GPUS))}, and a number, like 'h100:8'."
    )
  try:
    topology = topologies.get_topology_desc(
        platform="cuda",
        target_config=_target_config(_GPUS[match[1]]),
        topology=f"1x1x{match[2]}",
    )
  except (NotImplementedError, RuntimeError) as error:
    raise RuntimeError(
        "Compiling for GPUs needs JAX's CUDA plugin, which cannot be loaded."
        f" Install it with: pip install 'jax[cuda13]'. JAX: {error}"
    ) from error
  devices = np.array(topology.devices)
  return jax.sharding.Mesh(
      devices.reshape(-1, *(1,) * (len(axis_names) - 1)), tuple(axis_names)
  )


def _target_config(gpu: _Gpu) -> str:
  """A GpuTargetConfigProto of XLA, as text."""
  return f"""
      platform_name: "CUDA"
      device_description_str: "{gpu.device_kind}"
      runtime_version {{ major: 13 }}
      dnn_version_info {{ major: 9 minor: 10 }}
      gpu_device_info {{
        cuda_compute_capability {{ major: {gpu.compute_capability} }}
        core_count: {gpu.multiprocessors}
        fpus_per_core: {gpu.fpus}
        shared_memory_per_core: {gpu.shared_kib << 10}
        shared_memory_per_block_optin: {gpu.shared_kib - 1 << 10}
        l2_cache_size: {gpu.l2_mib << 20}
        clock_rate_ghz: {gpu.clock_ghz}
        device_memory_size: {gpu.memory_bytes}
        memory_bandwidth: {gpu.memory_bytes_per_second}
        {_OF_ALL}
      }}"""


# The same for all of them.
_OF_ALL = """
        shared_memory_per_block: 49152
        threads_per_block_limit: 1024
        threads_per_core_limit: 2048
        threads_per_warp: 32
        registers_per_block_limit: 65536
        registers_per_core_limit: 65536
        block_dim_limit_x: 2147483647
        block_dim_limit_y: 65535
        block_dim_limit_z: 65535"""
