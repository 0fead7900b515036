# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The optimizers that a table spec can name: hyperparameters and slots.

A spec says which numbers an update needs; the update itself is one row of
lib/core/update_rules.py. To add an optimizer: a NamedTuple of its slots in
_slot_variables.py, a frozen dataclass below, and that row; see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import inspect
import numbers
from typing import Any
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import optimizer_spec
from jax_tpu_embedding.sparsecore.lib.core import schedules
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.nn.specs import _slot_variables
import numpy as np

_Number = schedules.NumericParameter
_Rate = schedules.LearningRate
_Hyperparameters = tuple[jax.Array, ...]
_Step = jax.typing.ArrayLike | None

_constant = _slot_variables.Constant

# What a parameter must be, where other values can only give nonsense (NaN, or
# bounds in the wrong order).
_Range = tuple[str, Callable[[float], bool]]
_BELOW_1: _Range = ("in [0, 1)", lambda x: 0 <= x < 1)
_UP_TO_1: _Range = ("in [0, 1]", lambda x: 0 <= x <= 1)
_NOT_NEGATIVE: _Range = ("at least 0", lambda x: x >= 0)
_NOT_ZERO: _Range = ("other than 0", lambda x: x != 0)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _BuiltInSpec(optimizer_spec.OptimizerSpec):
  """A spec of one of the rows of lib/core/update_rules.py."""

  _rule: ClassVar[str]  # its name there
  _ranges: ClassVar[Mapping[str, _Range]] = {}
  # Whether the rule itself does, whatever the learning rate.
  _depends_on_step: ClassVar[bool] = False
  # Whether the rule itself does, without weight decay.
  _keeps_rows_without_gradient: ClassVar[bool] = False

  def __init_subclass__(cls, **kwargs: Any):
    super().__init_subclass__(**kwargs)
    # What all have is part of the text of each, where help() shows it.
    own = inspect.cleandoc(cls.__doc__ or "")
    if "\nAttributes:" in own:
      cls.__doc__ = f"{own}\n{optimizer_spec.ATTRIBUTES_OF_ALL}"

  def __post_init__(self):
    super().__post_init__()
    for name in self._float_params:
      value, what = getattr(self, name), f"{type(self).__name__}: {name}"
      schedules.check_scalar(what, value)
      if name in self._ranges and isinstance(value, numbers.Real):
        text, is_in_range = self._ranges[name]
        if not is_in_range(value):
          raise ValueError(f"{what} must be {text}, got {value}.")

  def get_optimizer_primitive(self) -> optimizer_spec.Primitive:
    return optimizer_spec.primitive_of(
        f"sparse_dense_matmul_grad_with_{self._rule}"
    )

  def short_name(self) -> str:
    return self._rule

  @property
  def depends_on_step(self) -> bool:
    return self._depends_on_step or super().depends_on_step

  @property
  def keeps_rows_without_gradient(self) -> bool:
    return (
        self._keeps_rows_without_gradient
        and self.l2_weight_decay is None
        and self.decoupled_weight_decay is None
    )

  @property
  def depends_on_embedding_dim(self) -> bool:
    rule = update_rules.UPDATE_RULES[self._rule]
    return "embedding_dim" in rule.static_params

  def slot_variables_of_rows(self) -> tuple[bool, ...]:
    row_slots = update_rules.UPDATE_RULES[self._rule].row_slots
    slots = self.slot_variables_initializers()
    # A subclass may have slots without names.
    names = getattr(slots, "_fields", ("",) * len(slots))
    return tuple(name in row_slots for name in names)

  def _float32(self, *names: str) -> _Hyperparameters:
    return tuple(schedules.as_scalar(getattr(self, name)) for name in names)


def _power(base: jax.Array, step: jax.Array) -> jax.Array:
  """base ** step, also where jax_numpy_dtype_promotion is "strict".

  Not of a step as float32: powers of whole numbers that are known have other
  last bits.
  """
  is_known = not any(isinstance(x, jax.core.Tracer) for x in (base, step))
  if is_known and jnp.issubdtype(step.dtype, jnp.integer) and step >= 0:
    # JAX would compile a program for each step, and keep it.
    return jnp.asarray(_power_of_numbers(np.float32(base), int(step)))
  with jax.numpy_dtype_promotion("standard"):
    return base**step


def _power_of_numbers(base: np.float32, exponent: int) -> np.float32:
  """With the bits of jax.lax.integer_pow."""
  result = np.float32(1)
  while exponent:
    if exponent % 2:
      result *= base
    exponent //= 2
    base *= base
  return result


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SGDOptimizerSpec(_BuiltInSpec):
  """Stochastic gradient descent.

  Attributes:
  """

  learning_rate: _Rate = 0.001

  _rule = "sgd"
  _keeps_rows_without_gradient = True

  def slot_variables_initializers(self) -> _slot_variables.SGDSlotVariables:
    return _slot_variables.SGDSlotVariables()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AdagradOptimizerSpec(_BuiltInSpec):
  """Adagrad: steps shrink with the sum of squared gradients.

  Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online
  Learning and Stochastic Optimization" (2011), figure 1, without an epsilon.

  Attributes:
    initial_accumulator_value: of the sum of squared gradients; steps divide by
      its root.
  """

  learning_rate: _Rate = 0.001
  initial_accumulator_value: _Number = 0.1

  _rule = "adagrad"
  _keeps_rows_without_gradient = True
  _float_params = ("initial_accumulator_value",)
  _ranges = {"initial_accumulator_value": _NOT_NEGATIVE}

  def slot_variables_initializers(self) -> _slot_variables.AdagradSlotVariables:
    return _slot_variables.AdagradSlotVariables(
        accumulator=_constant(self.initial_accumulator_value)
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AdamOptimizerSpec(_BuiltInSpec):
  """Adam, with the bias correction folded into two hyperparameters.

  Source: Kingma, Ba, "Adam: A Method for Stochastic Optimization" (2015), the
  more efficient order of computation at the end of section 2.

  Attributes:
    beta_1: how much of the mean of gradients a step keeps.
    beta_2: how much of the mean of squared gradients a step keeps.
    epsilon: added to the root of the latter, which steps divide by.
  """

  learning_rate: _Rate = 0.001
  beta_1: _Number = 0.9
  beta_2: _Number = 0.999
  epsilon: _Number = 1e-8

  _rule = "adam"
  _depends_on_step = True
  _float_params = ("beta_1", "beta_2", "epsilon")
  _ranges = {"beta_1": _BELOW_1, "beta_2": _BELOW_1, "epsilon": _NOT_NEGATIVE}

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """alpha_t, beta_1, beta_2, epsilon_hat; steps count from 0 (the default).

    alpha_t = learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) and
    epsilon_hat = epsilon * sqrt(1 - beta_2^t), where t = step + 1.
    """
    t = jnp.asarray(0 if step is None else step) + 1
    beta_1, beta_2, epsilon = self._float32("beta_1", "beta_2", "epsilon")
    correction = jnp.sqrt(1 - _power(beta_2, t))
    rate = self.get_learning_rate(step)
    alpha_t = rate * correction / (1 - _power(beta_1, t))
    epsilon_hat = epsilon * correction
    return (
        alpha_t.astype(jnp.float32),
        beta_1,
        beta_2,
        epsilon_hat.astype(jnp.float32),
    )

  def slot_variables_initializers(self) -> _slot_variables.AdamSlotVariables:
    zeros = _constant(0.0)
    return _slot_variables.AdamSlotVariables(momentum=zeros, velocity=zeros)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AdagradMomentumOptimizerSpec(_BuiltInSpec):
  """Adagrad whose scaled gradients are averaged, if wanted with a look ahead.

  The accumulator is a sum if `beta2` is 1, else a moving average; the gradient
  is scaled by (accumulator + epsilon)^(-1 / exponent).

  Source: Duchi, Hazan, Singer (2011), as above; Sutskever, Martens, Dahl,
  Hinton, "On the importance of initialization and momentum in deep learning"
  (2013), equations 1 to 4.

  Attributes:
    momentum: how much of the mean of scaled gradients a step keeps.
    beta2: how much of the accumulator a step keeps; 1 makes it a sum.
    epsilon: added to the accumulator.
    exponent: its root that gradients are divided by; 2 is the square root.
    use_nesterov: whether to look ahead.
    initial_accumulator_value: of the accumulator of squared gradients.
    initial_momentum_value: of the mean of scaled gradients.
  """

  learning_rate: _Rate = 0.001
  momentum: _Number = 0.9
  beta2: _Number = 1.0
  epsilon: _Number = 1e-10
  exponent: _Number = 2.0
  use_nesterov: bool = False
  initial_accumulator_value: _Number = 0.1
  initial_momentum_value: _Number = 0.0

  _rule = "adagrad_momentum"
  _float_params = (
      "momentum",
      "beta2",
      "epsilon",
      "exponent",
      "initial_accumulator_value",
      "initial_momentum_value",
  )
  _bool_params = ("use_nesterov",)
  _ranges = {
      "epsilon": _NOT_NEGATIVE,
      "exponent": _NOT_ZERO,
      "initial_accumulator_value": _NOT_NEGATIVE,
  }

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """learning_rate, momentum, beta2, epsilon, exponent, use_nesterov."""
    return (
        self.get_learning_rate(step),
        *self._float32("momentum", "beta2", "epsilon", "exponent"),
        jnp.asarray(self.use_nesterov, bool),
    )

  def slot_variables_initializers(
      self,
  ) -> _slot_variables.AdagradMomentumSlotVariables:
    return _slot_variables.AdagradMomentumSlotVariables(
        accumulator=_constant(self.initial_accumulator_value),
        momentum=_constant(self.initial_momentum_value),
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FTRLOptimizerSpec(_BuiltInSpec):
  """Follow the regularized leader: many weights become exactly 0.

  Source: McMahan and others, "Ad Click Prediction: a View from the Trenches"
  (2013), algorithm 1, with a free power in place of the square root.

  Attributes:
    learning_rate_power: of the accumulator; -0.5 divides by its root.
    l1_regularization_strength: makes small weights 0.
    l2_regularization_strength: makes weights smaller.
    beta: added to the root of the accumulator.
    initial_accumulator_value: of the sum of squared gradients.
    initial_linear_value: of `linear`, the sum of gradients less what earlier
      rows account for.
    multiply_linear_by_learning_rate: scales `linear` by the learning rate, so
      that the rate may be 0.
  """

  learning_rate: _Rate = 0.01
  learning_rate_power: _Number = -0.5
  l1_regularization_strength: _Number = 0.0
  l2_regularization_strength: _Number = 0.0
  beta: _Number = 0.0
  initial_accumulator_value: _Number = 0.1
  initial_linear_value: _Number = 0.0
  multiply_linear_by_learning_rate: bool = False

  _rule = "ftrl"
  _float_params = (
      "learning_rate_power",
      "l1_regularization_strength",
      "l2_regularization_strength",
      "beta",
      "initial_accumulator_value",
      "initial_linear_value",
  )
  _bool_params = ("multiply_linear_by_learning_rate",)
  _ranges = {
      "l1_regularization_strength": _NOT_NEGATIVE,
      "l2_regularization_strength": _NOT_NEGATIVE,
      "initial_accumulator_value": _NOT_NEGATIVE,
  }

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """learning_rate, learning_rate_power, l1, l2, beta."""
    return (
        self.get_learning_rate(step),
        *self._float32(
            "learning_rate_power",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "beta",
        ),
    )

  def get_static_params(self) -> dict[str, Any]:
    return dict(
        multiply_linear_by_learning_rate=bool(
            self.multiply_linear_by_learning_rate
        )
    )

  def slot_variables_initializers(self) -> _slot_variables.FTRLSlotVariables:
    return _slot_variables.FTRLSlotVariables(
        accumulator=_constant(self.initial_accumulator_value),
        linear=_constant(self.initial_linear_value),
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LaPropOptimizerSpec(_BuiltInSpec):
  """LaProp: gradients are scaled before they are averaged.

  Raises:
    ValueError: if `rms_clip_threshold` is given, which is not supported.

  Source: Ziyin, Wang, Ueda, "LaProp: Separating Momentum and Adaptivity in
  Adam" (2020), algorithm 1.

  Attributes:
    b1: how much of the mean of scaled gradients a step keeps.
    b2: how much of the mean of squared gradients a step keeps, at most.
    eps: added to the latter before gradients are divided by its root.
    rms_clip_threshold: not supported; leave it out.
    initial_slot_value: of both means.
  """

  learning_rate: _Rate = 0.001
  b1: _Number = 0.9
  b2: _Number = 0.95
  eps: _Number = 1e-30
  rms_clip_threshold: dataclasses.InitVar[float | None] = None
  initial_slot_value: _Number = 0.0

  _rule = "laprop"
  _depends_on_step = True
  _float_params = ("b1", "b2", "eps", "initial_slot_value")
  _ranges = {"b1": _UP_TO_1, "b2": _BELOW_1, "eps": _NOT_NEGATIVE}

  def __post_init__(self, rms_clip_threshold):
    super().__post_init__()
    if rms_clip_threshold is not None:
      raise ValueError(
          "LaPropOptimizerSpec: rms_clip_threshold is not supported, got"
          f" {rms_clip_threshold}. Leave it out."
      )

  def get_decay_rate(self, step: _Step = None) -> jax.Array:
    """How much of `nu` a step keeps, f32[]: 0 at step 0, later up to b2.

    So `nu` is a weighted mean of the squared gradients at every step. Without a
    step: b2.
    """
    (b2,) = self._float32("b2")
    if step is None:
      return b2
    step = jnp.asarray(step)
    rate = b2 * (1 - _power(b2, step)) / (1 - _power(b2, step + 1))
    return rate.astype(jnp.float32)

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """learning_rate, b1, decay_rate, eps."""
    b1, eps = self._float32("b1", "eps")
    rate = self.get_learning_rate(step)
    return rate, b1, self.get_decay_rate(step), eps

  def slot_variables_initializers(self) -> _slot_variables.LaPropSlotVariables:
    initial = _constant(self.initial_slot_value)
    return _slot_variables.LaPropSlotVariables(mu=initial, nu=initial)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class F2AOptimizerSpec(_BuiltInSpec):
  """Frequency-aware Adagrad: larger steps for rows that occur rarely.

  The step of a row that was in n of t batches grows by (t / n)^rho, up to
  `max_lr_multiplier`.

  Attributes:
    rho: how much rare rows gain; 0 is nothing.
    initial_accumulator_value: of the sum of squared gradients.
    initial_local_step_value: of the number of batches that a row was in.
    l1_regularization_strength: makes small weights 0.
    l2_regularization_strength: makes weights smaller.
    max_lr_multiplier: the most that the step of a row grows by.
  """

  learning_rate: _Rate = 0.01
  rho: _Number = 0.5
  initial_accumulator_value: _Number = 0.1
  initial_local_step_value: _Number = 0.0
  l1_regularization_strength: _Number = 0.0
  l2_regularization_strength: _Number = 0.0
  max_lr_multiplier: _Number = 1e6

  _rule = "f2a"
  _depends_on_step = True
  _float_params = (
      "rho",
      "initial_accumulator_value",
      "initial_local_step_value",
      "l1_regularization_strength",
      "l2_regularization_strength",
      "max_lr_multiplier",
  )
  _ranges = {
      "initial_accumulator_value": _NOT_NEGATIVE,
      "initial_local_step_value": _NOT_NEGATIVE,
      "l1_regularization_strength": _NOT_NEGATIVE,
      "l2_regularization_strength": _NOT_NEGATIVE,
  }

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """learning_rate, rho, l1, l2, max_lr_multiplier, step (default 0)."""
    return (
        self.get_learning_rate(step),
        *self._float32(
            "rho",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "max_lr_multiplier",
        ),
        jnp.asarray(0 if step is None else step, jnp.float32),
    )

  def slot_variables_initializers(self) -> _slot_variables.F2ASlotVariables:
    return _slot_variables.F2ASlotVariables(
        accumulator=_constant(self.initial_accumulator_value),
        local_step=_constant(self.initial_local_step_value),
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RowwiseAdagradOptimizerSpec(_BuiltInSpec):
  """Adagrad with one accumulator per row: the mean of its squared gradients.

  Takes as little memory as SGD. The mean is over the columns of the table, so
  that a row takes the same steps in any stack: tables of different
  embedding_dim do not share one.

  Source: Gupta, Bengio, Weston, "Training Highly Multiclass Classifiers" (2014).

  Attributes:
    initial_accumulator_value: of the sum of mean squared gradients.
    epsilon: added to its root, which steps divide by.
  """

  learning_rate: _Rate = 0.001
  initial_accumulator_value: _Number = 0.1
  epsilon: _Number = 1e-8

  _rule = "rowwise_adagrad"
  _keeps_rows_without_gradient = True
  _float_params = ("initial_accumulator_value", "epsilon")
  _ranges = {
      "initial_accumulator_value": _NOT_NEGATIVE,
      "epsilon": _NOT_NEGATIVE,
  }

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """learning_rate, epsilon."""
    return self.get_learning_rate(step), *self._float32("epsilon")

  def slot_variables_initializers(
      self,
  ) -> _slot_variables.RowwiseAdagradSlotVariables:
    return _slot_variables.RowwiseAdagradSlotVariables(
        accumulator=_constant(self.initial_accumulator_value)
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MomentumOptimizerSpec(_BuiltInSpec):
  """Stochastic gradient descent with momentum, if wanted with a look ahead.

  Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization
  and momentum in deep learning" (2013), equations 1 to 4, with the learning
  rate outside of the momentum.

  Attributes:
    momentum: how much of the sum of gradients a step keeps.
    use_nesterov: whether to look ahead.
  """

  learning_rate: _Rate = 0.001
  momentum: _Number = 0.9
  use_nesterov: bool = False

  _rule = "momentum"
  _float_params = ("momentum",)
  _bool_params = ("use_nesterov",)

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """learning_rate, momentum, use_nesterov."""
    return (
        self.get_learning_rate(step),
        *self._float32("momentum"),
        jnp.asarray(self.use_nesterov, bool),
    )

  def slot_variables_initializers(
      self,
  ) -> _slot_variables.MomentumSlotVariables:
    return _slot_variables.MomentumSlotVariables(momentum=_constant(0.0))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LionOptimizerSpec(_BuiltInSpec):
  """Lion: every value moves by the learning rate, up or down.

  Source: Chen and others, "Symbolic Discovery of Optimization Algorithms"
  (2023), program 1. Its weight decay is `decoupled_weight_decay`.

  Attributes:
    beta_1: how much of the mean of gradients counts in the direction of a step.
    beta_2: how much of it a step keeps.
  """

  learning_rate: _Rate = 0.0001
  beta_1: _Number = 0.9
  beta_2: _Number = 0.99

  _rule = "lion"
  _float_params = ("beta_1", "beta_2")
  _ranges = {"beta_1": _UP_TO_1, "beta_2": _UP_TO_1}

  def get_hyperparameters(self, step: _Step = None) -> _Hyperparameters:
    """learning_rate, beta_1, beta_2."""
    return self.get_learning_rate(step), *self._float32("beta_1", "beta_2")

  def slot_variables_initializers(self) -> _slot_variables.LionSlotVariables:
    return _slot_variables.LionSlotVariables(momentum=_constant(0.0))
