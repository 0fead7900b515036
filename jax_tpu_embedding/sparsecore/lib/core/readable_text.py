# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Sizes and tables as text, for reports and errors that people read."""

from __future__ import annotations

from collections.abc import Sequence


def format_bytes(num_bytes: float) -> str:
  """As 512 B, 1.5 KiB, 20.0 MiB, 300 GiB."""
  for unit in ("B", "KiB", "MiB", "GiB"):
    if num_bytes < 1024:
      break
    num_bytes /= 1024
  else:
    unit = "TiB"
  digits = 0 if unit == "B" or num_bytes >= 100 else 1
  return f"{num_bytes:.{digits}f} {unit}"


def align(
    rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)
) -> list[str]:
  """Lines of columns, aligned to the right except for those in `left`."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return [
      "  ".join(
          cell.ljust(width) if i in left else cell.rjust(width)
          for i, (cell, width) in enumerate(zip(row, widths))
      ).rstrip()
      for row in rows
  ]
