# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What tests know about each update rule: its formula, and hyperparameters.

Written from docs/reference/primitives.md, without the code under test.
"""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

from jax_tpu_embedding.sparsecore.lib.core import update_rules
import numpy as np


# Source: docs/reference/primitives.md, "Update rules"; float64 throughout.
def _sgd(w, g, slots, hyper):
  (lr,) = hyper
  return w - lr * g, ()


def _adagrad(w, g, slots, hyper):
  a, (lr,) = slots[0] + g**2, hyper
  return w - lr * g / np.sqrt(a), (a,)


def _adam(w, g, slots, hyper):
  alpha, b1, b2, eps = hyper
  m = slots[0] + (1 - b1) * (g - slots[0])
  v = slots[1] + (1 - b2) * (g**2 - slots[1])
  return w - alpha * m / (np.sqrt(v) + eps), (m, v)


def _adagrad_momentum(w, g, slots, hyper):
  a, m = slots
  lr, momentum, beta2, eps, exponent, nesterov = hyper
  a = a + g**2 if beta2 == 1 else beta2 * a + (1 - beta2) * g**2
  scaled = (a + eps) ** (-1 / exponent) * g
  m = momentum * m + scaled
  return w - lr * (momentum * m + scaled if nesterov else m), (a, m)


def _ftrl(w, g, slots, hyper, multiply_linear_by_learning_rate):
  a, linear = slots
  lr, power, l1, l2, beta = hyper
  new_a = a + g**2
  change = new_a**-power - a**-power
  if multiply_linear_by_learning_rate:
    linear = linear + lr * g - change * w
    limit = l1 * lr
    denominator = new_a**-power + 2 * lr * l2 + beta
  else:
    linear = linear + g - change / lr * w
    limit = l1
    denominator = (new_a**-power + beta) / lr + 2 * l2
  numerator = np.clip(linear, -limit, limit) - linear if l1 else -linear
  return numerator / denominator, (new_a, linear)


def _laprop(w, g, slots, hyper):
  mu, nu = slots
  lr, b1, decay, eps = hyper
  nu = decay * nu + (1 - decay) * (g**2 + eps)
  mu = b1 * mu + np.sqrt(1 - b1**2) * g / np.sqrt(nu)
  return w - lr * mu, (mu, nu)


def _f2a(w, g, slots, hyper):
  a, n = slots[0] + g**2, slots[1] + 1
  lr, rho, l1, l2, most, step = hyper
  multiplier = np.minimum((max(step, 1) / n) ** rho, most)
  decay = l1 * np.sign(w) + l2 * w
  return w - lr * (g * multiplier / np.sqrt(a) + decay), (a, n)


def _rowwise_adagrad(w, g, slots, hyper, embedding_dim):
  lr, eps = hyper
  a = slots[0] + np.sum(np.square(g), axis=-1, keepdims=True) / embedding_dim
  return w - lr * g / (np.sqrt(a) + eps), (a,)


def _momentum(w, g, slots, hyper):
  lr, momentum, nesterov = hyper
  m = momentum * slots[0] + g
  return w - lr * (g + momentum * m if nesterov else m), (m,)


def _lion(w, g, slots, hyper):
  (m,) = slots
  lr, b1, b2 = hyper
  return w - lr * np.sign(b1 * m + (1 - b1) * g), (b2 * m + (1 - b2) * g,)


FORMULAS = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "adam": _adam,
    "adagrad_momentum": _adagrad_momentum,
    "ftrl": _ftrl,
    "laprop": _laprop,
    "f2a": _f2a,
    "rowwise_adagrad": _rowwise_adagrad,
    "momentum": _momentum,
    "lion": _lion,
}

# The number of each row option. Some gradients are longer, some are not.
ROW_OPTIONS = {
    "max_gradient_norm": 4.0,
    "l2_weight_decay": 0.125,
    "decoupled_weight_decay": 0.0625,
}


class Case(NamedTuple):
  """A rule with hyperparameters, such that every branch is in some case."""

  rule: update_rules.UpdateRule
  hyperparameters: tuple[float, ...]
  static_params: dict[str, Any]

  def formula(self, w, g, slots, row_options=()):
    """The new rows f64[n, D] and slots from rows, gradients and slots.

    Source: docs/reference/primitives.md, "Row options".
    """
    hyper = [np.float64(np.float32(x)) for x in self.hyperparameters]
    if "max_gradient_norm" in row_options:
      limit = ROW_OPTIONS["max_gradient_norm"]
      norm = np.linalg.norm(g, axis=-1, keepdims=True)
      g = np.where(norm > limit, limit / np.maximum(norm, limit) * g, g)
    if "l2_weight_decay" in row_options:
      g = g + ROW_OPTIONS["l2_weight_decay"] * w
    new_w, slots = FORMULAS[self.rule.name](
        w, g, slots, hyper, **self.static_params
    )
    if "decoupled_weight_decay" in row_options:
      new_w = new_w - ROW_OPTIONS["decoupled_weight_decay"] * w
    return new_w, slots


def _case(name, *hyperparameters, **static_params):
  rule = update_rules.UPDATE_RULES[name]
  return Case(rule, hyperparameters, static_params)


def _ftrl_case(*hyperparameters, multiply):
  return _case(
      "ftrl", *hyperparameters, multiply_linear_by_learning_rate=multiply
  )


CASES = {
    "sgd": _case("sgd", 0.1),
    "adagrad": _case("adagrad", 0.1),
    "adam": _case("adam", 0.01, 0.9, 0.99, 1e-6),
    "adagrad_momentum": _case(
        "adagrad_momentum", 0.1, 0.9, 1.0, 1e-6, 2.0, False
    ),
    "adagrad_momentum_decay": _case(
        "adagrad_momentum", 0.1, 0.9, 0.75, 1e-2, 3.0, False
    ),
    "adagrad_nesterov": _case(
        "adagrad_momentum", 0.1, 0.9, 1.0, 1e-6, 2.0, True
    ),
    "ftrl": _ftrl_case(0.5, -0.5, 0.0, 0.0, 0.0, multiply=False),
    "ftrl_l1_l2": _ftrl_case(0.5, -0.5, 0.3, 0.2, 0.1, multiply=False),
    "ftrl_power": _ftrl_case(0.5, -0.75, 0.3, 0.2, 0.1, multiply=True),
    "ftrl_multiply": _ftrl_case(0.5, -0.5, 0.0, 0.0, 0.1, multiply=True),
    "laprop": _case("laprop", 0.1, 0.9, 0.8, 1e-6),
    "f2a": _case("f2a", 0.1, 0.5, 0.0, 0.0, 1e6, 3.0),
    "f2a_step_0": _case("f2a", 0.1, 0.5, 0.0, 0.0, 1e6, 0.0),
    "f2a_limits": _case("f2a", 0.1, 0.75, 0.2, 0.1, 1.5, 9.0),
    "rowwise_adagrad": _case("rowwise_adagrad", 0.1, 1e-3, embedding_dim=1),
    "momentum": _case("momentum", 0.1, 0.9, False),
    "nesterov": _case("momentum", 0.1, 0.9, True),
    "lion": _case("lion", 0.1, 0.9, 0.99),
}
