# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The settings of a run: one frozen value, one command line flag per field."""

from __future__ import annotations

import dataclasses

from jax_tpu_embedding.sparsecore.examples.common import command_line

UsageError = command_line.UsageError
_setting = command_line.setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(command_line.JobSettings):
  """Settings of one run. Adding a field adds its flag."""

  data: str = _setting(
      "",
      "Click log in Criteo's format: tab-separated text, or the same with gzip"
      " (.gz). Default: a log that the program generates.",
      is_path=True,
  )
  num_samples: int = _setting(
      0,
      "Lines of the log to use, or to generate. Default, 0: all of --data, or"
      " 1,000,000 generated ones.",
      shapes_result=True,
  )
  heldout_samples: int = _setting(
      50_000,
      "The last so many of these lines are held out, not trained on.",
      shapes_result=True,
  )
  num_steps: int = _setting(
      0,
      "Step at which training ends, resumed or not. Default, 0: each sample is"
      " seen once.",
  )
  batch_size: int = _setting(
      1024, "Samples per step, over all devices.", shapes_result=True
  )
  table_rows: int = _setting(
      1 << 15,
      "Rows of each of the 26 tables, into which categories are hashed.",
      shapes_result=True,
  )
  embedding_dim: int = _setting(16, "Width of the tables.", shapes_result=True)
  bottom_mlp: tuple[int, ...] = _setting(
      (64, 16), "Widths of the layers on dense features.", shapes_result=True
  )
  cross_layers: int = _setting(
      3, "Number of cross layers (DCNv2).", shapes_result=True
  )
  cross_rank: int = _setting(
      64, "Rank of the matrix of each cross layer.", shapes_result=True
  )
  top_mlp: tuple[int, ...] = _setting(
      (256, 128), "Widths of the layers after those.", shapes_result=True
  )
  learning_rate: float = _setting(
      0.1, "Learning rate of the tables (Adagrad).", shapes_result=True
  )
  dense_learning_rate: float = _setting(
      0.001, "Learning rate of the dense layers (Adam).", shapes_result=True
  )
  seed: int = _setting(
      0, "Seed of initial values and of the generated log.", shapes_result=True
  )
  pipeline: str = _setting(
      "off",
      "Whether a step looks the next batch up: off; exact, with the same"
      " numbers; or stale, an update late.",
      shapes_result=True,
  )
  preprocess: str = _setting(
      "jit",
      "Where the ids of training batches are converted: 'jit', in the step, or"
      " 'host', ahead of it.",
  )
  evaluate_every: int = _setting(100, "Steps between evaluations.")
  output_dir: str = _setting(
      "",
      "Where the generated log, checkpoints and the picture go. Default: a new"
      " directory in /tmp.",
      is_path=True,
  )
  checkpoint_every: int = _setting(
      1000, "Steps between checkpoints; the last step is always saved."
  )
  resume: bool = _setting(
      False, "Continue from the newest checkpoint in --output_dir."
  )

  def __post_init__(self):
    self.check_at_least(
        num_samples=0,
        heldout_samples=1,
        num_steps=0,
        batch_size=1,
        # One for what is missing, and one for what is not.
        table_rows=2,
        embedding_dim=1,
        cross_layers=0,
        cross_rank=1,
        seed=0,
        evaluate_every=1,
        checkpoint_every=1,
    )
    self.check_rows_of_tables("table_rows")
    if self.preprocess not in ("jit", "host"):
      raise UsageError(
          f"--preprocess must be 'jit' or 'host', got '{self.preprocess}'."
      )
    for name in ("bottom_mlp", "top_mlp"):
      value = getattr(self, name)
      if not value or min(value) < 1:
        raise UsageError(
            f"--{name} must be one or more positive numbers, got"
            f" '{','.join(map(str, value))}'."
        )
    if self.pipeline not in ("off", "exact", "stale"):
      raise UsageError(
          f"--pipeline must be off, exact or stale, got '{self.pipeline}'."
      )
    self.check_positive_and_finite("learning_rate", "dense_learning_rate")
    self.check_job()
    if self.resume and not self.output_dir:
      raise UsageError(
          "--resume needs the --output_dir of the run to continue."
      )
