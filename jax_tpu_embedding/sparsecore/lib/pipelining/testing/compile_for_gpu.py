# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Writes what XLA makes of pipelined steps for four H100s, without a GPU.

    pip install jax==V jax-cuda13-plugin==V jax-cuda13-pjrt==V flax einops
    here=jax_tpu_embedding/sparsecore/lib/pipelining
    ./bazelw build //$here:compile_for_tpu_test
    PYTHONPATH=bazel-bin/$here/compile_for_tpu_test.runfiles/jte \\
        python $here/testing/compile_for_gpu.py DIR

It takes one to two minutes of a CPU for each mode. Of a program that is as
large as a book only those lines are kept that a report of overlap reads:
collectives and matrix products, in their order.
"""

from __future__ import annotations

import pathlib
import re
import sys

import jax
from jax.experimental import topologies
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import compiled_steps

# As XLA describes one.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_NUM_DEVICES = 4

_COMPUTATION = re.compile(r"^(?:ENTRY )?%\S+ .*?\{\n.*?^\}\n", re.M | re.S)
_IS_KEPT = re.compile(r"%gemm_fusion\S* = .* fusion\(|(?:-start|-done)\(")
_ATTRIBUTES = re.compile(
    r", (?:frontend_attributes|backend_config|sharding)=.*?(?=, [a-z_]+=|$)",
    re.M,
)


def essence(hlo: str) -> str:
  """The lines that have to do with collectives and matrix products.

  Of computations with a product all lines are kept: they have the shapes of
  its operands.
  """
  parts = ["HloModule step, is_scheduled=true\n"]
  for computation in _COMPUTATION.findall(hlo):
    first, *lines, last = computation.splitlines()
    if first.startswith("ENTRY"):
      first = "ENTRY %main () -> () {"
      lines = [x for x in lines if _IS_KEPT.search(x)]
    elif " dot(" not in computation:
      continue
    parts.append("\n".join([first, *lines, last, ""]))
  return _ATTRIBUTES.sub("", "\n".join(parts))


def main(folder: str) -> None:
  devices = topologies.get_topology_desc(
      platform="cuda", target_config=_H100, topology=f"1x1x{_NUM_DEVICES}"
  )
  mesh = topologies.make_mesh(devices, (_NUM_DEVICES,), ("x",))
  for mode in ("off", "exact", "stale"):
    compiled = compiled_steps.compile_step(mode, mesh)
    path = pathlib.Path(folder, f"h100_{mode}.hlo.txt")
    path.write_text(essence(compiled.as_text()))


if __name__ == "__main__":
  # Before a plugin looks for GPUs.
  jax.config.update("jax_platforms", "cpu")
  main(sys.argv[1])
