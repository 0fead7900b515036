# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How long a step with many tables takes to trace and to compile."""

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


class Worker:
  """The commands."""

  def compile(self, num_tables: int, stacked: bool) -> dict[str, float]:
    """Traces and compiles lookup and update; seconds. Once per process."""
    specs = [_make_spec(f"table_{i:03}") for i in range(num_tables)]
    if stacked:
      # What the ids of all tables need.
      limit = lambda name, batch_size: num_tables * _BATCH_SIZE
      embedding.auto_stack_tables(specs, 1, 1, limit, limit)
    embedding.prepare_feature_specs_for_training(specs, 1, 1)
    ids = np.arange(_BATCH_SIZE, dtype=np.int32)[:, None]
    inputs = embedding.preprocess_sparse_dense_matmul_input(
        [ids] * num_tables, None, specs, 1, 1, num_sc_per_device=1
    )[0]
    variables = ours_worker.make_variables(specs)

    def train(variables, inputs):
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      return embedding.tpu_sparse_dense_matmul_grad(
          activations, inputs, variables, specs
      )

    start = time.perf_counter()
    lowered = jax.jit(train, donate_argnums=0).lower(variables, inputs)
    middle = time.perf_counter()
    lowered.compile()
    return {
        "trace": middle - start,
        "compile": time.perf_counter() - middle,
        "stacks": len(variables),
    }


def _make_spec(name: str) -> embedding_spec.FeatureSpec:
  table = embedding_spec.TableSpec(
      name=name,
      vocabulary_size=1000,
      embedding_dim=16,
      initializer=jax.nn.initializers.zeros,
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
  rounds = min(rounds, 2 if quick else 5)  # a process each
  text = f"""## Compiling {num_tables} tables

Seconds to trace and to compile their lookup and Adagrad update, in a process of
its own; medians of {rounds}. At most {_TARGET_SECONDS} s in all.

| tables | stacks | trace | compile | in all | |
|---|--:|--:|--:|--:|---|
"""
  for stacked in (False, True):
    answers = []
    for _ in range(rounds):
      with worker_process.WorkerProcess(__name__) as worker:
        answers.append(
            worker.command("compile", num_tables=num_tables, stacked=stacked)
        )
    trace, compilation, total = (
        turns.median(seconds)
        for seconds in (
            [answer["trace"] for answer in answers],
            [answer["compile"] for answer in answers],
            [answer["trace"] + answer["compile"] for answer in answers],
        )
    )
    verdict = "yes" if total <= _TARGET_SECONDS else "**no**"
    name = "stacked" if stacked else "each by itself"
    text += (
        f"| {name} | {answers[0]['stacks']} | {trace:.2f} | {compilation:.2f}"
        f" | {total:.2f} | {verdict} |\n"
    )
  return text
