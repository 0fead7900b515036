# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Optimizers as a table spec names them: hyperparameters and slots.

A spec says which numbers an update needs; the update itself is one row of
lib/core/update_rules.py. To add an optimizer: a NamedTuple of its slots, a
frozen dataclass below, and that row.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import importlib
import inspect
from typing import Any
from typing import ClassVar
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

NumericParameter = jax.typing.ArrayLike
LearningRate = NumericParameter | Callable[..., NumericParameter]
HyperParameterType = Callable[[Any], jax.Array] | float

_T = TypeVar("_T")
_Primitive = jax.extend.core.Primitive


class SGDSlotVariables(NamedTuple):
  """SGD keeps nothing."""


class AdagradSlotVariables(NamedTuple, Generic[_T]):
  accumulator: _T  # sum of squared gradients


class AdamSlotVariables(NamedTuple, Generic[_T]):
  momentum: _T  # moving average of gradients
  velocity: _T  # moving average of squared gradients


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerSpec(abc.ABC):
  """Base of all optimizers; users may add their own (dataclasses: frozen ones).

  Two specs are equal if they are of one class and all their parameters reach
  the device as the same float32 values. Equality is written by hand because a
  parameter may be an array, which neither compares to a bool nor hashes.
  """

  # A number, a scalar array, or a function of nothing or of the step.
  learning_rate: LearningRate

  # Constructor parameters that a proto carries, by kind.
  _float_params: ClassVar[tuple[str, ...]] = ()
  _bool_params: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def get_optimizer_primitive(self) -> _Primitive:
    """The primitive that updates a table with this optimizer."""

  @abc.abstractmethod
  def short_name(self) -> str:
    """A name for compiled programs: lower case, no spaces."""

  def slot_variables_initializers(self) -> tuple[Any, ...]:
    """One initializer, called as `init(key, shape)`, per slot variable."""
    return ()

  def slot_variables_count(self) -> int:
    return len(self.slot_variables_initializers())

  def get_learning_rate(
      self, step: jax.typing.ArrayLike | None = None
  ) -> jax.Array:
    """The learning rate at `step`, f32[].

    Raises:
      ValueError: if the learning rate is a function of the step and there is
        none, or a function of more than one positional parameter.
    """
    rate = self.learning_rate
    if callable(rate):
      rate = _call_schedule(rate, step)
    return jnp.asarray(rate, jnp.float32)

  def get_hyperparameters(
      self, step: jax.typing.ArrayLike | None = None
  ) -> tuple[jax.Array, ...]:
    """The scalar operands of the update at `step`, f32[] each.

    Raises:
      ValueError: see get_learning_rate.
    """
    return (self.get_learning_rate(step),)

  def get_float_params(self) -> dict[str, float]:
    return {name: float(getattr(self, name)) for name in self._float_params}

  def get_bool_params(self) -> dict[str, bool]:
    return {name: bool(getattr(self, name)) for name in self._bool_params}

  @classmethod
  def from_float_and_bool_params(
      cls,
      float_params: Mapping[str, float],
      bool_params: Mapping[str, bool],
      learning_rate: LearningRate,
  ) -> OptimizerSpec:
    """The spec with these parameters; others keep their defaults.

    Names that the optimizer does not have are ignored.
    """
    params = {
        name: given[name]
        for names, given in (
            (cls._float_params, float_params),
            (cls._bool_params, bool_params),
        )
        for name in names
        if name in given
    }
    return cls(learning_rate=learning_rate, **params)

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, OptimizerSpec):
      return NotImplemented
    return self._identity() == other._identity()

  def __hash__(self) -> int:
    return hash(self._identity())

  def _identity(self) -> tuple[Any, ...]:
    parameters = sorted(vars(self).items())
    return type(self), *((name, _on_device(v)) for name, v in parameters)


@dataclasses.dataclass(frozen=True, eq=False)
class SGDOptimizerSpec(OptimizerSpec):
  """Stochastic gradient descent."""

  learning_rate: LearningRate = 0.001

  def slot_variables_initializers(self) -> SGDSlotVariables:
    return SGDSlotVariables()

  def get_optimizer_primitive(self) -> _Primitive:
    return _gradient_primitive("sgd")

  def short_name(self) -> str:
    return "sgd"


@dataclasses.dataclass(frozen=True, eq=False)
class AdagradOptimizerSpec(OptimizerSpec):
  """Adagrad: steps shrink with the sum of squared gradients.

  Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online
  Learning and Stochastic Optimization" (2011), figure 1, without an epsilon.
  """

  learning_rate: LearningRate = 0.001
  initial_accumulator_value: NumericParameter = 0.1

  _float_params = ("initial_accumulator_value",)

  def slot_variables_initializers(self) -> AdagradSlotVariables:
    return AdagradSlotVariables(
        accumulator=jax.nn.initializers.constant(self.initial_accumulator_value)
    )

  def get_optimizer_primitive(self) -> _Primitive:
    return _gradient_primitive("adagrad")

  def short_name(self) -> str:
    return "adagrad"


@dataclasses.dataclass(frozen=True, eq=False)
class AdamOptimizerSpec(OptimizerSpec):
  """Adam, with the bias correction folded into two hyperparameters.

  Source: Kingma, Ba, "Adam: A Method for Stochastic Optimization" (2015), the
  more efficient order of computation at the end of section 2.
  """

  learning_rate: LearningRate = 0.001
  beta_1: NumericParameter = 0.9
  beta_2: NumericParameter = 0.999
  epsilon: NumericParameter = 1e-8

  _float_params = ("beta_1", "beta_2", "epsilon")

  def get_hyperparameters(
      self, step: jax.typing.ArrayLike | None = None
  ) -> tuple[jax.Array, ...]:
    """alpha_t, beta_1, beta_2, epsilon_hat; steps count from 0 (the default).

    alpha_t = learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) and
    epsilon_hat = epsilon * sqrt(1 - beta_2^t), where t = step + 1.
    """
    t = jnp.asarray(0 if step is None else step) + 1
    beta_1, beta_2, epsilon = (
        jnp.asarray(x, jnp.float32)
        for x in (self.beta_1, self.beta_2, self.epsilon)
    )
    correction = jnp.sqrt(1 - beta_2**t)
    alpha_t = self.get_learning_rate(step) * correction / (1 - beta_1**t)
    epsilon_hat = epsilon * correction
    return (
        alpha_t.astype(jnp.float32),
        beta_1,
        beta_2,
        epsilon_hat.astype(jnp.float32),
    )

  def slot_variables_initializers(self) -> AdamSlotVariables:
    zeros = jax.nn.initializers.zeros
    return AdamSlotVariables(momentum=zeros, velocity=zeros)

  def get_optimizer_primitive(self) -> _Primitive:
    return _gradient_primitive("adam")

  def short_name(self) -> str:
    return "adam"


class CallablePlaceholder:
  """Stands for a learning rate function that a proto could only name."""

  def __init__(self, tag: str):
    self.tag = tag

  def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
    raise RuntimeError(
        f"The learning rate {self.tag!r} was read from a proto, which holds the"
        " name of the function only. Replace it by the function."
    )

  def __eq__(self, other: object) -> bool:
    return type(other) is type(self) and other.tag == self.tag

  def __hash__(self) -> int:
    return hash(self.tag)

  def __repr__(self) -> str:
    return f"CallablePlaceholder({self.tag!r})"


def _call_schedule(
    schedule: Callable[..., NumericParameter],
    step: jax.typing.ArrayLike | None,
) -> NumericParameter:
  """Calls a learning rate function with as many arguments as it takes."""
  parameter = inspect.Parameter
  positional = [
      p.name
      for p in inspect.signature(schedule).parameters.values()
      if p.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
  ]
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


def _on_device(value: Any) -> Any:
  """A hashable stand-in for `value` that is equal if its float32 values are."""
  if isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)):
    array = np.asarray(value, np.float32)
    return array.shape, array.tobytes()
  return value


def _gradient_primitive(name: str) -> _Primitive:
  # Imported when used: describing a table needs no primitives.
  module = importlib.import_module(
      "jax_tpu_embedding.sparsecore.lib.core.primitives"
      f".sparse_dense_matmul_grad_with_{name}"
  )
  return getattr(module, f"tpu_sparse_dense_matmul_grad_with_{name}_primitive")
