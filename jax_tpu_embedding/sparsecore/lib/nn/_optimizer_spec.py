# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What every optimizer spec can say, and when two are equal."""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import importlib
import math
import numbers
from typing import Any
from typing import ClassVar

import jax
import jax.extend
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.nn import _learning_rate
import numpy as np

HyperParameterType = Callable[[Any], jax.Array] | float

Primitive = jax.extend.core.Primitive


def _row_option() -> Any:
  return dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OptimizerSpec(abc.ABC):
  """Base of all optimizers; users may add their own (dataclasses: frozen ones).

  Two specs are equal if they are of one class and all their parameters reach
  the device as the same values. Equality is written by hand because a parameter
  may be an array, which neither compares to a bool nor hashes.

  Raises:
    TypeError: if the learning rate is neither a number, an array nor callable,
      or a row option neither a number nor an array.
    ValueError: if one of them is an array of several numbers, or NaN, or a row
      option is infinite or not positive; decays may be 0.
  """

  # A number, a scalar array, or a function of nothing or of the step.
  learning_rate: _learning_rate.LearningRate

  # Row options, of every optimizer; None is off. They change only rows that are
  # in the batch, and are applied in this order, once a row's gradient is summed
  # (lib/core/row_options.py).
  # A longer gradient of a row is scaled to this length.
  max_gradient_norm: _learning_rate.NumericParameter | None = _row_option()
  # Times the row is added to its gradient, before the optimizer.
  l2_weight_decay: _learning_rate.NumericParameter | None = _row_option()
  # Times learning rate times the row is taken from it, beside the optimizer.
  decoupled_weight_decay: _learning_rate.NumericParameter | None = _row_option()

  # Constructor parameters that a proto carries, by kind.
  _float_params: ClassVar[tuple[str, ...]] = ()
  _bool_params: ClassVar[tuple[str, ...]] = ()

  def __post_init__(self):
    if not callable(self.learning_rate):
      _learning_rate.check_scalar(
          f"{type(self).__name__}: learning_rate", self.learning_rate
      )
    for name, value in self._given_row_options().items():
      _check_row_option(f"{type(self).__name__}: {name}", name, value)

  @abc.abstractmethod
  def get_optimizer_primitive(self) -> Primitive:
    """The primitive that updates a table with this optimizer."""

  @abc.abstractmethod
  def short_name(self) -> str:
    """A name for compiled programs: lower case, no spaces."""

  def slot_variables_initializers(self) -> tuple[Any, ...]:
    """One initializer, called as `init(key, shape)`, per slot variable."""
    return ()

  def slot_variables_count(self) -> int:
    return len(self.slot_variables_initializers())

  def slot_variables_of_rows(self) -> tuple[bool, ...]:
    """For each slot variable, whether a row has one number of it: [rows, 1]."""
    return (False,) * self.slot_variables_count()

  @property
  def depends_on_step(self) -> bool:
    """Whether an update is another one at another step."""
    return _learning_rate.depends_on_step(self.learning_rate)

  def get_learning_rate(
      self, step: jax.typing.ArrayLike | None = None
  ) -> jax.Array:
    """The learning rate at `step`, f32[].

    Raises:
      ValueError: if the learning rate is a function of the step and there is
        none, a function of more than one positional parameter, or if it does
        not return one number.
    """
    return _learning_rate.resolve(self.learning_rate, step)

  def get_hyperparameters(
      self, step: jax.typing.ArrayLike | None = None
  ) -> tuple[jax.Array, ...]:
    """The scalar operands of the update at `step`: f32[], flags bool[].

    Raises:
      ValueError: see get_learning_rate.
    """
    return (self.get_learning_rate(step),)

  def get_row_options(
      self, step: jax.typing.ArrayLike | None = None
  ) -> dict[str, jax.Array]:
    """The row options that are on and their operands at `step`, f32[], in order.

    Raises:
      ValueError: see get_learning_rate.
    """
    numbers_of = {
        name: jnp.reshape(jnp.asarray(value, jnp.float32), ())
        for name, value in self._given_row_options().items()
    }
    if "decoupled_weight_decay" in numbers_of:
      numbers_of["decoupled_weight_decay"] *= self.get_learning_rate(step)
    return numbers_of

  def get_static_params(self) -> dict[str, Any]:
    """Parameters of the primitive beside those that every update has."""
    return {}

  def order_operands(
      self,
      *,
      coo: tuple[Any, ...],
      table: Any,
      slots: tuple[Any, ...],
      gradient: Any,
      hyperparameters: tuple[Any, ...],
  ) -> tuple[Any, ...]:
    """The operands in the order in which the primitive takes them."""
    return (*coo, table, *slots, gradient, *hyperparameters)

  def get_float_params(self) -> dict[str, float]:
    params = {name: getattr(self, name) for name in self._float_params}
    params |= self._given_row_options()
    return {name: float(value) for name, value in params.items()}

  def get_bool_params(self) -> dict[str, bool]:
    return {name: bool(getattr(self, name)) for name in self._bool_params}

  @classmethod
  def from_float_and_bool_params(
      cls,
      float_params: Mapping[str, float],
      bool_params: Mapping[str, bool],
      learning_rate: _learning_rate.LearningRate,
  ) -> OptimizerSpec:
    """The spec with these parameters; others keep their defaults.

    Names that the optimizer does not have are ignored.
    """
    params = {
        name: given[name]
        for names, given in (
            ((*cls._float_params, *row_options.ROW_OPTIONS), float_params),
            (cls._bool_params, bool_params),
        )
        for name in names
        if name in given
    }
    return cls(learning_rate=learning_rate, **params)

  def _given_row_options(self) -> dict[str, _learning_rate.NumericParameter]:
    """Those that are on, in the order of row_options.ROW_OPTIONS."""
    values = {name: getattr(self, name) for name in row_options.ROW_OPTIONS}
    return {name: v for name, v in values.items() if v is not None}

  def __repr__(self) -> str:
    """As that of a dataclass, with row options last, and only if they are on."""
    names = [field.name for field in dataclasses.fields(self) if field.repr]
    shown = [name for name in names if name not in row_options.ROW_OPTIONS]
    shown += self._given_row_options()
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, OptimizerSpec):
      return NotImplemented
    return self._identity() == other._identity()

  def __hash__(self) -> int:
    return hash(self._identity())

  def _identity(self) -> tuple[Any, ...]:
    """Class and parameters, comparable and hashable."""
    return (
        type(self),
        *(
            (name, bool(v) if name in self._bool_params else _on_device(v))
            for name, v in sorted(vars(self).items())
        ),
    )


def _check_row_option(what: str, name: str, value: Any) -> None:
  """Raises TypeError or ValueError unless it is a number that makes sense."""
  _learning_rate.check_scalar(what, value)
  if not isinstance(value, numbers.Real):
    return  # It may be on a device, or not known yet.
  is_norm = name == "max_gradient_norm"
  if not (value > 0 if is_norm else value >= 0) or math.isinf(value):
    raise ValueError(
        f"{what} must be finite and {'positive' if is_norm else 'at least 0'},"
        f" got {value}. Leave it out to have none."
    )


def primitive_of(module: str) -> Primitive:
  """The primitive of a module of lib/core/primitives.

  Imported when used: describing a table needs no primitives.
  """
  path = f"jax_tpu_embedding.sparsecore.lib.core.primitives.{module}"
  return getattr(importlib.import_module(path), f"tpu_{module}_primitive")


def _on_device(value: Any) -> Any:
  """A hashable stand-in for `value` that is equal if its float32 values are."""
  if isinstance(value, jax.core.Tracer):
    return "traced", id(value)  # Its value is not known yet.
  if isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)):
    with np.errstate(over="ignore"):  # Beyond float32 is infinite.
      array = np.asarray(value, np.float32)
    # One number is one number, whatever its shape.
    return array.shape if array.size != 1 else (), array.tobytes()
  return value
