# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Compares the buffers of two packages, byte for byte where bytes have meaning.

One of them leaves the memory behind the last partition of a SparseCore, or
behind the last minibatch of a device, as it was: those cells and row pointers
are left out.
"""

from __future__ import annotations

import numpy as np

_ALIGNMENT = 8
_MIN_ROW_POINTERS_PER_BLOCK = 8


def first_difference(
    ours: dict[str, np.ndarray],
    reference: dict[str, np.ndarray],
    *,
    local_device_count: int,
    num_sc_per_device: int,
    num_scs: int,
    num_blocks_per_sc: int | None,
) -> str | None:
  """Where two results for one stack differ first; None if they do not.

  Args:
    ours, reference: row_pointers, embedding_ids, sample_ids, gains: flat arrays
      of all local devices.
    local_device_count, num_sc_per_device, num_scs: the topology.
    num_blocks_per_sc: minibatches, with the layout of minibatching, in which
      the cells of a device are one run; None for the layout without.
  """
  names = ("row_pointers", "embedding_ids", "sample_ids", "gains")
  for name in names:
    if ours[name].shape != reference[name].shape:
      return f"{name}: {ours[name].shape} != {reference[name].shape}"
  block = max(num_scs, _MIN_ROW_POINTERS_PER_BLOCK)
  pointers = reference["row_pointers"].reshape(local_device_count, -1)
  num_blocks = num_sc_per_device * (num_blocks_per_sc or 1)
  used_pointers = np.zeros(pointers.shape, bool)
  used_pointers[:, : num_blocks * block] = True

  # [region] -> the cells up to the rounded end of its last partition.
  last = pointers[:, : num_blocks * block].reshape(-1, block)[:, num_scs - 1]
  if num_blocks_per_sc is not None:
    last = last.reshape(local_device_count, -1)[:, -1]
  ends = -(-last // _ALIGNMENT) * _ALIGNMENT
  cells = reference["gains"].reshape(ends.size, -1)
  used_cells = np.arange(cells.shape[1]) < ends[:, None]

  for name in names:
    used = (used_pointers if name == "row_pointers" else used_cells).ravel()
    # As integers: NaN is not equal to itself.
    differ = used & (
        ours[name].view(np.int32) != reference[name].view(np.int32)
    )
    if differ.any():
      where = int(np.argmax(differ))
      return (
          f"{name}[{where}]: {ours[name][where]} != {reference[name][where]},"
          f" and {int(differ.sum()) - 1} more"
      )
  return None
