# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How costs grow: with tables, their size, devices, hosts and chips.

    bazel run //benchmarks/scale -- --output_dir=$PWD/benchmarks/scale

Prints tables; with --output_dir, writes them to RESULTS.md there, with a picture
of each. --curves=tables --curves=sizes measures some of them, whose sections and
pictures alone are then written anew.
"""

from __future__ import annotations

import pathlib
import platform
from typing import Any

from absl import app
from absl import flags
import jax

from benchmarks import machine
from benchmarks import results_folder
from benchmarks.scale import agreement
from benchmarks.scale import curve
from benchmarks.scale import hosts
from benchmarks.scale import sizes
from benchmarks.scale import slices
from benchmarks.scale import tables

# In the order of RESULTS.md.
_MEASURES = {
    "tables": tables.measure,
    "sizes": sizes.measure,
    "hosts": hosts.measure,
    "agreement": agreement.measure,
    "slices": slices.measure,
}

_CURVES = flags.DEFINE_multi_enum(
    "curves", list(_MEASURES), list(_MEASURES), "Which to measure."
)
_QUICK = flags.DEFINE_bool("quick", False, "Few small points, for a try.")
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Where RESULTS.md and the pictures are; default: none."
)

_HEAD = """\
# How costs grow

Written by `bazel run //benchmarks/scale`. Exponents are of the upper half of each table: 0 does not grow, 1 is in proportion.
"""


def _section(name: str, curves: list[curve.Curve]) -> str:
  """The curves of one measure, between marks by which it is found again."""
  return "\n".join(
      [
          f"<!-- {name} -->\n",
          f"*{machine.describe()}; Python {platform.python_version()}, JAX"
          f" {jax.__version__}.*\n",
          *(c.to_markdown() for c in curves),
      ]
  )


def _read_sections(path: pathlib.Path) -> dict[str, str]:
  """Name -> section of a file that was written before."""
  if not path.exists():
    return {}
  _, *parts = path.read_text().split("<!-- ")
  return {p.split(" -->")[0]: f"<!-- {p.rstrip()}\n" for p in parts}


def main(argv: Any) -> None:
  del argv
  folder = results_folder.make(_OUTPUT_DIR.value)
  for name in _CURVES.value:
    curves = _MEASURES[name](_QUICK.value)
    section = _section(name, curves)
    print(section, flush=True)
    if folder:
      sections = _read_sections(folder / "RESULTS.md") | {name: section}
      (folder / "RESULTS.md").write_text(
          "\n".join(
              [_HEAD, *(sections[n] for n in _MEASURES if n in sections)]
          ).rstrip()
          + "\n"
      )
      for c in curves:
        c.draw(folder)


if __name__ == "__main__":
  app.run(main)
