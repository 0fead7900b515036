# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Writes what XLA makes of pipelined steps for four H100s, without a GPU.

    pip install jax==V jax-cuda13-plugin==V jax-cuda13-pjrt==V flax einops
    here=jax_tpu_embedding/sparsecore/lib/pipelining
    ./bazelw build //$here:compile_for_tpu_test
    PYTHONPATH=bazel-bin/$here/compile_for_tpu_test.runfiles/jte \\
        python $here/testing/compile_for_gpu.py DIR

(Bazel 7 calls the last folder of PYTHONPATH `_main`.)

It takes one to two minutes of a CPU for each mode. Of a program that is as
large as a book only those lines are kept that a report of overlap reads:
collectives and matrix products, in their order.
"""

from __future__ import annotations

import pathlib
import re
import sys

import jax
from jax_tpu_embedding.sparsecore.lib.core.gpu import topology
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import compiled_steps

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
  mesh = topology.topology_mesh("h100:4")
  for mode in ("off", "exact", "stale"):
    compiled = compiled_steps.lower_step(mode, mesh).compile()
    path = pathlib.Path(folder, f"h100_{mode}.hlo.txt")
    path.write_text(essence(compiled.as_text()))


if __name__ == "__main__":
  # Before a plugin looks for GPUs.
  jax.config.update("jax_platforms", "cpu")
  main(sys.argv[1])
