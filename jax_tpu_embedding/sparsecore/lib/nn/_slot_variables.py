# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What each optimizer keeps per row, beside the row.

A member is an initializer in a spec, and an array shaped like the table, or with
one column, in embedding variables. The order is that of the operands of the
update.
"""

from __future__ import annotations

from typing import Generic
from typing import NamedTuple
from typing import TypeVar

_T = TypeVar("_T")


class SGDSlotVariables(NamedTuple):
  """SGD keeps nothing."""


class AdagradSlotVariables(NamedTuple, Generic[_T]):
  accumulator: _T  # sum of squared gradients


class AdamSlotVariables(NamedTuple, Generic[_T]):
  momentum: _T  # moving average of gradients
  velocity: _T  # moving average of squared gradients


class AdagradMomentumSlotVariables(NamedTuple, Generic[_T]):
  accumulator: _T  # sum, or moving average, of squared gradients
  momentum: _T  # moving average of scaled gradients


class FTRLSlotVariables(NamedTuple, Generic[_T]):
  accumulator: _T  # sum of squared gradients
  linear: _T  # sum of gradients, less what earlier rows account for


class LaPropSlotVariables(NamedTuple, Generic[_T]):
  mu: _T  # moving average of scaled gradients
  nu: _T  # moving average of squared gradients


class F2ASlotVariables(NamedTuple, Generic[_T]):
  accumulator: _T  # sum of squared gradients
  local_step: _T  # batches that the row was in


class RowwiseAdagradSlotVariables(NamedTuple, Generic[_T]):
  accumulator: _T  # sum of mean squared gradients, one number per row


class MomentumSlotVariables(NamedTuple, Generic[_T]):
  momentum: _T  # sum of gradients, older ones less and less


class LionSlotVariables(NamedTuple, Generic[_T]):
  momentum: _T  # moving average of gradients
