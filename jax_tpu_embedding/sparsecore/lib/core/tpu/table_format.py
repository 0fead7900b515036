# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The layouts in which TPUs read and write tables, and in which they copy
nothing: those of SparseCores, and those of chips that have none.

XLA's own choice for fewer than 128 columns is column after column; a program
then transposes every table before and after it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import layout
import jax.numpy as jnp

# Of the tiles in which SparseCores read rows.
_BYTES_OF_TILE = 32


def table_layout(
    shape: Sequence[int], dtype: Any = jnp.float32
) -> layout.Layout:
  """The layout of a table or slot of a shape.

  Rows are contiguous and padded to tiles; but one number per row, [rows] or
  [rows, 1], is stored without padding.
  """
  dimensions = tuple(range(len(shape)))
  if tuple(shape[1:]) == (1,):
    dimensions = dimensions[::-1]
  tile = _BYTES_OF_TILE // jnp.dtype(dtype).itemsize
  return layout.Layout(major_to_minor=dimensions, tiling=((tile,),))


def tensor_core_layout(shape: Sequence[int]) -> layout.Layout | None:
  """The layout of a table on a TPU without SparseCores; None: XLA's own.

  Rows are in tiles of 8 rows and 128 columns, so that fewer columns take the
  memory of 128. XLA's own layout for them would copy the table in every step;
  that for a multiple of 128 is this one already, and that for one number per
  row needs no tiles.
  """
  if len(shape) < 2 or shape[1] == 1 or shape[1] % 128 == 0:
    return None
  return layout.Layout(
      major_to_minor=tuple(range(len(shape))), tiling=((8, 128),)
  )


def table_format(
    sharding: jax.sharding.Sharding,
    shape: Sequence[int],
    dtype: Any = jnp.float32,
) -> layout.Format:
  """`sharding` with the layout of a table or slot of a shape, for TPU.

  It is the `sharding` of a jax.ShapeDtypeStruct, and one of `out_shardings` of
  jax.jit.
  """
  return layout.Format(table_layout(shape, dtype), sharding)
