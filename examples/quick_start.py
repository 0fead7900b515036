# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A next-word model: one table, raw ids inside jit, tables updated by the layer."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

BATCH, SEQ, VOCAB, DIM = 32, 16, 1024, 128
LEARNING_RATE = 0.05

table = embedding_spec.TableSpec(
    vocabulary_size=VOCAB,
    embedding_dim=DIM,
    name="words",
    optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=LEARNING_RATE),
)
feature_specs = {
    "word_ids": embedding_spec.FeatureSpec(
        table_spec=table,
        input_shape=(BATCH, SEQ),  # one id per position
        output_shape=(BATCH, SEQ, DIM),  # one vector each: nothing is pooled
        name="word_ids",
    )
}


class NextWord(nn.Module):
  feature_specs: embed.Nested[embedding_spec.FeatureSpec]

  @nn.compact
  def __call__(self, ids):
    x = embed.SparseCoreEmbed(feature_specs=self.feature_specs)(ids)["word_ids"]
    return nn.Dense(VOCAB)(x.reshape((x.shape[0], -1)))


mesh = jax.sharding.Mesh(jax.devices(), axis_names=("data",))
with jax.set_mesh(mesh):
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      feature_specs, jax.random.key(0)
  )

model = NextWord(feature_specs=feature_specs)
dense = model.init(
    jax.random.key(1), {"word_ids": jnp.zeros((BATCH, SEQ), jnp.int32)}
)["params"]
# Where the results of a step are, so that the second step is not compiled anew.
dense = embed.on_every_device(dense)


@jax.jit
def train_step(dense, tables, ids, labels):
  def loss_fn(params):
    logits = model.apply({"params": params, "embedding": tables}, ids)
    return jnp.mean(jnp.square(logits - labels))

  loss, grads = jax.value_and_grad(loss_fn)(dense)
  return jax.tree.map(lambda p, g: p - 0.01 * g, dense, grads), loss


ids = {
    "word_ids": jax.random.randint(jax.random.key(2), (BATCH, SEQ), 0, VOCAB)
}
labels = jax.random.normal(jax.random.key(3), (BATCH, VOCAB))


def snapshot():
  return [np.asarray(leaf[...]) for leaf in jax.tree.leaves(tables)]


before = snapshot()
losses = []
for _ in range(20):
  dense, loss = train_step(dense, tables, ids, labels)
  losses.append(float(loss))
after = snapshot()

assert losses[-1] < losses[0], losses
changed = sum(int(np.any(a != b, axis=-1).sum()) for a, b in zip(before, after))
assert changed == len(np.unique(np.asarray(ids["word_ids"]))), changed
print(
    f"loss {losses[0]:.4f} -> {losses[-1]:.4f};"
    f" {changed} rows of the table were updated"
)
