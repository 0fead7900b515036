# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Names for functions, for messages that cannot hold the functions themselves.

A function says its name by an attribute `tag`. Else its module and name are
its tag, and what it captured, so that two schedules from one factory have two
tags, which are the same in every process:

    optax._src.schedule.polynomial_schedule.<locals>.schedule(end_value=0.0, ...

A lambda at the top of a module, a functools.partial or an object has none of
this; its tag is its type and id, which another process does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import hashlib
import inspect
import itertools
from typing import Any

import jax
import numpy as np

# Of a description of captured values; a longer one ends in a hash.
_MAX_LENGTH = 160
# Schedules may be made of schedules; a function may capture itself.
_MAX_DEPTH = 4


class CallableTags:
  """Tags of the functions in one message: equal only for equal functions."""

  def __init__(self):
    self._functions: dict[str, Callable[..., Any]] = {}

  @property
  def functions(self) -> Mapping[str, Callable[..., Any]]:
    """The functions that have a tag, by tag."""
    return self._functions

  def tag(self, function: Callable[..., Any]) -> str:
    """The function's tag; the second one that would get it has "#2" added."""
    base = tag_of(function)
    for number in itertools.count(1):
      tag = base if number == 1 else f"{base}#{number}"
      known = self._functions.setdefault(tag, function)
      if known is function or (known == function) is True:
        return tag


def tag_of(function: Callable[..., Any], depth: int = 0) -> str:
  """A readable name; two functions may share one."""
  tag = getattr(function, "tag", None)
  if tag:
    return str(tag)
  name = getattr(function, "__qualname__", None) or getattr(
      function, "__name__", None
  )
  if name is None or name == "<lambda>":
    return f"{type(function).__name__}_{id(function)}"
  module = getattr(function, "__module__", None)
  full_name = f"{module}.{name}" if module else name
  if inspect.isclass(function) or depth == _MAX_DEPTH:
    return full_name
  return full_name + _details(inspect.unwrap(function), depth)


def _details(function: Callable[..., Any], depth: int) -> str:
  """What tells the function from others of its name; often nothing."""
  code = getattr(function, "__code__", None)
  if code is None:
    return ""
  line = f":{code.co_firstlineno}" if code.co_name == "<lambda>" else ""
  values = dict(getattr(function, "__kwdefaults__", None) or {})
  for name, cell in zip(code.co_freevars, function.__closure__ or ()):
    try:
      values[name] = cell.cell_contents
    except ValueError:
      continue  # Not assigned yet.
  if not values:
    return line
  text = ", ".join(
      f"{name}={_describe(value, depth + 1)}"
      for name, value in sorted(values.items())
  )
  if len(text) > _MAX_LENGTH:
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    text = f"{text[:_MAX_LENGTH]}...{digest}"
  return f"{line}({text})"


def _describe(value: Any, depth: int) -> str:
  """A value by its contents, or by its type if those have no short text."""
  if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
    return repr(value)
  if isinstance(value, jax.core.Tracer):
    return type(value).__name__
  if isinstance(value, (np.generic, np.ndarray, jax.Array)):
    return repr(np.asarray(value).tolist())
  if isinstance(value, np.dtype):
    return value.name
  if depth < _MAX_DEPTH:
    if isinstance(value, (tuple, list)):
      return f"[{', '.join(_describe(v, depth + 1) for v in value)}]"
    if isinstance(value, dict):
      items = (f"{k!r}: {_describe(v, depth + 1)}" for k, v in value.items())
      return f"{{{', '.join(items)}}}"
    if hasattr(value, "__qualname__") and value.__qualname__ != "<lambda>":
      return tag_of(value, depth)
  return type(value).__name__
