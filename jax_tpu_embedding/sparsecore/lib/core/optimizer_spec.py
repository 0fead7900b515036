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
from jax_tpu_embedding.sparsecore.lib.core import pickles
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import schedules
import numpy as np

HyperParameterType = Callable[[Any], jax.Array] | float

Primitive = jax.extend.core.Primitive


# Lines of "Attributes:" for the fields that every optimizer has.
ATTRIBUTES_OF_ALL = """\
  learning_rate: a number, a scalar array, or a function of nothing or of the
    step, such as a schedule of optax.
  skip_non_finite_gradients: whether a row, slots too, stays as it is in an
    update in which its gradient has an infinity or NaN. This and what follows
    concerns only rows that are in the batch, in this order, once the gradient
    of a row is summed.
  max_gradient_norm: a longer gradient of a row is scaled to this length. None
    is off, as for the two that follow.
  l2_weight_decay: times the row is added to its gradient, before the
    optimizer.
  decoupled_weight_decay: times learning rate times the row is taken from it,
    beside the optimizer.
"""


def _row_option(default: Any = None) -> Any:
  return dataclasses.field(default=default, kw_only=True)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OptimizerSpec(pickles.Pickled, abc.ABC):
  """Base of all optimizers; users may add their own (dataclasses: frozen ones).

  Two specs are equal if they are of one class and all their parameters reach
  the device as the same values. Equality is written by hand because a parameter
  may be an array, which neither compares to a bool nor hashes.

  Attributes:
    learning_rate: a number, a scalar array, or a function of nothing or of the
      step.
    skip_non_finite_gradients: whether a row, slots too, stays as it is in an
      update in which its gradient has an infinity or NaN.
    max_gradient_norm: a longer gradient of a row is scaled to this length.
    l2_weight_decay: times the row is added to its gradient.
    decoupled_weight_decay: times learning rate times the row is taken from it.

  Raises:
    TypeError: if the learning rate is neither a number, an array nor callable,
      or a row option neither a number nor an array (the first one: no bool).
    ValueError: if one of them is an array of several numbers, or NaN, or a row
      option is infinite or not positive; decays may be 0.
  """

  learning_rate: schedules.LearningRate

  # Row options: lib/core/row_options.py.
  skip_non_finite_gradients: bool = _row_option(False)
  max_gradient_norm: schedules.NumericParameter | None = _row_option()
  l2_weight_decay: schedules.NumericParameter | None = _row_option()
  decoupled_weight_decay: schedules.NumericParameter | None = _row_option()

  # Constructor parameters that a proto carries, by kind.
  _float_params: ClassVar[tuple[str, ...]] = ()
  _bool_params: ClassVar[tuple[str, ...]] = ()

  def __post_init__(self):
    if not callable(self.learning_rate):
      schedules.check_scalar(
          f"{type(self).__name__}: learning_rate", self.learning_rate
      )
    for name in row_options.FLAGS:
      value = getattr(self, name)
      if not isinstance(value, (bool, np.bool_)):
        raise TypeError(
            f"{type(self).__name__}: {name} must be True or False, got"
            f" {value!r}."
        )
    for name, value in self._given_row_options().items():
      if name not in row_options.FLAGS:
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
    return schedules.depends_on_step(self.learning_rate)

  @property
  def keeps_rows_without_gradient(self) -> bool:
    """Whether a step with gradient zero leaves a row and its slots as they are."""
    return False

  @property
  def depends_on_embedding_dim(self) -> bool:
    """Whether an update has to know how wide tables are without padding.

    Then only tables of one embedding_dim share a stack, and the primitive has
    the static parameter `embedding_dim`.
    """
    return False

  @property
  def may_read_whole_rows(self) -> bool:
    """Whether a new value may depend on other columns, so also on padding."""
    return self.depends_on_embedding_dim

  def get_learning_rate(
      self, step: jax.typing.ArrayLike | None = None
  ) -> jax.Array:
    """The learning rate at `step`, f32[].

    Raises:
      ValueError: if the learning rate is a function of the step and there is
        none, a function of more than one positional parameter, or if it does
        not return one number.
    """
    return schedules.resolve(self.learning_rate, step)

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
  ) -> dict[str, jax.Array | None]:
    """The row options that are on and their operands at `step`, f32[], in order.

    skip_non_finite_gradients has no operand, but None.

    Raises:
      ValueError: see get_learning_rate.
    """
    numbers_of = {
        name: None if name in row_options.FLAGS else schedules.as_scalar(value)
        for name, value in self._given_row_options().items()
    }
    if "decoupled_weight_decay" in numbers_of:
      numbers_of["decoupled_weight_decay"] *= self.get_learning_rate(step)
    return numbers_of

  def get_static_params(self) -> dict[str, Any]:
    """Parameters of the primitive beside those that every update has.

    Without `embedding_dim`, which a table knows: see depends_on_embedding_dim.
    """
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
    given = self._given_row_options()
    params |= {name: given[name] for name in row_options.with_numbers(given)}
    return {name: float(value) for name, value in params.items()}

  def get_bool_params(self) -> dict[str, bool]:
    params = {name: bool(getattr(self, name)) for name in self._bool_params}
    given = self._given_row_options()
    return params | {name: True for name in row_options.FLAGS if name in given}

  @classmethod
  def from_float_and_bool_params(
      cls,
      float_params: Mapping[str, float],
      bool_params: Mapping[str, bool],
      learning_rate: schedules.LearningRate,
  ) -> OptimizerSpec:
    """The spec with these parameters; others keep their defaults.

    Names that the optimizer does not have are ignored.
    """
    params = {
        name: given[name]
        for names, given in (
            (cls._float_params, float_params),
            (row_options.with_numbers(row_options.ROW_OPTIONS), float_params),
            ((*cls._bool_params, *row_options.FLAGS), bool_params),
        )
        for name in names
        if name in given
    }
    return cls(learning_rate=learning_rate, **params)

  def _given_row_options(self) -> dict[str, schedules.NumericParameter]:
    """Those that are on, in the order of row_options.ROW_OPTIONS."""
    values = {name: getattr(self, name) for name in row_options.ROW_OPTIONS}
    return {
        name: value
        for name, value in values.items()
        if (value if name in row_options.FLAGS else value is not None)
    }

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
  schedules.check_scalar(what, value)
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
