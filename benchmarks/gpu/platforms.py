# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What runs the kernels, a GPU or a CPU that stands for it; what is found."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import re
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cuda_library
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import gpu_calls
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import ffi_emulated_gpu

from benchmarks.gpu import cases as cases_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """A line of the report.

  Attributes:
    name: of what was found.
    value: of it, with its unit in the name.
    wanted: what it should be, in words; empty if nothing is.
    is_met: whether it is; None if nothing is wanted, or times mean nothing.
  """

  name: str
  value: Any
  wanted: str = ""
  is_met: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platform:
  """What runs the kernels.

  Attributes:
    lowering: how operations are bound so that they run there.
    library: with the handlers of the native calls there.
    device: where.
    cases: to time.
    num_repeats: of what is to be the same each time.
    is_timed: whether times mean something.
  """

  lowering: every_lowering.Lowering
  library: gpu_calls.Library
  device: jax.Device
  cases: Sequence[cases_lib.Case]
  num_repeats: int
  is_timed: bool

  def wants(self, name: str, value: Any, wanted: str, is_met: bool) -> Finding:
    """A finding that is judged where times mean something."""
    return Finding(
        name=name,
        value=value,
        wanted=wanted,
        is_met=is_met if self.is_timed else None,
    )


def platform(name: str, case_names: str = "") -> Platform:
  """The platform of a name of --platform.

  Args:
    name: of it.
    case_names: a regular expression of those to time. The first of all
      is always one, since others are measured by it.

  Raises:
    RuntimeError: if JAX sees no GPU that is asked for.
  """
  if name == "emulated":
    return Platform(
        lowering=every_lowering.LOWERINGS["gpu"],
        library=ffi_emulated_gpu,
        device=jax.devices("cpu")[0],
        cases=_chosen(cases_lib.SMALL, case_names),
        num_repeats=2,
        is_timed=False,
    )
  try:
    device, *_ = jax.devices("cuda")
  except RuntimeError as error:
    raise RuntimeError(
        "--platform=cuda: JAX sees no GPU. Run this on a machine with one and"
        " with jax[cuda13], or with --platform=emulated. JAX:"
        f" {error}"
    ) from error
  return Platform(
      # The primitives as programs have them, lowered for where they run.
      lowering=every_lowering.LOWERINGS["cpu"],
      library=cuda_library.ffi_cuda,
      device=device,
      cases=_chosen(cases_lib.CASES, case_names),
      num_repeats=20,
      is_timed=True,
  )


def _chosen(
    cases: Sequence[cases_lib.Case], names: str
) -> tuple[cases_lib.Case, ...]:
  first, *others = cases
  return (first, *(case for case in others if re.search(names, case.name)))
