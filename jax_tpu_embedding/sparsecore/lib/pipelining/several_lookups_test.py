# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Steps with several lookups: of two layers, and twice of the same one."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import training_runs

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()


class _TwoLayers(training_runs.Refs):
  """Users and items are in layers of their own, with tables of their own."""

  num_lookups = 2

  def __init__(self, optimizer):
    super().__init__(optimizer)
    self.layers = {
        name: embed.SparseCoreEmbed({name: spec}, tables="ref")
        for name, spec in self.specs.items()
    }
    self.tables = {
        name: embed.SparseCoreEmbed.create_embedding_variables(
            {name: spec}, jax.random.key(i)
        )
        for i, (name, spec) in enumerate(self.specs.items())
    }
    of_layer = {
        name: layer.init(jax.random.key(0), {name: _ids()[name]})["params"]
        for name, layer in self.layers.items()
    }
    self.dense = {
        "layers": of_layer,
        "Dense_0": jnp.linspace(-1, 1, training_runs.DIM * self.num_lookups),
    }
    self.train_step = self._train_step

  def look_up(self, dense, tables, ids):
    return [
        layer.apply(
            {"params": dense["layers"][name], "embedding": tables[name]},
            {name: ids[name]},
        )[name]
        for name, layer in self.layers.items()
    ]

  def _train_step(self, dense, tables, batch):
    def loss_fn(dense):
      out = self.look_up(dense, tables, batch["ids"])
      out = jnp.tanh(jnp.concatenate(out, axis=1)) @ dense["Dense_0"]
      return jnp.mean((out - batch["labels"][:, 0]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(dense)
    return jax.tree.map(lambda p, g: p - 0.1 * g, dense, gradients), loss


class _OneLayerTwice(_TwoLayers):
  """The first layer is called with the ids, and with those of the next row.

  Both lookups come first, and each has an update of its own.
  """

  num_lookups = 3

  def look_up(self, dense, tables, ids):
    following = jax.tree.map(lambda x: x + 1, ids)
    return [
        *super().look_up(dense, tables, ids),
        super().look_up(dense, tables, following)[0],
    ]


def _ids():
  return training_runs.batches(1)[0]["ids"]


class SeveralLookupsTest(parameterized.TestCase):

  @parameterized.product(
      make=[_TwoLayers, _OneLayerTwice], optimizer=["adagrad", "adam"]
  )
  def test_bits_are_those_of_the_plain_step(self, make, optimizer):
    optimizer = training_runs.OPTIMIZERS[optimizer]
    plain, pipelined = make(optimizer), make(optimizer)
    batches = training_runs.batches(20)
    losses = training_runs.train_pipelined(pipelined, batches)
    self.assertEqual(losses, training_runs.train(plain, batches))
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  # The second lookup of items is one that nothing uses.
  @parameterized.parameters(
      (_TwoLayers, [("users", 1), ("items", 1)]),
      (
          _OneLayerTwice,
          [("users", 1), ("items", 1), ("users", 1), ("items", 0)],
      ),
  )
  def test_sites(self, make, expected):
    run = make(training_runs.OPTIMIZERS["sgd"])
    step = pipelining.pipelined(run.train_step, batch_argnums=2)
    sites = step.sites(*run.arguments(), training_runs.batches(1)[0])
    self.assertEqual(
        sites,
        tuple(
            pipelining.Site(
                stacks=(f"{name}_table",), in_refs=True, num_updates=count
            )
            for name, count in expected
        ),
    )

  def test_sites_of_values(self):
    run = training_runs.Parameters(training_runs.OPTIMIZERS["sgd"])
    step = pipelining.pipelined(run.train_step, batch_argnums=2)
    (site,) = step.sites(*run.arguments(), training_runs.batches(1)[0])
    self.assertEqual(site.stacks, ("items_table", "users_table"))
    self.assertEqual((site.in_refs, site.num_updates), (False, 1))

  @parameterized.parameters(_TwoLayers, _OneLayerTwice)
  def test_stale_makes_all_updates(self, make):
    # A batch by itself misses nothing.
    optimizer = training_runs.OPTIMIZERS["adam"]
    plain, pipelined = make(optimizer), make(optimizer)
    batches = training_runs.batches(1)
    losses = training_runs.train_pipelined(pipelined, batches, mode="stale")
    self.assertEqual(losses, training_runs.train(plain, batches))
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())


if __name__ == "__main__":
  absltest.main()
