# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints as jax_tpu_embedding 0.1 writes them, by orbax, for tests."""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np
import orbax.checkpoint as ocp

# Beside the tables: arrays of several types, a scalar, a string, an empty dict.
OTHERS = {
    "dense": {
        "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "count": np.array(7, np.uint32),
        "mask": np.array([True, False]),
        "half": np.ones((3,), "bfloat16"),
    },
    "name": "model",
    "nothing": {},
}


def save(
    path: pathlib.Path,
    topology: any_tables.Topology,
    values: Mapping[str, Any],
    *,
    of: str = "adagrad",
    tables: Any = any_tables.TABLES,
    model: Mapping[str, Any] | None = None,
    message: Any = None,
    step: int = 3,
) -> pathlib.Path:
  """Writes a step; returns its directory.

  Args:
    path: of the manager.
    topology: of the writer.
    values: as any_tables.values makes them.
    of: the optimizer.
    tables: as any_tables has them.
    model: what the tables are put into; default: what layers of NNX make.
    message: default: that of the specs.
    step: of the checkpoint.
  """
  specs = any_tables.feature_specs(topology, tables, of=of)
  variables = any_tables.random_variables(topology, specs, values)
  stacks = {
      name: {
          "table": of_stack.table,
          "slot": of_stack.slot._asdict(),
      }
      for name, of_stack in variables.items()
  }
  if model is None:
    model = {**OTHERS, "embed": {"embedding_table": {"value": stacks}}}
  else:
    model = jax.tree.map(
        lambda leaf: stacks if isinstance(leaf, str) else leaf, dict(model)
    )
  if message is None:
    message = embedding.create_proto_from_feature_specs(
        specs, topology.num_devices, topology.num_sc_per_device
    )
  items = ("model", "optimizer", "embedding_spec")
  with ocp.CheckpointManager(path, item_names=items) as manager:
    manager.save(
        step,
        args=ocp.args.Composite(
            model=ocp.args.PyTreeSave(model),
            optimizer=ocp.args.PyTreeSave({"momentum": np.ones((2, 3))}),
            embedding_spec=ocp.args.ProtoSave(message),
        ),
    )
  return path / str(step)


def load(path: pathlib.Path, item: str = "model") -> Any:
  """What plain orbax finds in an item, arrays as NumPy has them."""
  checkpointer = ocp.PyTreeCheckpointer()
  metadata = checkpointer.metadata(path / item).item_metadata.tree
  arguments = jax.tree.map(
      lambda leaf: ocp.RestoreArgs(
          restore_type=str if leaf is None or "String" in type(leaf).__name__
          else np.ndarray
      ),
      metadata,
  )  # fmt: skip
  return checkpointer.restore(path / item, restore_args=arguments)
