# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits and a client of lib/fdo: what earlier runs needed, and what this one.

The client is any object with the methods of FDOClient, which is of a layer that
is above this one.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
import numpy as np

_BATCHES_PER_FILE = 1000


class LimitFeedback:
  """What a client has published, and what it is given. Not thread-safe.

  Args:
    client: that of the run; None: nothing is recorded.
    stack_names: of the model.
    conversion: of its batches.

  Raises:
    TypeError: if the client has not the methods of one.
  """

  def __init__(
      self,
      client: Any | None,
      stack_names: Sequence[str],
      conversion: _conversion.Conversion,
  ):
    for method in ("load", "record", "publish"):
      if client is not None and not hasattr(client, method):
        raise TypeError(
            "fdo_client must be an FDOClient, or have its methods, got"
            f" {client!r}, which has no {method}."
        )
    self._client = client
    self._stack_names = sorted(stack_names)
    self._conversion = conversion

  def needs_of_earlier_runs(self) -> _limits.Limits | None:
    """The largest that were published; None if there are none that fit.

    Of another model, there is a warning. Of other devices, too, and nothing is
    recorded from then on: the client has them now, and no record combines with
    them.
    """
    try:
      published = self._client.load()
    except FileNotFoundError:
      return None  # the first run
    if not self._is_of_these_devices(published):
      self._client = None
      return None
    needs = _limits.needs_of(published)
    if sorted(dict(needs.stacks)) != self._stack_names:
      logging.getLogger(__name__).warning(
          "limits: the published statistics are of the stacks %s, and the specs"
          " have %s. The first batch sets limits.",
          sorted(dict(needs.stacks)),
          self._stack_names,
      )
      return None
    return needs

  def _is_of_these_devices(
      self, stats: _stats.SparseDenseMatmulInputStats
  ) -> bool:
    """Whether as many devices and SparseCores counted; warns if not."""
    num_local = self._conversion.local_device_count
    num_devices = self._conversion.global_device_count
    num_sc = self._conversion.num_sc_per_device
    for field, expected in (
        ("max_ids_per_partition", num_local * num_devices * num_sc),
        ("required_buffer_size_per_sc", num_local * num_sc),
    ):
      by_name = getattr(stats, field)
      for name in self._stack_names:
        if name not in by_name:
          continue
        size = np.atleast_1d(by_name[name]).shape[-1]
        if size != expected:
          logging.getLogger(__name__).warning(
              "limits: what %s has loaded is of other devices: stack %r has %d"
              " values of %s, expected %d on %d devices, of which this process"
              " has %d, with %d SparseCores each. The first batch sets limits,"
              " and nothing is recorded. Let the client publish elsewhere: each"
              " number of devices needs a directory of its own.",
              type(self._client).__name__,
              name,
              size,
              field,
              expected,
              num_devices,
              num_local,
              num_sc,
          )
          return False
    return True

  def record(
      self,
      stats: _stats.SparseDenseMatmulInputStats,
      batch_number: int,
      has_grown: bool,
  ) -> None:
    """Gives the client a batch; it publishes if limits grew, and at times."""
    if self._client is None:
      return
    self._client.record(stats)
    if has_grown or (batch_number + 1) % _BATCHES_PER_FILE == 0:
      self._client.publish()
