# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A guard of tables whose "gradient" is the new table.

Such a gradient may be put in place of the table, and nothing else: the sum of
two of them, a part of one or their mean is no table. Optimizers, gradient
accumulation and clipping do just that, and nothing in the types would tell.

So beside the tables there is a parameter, the seal, that they treat the same
way: (1, h, h * h), where h is a whole number that depends on the batch. Its
"gradient" is the seal of that batch. A sum of seals does not start with 1,
neither does a scaled one; the mean of two has no square at the end, unless both
batches have the same h, which one in 2048 pairs has. A lookup checks the seal.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_seal
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

_BROKEN = (
    "The embedding tables are not the result of one update. The backward pass"
    " of a lookup returns new tables and slots in place of gradients, and they"
    " must replace the old ones as they are. They cannot be summed (gradient"
    " accumulation, one layer called twice in a loss, a scan over layers),"
    " scaled, clipped, averaged, cast, or given to an optimizer. Keep them out"
    " of optax with create_optimizer_for_sc_model and"
    " apply_updates_for_sc_model, or the NNX PartitionedOptimizer; or use"
    " tables that are updated in place, tables='ref'; or sparse_gradients,"
    " which can be accumulated and clipped. If the tables are what you want, such as an"
    " average of weights, set the seal to [1, 0, 0]."
)
# h * h is exact in float32.
_HASH_BITS = 11
# Knuth's multiplicative hash: 2^32 divided by the golden ratio, made prime.
_MULTIPLIER = np.uint32(2654435761)


def initial_seal(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
) -> jax.Array:
  """The seal of tables without an update, f32[3].

  Args:
    mesh: of the tables. The seals of updates are on it; if the first one is,
      too, JAX does not compile a training step once more for the second step.
  """
  seal = jnp.array([1.0, 0.0, 0.0], jnp.float32)
  if mesh is None:
    return seal
  whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  return jax.device_put(seal, whole)


def hash_of_batch(inputs: embedding.PreprocessedInput) -> jax.Array:
  """u32[], another one for other ids, as a rule."""
  # Of a sum, the order does not matter, nor which device adds what.
  total = sum(
      jnp.sum(jnp.asarray(ids).astype(jnp.uint32), dtype=jnp.uint32)
      for ids in inputs.lhs_embedding_ids.values()
  )
  return total * _MULTIPLIER


def seal_of_batch(inputs: embedding.PreprocessedInput) -> jax.Array:
  """The seal of tables that this batch updated, f32[3]."""
  # The high bits are those that all bits of the sum reach.
  h = (hash_of_batch(inputs) >> (32 - _HASH_BITS)).astype(jnp.float32)
  return jnp.stack([jnp.ones_like(h), h, h * h])


def check(
    seal: jax.Array, inputs: embedding.PreprocessedInput
) -> embedding.PreprocessedInput:
  """`inputs` of one device, for lookups in tables with this seal.

  A lookup in tables whose seal is broken raises JaxRuntimeError on CPU. Other
  platforms cannot raise; there the activations are NaN.
  """
  arrays = inputs.sparse_dense_matmul_input
  names, gains = zip(*arrays.lhs_gains.items())
  num_minibatches, *gains = check_seal.check_seal_p.bind(
      seal,
      jnp.asarray(inputs.num_minibatches),
      *map(jnp.asarray, gains),
      message=_BROKEN,
  )
  return embedding.PreprocessedInput(
      arrays._replace(lhs_gains=dict(zip(names, gains))), num_minibatches
  )


def check_concrete(seal: jax.typing.ArrayLike) -> None:
  """Checks a seal that is there to be looked at; traced ones pass.

  Raises:
    ValueError: if the seal is broken.
  """
  if isinstance(seal, jax.core.Tracer):
    return
  first, h, square = np.asarray(seal)
  if first != 1 or square != h * h:
    raise ValueError(f"{_BROKEN} (The seal is {first}, {h}, {square}.)")
