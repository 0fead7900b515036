# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The settings of a run: one frozen value, one command line flag per field."""

from __future__ import annotations

import dataclasses

from jax_tpu_embedding.sparsecore.examples.common import command_line

# Below this nearly every word is <unk>, and no perplexity means anything.
_MIN_VOCABULARY_SIZE = 16
# The last two words of the context name a row of the pair table.
_MIN_CONTEXT_LENGTH = 2

UsageError = command_line.UsageError
_setting = command_line.setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(command_line.JobSettings):
  """Settings of one run. Adding a field adds its flag."""

  text_file: str = _setting(
      "",
      "UTF-8 text to learn from. Default: As You Like It, carried along.",
      is_path=True,
  )
  num_steps: int = _setting(
      4000, "Step at which training ends, resumed or not."
  )
  batch_size: int = _setting(
      256, "Words to predict per step.", shapes_result=True
  )
  context_length: int = _setting(
      4,
      "Number of previous words that the model sees.",
      shapes_result=True,
      older_name="sequence_length",
  )
  vocabulary_size: int = _setting(
      2000,
      "Number of words that the model knows, the most frequent ones; all others"
      " are <unk>.",
      shapes_result=True,
      older_name="vocab_size",
  )
  embedding_dim: int = _setting(
      64,
      "Width of the word table.",
      shapes_result=True,
      older_name="embedding_size",
  )
  pair_table_rows: int = _setting(
      1 << 20,
      "Rows of the pair table, into which pairs of adjacent words are hashed.",
      shapes_result=True,
  )
  hidden_dim: int = _setting(
      128, "Width of the hidden layer.", shapes_result=True
  )
  dropout: float = _setting(
      0.5,
      "Share of inputs and hidden units left out in training. A longer text"
      " wants less.",
      shapes_result=True,
  )
  learning_rate: float = _setting(
      0.05, "Learning rate of the tables (Adagrad).", shapes_result=True
  )
  dense_learning_rate: float = _setting(
      0.001, "Learning rate of the dense layers (Adam).", shapes_result=True
  )
  seed: int = _setting(
      0, "Seed of initial values, batches and dropout.", shapes_result=True
  )
  evaluate_every: int = _setting(
      200,
      "Steps between evaluations on the held-out text.",
      older_name="log_frequency",
  )
  output_dir: str = _setting(
      "",
      "Where the loss curve goes. Default: a new directory in /tmp.",
      is_path=True,
  )
  checkpoint_dir: str = _setting(
      "",
      "Where checkpoints go. Default: <output_dir>/checkpoints.",
      is_path=True,
  )
  checkpoint_every: int = _setting(
      1000,
      "Steps between checkpoints; the last step is always saved.",
      older_name="checkpoint_interval",
  )
  resume: bool = _setting(
      False, "Continue from the newest checkpoint in the checkpoint directory."
  )
  generated_words: int = _setting(80, "Words to generate at the end.")

  def __post_init__(self):
    self.check_at_least(
        num_steps=1,
        batch_size=1,
        context_length=_MIN_CONTEXT_LENGTH,
        vocabulary_size=_MIN_VOCABULARY_SIZE,
        embedding_dim=1,
        pair_table_rows=1,
        hidden_dim=1,
        seed=0,
        evaluate_every=1,
        checkpoint_every=1,
        generated_words=0,
    )
    self.check_rows_of_tables("pair_table_rows")
    self.check_job("context_length")
    self.check_positive_and_finite("learning_rate", "dense_learning_rate")
    if not 0 <= self.dropout < 1:
      raise UsageError(f"--dropout must be in [0, 1), got {self.dropout}.")
    if self.resume and not (self.output_dir or self.checkpoint_dir):
      raise UsageError(
          "--resume needs the --output_dir or the --checkpoint_dir of the run"
          " to continue."
      )
