# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The stale step makes the operations that its docstring draws, in that order."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import training_runs
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

P = jax.sharding.PartitionSpec
_NUM_DEVICES = 4


class OperationsTest(parameterized.TestCase):

  @parameterized.parameters("sgd", "schedule", "adagrad", "adam")
  def test_stale_bits_are_those_of_calls_one_by_one(self, optimizer):
    run = training_runs.Refs(training_runs.OPTIMIZERS[optimizer])
    expected, tables, dense = _one_by_one(run)
    losses = training_runs.train_pipelined(
        run, training_runs.batches(), mode="stale"
    )
    self.assertEqual(losses, expected)
    of_run = run.arrays()
    training_runs.assert_same_bits(
        self, {k: v[:2] for k, v in of_run[1].items()}, tables
    )
    training_runs.assert_same_bits(self, of_run[0]["Dense_0"], dense)


def _one_by_one(run):
  """Losses, tables and dense parameters, by the functions below the layers."""
  mesh = jax.sharding.Mesh(jax.devices(), "x")
  specs = run.specs
  embedding.prepare_feature_specs_for_training(specs, _NUM_DEVICES, 1)
  by_device = functools.partial(
      jax.shard_map, mesh=mesh, out_specs=P("x"), check_vma=False
  )
  look_up = jax.jit(
      by_device(
          lambda inputs, tables: embedding.tpu_sparse_dense_matmul(
              inputs, tables, specs
          ),
          in_specs=P("x"),
      )
  )
  update = jax.jit(
      by_device(
          lambda gradients, inputs, tables, step: (
              embedding.tpu_sparse_dense_matmul_grad(
                  gradients, inputs, tables, specs, step=step
              )
          ),
          in_specs=(P("x"), P("x"), P("x"), P()),
      )
  )

  @jax.jit
  def train(dense, activations, labels):
    def loss_fn(dense, activations):
      x = jnp.tanh(jnp.concatenate(list(activations.values()), axis=1))
      out = x @ dense["kernel"] + dense["bias"]
      return jnp.mean((out - labels) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn, argnums=(0, 1))(
        dense, activations
    )
    dense = jax.tree.map(lambda p, g: p - 0.1 * g, dense, gradients[0])
    return dense, loss, gradients[1]

  split = jax.sharding.NamedSharding(mesh, P("x"))
  inputs = []
  for batch in training_runs.batches():
    ids, _ = embedding.preprocess_sparse_dense_matmul_input(
        batch["ids"],
        None,
        specs,
        _NUM_DEVICES,
        _NUM_DEVICES,
        num_sc_per_device=1,
    )
    inputs.append(jax.device_put(ids, split))
  # Copies, which are not written to.
  tables = jax.tree.map(
      lambda ref: jax.device_put(np.array(ref[...]), split),
      {k: v[:2] for k, v in run.tables.items()},
  )
  dense = jax.tree.map(jnp.copy, run.dense_layer())
  losses, pending = [], None
  activations = look_up(inputs[0], tables)
  for i, batch in enumerate(training_runs.batches()):
    if pending:
      tables = update(*pending[:2], tables, pending[2])
    looked_up = look_up(inputs[min(i + 1, len(inputs) - 1)], tables)
    dense, loss, gradients = train(dense, activations, batch["labels"])
    losses.append(float(loss))
    pending, activations = (gradients, inputs[i], np.int32(i)), looked_up
  tables = update(*pending[:2], tables, pending[2])
  return losses, jax.tree.map(np.array, tables), dense


if __name__ == "__main__":
  absltest.main()
