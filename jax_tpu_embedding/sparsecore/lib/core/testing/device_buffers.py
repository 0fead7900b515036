# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The buffers of one device with many SparseCores, spread over devices.

Tables, activations and gradients need no change: device after device and
SparseCore after SparseCore is one order. For tests.
"""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np


def spread(
    coo: random_coo.RandomCoo, num_scs: int, num_devices: int
) -> tuple[np.ndarray, ...]:
  """Row pointers, embedding ids, sample ids and gains of all devices.

  Args:
    coo: buffers of one device.
    num_scs: its SparseCores.
    num_devices: divides `num_scs`.
  """
  row_pointers, *cells = coo.operands[:4]
  num_blocks = num_scs * 64
  block = max(num_scs, 8)
  if row_pointers.size != num_blocks * block:
    return coo.operands[:4]  # one region per SparseCore, in order
  # With minibatches a device's cells are one run, in which pointers count.
  blocks = row_pointers.reshape(num_blocks, block)
  num_used = num_scs * int(coo.num_minibatches) // num_devices
  ends = blocks[num_used - 1 :: num_used, -1][:num_devices]
  ends = -(-ends // 8) * 8  # where the next partition starts
  starts = [0, *ends[:-1]]
  size = max(np.diff([0, *ends]))
  pointers, runs = [], []
  for device, (start, end) in enumerate(zip(starts, ends, strict=True)):
    used = blocks[device * num_used : (device + 1) * num_used] - start
    unused = np.full((num_blocks // num_devices - num_used, block), -5)
    pointers += [used, unused]
    runs.append(
        [
            np.append(x[start:end], np.full(start + size - end, x[-1]))
            for x in cells
        ]
    )
  return (
      np.concatenate(pointers).reshape(-1).astype(np.int32),
      *map(np.concatenate, zip(*runs)),
  )
