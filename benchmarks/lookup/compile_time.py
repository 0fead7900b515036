# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How long many tables take to compile: their initial values, and a step."""

from __future__ import annotations

import time

import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import turns
from benchmarks import worker_process
from benchmarks.lookup import ours_worker

_NUM_TABLES = 100
_BATCH_SIZE = 256
_TARGET_SECONDS = 10

# Name -> whether tables are stacked, and whether they have different sizes.
_MODELS = {
    "each by itself, of one size": (False, False),
    "each by itself, of different sizes": (False, True),
    "stacked, of one size": (True, False),
    "stacked, of different sizes": (True, True),
}


class Worker:
  """The commands."""

  def compile(
      self, num_tables: int, stacked: bool, different_sizes: bool
  ) -> dict[str, float]:
    """Makes the variables, compiles lookup and update. Once per process.

    Returns:
      Seconds. The variables are small: to initialize them is to compile.
    """
    specs = _make_specs(num_tables, stacked, different_sizes)
    ids = np.arange(_BATCH_SIZE, dtype=np.int32)[:, None]
    inputs = embedding.preprocess_sparse_dense_matmul_input(
        [ids] * num_tables, None, specs, 1, 1, num_sc_per_device=1
    )[0]

    def train(variables, inputs):
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      return embedding.tpu_sparse_dense_matmul_grad(
          activations, inputs, variables, specs
      )

    start = time.perf_counter()
    variables = jax.block_until_ready(ours_worker.make_variables(specs))
    initialized = time.perf_counter()
    lowered = jax.jit(train, donate_argnums=0).lower(variables, inputs)
    traced = time.perf_counter()
    lowered.compile()
    return {
        "initialize": initialized - start,
        "trace": traced - initialized,
        "compile": time.perf_counter() - traced,
        "stacks": len(variables),
    }


def _make_specs(
    num_tables: int, stacked: bool, different_sizes: bool
) -> list[embedding_spec.FeatureSpec]:
  specs = [
      _make_spec(f"table_{i:03}", 1000 + 37 * i * different_sizes)
      for i in range(num_tables)
  ]
  if stacked:
    # What the ids of all tables need.
    limit = lambda name, batch_size: num_tables * _BATCH_SIZE
    embedding.auto_stack_tables(specs, 1, 1, limit, limit)
  embedding.prepare_feature_specs_for_training(specs, 1, 1)
  return specs


def _make_spec(name: str, vocabulary_size: int) -> embedding_spec.FeatureSpec:
  table = embedding_spec.TableSpec(
      name=name,
      vocabulary_size=vocabulary_size,
      embedding_dim=16,
      initializer=jax.nn.initializers.truncated_normal(),
      optimizer=embedding_spec.AdagradOptimizerSpec(),
      combiner="sum",
  )
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=(_BATCH_SIZE, 1),
      output_shape=(_BATCH_SIZE, 16),
  )


def section(rounds: int, quick: bool) -> str:
  """The part of RESULTS.md on it."""
  num_tables = 4 if quick else _NUM_TABLES
  rounds = min(rounds, 1 if quick else 5)  # a process each
  text = f"""## Compiling {num_tables} tables

Seconds to initialize them (truncated normal, and Adagrad's slot), and to trace
and to compile their lookup and update, in a process of its own; medians of
{rounds}. At most {_TARGET_SECONDS} s in all.

| tables | stacks | initialize | trace | compile | in all | |
|---|--:|--:|--:|--:|--:|---|
"""
  for name, (stacked, different_sizes) in _MODELS.items():
    answers = []
    for _ in range(rounds):
      with worker_process.WorkerProcess(__name__) as worker:
        answers.append(
            worker.command(
                "compile",
                num_tables=num_tables,
                stacked=stacked,
                different_sizes=different_sizes,
            )
        )
    seconds = [
        [answer[part] for part in ("initialize", "trace", "compile")]
        for answer in answers
    ]
    total = turns.median([sum(parts) for parts in seconds])
    cells = " | ".join(f"{turns.median(part):.2f}" for part in zip(*seconds))
    verdict = "yes" if total <= _TARGET_SECONDS else "**no**"
    text += (
        f"| {name} | {answers[0]['stacks']} | {cells} | {total:.2f} |"
        f" {verdict} |\n"
    )
  return text
