# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One batch in every form that the converter reads, for its tests.

A form is a function of the ids of each sample and of their weights (or None),
and returns the leaves of features and weights. `FORMS` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import types
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np
import pyarrow as pa
import scipy.sparse

Rows = Sequence[np.ndarray]
Leaves = tuple[Any, Any]


def row_splits(rows: Rows) -> np.ndarray:
  return np.cumsum([0, *map(len, rows)])


def _flat(rows: Rows) -> np.ndarray:
  return np.concatenate(rows) if len(rows) else np.zeros(0, np.int32)


def _each(
    make: Callable[[Rows], Any], ids: Rows, weights: Rows | None
) -> Leaves:
  return make(ids), None if weights is None else make(weights)


def rows(ids: Rows, weights: Rows | None) -> Leaves:
  return _each(
      lambda x: converter_requests.ragged([np.array(row) for row in x]),
      ids,
      weights,
  )


def lists(ids: Rows, weights: Rows | None) -> Leaves:
  return _each(
      lambda x: converter_requests.ragged([row.tolist() for row in x]),
      ids,
      weights,
  )


def splits(ids: Rows, weights: Rows | None) -> Leaves:
  return (_flat(ids), row_splits(ids)), None if weights is None else _flat(
      weights
  )


def splits_of_both(ids: Rows, weights: Rows | None) -> Leaves:
  return _each(
      lambda x: (_flat(x), row_splits(x).astype(np.int32)), ids, weights
  )


def sparse_tensor(
    indices: np.ndarray, values: np.ndarray, num_samples: int
) -> types.SimpleNamespace:
  """What tf.SparseTensor looks like to the converter."""
  return types.SimpleNamespace(
      indices=indices, values=values, dense_shape=np.array([num_samples, 99])
  )


def indices(ids: Rows) -> np.ndarray:
  """i64[entries, 2]: sample and position of each id."""
  samples = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
  positions = np.arange(len(samples)) - row_splits(ids)[samples]
  return np.stack([samples, positions], axis=1)


def sparse(ids: Rows, weights: Rows | None) -> Leaves:
  where = indices(ids)
  return _each(lambda x: sparse_tensor(where, _flat(x), len(ids)), ids, weights)


def shuffled_sparse(ids: Rows, weights: Rows | None) -> Leaves:
  """Samples in any order; the ids of each in theirs."""
  where = indices(ids)
  # The position in the sample comes first, so that samples alternate.
  order = np.lexsort((where[:, 0], where[:, 1]))
  leaf = sparse_tensor(where[order], _flat(ids)[order], len(ids))
  return leaf, None if weights is None else _flat(weights)[order]


def _ones(ids: Rows, weights: Rows | None) -> Rows:
  return (
      [np.ones(len(row), np.float32) for row in ids]
      if weights is None
      else weights
  )


def csr(ids: Rows, weights: Rows | None) -> Leaves:
  matrix = scipy.sparse.csr_array((len(ids), 2**31 - 1), dtype=np.float32)
  # Set directly: ids repeat, and constructors may sort or check them.
  matrix.data = _flat(_ones(ids, weights))
  matrix.indices = _flat(ids)
  matrix.indptr = row_splits(ids)
  return matrix, None


def coo(ids: Rows, weights: Rows | None) -> Leaves:
  entries = (_flat(_ones(ids, weights)), (indices(ids)[:, 0], _flat(ids)))
  return scipy.sparse.coo_array(entries, shape=(len(ids), 2**31 - 1)), None


def _arrow(x: Rows, list_array: Any, offset_type: Any) -> Any:
  return list_array.from_arrays(
      pa.array(row_splits(x), offset_type), pa.array(_flat(x))
  )


def arrow(ids: Rows, weights: Rows | None) -> Leaves:
  return _each(lambda x: _arrow(x, pa.ListArray, pa.int32()), ids, weights)


def large_arrow(ids: Rows, weights: Rows | None) -> Leaves:
  return _each(lambda x: _arrow(x, pa.LargeListArray, pa.int64()), ids, weights)


def sliced_arrow(ids: Rows, weights: Rows | None) -> Leaves:
  """From the middle of a longer array, whose other rows have nulls."""

  def make(x):
    around = pa.array([[3, None]], pa.list_(pa.array(_flat(x)).type))
    whole = pa.concat_arrays([around, arrow(x, None)[0], around])
    return whole.slice(1, len(x))

  return _each(make, ids, weights)


def chunked_arrow(ids: Rows, weights: Rows | None) -> Leaves:
  """In chunks of unequal size, which differ between ids and weights."""

  def make(x, cuts):
    cuts = [0, *(min(cut, len(x)) for cut in cuts), len(x)]
    whole = arrow(x, None)[0]
    return pa.chunked_array(
        [whole.slice(a, b - a) for a, b in zip(cuts, cuts[1:])], whole.type
    )

  return make(ids, (1, 1)), None if weights is None else make(weights, (2,))


# Forms that all batches have: samples may be of any length.
FORMS = {
    form.__name__: form
    for form in (
        rows,
        lists,
        splits,
        splits_of_both,
        sparse,
        shuffled_sparse,
        csr,
        coo,
        arrow,
        large_arrow,
        sliced_arrow,
        chunked_arrow,
    )
}


def dense(ids: Rows, weights: Rows | None) -> Leaves:
  return _each(np.array, ids, weights)


def fixed_arrow(ids: Rows, weights: Rows | None) -> Leaves:
  """Lists of one size, from the middle of a longer array."""

  def make(x):
    x = np.array(x)
    values = pa.array(np.concatenate([x[:1], x, x[:1]]).reshape(-1))
    whole = pa.FixedSizeListArray.from_arrays(values, x.shape[1])
    return whole.slice(1, len(x))

  return _each(make, ids, weights)


# Forms for samples of one length, which must not be empty.
DENSE_FORMS = {form.__name__: form for form in (dense, fixed_arrow)}
