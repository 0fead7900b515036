# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Draws what overlaps in the pipelined steps of the examples on a TPU.

    ./bazelw run //jax_tpu_embedding/sparsecore/examples:lanes -- DIR

compiles each for a slice of four chips, which takes libtpu and no TPU, and
writes DIR/shakespeare.png and DIR/dlrm.png. DIR is a folder that is there.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any
from unittest import mock

import jax
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.dlrm import config as dlrm_config
from jax_tpu_embedding.sparsecore.examples.dlrm import features as dlrm_features
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as dlrm_samples
from jax_tpu_embedding.sparsecore.examples.dlrm import training as dlrm_training
from jax_tpu_embedding.sparsecore.examples.shakespeare import baseline
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as shakespeare_config
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare_pipelined
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core.tpu import overlap_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
from jax_tpu_embedding.sparsecore.utils import utils
import numpy as np

_SLICE = "v5p:2x2x1"
P = jax.sharding.PartitionSpec


def compile_pipeline(
    pipeline: pipelining.PipelinedStep,
    feature_specs: Any,
    dense: tuple[Any, ...],
    batch: tuple[Any, ...],
    mesh: jax.sharding.Mesh,
) -> jax.stages.Compiled:
  """A step of a pipeline for the devices of a mesh, which need not be there.

  Args:
    pipeline: of a step that takes `*dense`, tables in jax.Refs, and `*batch`.
    feature_specs: prepared for the mesh.
    dense: the arguments before the tables, or their shapes.
    batch: the arguments after them, or their shapes.
    mesh: of one axis.
  """
  everywhere = jax.sharding.NamedSharding(mesh, P())
  split = jax.sharding.NamedSharding(mesh, P(*mesh.axis_names))
  table_format = utils.embedding_table_format(mesh, P(*mesh.axis_names))

  def lay_out(tree, sharding):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            np.shape(x),
            x.dtype,
            sharding=sharding if np.ndim(x) else everywhere,
        ),
        tree,
    )

  tables = {}
  for stack in embedding.get_stacked_table_specs(feature_specs).values():
    table = jax.ShapeDtypeStruct(
        (stack.stack_vocab_size, stack.stack_embedding_dim),
        np.float32,
        sharding=table_format,
    )
    # Both programs train with Adagrad, which has one slot.
    tables[stack.stack_name] = embedding.EmbeddingVariables(table, (table,))
  dense, batch = lay_out(dense, everywhere), lay_out(batch, split)

  def start(dense, tables, batch):
    return pipeline.start(*dense, jax.tree.map(jax.new_ref, tables), *batch)

  # References cannot be made ahead of devices, so the program makes them.
  def step(flight, dense, tables, batch):
    references = jax.tree.map(jax.new_ref, tables)
    flight, results = pipeline(flight, *dense, references, *batch)
    return flight, results, jax.tree.map(jax.freeze, references)

  flight = lay_out(jax.eval_shape(start, dense, tables, batch), split)
  formats = jax.tree.map(lambda x: x.format, tables)
  jitted = jax.jit(
      step, donate_argnums=(0, 1, 2), out_shardings=(None, None, formats)
  )
  return jitted.lower(flight, dense, tables, batch).compile()


def shakespeare(mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
  """The step of the pipelined program, which is exact."""
  config = shakespeare_config.Config(
      num_devices=mesh.size, batch_size=1024 * mesh.size
  )
  data = dataset.load(config)
  unigram = baseline.log_probabilities(data.train_ids, len(data.words))
  with _devices_of(mesh):
    trainer = shakespeare_pipelined.PipelinedTrainer(config, data, unigram)
  embedding.prepare_feature_specs_for_training(
      trainer.feature_specs, mesh.size, num_sc_per_device=_num_scs(mesh)
  )
  batch = data.train_batch(0, 0, config.batch_size)
  with jax.set_mesh(trainer.mesh):
    dense = jax.eval_shape(trainer.init_dense)
    return compile_pipeline(
        trainer.pipeline,
        trainer.feature_specs,
        (dense, jax.eval_shape(trainer.optimizer.init, dense)),
        (batch, np.int32(0)),
        trainer.mesh,
    )


def dlrm(mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
  """The step with --preprocess=host --pipeline=exact."""
  config = dlrm_config.Config(
      num_devices=mesh.size, batch_size=4096 * mesh.size, pipeline="exact"
  )
  with jax.set_mesh(mesh):
    with _devices_of(mesh):
      trainer = dlrm_training.Trainer(config)
    specs = trainer.model.feature_specs
    inputs = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
        specs, mesh.size, mesh.size, num_sc_per_device=_num_scs(mesh)
    )
    dense_features = jax.ShapeDtypeStruct(
        (config.batch_size, dlrm_samples.NUM_DENSE), np.float32
    )
    labels = jax.ShapeDtypeStruct((config.batch_size,), np.float32)
    batch = dlrm_features.Batch(labels, dense_features, inputs)
    dense = jax.eval_shape(lambda: trainer.init_dense(jax.random.key(0)))
    return compile_pipeline(
        trainer.pipeline,
        specs,
        (dense, jax.eval_shape(trainer.optimizer.init, dense)),
        (batch,),
        mesh,
    )


def _devices_of(mesh: jax.sharding.Mesh) -> Any:
  """A context in which they are those of JAX."""
  devices = list(mesh.devices.flat)
  return mock.patch.object(jax, "devices", lambda: devices)


def _num_scs(mesh: jax.sharding.Mesh) -> int:
  return hardware.num_sparsecores_per_device(mesh.devices.flat[0])


def _folder(argv: list[str]) -> pathlib.Path:
  """The one that the command line names; ends the process if it is none."""
  usage = "usage: lanes DIR"
  if len(argv) != 2:
    command_line.fail(
        argv[0],
        f"{usage}, a folder to write to; got {len(argv) - 1} arguments.",
        code=2,
    )
  folder = command_line.as_typed(argv[1])
  if not folder.is_dir():
    command_line.fail(argv[0], f"{usage}; there is no folder {folder}.", code=2)
  return folder


def main(argv: list[str]) -> None:
  # Before minutes of compiling.
  folder = _folder(argv)
  mesh = topology.topology_mesh(_SLICE)
  for name, compile_step in (("shakespeare", shakespeare), ("dlrm", dlrm)):
    report = overlap_report.overlap_report(compile_step(mesh))
    print(name, report, sep="\n")
    report.plot(folder / f"{name}.png")


if __name__ == "__main__":
  jax.config.update("jax_platforms", "cpu")
  main(sys.argv)
