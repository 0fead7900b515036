# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What reference/lookup_and_update.py does on one device, by native calls.

They raise where buffers are corrupt, so who calls checks buffers before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls


def lookup_on_one_device(
    coo: Sequence[jax.Array], table: jax.Array, params: dict[str, Any]
) -> jax.Array:
  """The activations of a lookup in [rows, D]."""
  (activations,) = cpu_calls.lookup(coo, table, params)
  return activations


def update_on_one_device(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
) -> Sequence[jax.Array]:
  """Table and slots after the update with `rule`, which has its options."""
  return cpu_calls.update(rule, operands, params)
