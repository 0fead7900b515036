# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Writes what is beside this file, with jax-tpu-embedding 0.2.0 of PyPI.

In an environment with that package, optax and orbax, not with this library:

  python write_with_reference.py write OUT 4       # OUT/3: 4 devices x 2
  python write_with_reference.py unstack OUT 1     # OUT/unstacked.npz of it
  python write_with_reference.py restore OUT 2     # OUT/restored.npz of OUT/3

`unstack` is the package's own conversion, so what this library makes of the
checkpoint can be compared with it. `restore` is how to see whether the package
reads a stacked checkpoint for so many devices x 2 that this library wrote.
"""

import pathlib
import sys

from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.lib.flax.nnx import checkpoint_utils
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.utils import utils
import numpy as np
import optax
import orbax.checkpoint as ocp

_TASK = sys.argv[1]
_OUT = pathlib.Path(sys.argv[2])
_NUM_DEVICES = int(sys.argv[3])

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", _NUM_DEVICES)
utils.NUM_SC_PER_DEVICE_MAP["cpu"] = 2
_TABLES = (("items", 103, 6), ("users", 30, 4), ("hours", 5, 6))


class _Model(nnx.Module):

  def __init__(self, specs, mesh, rngs):
    self.embedding_layer = embed.SparseCoreEmbed(specs, "x", mesh, rngs)
    self.dense = nnx.Linear(6, 3, rngs=rngs)


def _specs():
  specs = {}
  for name, rows, columns in _TABLES:
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=rows,
        embedding_dim=columns,
        initializer=jax.nn.initializers.normal(),
        combiner="sum",
        optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
    )
    specs[name] = embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(48, 2),
        output_shape=(48, columns),
    )
  embedding.auto_stack_tables(specs, _NUM_DEVICES, 2)
  embedding.prepare_feature_specs_for_training(specs, _NUM_DEVICES, 2)
  return specs


def _save_arrays(path, tree):
  arrays = {
      jax.tree_util.keystr(keys, simple=True, separator="."): np.asarray(leaf)
      for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
  np.savez_compressed(path, **arrays)


def main():
  specs = _specs()
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
  model = _Model(specs, mesh, nnx.Rngs(0))
  optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.1, momentum=0.9))
  options = ocp.CheckpointManagerOptions()
  if _TASK == "unstack":
    checkpoint_utils.convert_cross_topology_checkpoint(
        input_checkpoint_path=str(_OUT),
        output_checkpoint_path=str(_OUT / "unstacked"),
    )
    tree = ocp.PyTreeCheckpointer().restore(_OUT / "unstacked" / "3" / "model")
    _save_arrays(
        _OUT / "unstacked.npz",
        tree["embedding_layer"]["embedding_table"]["value"],
    )
    return
  with checkpoint_utils.create_checkpoint_manager(
      cp_path=str(_OUT), cp_options=options
  ) as manager:
    if _TASK == "restore":
      checkpoint_utils.restore_checkpoint(
          cp_manager=manager, model=model, optimizer=optimizer
      )
      _save_arrays(_OUT / "restored.npz", nnx.to_pure_dict(nnx.state(model)))
      return
    # Random numbers, in padding too, which must not be taken for rows.
    rng = np.random.default_rng(0)
    tables = model.embedding_layer.embedding_table
    tables.value = jax.tree.map(
        lambda x: jax.device_put(
            rng.normal(size=x.shape).astype(x.dtype), x.sharding
        ),
        tables.value,
    )
    checkpoint_utils.save_checkpoint(
        cp_manager=manager,
        step=3,
        model=model,
        optimizer=optimizer,
        feature_specs=specs,
        num_global_devices=_NUM_DEVICES,
        num_sc_per_device=2,
    )
    manager.wait_until_finished()


if __name__ == "__main__":
  main()
