# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The settings of a run: one frozen value, one command line flag per field."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from absl import flags

# Below this nearly every word is <unk>, and no perplexity means anything.
_MIN_VOCABULARY_SIZE = 16
# The last two words of the context name a row of the pair table.
_MIN_CONTEXT_LENGTH = 2


class UsageError(ValueError):
  """Something the user can put right: reported in one line, no traceback."""


def _flag(
    default: Any,
    help_text: str,
    *,
    shapes_result: bool = False,
    older_name: str | None = None,
) -> Any:
  """A field with its flag's help.

  Args:
    default: the flag's default; its type is the flag's type.
    help_text: what `--help` says.
    shapes_result: whether another value gives another model or another stream
      of batches, so that a run cannot be resumed with it.
    older_name: what the flag is called in programs for jax_tpu_embedding 0.1;
      it is understood, too.
  """
  return dataclasses.field(
      default=default,
      metadata={
          "help": help_text,
          "shapes_result": shapes_result,
          "older_name": older_name,
      },
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Settings of one run.

  Adding a field adds its flag. Paths are absolute once `from_flags` has run.
  """

  text_file: str = _flag(
      "", "UTF-8 text to learn from. Default: As You Like It, carried along."
  )
  num_steps: int = _flag(4000, "Step at which training ends, resumed or not.")
  batch_size: int = _flag(256, "Words to predict per step.", shapes_result=True)
  context_length: int = _flag(
      4,
      "Number of previous words that the model sees.",
      shapes_result=True,
      older_name="sequence_length",
  )
  vocabulary_size: int = _flag(
      2000,
      "Number of words that the model knows, the most frequent ones; all others"
      " are <unk>.",
      shapes_result=True,
      older_name="vocab_size",
  )
  embedding_dim: int = _flag(
      64,
      "Width of the word table.",
      shapes_result=True,
      older_name="embedding_size",
  )
  pair_table_rows: int = _flag(
      1 << 20,
      "Rows of the pair table, into which pairs of adjacent words are hashed.",
      shapes_result=True,
  )
  hidden_dim: int = _flag(128, "Width of the hidden layer.", shapes_result=True)
  dropout: float = _flag(
      0.5,
      "Share of inputs and hidden units left out in training. A longer text"
      " wants less.",
      shapes_result=True,
  )
  learning_rate: float = _flag(
      0.05, "Learning rate of the tables (Adagrad).", shapes_result=True
  )
  dense_learning_rate: float = _flag(
      0.001, "Learning rate of the dense layers (Adam).", shapes_result=True
  )
  seed: int = _flag(
      0, "Seed of initial values, batches and dropout.", shapes_result=True
  )
  evaluate_every: int = _flag(
      200,
      "Steps between evaluations on the held-out text.",
      older_name="log_frequency",
  )
  output_dir: str = _flag(
      "", "Where the loss curve goes. Default: a new directory in /tmp."
  )
  checkpoint_dir: str = _flag(
      "", "Where checkpoints go. Default: <output_dir>/checkpoints."
  )
  checkpoint_every: int = _flag(
      1000,
      "Steps between checkpoints; the last step is always saved.",
      older_name="checkpoint_interval",
  )
  resume: bool = _flag(
      False, "Continue from the newest checkpoint in the checkpoint directory."
  )
  generated_words: int = _flag(80, "Words to generate at the end.")
  num_devices: int = _flag(
      1,
      "Devices to train on. A CPU becomes as many as it is told to.",
      shapes_result=True,
  )

  def __post_init__(self):
    for name, minimum in _MINIMA.items():
      value = getattr(self, name)
      if value < minimum:
        raise UsageError(f"--{name} must be at least {minimum}, got {value}.")
    if self.batch_size % self.num_devices:
      raise UsageError(
          f"--batch_size must be a multiple of --num_devices={self.num_devices}"
          f" so that each device gets as many samples, got {self.batch_size}."
      )
    for name in ("learning_rate", "dense_learning_rate"):
      value = getattr(self, name)
      if not 0 < value < float("inf"):
        raise UsageError(f"--{name} must be positive and finite, got {value}.")
    if not 0 <= self.dropout < 1:
      raise UsageError(f"--dropout must be in [0, 1), got {self.dropout}.")
    if self.resume and not (self.output_dir or self.checkpoint_dir):
      raise UsageError(
          "--resume needs the --output_dir or the --checkpoint_dir of the run"
          " to continue."
      )

  def result_shaping(self) -> dict[str, Any]:
    """The settings that must not change when a run is resumed."""
    return {
        field.name: getattr(self, field.name)
        for field in dataclasses.fields(self)
        if field.metadata["shapes_result"]
    }


_MINIMA = {
    "num_devices": 1,
    "num_steps": 1,
    "batch_size": 1,
    "context_length": _MIN_CONTEXT_LENGTH,
    "vocabulary_size": _MIN_VOCABULARY_SIZE,
    "embedding_dim": 1,
    "pair_table_rows": 1,
    "hidden_dim": 1,
    "seed": 0,
    "evaluate_every": 1,
    "checkpoint_every": 1,
    "generated_words": 0,
}

_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def define_flags() -> None:
  """Defines one flag per field of `Config`; call it once, before `app.run`."""
  for field in dataclasses.fields(Config):
    define = _DEFINE[type(field.default)]
    define(field.name, field.default, field.metadata["help"])
    if field.metadata["older_name"]:
      flags.DEFINE_alias(field.metadata["older_name"], field.name)


def _absolute(path: str) -> str:
  """`path` as seen from where the user typed the command; "" stays ""."""
  if not path:
    return ""
  # `bazel run` starts programs in a directory of its own.
  start = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
  return str(pathlib.Path(start, pathlib.Path(path).expanduser()))


def from_flags() -> Config:
  """The settings given on the command line.

  Raises:
    UsageError: a value is out of range.
  """
  values = {
      field.name: getattr(flags.FLAGS, field.name)
      for field in dataclasses.fields(Config)
  }
  for name in ("text_file", "output_dir", "checkpoint_dir"):
    values[name] = _absolute(values[name])
  return Config(**values)
