# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Specs that can be pickled, whatever functions they have.

Pickle has no functions, but names of functions of modules. Schedules of optax,
most of jax.nn.initializers and lambdas are functions in functions, which have
none. Preprocessing calls none of them, so a spec that goes to a process that
preprocesses loses them, and says so where one is called.

Copies are made by the same protocol of Python, and keep what they have.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class LostFunction:
  """Stands for a function that could not be pickled.

  Equal where the functions were the same one, in one process.

  Attributes:
    owner: the spec that had it.
    field: its attribute there.
    function: its name and address, in the process that pickled it.
  """

  owner: str
  field: str
  function: str

  def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
    """Raises.

    Raises:
      RuntimeError: always.
    """
    raise RuntimeError(
        f"{self.owner}: {self.field} is {self.function}, which pickle cannot"
        " hold, so this copy, which came from another process, lacks it. It is"
        " enough to preprocess with. To initialize and train, use the spec in"
        " the process that made it, or pass a function of a module, or a"
        " functools.partial of one, in its place."
    )


class Pickled:
  """Base of specs, dataclasses without slots, that may have functions."""

  def __getstate__(self) -> dict[str, Any]:
    return {
        name: _pickled(self._pickled_as(), name, value)
        for name, value in vars(self).items()
    }

  def _pickled_as(self) -> str:
    """What errors call it."""
    return type(self).__name__

  def __copy__(self) -> Any:
    return self._with(vars(self))

  def __deepcopy__(self, memo: dict[int, Any]) -> Any:
    return self._with(copy.deepcopy(vars(self), memo))

  def _with(self, attributes: dict[str, Any]) -> Any:
    result = type(self).__new__(type(self))
    result.__dict__.update(attributes)
    return result


def _pickled(owner: str, field: str, value: Any) -> Any:
  """A value that can be pickled, where the functions in `value` cannot."""
  if isinstance(value, tuple):
    values = [_pickled(owner, f"{field}[{i}]", v) for i, v in enumerate(value)]
    # Of a NamedTuple, one of its type.
    return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
  if not callable(value):
    return value
  try:
    pickle.dumps(value)
    return value
  # What pickle raises for what it cannot hold, by its kind.
  except (pickle.PicklingError, AttributeError, TypeError):
    name = getattr(value, "__qualname__", type(value).__qualname__)
    module = getattr(value, "__module__", type(value).__module__)
    lost = LostFunction(owner, field, f"{module}.{name} at {id(value):#x}")
    return _by_cloudpickle(value, lost)


class _ByCloudpickle:
  """Is unpickled as the function, or as `lost` where there is no cloudpickle."""

  def __init__(self, data: bytes, lost: LostFunction):
    self._args = data, lost

  def __reduce__(self) -> Any:
    return _load, self._args


def _load(data: bytes, lost: LostFunction) -> Any:
  try:
    return pickle.loads(data)
  except ImportError:
    return lost


def _by_cloudpickle(function: Any, lost: LostFunction) -> Any:
  """The function by cloudpickle, if the program uses it; or `lost`.

  Pickle does not tell an object who pickles it: if it is cloudpickle, nothing
  must be lost.
  """
  cloudpickle = sys.modules.get("cloudpickle")
  if cloudpickle is None:
    return lost
  try:
    return _ByCloudpickle(cloudpickle.dumps(function), lost)
  except (pickle.PicklingError, AttributeError, TypeError):
    return lost
