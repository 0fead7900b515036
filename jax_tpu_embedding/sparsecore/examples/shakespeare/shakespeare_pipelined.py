# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The program for Flax Linen, with the next batch looked up in every step.

The step is that program's. The pipeline moves its lookup to the step before,
after the update there, so every number is the same; on a TPU the lookup then
runs beside the weight gradients. What comes next has to be known a step ahead,
the number of its step included, which its dropout depends on.
"""

from __future__ import annotations

import jax
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
import numpy as np


class PipelinedTrainer(shakespeare.LinenTrainer):
  """Between two steps, the batch that comes next is in flight."""

  api = "pipelined"

  def __init__(self, *args):
    super().__init__(*args)
    self.pipeline = pipelining.pipelined(
        self._step, batch_argnums=(3, 4), donate_argnums=(0, 1)
    )
    self._flight = None
    # The state and the step that the flight is for. After a step all updates
    # are made, so a flight can be left, and another started.
    self._flight_of = None, 0

  def update(self, state, batch):
    others = state.dense, state.optimizer_state, state.tables
    following = self.data.train_batch(
        self.config.seed, state.step + 1, self.config.batch_size
    )
    with jax.set_mesh(self.mesh):
      for_state, for_step = self._flight_of
      if for_state is not state or for_step != state.step:
        self._flight = self.pipeline.start(
            *others, *self._at(batch, state.step)
        )
      self._flight, results = self.pipeline(
          self._flight, *others, *self._at(following, state.step + 1)
      )
    self._flight_of = state, state.step + 1
    state.dense, state.optimizer_state, loss = results
    return loss

  def _at(self, batch, step):
    return self.by_sample(batch), np.int32(step)


if __name__ == "__main__":
  program.start(PipelinedTrainer)
