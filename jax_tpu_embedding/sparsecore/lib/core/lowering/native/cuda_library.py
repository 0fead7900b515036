# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The library of kernels for GPUs: whether it is here, and may be called.

Its handlers are registered as soon as this is imported: a program that was
exported elsewhere calls them without being lowered here. That needs no GPU, no
driver and nothing of CUDA, and starts no backend.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
import importlib
import importlib.util
import os
from typing import Any
import warnings

import jax

# "plain" asks for plain JAX on GPUs, to compare with, or while a kernel is wrong.
ENVIRONMENT_VARIABLE = "JAX_TPU_EMBEDDING_GPU"

_NAME = "jax_tpu_embedding.sparsecore.lib.core.ffi_cuda"

# Stays None where it was left out of the build.
ffi_cuda: Any = None
if importlib.util.find_spec(_NAME):
  ffi_cuda = importlib.import_module(_NAME)
  for _name, _handler in ffi_cuda.registrations().items():
    jax.ffi.register_ffi_target(_name, _handler, platform="CUDA")


@functools.cache
def is_usable() -> bool:
  """Whether programs for GPUs are to call it. Warns, once, if they cannot.

  Without a driver they can: they are lowered to run elsewhere.

  Raises:
    ValueError: if JAX_TPU_EMBEDDING_GPU is something else than "plain".
  """
  if way := os.environ.get(ENVIRONMENT_VARIABLE):
    if way != "plain":
      raise ValueError(
          f"{ENVIRONMENT_VARIABLE}: there is no way {way!r} to lower for GPUs."
          " Set it to 'plain', or to nothing."
      )
    return False
  if ffi_cuda is None:
    reason = (
        "ffi_cuda.so was left out when this package was built. Build it without"
        " --//tools:cuda=false, or install a wheel that has it."
    )
  elif 0 < ffi_cuda.driver_version() < ffi_cuda.OLDEST_DRIVER:
    reason = (
        f"the driver is for CUDA {_dotted(ffi_cuda.driver_version())} at most,"
        f" and they need {_dotted(ffi_cuda.OLDEST_DRIVER)}. Install a newer"
        " driver (580 or later)."
    )
  elif 0 < ffi_cuda.oldest_gpu() < ffi_cuda.OLDEST_GPU:
    reason = (
        "a GPU has compute capability"
        f" {_with_point(ffi_cuda.oldest_gpu())}, and they need"
        f" {_with_point(ffi_cuda.OLDEST_GPU)} (A100). Leave newer ones visible"
        " alone (CUDA_VISIBLE_DEVICES)."
    )
  else:
    return True
  warnings.warn(
      "Conversions, lookups and updates are lowered for GPUs as plain JAX, which"
      f" may be much slower. The kernels for them cannot be used: {reason}",
      stacklevel=2,
  )
  return False


def where_usable(
    rule: Callable[..., Sequence[Any]],
    plain_rule: Callable[..., Sequence[Any]],
) -> Callable[..., Sequence[Any]]:
  """The rule, which calls it, or the other."""

  def choose(operands, *args):
    if is_usable():
      return rule(operands, *args)
    return plain_rule(operands, *args)

  return choose


def _with_point(capability: int) -> str:
  """80 -> "8.0"."""
  return f"{capability // 10}.{capability % 10}"


def _dotted(version: int) -> str:
  """13000 -> "13.0"."""
  return f"{version // 1000}.{version % 1000 // 10}"
