# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How long hosts wait for each other."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeouts:
  """In seconds. All hosts of a job should have the same."""

  # For a host to come up and to answer a call.
  call_seconds: float = 120.0
  # For a whole reduction: how far the slowest host may be behind this one. More
  # than a call, because a host that lives may be busy: it saves a checkpoint,
  # or waits for its data.
  reduction_seconds: float = 600.0
  # For a host that was up and cannot be reached to be found gone.
  reconnect_seconds: float = 5.0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      seconds = getattr(self, field.name)
      if not seconds > 0:
        raise ValueError(
            f"Timeouts: {field.name} must be positive, got {seconds!r}."
        )
