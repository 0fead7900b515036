# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What was wrong with the batches that layers were given.

Programs with layers do not raise, see primitives/check_batch.py.
"""

from __future__ import annotations

from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu


def raise_errors(*results: Any) -> None:
  """Raises what was wrong with batches that layers were given on CPU.

  A layer does not fail for ids out of range, weights that are not finite, row
  splits that do not ascend or corrupt buffers: JAX would lose tables that are
  mutable or donated. The activations of such a batch are NaN on the device
  concerned, it updates no table of the layer on any device, and the first such
  batch is logged. This raises it, and forgets all that came before.

  Programs run in the background. What has not run yet is not known, so pass
  something that comes from the programs in question.

  On TPU and GPU there are NaN activations and no update either, but programs
  cannot say what is wrong; `layer.preprocess_inputs` with the same ids can. Of
  several processes, the one whose ids are wrong knows.

  >>> raise_errors()  # nothing was wrong

  Args:
    *results: trees of arrays to wait for, such as a loss.

  Raises:
    ValueError: with the message that preprocessing on the host would give, for
      samples as the device numbers them; and how many messages there were.
  """
  jax.block_until_ready(results)
  message, count = ffi_cpu.take_failures()
  if not count:
    return
  if count > 1:
    message += f" (The first of {count} errors since the last call.)"
  raise ValueError(message)
