# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks of the fields of values that users make.

Each raises TypeError if the value is of a wrong kind, and ValueError if it is
one that cannot be. The message starts with `owner`, as "Table 'item'".
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import numbers
from typing import Any

# Called as check(owner, field, value).
Check = Callable[[str, str, Any], None]

_INT32_MAX = 2**31 - 1


def check_name(owner: str, field: str, name: Any) -> None:
  if not isinstance(name, str):
    raise TypeError(f"{owner}: {field} must be a str, got {name!r}.")
  if not name:
    raise ValueError(f"{owner}: {field} must not be empty.")
  try:
    name.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
        f"{owner}: {field} must be text that UTF-8 can hold, got {name!r}, with"
        f" {name[error.start]!r} at position {error.start}."
    ) from error


def check_integer(owner: str, field: str, value: Any) -> None:
  if not isinstance(value, numbers.Integral) or isinstance(value, bool):
    raise TypeError(f"{owner}: {field} must be an integer, got {value!r}.")


def check_positive(owner: str, field: str, value: Any) -> None:
  check_integer(owner, field, value)
  if value <= 0:
    raise ValueError(f"{owner}: {field} must be positive, got {value}.")


def check_count(owner: str, field: str, value: Any) -> None:
  """Of what is counted in int32 on the device."""
  check_positive(owner, field, value)
  if value > _INT32_MAX:
    raise ValueError(
        f"{owner}: {field} must be at most {_INT32_MAX}, got {value}."
    )


def check_callable(owner: str, field: str, value: Any) -> None:
  if not callable(value):
    raise TypeError(f"{owner}: {field} must be callable, got {value!r}.")


def instance_of(expected: type[Any]) -> Check:
  """The check that a value is an `expected`."""

  def check(owner, field, value):
    if not isinstance(value, expected):
      raise TypeError(
          f"{owner}: {field} must be of type {expected.__name__}, got"
          f" {value!r}."
      )

  return check


def one_of(choices: Sequence[str]) -> Check:
  """The check that a value is one of `choices`."""

  def check(owner, field, value):
    if value not in choices:
      raise ValueError(
          f"{owner}: {field} must be one of {', '.join(choices)}, got"
          f" {value!r}."
      )

  return check


def optional(check: Check) -> Check:
  """`check`, of values other than None."""

  def check_if_given(owner, field, value):
    if value is not None:
      check(owner, field, value)

  return check_if_given


def check_shape(
    owner: str, field: str, shape: Any, may_be_none: Callable[[int], bool]
) -> None:
  """Of sizes, of which some, by their axes, may be None."""
  if isinstance(shape, str) or not isinstance(shape, Sequence):
    raise TypeError(
        f"{owner}: {field} must be a tuple of integers, got {shape!r}."
    )
  for axis, size in enumerate(shape):
    if size is not None or not may_be_none(axis):
      check_positive(owner, f"every entry of {field}", size)
