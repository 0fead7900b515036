# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

r"""Is an update slower than in an earlier version, by any optimizer?

bazel build //benchmarks/dlrm   # there, which has the package in its runfiles
bazel run //benchmarks/lookup:updates -- --before=FOLDER
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

_ROUNDS = flags.DEFINE_integer("rounds", 7, "Samples per measurement.", 2)
_OPTIMIZERS = flags.DEFINE_list(
    "optimizers",
    "SGD,Adagrad,RowwiseAdagrad,AdagradMomentum,Adam,FTRL,LaProp,F2A,Momentum,"
    "Lion",
    "Names of their specs, without OptimizerSpec.",
)
_ROW_OPTIONS = flags.DEFINE_list(
    "row_options",
    "",
    "Those of each optimizer, as max_gradient_norm=0.5,l2_weight_decay=0.01.",
)
_VALENCY = flags.DEFINE_integer("valency", 20, "Ids per sample.", 1)

_WORKER = pathlib.Path(__file__).with_name("update_worker.py")
_DTYPES = ("float32", "bfloat16", "float16")
_COLUMNS = (8, 16, 32, 64, 128, 256, 512)
_BATCH_SIZE = 4096
# As float32. With slots no cache has them.
_TABLE_BYTES = 64 << 20


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  options = dict(option.split("=") for option in _ROW_OPTIONS.value)
  roots = earlier_version.roots(pathlib.Path(__file__).parents[2])
  print(
      f"Wall time by that of the earlier version; {_BATCH_SIZE} x"
      f" {_VALENCY.value} uniform ids, medians of {_ROUNDS.value} rounds.\n"
  )
  print(f"| columns | | {' | '.join(map(str, _COLUMNS))} |")
  print("|---|---|" + len(_COLUMNS) * "--:|")
  with contextlib.ExitStack() as stack:
    workers = {
        name: stack.enter_context(earlier_version.start(_WORKER, root))
        for name, root in roots.items()
    }
    for optimizer in _OPTIMIZERS.value:
      for dtype in _DTYPES:
        ratios = []
        for columns in _COLUMNS:
          sums = [
              worker.command(
                  "load",
                  optimizer=optimizer,
                  row_options={name: float(x) for name, x in options.items()},
                  dtype=dtype,
                  num_rows=_TABLE_BYTES // (4 * columns),
                  columns=columns,
                  batch_size=_BATCH_SIZE,
                  valency=_VALENCY.value,
              )["sum"]
              for worker in workers.values()
          ]
          # Earlier versions add in another order.
          if not np.allclose(*sums, rtol=1e-4):
            raise RuntimeError(
                f"{optimizer}, {dtype}, {columns} columns: the versions do not"
                f" compute the same, sums of the table are {sums}."
            )
          timings = turns.take(
              {name: worker.timed() for name, worker in workers.items()},
              _ROUNDS.value,
          )
          _, middle, _ = turns.quartiles_of_ratio(
              timings["ours"].wall, timings["before"].wall
          )
          ratios.append(f"{middle:.2f}")
        print(f"| {optimizer} | {dtype} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
  app.run(main)
