# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Trees of features: one leaf per feature, the same tree everywhere."""

from __future__ import annotations

import collections
from collections.abc import Iterator
import functools
from typing import Any

import jax


def flatten_like(tree: Any, like: Any, name: str, like_name: str) -> list[Any]:
  """The leaves of `tree` at the places of the leaves of `like`, in their order.

  Where `like` has a leaf, `tree` may have a pair of arrays or a named tuple of
  arrays: ids in several arrays, such as values and row splits. Elsewhere,
  tuples are containers, and equal to lists.

  Raises:
    ValueError: if `tree` has leaves at other places, naming those that only one
      of the two has.
  """
  return flatten_as(tree, jax.tree.structure(like), name, like_name)


def flatten_as(
    tree: Any, structure: jax.tree_util.PyTreeDef, name: str, like_name: str
) -> list[Any]:
  """flatten_like for a tree that was flattened before: its structure."""
  leaves, found = jax.tree_util.tree_flatten(tree)
  if found == structure:
    return leaves
  like = jax.tree.unflatten(structure, range(structure.num_leaves))
  like_paths = _leaf_paths(like)
  paths, leaves = [], []
  for path, leaf in _leaves_with_paths(tree, "", frozenset(like_paths)):
    paths.append(path)
    leaves.append(leaf)
  _assert_same_paths(paths, like_paths, tree, like, name, like_name)
  return leaves


def flatten_weights(
    features_weights: Any | None, structure: jax.tree_util.PyTreeDef
) -> list[Any | None]:
  """The weights of each feature; None where there are none.

  Args:
    features_weights: a tree as flatten_as takes it, where leaves may be None;
      or None.
    structure: of the feature specs.

  Raises:
    ValueError: see flatten_as.
  """
  if features_weights is None:
    return [None] * structure.num_leaves
  leaves, found = jax.tree_util.tree_flatten(features_weights)
  if found == structure:  # every feature has an array: most calls
    return leaves
  # None is a tree without leaves, and here it has to be one, but where the
  # specs have None, too.
  no_weights = object()
  no_features = _paths_of_none(structure)

  def mark(path, leaf):
    if leaf is None and (
        not no_features or jax.tree_util.keystr(path) not in no_features
    ):
      return no_weights
    return leaf

  leaves = flatten_as(
      jax.tree.map_with_path(mark, features_weights, is_leaf=_is_none),
      structure,
      "features_weights",
      "feature_specs",
  )
  return [None if leaf is no_weights else leaf for leaf in leaves]


@functools.lru_cache(maxsize=64)
def _paths_of_none(structure: jax.tree_util.PyTreeDef) -> frozenset[str]:
  """Where a tree has None, which is no leaf of it."""
  like = jax.tree.unflatten(structure, range(structure.num_leaves))
  return frozenset(
      jax.tree_util.keystr(path)
      for path, leaf in jax.tree.leaves_with_path(like, is_leaf=_is_none)
      if leaf is None
  )


def _is_none(node: Any) -> bool:
  return node is None


def assert_same_structure(a: Any, b: Any, a_name: str, b_name: str) -> None:
  """Checks that two trees have leaves at the same places.

  Raises:
    ValueError: if they do not, naming the leaves that only one of them has.
  """
  _assert_same_paths(_leaf_paths(a), _leaf_paths(b), a, b, a_name, b_name)


def _assert_same_paths(
    a_paths: list[str],
    b_paths: list[str],
    a: Any,
    b: Any,
    a_name: str,
    b_name: str,
) -> None:
  if a_paths == b_paths:
    return
  only_a = list((collections.Counter(a_paths) - collections.Counter(b_paths)))
  only_b = list((collections.Counter(b_paths) - collections.Counter(a_paths)))
  # Such as lists of ids, which are trees of numbers.
  containers = [
      f"{a_name}{path}"
      for path in only_b
      if any(other.startswith(path + "[") for other in only_a)
  ]
  hint = (
      f" A list, dict or tuple stands where one feature's array belongs:"
      f" {_shortened(', '.join(containers))}. Pass np.array(...), or ragged ids"
      " as (values, row_splits)."
  )
  raise ValueError(
      f"The structures of {a_name} and {b_name} do not match."
      f"{hint if containers else ''} Only in {a_name}: {_shortened(only_a)}."
      f" Only in {b_name}: {_shortened(only_b)}. {a_name}:"
      f" {_shortened(jax.tree.structure(a))}. {b_name}:"
      f" {_shortened(jax.tree.structure(b))}."
  )


def _shortened(value: Any) -> str:
  """`value` as text that can be read: a list of ids has thousands of leaves."""
  text = str(value)
  return text if len(text) <= 1000 else f"{text[:1000]}..."


def _leaf_paths(tree: Any) -> list[str]:
  return [
      jax.tree_util.keystr(path)
      for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]


def _leaves_with_paths(
    tree: Any, path: str, leaf_paths: frozenset[str]
) -> Iterator[tuple[str, Any]]:
  """Leaves of `tree`; tuples of arrays at `leaf_paths` count as leaves."""
  if path in leaf_paths and _is_tuple_of_arrays(tree):
    yield path, tree
    return
  for key, child in jax.tree_util.tree_leaves_with_path(
      tree, is_leaf=lambda node: node is not tree
  ):
    if not key:  # `tree` has no children.
      yield path, child
    else:
      yield from _leaves_with_paths(
          child, path + jax.tree_util.keystr(key), leaf_paths
      )


def _is_tuple_of_arrays(value: Any) -> bool:
  return (
      isinstance(value, tuple)
      and (len(value) == 2 or hasattr(value, "_fields"))
      and jax.tree_util.all_leaves(value)
  )
