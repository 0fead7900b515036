# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The collection in which a model finds tables that no layer owns."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

import flax

EMBEDDING_COLLECTION = "embedding"


def find(
    scope: flax.core.Scope, stacks: Collection[str]
) -> Mapping[str, Any] | None:
  """The tables that a model was applied with, None if there are none.

  Args:
    scope: of the layer.
    stacks: names of what it looks for, at the root of the model and then at its
      own path, which is all it sees of the model inside of nn.remat, nn.scan
      and nn.jit.
  """
  of_model = scope.root.variables().get(EMBEDDING_COLLECTION)
  if of_model is None or set(stacks) <= of_model.keys():
    return of_model
  # Only now: Flax takes what has the layer's name for its collection, which may
  # be a table.
  of_layer = scope.variables().get(EMBEDDING_COLLECTION, {})
  return of_layer if set(stacks) <= of_layer.keys() else of_model


def select(
    collection: Mapping[str, Any] | None,
    stacks: Collection[str],
    path: tuple[str, ...],
) -> dict[str, Any]:
  """The tables of a layer.

  Args:
    collection: what `find` returned.
    stacks: names of them.
    path: of the layer.

  Raises:
    ValueError: if tables are missing.
  """
  if collection is None:
    raise ValueError(
        "The model was applied without the collection"
        f" {EMBEDDING_COLLECTION!r}. Make its tables with"
        " SparseCoreEmbed.create_embedding_variables and pass"
        f" {{'params': ..., {EMBEDDING_COLLECTION!r}: tables}}. Inside of"
        " nn.remat, nn.scan and nn.jit a layer sees only what is at its path:"
        f" pass the tables at {'/'.join(path)!r}."
    )
  missing = sorted(set(stacks) - set(collection))
  if missing:
    raise ValueError(
        f"The collection {EMBEDDING_COLLECTION!r} lacks the stacks {missing};"
        f" it has {sorted(collection)}. Make it with create_embedding_variables"
        " for the feature specs of this layer. If these were stacked for"
        " another batch, use those of the first: they take any batch, and"
        " which tables auto_stack_tables puts together depends on it"
        " (activation_mem_bytes_limit)."
    )
  return {name: collection[name] for name in stacks}
