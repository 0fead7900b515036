# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

r"""How fast is a layer from ids, beside an earlier version?

bazel build //benchmarks/dlrm   # there, which has the layers in its runfiles
bazel run //benchmarks/lookup:layers -- --before=FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import pathlib

from absl import app
from absl import flags
import numpy as np

from benchmarks import earlier_version
from benchmarks import turns
from benchmarks import worker_process

_ROUNDS = flags.DEFINE_integer("rounds", 11, "Samples per measurement.", 2)

_WORKER = pathlib.Path(__file__).with_name("layer_worker.py")
_CASES = ((16384, 1), (16384, 20), (4096, 100))
_PARTS = ("forward", "SGD")


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  roots = earlier_version.roots(pathlib.Path(__file__).parents[2])
  for allocator, preload in worker_process.allocators().items():
    print(f"\n| {allocator} | part | ours: wall ms | before | ours / before |")
    print("|---|---|--:|--:|--:|")
    with contextlib.ExitStack() as stack:
      workers = {
          name: stack.enter_context(
              earlier_version.start(_WORKER, root, {"LD_PRELOAD": preload})
          )
          for name, root in roots.items()
      }
      for batch_size, valency in _CASES:
        sums = [
            worker.command("load", batch_size=batch_size, valency=valency)
            for worker in workers.values()
        ]
        # Earlier versions add in another order.
        if not np.allclose(sums[0]["sums"], sums[1]["sums"], rtol=1e-5):
          raise RuntimeError(f"The versions do not compute the same: {sums}.")
        timings = turns.take(
            {
                (name, part): worker.timed(part=part)
                for name, worker in workers.items()
                for part in _PARTS
            },
            _ROUNDS.value,
        )
        for part in _PARTS:
          walls = [timings[name, part].wall for name in workers]
          low, middle, high = turns.quartiles_of_ratio(*walls)
          medians = [f"{1e3 * turns.median(wall):.3g}" for wall in walls]
          print(
              f"| {batch_size} x {valency} | {part} | {' | '.join(medians)} |"
              f" {middle:.2f} ({low:.2f} to {high:.2f}) |",
              flush=True,
          )


if __name__ == "__main__":
  app.run(main)
