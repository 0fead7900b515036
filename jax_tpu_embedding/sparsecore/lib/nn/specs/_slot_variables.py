# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What each optimizer keeps per row, beside the row.

A member is an initializer in a spec, and an array shaped like the table, or with
one column, in embedding variables. The order is that of the operands of the
update.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

import jax
import jax.numpy as jnp

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Constant:
  """The initializer of slots that begin with one value.

  A value, unlike the functions of jax.nn.initializers: who makes slots need not
  call it to know what it returns.
  """

  value: float

  def __call__(
      self, key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32
  ) -> jax.Array:
    del key
    return jnp.full(shape, self.value, dtype)


class SGDSlotVariables(NamedTuple):
  """SGD keeps nothing."""


class AdagradSlotVariables(NamedTuple, Generic[_T]):
  """What Adagrad keeps.

  Attributes:
    accumulator: sum of squared gradients.
  """

  accumulator: _T


class AdamSlotVariables(NamedTuple, Generic[_T]):
  """What Adam keeps.

  Attributes:
    momentum: moving average of gradients.
    velocity: moving average of squared gradients.
  """

  momentum: _T
  velocity: _T


class AdagradMomentumSlotVariables(NamedTuple, Generic[_T]):
  """What Adagrad with momentum keeps.

  Attributes:
    accumulator: sum, or moving average, of squared gradients.
    momentum: moving average of scaled gradients.
  """

  accumulator: _T
  momentum: _T


class FTRLSlotVariables(NamedTuple, Generic[_T]):
  """What FTRL keeps.

  Attributes:
    accumulator: sum of squared gradients.
    linear: sum of gradients, less what earlier rows account for.
  """

  accumulator: _T
  linear: _T


class LaPropSlotVariables(NamedTuple, Generic[_T]):
  """What LaProp keeps.

  Attributes:
    mu: moving average of scaled gradients.
    nu: moving average of squared gradients.
  """

  mu: _T
  nu: _T


class F2ASlotVariables(NamedTuple, Generic[_T]):
  """What F2A keeps.

  Attributes:
    accumulator: sum of squared gradients.
    local_step: batches that the row was in.
  """

  accumulator: _T
  local_step: _T


class RowwiseAdagradSlotVariables(NamedTuple, Generic[_T]):
  """What row-wise Adagrad keeps.

  Attributes:
    accumulator: sum of mean squared gradients, one number per row.
  """

  accumulator: _T


class MomentumSlotVariables(NamedTuple, Generic[_T]):
  """What SGD with momentum keeps.

  Attributes:
    momentum: sum of gradients, older ones less and less.
  """

  momentum: _T


class LionSlotVariables(NamedTuple, Generic[_T]):
  """What Lion keeps.

  Attributes:
    momentum: moving average of gradients.
  """

  momentum: _T
