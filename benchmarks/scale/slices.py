# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What compiling a step takes, by the number of chips in a TPU slice."""

from __future__ import annotations

import re
import time

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.utils import utils

from benchmarks import worker_process
from benchmarks.scale import curve
from benchmarks.scale import models

P = jax.sharding.PartitionSpec

_NUM_TABLES, _ROWS_PER_CHIP, _DIM, _BATCH_PER_CHIP = 8, 100_000, 32, 512
_SLICES = {
    "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "8x8x8"),
    "v6e": ("2x2", "4x4", "8x8", "16x16"),
    "tpu7x": ("2x2x1", "4x4x4", "8x8x8"),
}


class Worker:
  """The commands. Each is for a process of its own."""

  def compile(self, name: str) -> dict[str, float]:
    mesh = topology.topology_mesh(name)
    chips = len({tuple(d.coords) for d in mesh.devices.flat})
    num_sc = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
    specs = models.features(
        [_ROWS_PER_CHIP * mesh.size] * _NUM_TABLES,
        dim=_DIM,
        batch_size=_BATCH_PER_CHIP * mesh.size,
        valency=1,
        optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
        limit=max(8, 2 * _BATCH_PER_CHIP // num_sc // (num_sc * mesh.size)),
    )
    embedding.prepare_feature_specs_for_training(specs, mesh.size, num_sc)
    by_device = jax.sharding.NamedSharding(mesh, P("x"))
    inputs = jax.tree.map(
        lambda x: x.update(sharding=by_device),
        embedding.eval_preprocess_sparse_dense_matmul_input_shape(
            specs, mesh.size, mesh.size, num_sc_per_device=num_sc
        ),
    )
    tables = utils.embedding_table_format(mesh, P("x"))
    variables = {}
    for stack_name, stack in embedding.get_stacked_table_specs(specs).items():
      table = jax.ShapeDtypeStruct(
          (stack.stack_vocab_size, stack.stack_embedding_dim),
          jnp.float32,
          sharding=tables,
      )
      variables[stack_name] = embedding.EmbeddingVariables(table, (table,))
    step = models.train_step(
        specs, global_device_count=mesh.size, num_sc_per_device=num_sc
    )
    jitted = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(P("x"), P("x")),
            out_specs=P("x"),
            check_vma=False,
        ),
        donate_argnums=1,
        out_shardings=jax.tree.map(lambda x: tables, variables),
    )
    begin = time.perf_counter()
    lowered = jitted.lower(inputs, variables)
    traced = time.perf_counter()
    compiled = lowered.compile()
    ended = time.perf_counter()
    report = memory_report.memory_report(compiled)
    return {
        "chips": chips,
        "trace, s": traced - begin,
        "compile, s": ended - traced,
        "arguments per device, MiB": report.argument_bytes / 2**20,
        "temporary, MiB": report.temporary_bytes / 2**20,
        "instructions": len(re.findall(r"(?m)^\s+\S+ = ", compiled.as_text())),
    }


def measure(is_quick: bool) -> list[curve.Curve]:
  curves = []
  for chip, shapes in _SLICES.items():
    points = []
    for shape in shapes[:1] if is_quick else shapes:
      with worker_process.WorkerProcess(__name__) as worker:
        points.append(worker.command("compile", name=f"{chip}:{shape}"))
    curves.append(
        curve.Curve(
            name=f"slices_{chip}",
            title=f"Chips of a slice of {chip}",
            text=(
                f"Lookup and Adagrad's update of {_NUM_TABLES} tables with"
                f" {_ROWS_PER_CHIP:,} rows x {_DIM} and {_BATCH_PER_CHIP}"
                f" samples per device, compiled for {chip} of the shapes"
                f" {', '.join(shapes)}; a new process for each. Instructions"
                " are those of the compiled program. Nothing was run."
            ),
            x="chips",
            points=points,
        )
    )
  return curves
