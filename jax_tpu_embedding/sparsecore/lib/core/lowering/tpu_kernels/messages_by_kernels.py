# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The steps of exchange/messages.py on SparseCores, by kernels.

Numbers of rows are packed by XLA; rows are gathered, summed and stepped by
kernels. Messages are XLA's all_to_all.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import on_device
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import gather_rows

pack = messages.pack
look_up = functools.partial(messages.look_up, on_device=on_device)
sum_gradients = functools.partial(messages.sum_gradients, on_device=on_device)
step_rows = functools.partial(messages.step_rows, on_device=on_device)


def read_rows(table: jax.Array, wanted: messages.Blocks) -> messages.Blocks:
  """messages.read_rows; what is there for no row is undefined."""
  fetched = gather_rows.gather_rows(table, jnp.concatenate(wanted))
  return jnp.split(fetched, len(wanted))
