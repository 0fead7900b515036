# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a batch has beside ids and weights: which it is, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def others(item: Any, ids: Any, weights: Any) -> dict[Any, Any] | None:
  """What a mapping has beside arrays that are among ids and weights.

  Trees in it that have only these are left out as well. In a list that has
  something else, None takes the place of such an array.
  """
  if not isinstance(item, Mapping):
    return None
  taken = {
      id(x) for x in jax.tree.leaves((ids, weights)) if hasattr(x, "__len__")
  }

  def is_taken(tree):
    leaves = jax.tree.leaves(tree)
    return bool(leaves) and all(id(x) in taken for x in leaves)

  def without_taken(tree):
    if isinstance(tree, Mapping):
      return {k: without_taken(v) for k, v in tree.items() if not is_taken(v)}
    return jax.tree.map(lambda x: None if id(x) in taken else x, tree)

  return without_taken(item)


def checked(rest: Any, inputs: Any, feature_specs: Any, num_local: int) -> Any:
  """`rest` as arrays of NumPy, of the types that they have on devices.

  Raises:
    TypeError: if one has no numbers.
    ValueError: if one has not as many samples as the ids of some feature, nor a
      multiple, is masked, or has a value that its type on devices cannot hold.
  """
  batches = dict(inputs.settings.batches)
  num_devices = inputs.settings.global_device_count
  num_samples = {
      batches.get(x.name, x.output_shape[0]) * num_local // num_devices
      for x in jax.tree.leaves(feature_specs)
  }
  if np.ndim(inputs.num_minibatches) == 2:  # limits with has_leading_dimension
    num_samples.add(num_local)

  def check(path, x):
    name = f"rest{jax.tree_util.keystr(path)}"
    if isinstance(x, np.ma.MaskedArray):
      raise ValueError(
          f"{name} is a masked array, and a mask does not come along. Fill it,"
          " with .filled(...), or pass the mask as an array of its own."
      )
    x = np.asarray(x)
    # A multiple: the positions of samples may have an axis with them.
    if not x.ndim or not any(len(x) and len(x) % n == 0 for n in num_samples):
      raise ValueError(
          f"{name} has shape {x.shape}, expected [samples, ...] with"
          f" {' or '.join(map(str, sorted(num_samples)))} samples, or a multiple,"
          " as the ids have: devices share it like them. Leave what is not of"
          " samples out of `rest`, and pass it to the step by itself."
      )
    is_number = jax.dtypes.issubdtype(x.dtype, np.number)
    if x.dtype != bool and not is_number or x.dtype.char in "gG":
      raise TypeError(
          f"{name} has dtype {x.dtype}, which devices do not have. Make numbers"
          " of it, or leave it out of `rest`."
      )
    dtype = _dtype_on_devices(x)
    if dtype == x.dtype:
      return x
    with np.errstate(over="ignore"):  # is the error below
      narrow = x.astype(dtype)
    if dtype.kind in "iu":
      is_lost = narrow != x
    else:  # rounding is as everywhere in JAX
      is_lost = np.isinf(narrow) & np.isfinite(x)
    if is_lost.any():
      raise ValueError(
          f"{name} has the value {x[is_lost][0]}, which is {x.dtype} and does"
          f" not fit {dtype}, its type on devices without jax_enable_x64. Cast"
          " it to what fits, split it, or leave it out of `rest`."
      )
    return narrow

  return jax.tree_util.tree_map_with_path(check, rest)


def shapes(rest: Any, num_local: int) -> str:
  """What programs know of `rest`, which is to be the same on all processes."""

  def of_device(x):
    x = np.asarray(x)
    samples, *others = x.shape or (0,)
    dtype = _dtype_on_devices(x)
    return f"{dtype}{[samples // num_local, *others]}"

  return ", ".join(
      f"rest{jax.tree_util.keystr(path)} as {of_device(x)} per device"
      for path, x in jax.tree.leaves_with_path(rest)
  )


def _dtype_on_devices(x: np.ndarray) -> np.dtype:
  """In the byte order of this machine, which devices take for theirs."""
  return jax.dtypes.canonicalize_dtype(x.dtype.newbyteorder("="))
