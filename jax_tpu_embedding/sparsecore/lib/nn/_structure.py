# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Trees of features: one leaf per feature, the same tree everywhere."""

from __future__ import annotations

import collections
from typing import Any

import jax


def assert_same_structure(a: Any, b: Any, a_name: str, b_name: str) -> None:
  """Checks that two trees have leaves at the same places.

  Raises:
    ValueError: if they do not, naming the leaves that only one of them has.
  """
  a_paths, b_paths = _leaf_paths(a), _leaf_paths(b)
  if a_paths == b_paths:
    return
  only_a = list((collections.Counter(a_paths) - collections.Counter(b_paths)))
  only_b = list((collections.Counter(b_paths) - collections.Counter(a_paths)))
  raise ValueError(
      f"The structures of {a_name} and {b_name} do not match. Only in {a_name}:"
      f" {only_a}. Only in {b_name}: {only_b}. {a_name}:"
      f" {jax.tree.structure(a)}. {b_name}: {jax.tree.structure(b)}."
  )


def _leaf_paths(tree: Any) -> list[str]:
  return [
      jax.tree_util.keystr(path)
      for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]
