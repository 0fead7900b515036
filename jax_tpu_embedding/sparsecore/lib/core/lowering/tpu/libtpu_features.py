# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What only some versions of the TPU compiler compile."""

from __future__ import annotations

import dataclasses
import importlib.metadata


@dataclasses.dataclass(frozen=True)
class Feature:
  """Something that a version of libtpu is the first to compile."""

  description: str
  first_version: tuple[int, ...]

  def is_missing(self) -> bool:
    """Whether the installed libtpu is older.

    A program may also be lowered where there is none, for export.
    """
    version = installed_version()
    return version is not None and version < self.first_version

  def check(self, what: str) -> None:
    """Raises NotImplementedError if it is missing, for the operation `what`."""
    if self.is_missing():
      raise NotImplementedError(
          f"{what}: {self.description} is more than libtpu"
          f" {dotted(installed_version())} can compile. Use libtpu"
          f" {dotted(self.first_version)} or later."
      )


# Earlier ones end the process (0.0.42.1, 0.0.45, 0.0.48.1, 0.0.50.1).
SUM_OVER_COLUMNS = Feature(
    "a step with a sum (or the like) over the columns of a row, as"
    " max_gradient_norm, skip_non_finite_gradients and rowwise_adagrad have,",
    (0, 0, 51),
)
# "Expected instruction to have shape equal to f32[1,16]" (0.0.42.1).
CONSTANT_ROWS = Feature(
    "a constant that differs between the columns of a row", (0, 0, 51)
)
# "'arith.truncf' op got vector of size 8 x 16-bits" (0.0.42.1, 0.0.45).
NARROW_TYPES = Feature(
    "a step with numbers of bfloat16, int16 or int8", (0, 0, 48)
)
# "unimplemented case while compiling round-nearest-afz" (0.0.42.1, 0.0.45).
ROUND_HALF_AWAY = Feature("a step with lax.round", (0, 0, 48))
# "Gradients are expected to have rank 2" (0.0.42.1, 0.0.45).
MINIBATCHES_WITHOUT_COLUMNS = Feature(
    "the update of a table without columns with minibatching", (0, 0, 48)
)
# An update ends the process, and some lookups run out of memory (0.0.42.1,
# 0.0.45).
ANY_WIDTH = Feature(
    "a table of a width that is not a multiple of 8", (0, 0, 48)
)


def installed_version() -> tuple[int, ...] | None:
  """The version of the package libtpu, if it is installed."""
  try:
    version = importlib.metadata.version("libtpu")
  except importlib.metadata.PackageNotFoundError:
    return None
  return tuple(int(part) for part in version.split(".") if part.isdecimal())


def dotted(version: tuple[int, ...]) -> str:
  """A version as it is written."""
  return ".".join(map(str, version))
