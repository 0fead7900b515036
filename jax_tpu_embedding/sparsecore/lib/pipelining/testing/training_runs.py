# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Small models that are trained by the plain step and by pipelined ones."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import every_optimizer
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
import numpy as np
import optax

BATCH, DIM, ROWS, STEPS = 16, 8, 64, 6


def _custom_step(grad, row, slot, learning_rate):
  slot = 0.9 * slot + grad
  return row - learning_rate * slot, slot


_CUSTOM = embedding_spec.CustomOptimizerSpec(
    0.1,
    custom_computation_fn=_custom_step,
    slot_variable_initializers_tuple=(jax.nn.initializers.zeros,),
)
OPTIMIZERS = {
    **{name: spec(0.1) for name, spec in every_optimizer.SPECS.items()},
    "schedule": embedding_spec.SGDOptimizerSpec(lambda step: 0.1 / (1 + step)),
    "custom": _CUSTOM,
}


def specs_with(optimizer, **table_fields):
  """Two features, each with a table of its own."""

  def feature(name, valency):
    table = embedding_spec.TableSpec(
        name=f"{name}_table",
        vocabulary_size=ROWS,
        embedding_dim=DIM,
        optimizer=optimizer,
        combiner="sum",
        **table_fields,
    )
    return embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(BATCH, valency),
        output_shape=(BATCH, DIM),
    )

  return {"users": feature("users", 1), "items": feature("items", 3)}


class Model(nn.Module):
  """A layer with embeddings, and a dense one."""

  specs: object
  options: tuple = ()

  @nn.compact
  def __call__(self, ids, **kwargs):
    out = embed.SparseCoreEmbed(self.specs, name="embed", **dict(self.options))(
        ids, **kwargs
    )
    return nn.Dense(1)(jnp.tanh(jnp.concatenate(list(out.values()), axis=1)))


def batches(num_batches=STEPS, batch=BATCH):
  """Raw ids of both features, and labels."""
  rng = np.random.default_rng(0)
  return [
      dict(
          # Few rows, so that batches share them.
          ids={
              "users": rng.integers(0, 8, (batch, 1), np.int32),
              "items": rng.integers(0, 8, (batch, 3), np.int32),
          },
          labels=rng.normal(size=(batch, 1)).astype(np.float32),
      )
      for _ in range(num_batches)
  ]


class Refs:
  """A run of a model with tables in mutable arrays."""

  def __init__(self, optimizer, wrap=lambda step: step, **table_fields):
    self.specs = specs_with(optimizer, **table_fields)
    model = Model(self.specs, (("tables", "ref"),))
    self.tables = embed.SparseCoreEmbed.create_embedding_variables(
        self.specs, jax.random.key(0)
    )
    ids = batches(1)[0]["ids"]
    self.dense = model.init(jax.random.key(1), ids)["params"]

    def train_step(dense, tables, batch):
      def loss_fn(dense):
        variables = {"params": dense, "embedding": tables}
        out = model.apply(variables, batch["ids"])
        return jnp.mean((out - batch["labels"]) ** 2)

      loss, gradients = jax.value_and_grad(loss_fn)(dense)
      dense = jax.tree.map(lambda p, g: p - 0.1 * g, dense, gradients)
      return dense, loss

    self.train_step = wrap(train_step)

  def arguments(self):
    return self.dense, self.tables

  def take(self, results):
    self.dense, loss = results
    return float(loss)

  def flushed(self, others):
    pass

  def dense_layer(self):
    return self.dense["Dense_0"]

  def stacks(self):
    return {name: v.table[...] for name, v in self.tables.items()}

  def arrays(self):
    values = jax.tree.map(lambda ref: np.array(ref[...]), self.tables)
    return jax.tree.map(np.array, self.dense), values

  def restore(self, arrays):
    self.dense, values = arrays
    for ref, x in zip(jax.tree.leaves(self.tables), jax.tree.leaves(values)):
      ref[...] = x


class Parameters:
  """The same with tables among the parameters."""

  def __init__(self, optimizer, wrap=lambda step: step, **table_fields):
    self.specs = specs_with(optimizer, **table_fields)
    model = Model(self.specs, (("tables", "param"),))
    self.params = model.init(jax.random.key(1), batches(1)[0]["ids"])["params"]
    optimizer = embed_optimizer.create_optimizer_for_sc_model(
        self.params, optax.sgd(0.1)
    )
    self.state = optimizer.init(self.params)

    def train_step(params, state, batch):
      def loss_fn(params):
        out = model.apply({"params": params}, batch["ids"])
        return jnp.mean((out - batch["labels"]) ** 2)

      loss, gradients = jax.value_and_grad(loss_fn)(params)
      updates, state = optimizer.update(gradients, state, params)
      new = embed_optimizer.apply_updates_for_sc_model(params, updates)
      return new, state, loss

    self.train_step = wrap(train_step)

  def arguments(self):
    return self.params, self.state

  def take(self, results):
    self.params, self.state, loss = results
    return float(loss)

  def flushed(self, others):
    self.params, self.state = others

  def dense_layer(self):
    return self.params["Dense_0"]

  def stacks(self):
    variables = self.params["embed"]["sc_embedding_variables"]
    return {name: v.table for name, v in nn.meta.unbox(variables).items()}

  def arrays(self):
    return jax.tree.map(np.array, (self.params, self.state))

  def restore(self, arrays):
    self.params, self.state = arrays


FORMS = {"refs": Refs, "parameters": Parameters}


def train(run, batches):
  """Losses of the plain step."""
  step = jax.jit(run.train_step)
  return [run.take(step(*run.arguments(), batch)) for batch in batches]


def train_pipelined(run, batches, **options):
  """Losses of a pipelined step."""
  step = pipelining.pipelined(run.train_step, batch_argnums=2, **options)
  flight = step.start(*run.arguments(), batches[0])
  losses = []
  for batch in batches[1:]:
    flight, results = step(flight, *run.arguments(), batch)
    losses.append(run.take(results))
  flight, results = step.finish(flight, *run.arguments())
  losses.append(run.take(results))
  run.flushed(step.flush(flight, *run.arguments()))
  return losses


def assert_same_bits(test, a, b):
  test.assertEqual(jax.tree.structure(a), jax.tree.structure(b))
  jax.tree.map(np.testing.assert_array_equal, a, b)


def logical_tables(run):
  """Table name -> its rows in NumPy."""
  stacks, ids = run.stacks(), np.arange(ROWS)
  return {
      name: np.array(embedding.read_rows(stacks, run.specs, name, ids))
      for name in embedding.get_table_specs(run.specs)
  }
