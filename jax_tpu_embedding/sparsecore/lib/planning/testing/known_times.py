# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Times of this machine's calls that nobody has to measure, for seconds."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from unittest import mock

from jax_tpu_embedding.sparsecore.lib.planning import _call_probe
from jax_tpu_embedding.sparsecore.lib.planning import _this_machine
from jax_tpu_embedding.sparsecore.lib.planning import chips

TIMES = chips.MeasuredTimes(
    lookup=chips.CallTimes(
        per_call=0.5,
        per_id=1e-3,
        per_byte=1e-6,
        per_new_row=7e-3,
        per_new_byte=1e-5,
        per_sample_byte=4e-5,
    ),
    update=chips.CallTimes(
        per_call=0.25,
        per_id=2e-3,
        per_byte=2e-6,
        per_new_row=9e-3,
        per_new_byte=3e-5,
        per_sample_byte=5e-5,
    ),
)


@contextlib.contextmanager
def known() -> Iterator[mock.Mock]:
  """Within, whoever measures calls gets TIMES. Yields what is called for it."""
  _this_machine._times.cache_clear()
  with mock.patch.object(_call_probe, "measure", return_value=TIMES) as measure:
    yield measure
  _this_machine._times.cache_clear()
