# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Learning rates: numbers, arrays, or functions of nothing or of the step."""

from __future__ import annotations

from collections.abc import Callable
import inspect
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NumericParameter = jax.typing.ArrayLike
LearningRate = NumericParameter | Callable[..., NumericParameter]


class CallablePlaceholder:
  """Stands for a function that a proto could only name."""

  def __init__(self, tag: str):
    self.tag = tag

  def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
    raise RuntimeError(
        f"The function {self.tag!r} was read from a proto, which holds its name"
        " only. Pass it as callables={tag: function} when reading the proto, or"
        " replace the placeholder by it."
    )

  def __eq__(self, other: object) -> bool:
    return type(other) is type(self) and other.tag == self.tag

  def __hash__(self) -> int:
    return hash(self.tag)

  def __repr__(self) -> str:
    return f"CallablePlaceholder({self.tag!r})"


def resolve(
    rate: LearningRate, step: jax.typing.ArrayLike | None = None
) -> jax.Array:
  """The learning rate at `step`, f32[].

  Raises:
    ValueError: if the rate is a function of the step and there is none, a
      function of more than one positional parameter, or not one number.
  """
  if callable(rate):
    value = _call(rate, step)
    check_scalar(f"The learning rate {rate!r} at step {step}", value)
  else:
    value = rate
  return as_scalar(value)


def as_scalar(value: jax.typing.ArrayLike) -> jax.Array:
  """One number, of any shape, as an operand of an update: f32[]."""
  if isinstance(value, (int, float)):
    # JAX takes five times as long to trace one of these.
    value = np.asarray(value, np.float32)
  value = jnp.asarray(value, jnp.float32)
  return value if value.ndim == 0 else value.reshape(())


def depends_on_step(rate: LearningRate) -> bool:
  """Whether the rate is a function of the step."""
  return callable(rate) and bool(_positional_parameters(rate))


def is_of_nothing(rate: LearningRate) -> bool:
  """Whether the rate is a function without arguments, read in each call."""
  return callable(rate) and not _positional_parameters(rate)


def check_scalar(what: str, value: Any) -> None:
  """Checks that a parameter is one number, and not NaN if it is known.

  Raises:
    TypeError: if `value` is neither a number nor an array.
    ValueError: if it is an array of several numbers, or NaN.
  """
  if not isinstance(value, (numbers.Real, np.generic, np.ndarray, jax.Array)):
    raise TypeError(f"{what} must be a number, got {value!r}.")
  if np.size(value) != 1:
    raise ValueError(
        f"{what} must be one number, got an array of shape {np.shape(value)}."
    )
  # Arrays may be on a device, or not known yet; they are not read.
  if isinstance(value, numbers.Real) and math.isnan(value):
    raise ValueError(f"{what} must be a number, got {value!r}.")


def _call(
    schedule: Callable[..., NumericParameter],
    step: jax.typing.ArrayLike | None,
) -> NumericParameter:
  """Calls a learning rate function with as many arguments as it takes."""
  positional = _positional_parameters(schedule)
  if not positional:
    return schedule()
  if len(positional) > 1:
    raise ValueError(
        f"The learning rate {schedule!r} must take at most one positional"
        f" parameter, the step; it takes {', '.join(positional)}. Bind the"
        " others with functools.partial and keywords."
    )
  if step is None:
    raise ValueError(
        f"The learning rate {schedule!r} is a function of the step, but no step"
        " was given. Pass step."
    )
  return schedule(step)


def _positional_parameters(schedule: Callable[..., Any]) -> list[str]:
  # Knows functions, methods, objects, functools.partial and jax.jit alike.
  try:
    parameters = inspect.signature(schedule).parameters.values()
  except (TypeError, ValueError) as error:
    raise ValueError(
        f"The learning rate {schedule!r} has no signature, so it is not known"
        " whether it takes the step. Wrap it: lambda step: rate(step)."
    ) from error
  return [
      p.name
      for p in parameters
      if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
  ]
