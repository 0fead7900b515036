# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Training models whose embedding tables are parameters.

The "gradients" of such tables are the new tables, computed by their own
optimizers. Here they are kept out of the optimizer of the other parameters, and
put in place of the old ones:

    optimizer = create_optimizer_for_sc_model(params, optax.adam(1e-3))
    state = optimizer.init(params)
    ...
    updates, state = optimizer.update(gradients, state, params)
    params = apply_updates_for_sc_model(params, updates)
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
import optax

_TABLES = "tables"
_OTHERS = "others"


def create_optimizer_for_sc_model(
    params: Any, tc_optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
  """The optimizer of a model with tables among its parameters.

  Args:
    params: of the model. Tables are what is below a dict key
      "sc_embedding_variables".
    tc_optimizer: of all other parameters. Norms that it takes, to clip by for
      example, are those of the other parameters.

  Returns:
    A transformation that hands the tables' updates on as they are.
  """
  labels = jax.tree_util.tree_map_with_path(
      lambda path, _: _TABLES if _is_of_tables(path) else _OTHERS, params
  )
  return optax.multi_transform(
      {_TABLES: _pass_through(), _OTHERS: tc_optimizer}, labels
  )


def apply_updates_for_sc_model(params: Any, updates: Any) -> Any:
  """The parameters after a step.

  Args:
    params: of the model.
    updates: what the optimizer of create_optimizer_for_sc_model returned.

  Returns:
    Tables as in `updates`, or as they are if the loss does not use their
    layer; other parameters as the sum, of the updates' types.

  Raises:
    ValueError: if the tables in `updates` are not the result of one update.
      Inside of jit the next lookup raises.
  """
  seals = {
      _path_of_layer(path): update
      for path, update in jax.tree_util.tree_leaves_with_path(updates)
      if embed.SEAL_PARAM_NAME in _keys(path)
  }

  def apply(path, param, update):
    if not _is_of_tables(path):
      return jnp.asarray(param + update).astype(update.dtype)
    seal = seals.get(_path_of_layer(path))
    return update if seal is None else _seal.replace(param, update, seal)

  return jax.tree_util.tree_map_with_path(apply, params, updates)


def _pass_through() -> optax.GradientTransformation:
  return optax.GradientTransformation(
      lambda unused_params: optax.EmptyState(),
      lambda updates, state, params=None: (updates, state),
  )


def _keys(path: jax.tree_util.KeyPath) -> list[Any]:
  return [
      entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)
  ]


def _is_of_tables(path: jax.tree_util.KeyPath) -> bool:
  return embed.EMBEDDING_PARAM_NAME in _keys(path)


def _path_of_layer(path: jax.tree_util.KeyPath) -> jax.tree_util.KeyPath:
  """Of the layer whose tables, or whose seal, are at `path`."""
  names = (embed.EMBEDDING_PARAM_NAME, embed.SEAL_PARAM_NAME)
  is_above = lambda entry: getattr(entry, "key", None) not in names
  return tuple(itertools.takewhile(is_above, path))
