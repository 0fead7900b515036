# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A guard of tables whose "gradient" is the new table.

Such a gradient may be put in place of the table, and nothing else: the sum of
two of them, a part of one or their mean is no table. Optimizers, gradient
accumulation and clipping do just that, and nothing in the types would tell.

So beside the tables there is a parameter, the seal, that they treat the same
way: it begins (1, h, h * h, g, g * g), where h and g are whole numbers that depend on the
batch. Its "gradient" is the seal of that batch. A sum of seals does not start
with 1, neither does a scaled one; the mean of two does not have both squares,
unless the batches have the same h and the same g, which one in 4 million pairs
has. A lookup checks the seal.

What follows these five is the state of the tables, _table_state.py: the number
of updates, as low + high * 2^16, and a number for the place of each table. A
seal without it is one of five numbers, or none at all.

A loss that does not use a layer has a gradient of zeros for its tables, and for
its seal: that is how `replace` knows that the old tables are the new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
from typing import Any
import warnings

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
    " which can be accumulated and clipped. If the tables are what you want,"
    " such as an average of weights, set the first five numbers of the seal to"
    " [1, 0, 0, 0, 0]."
)
# The parameter of a layer with the seal of its tables.
NAME = "update_seal"
# The numbers that tell sums and means from a seal.
_NUM_GUARDS = 5
# Of the count of updates, which can pass 2^24, the largest exact float32.
_HIGH = 2**16
# What cells without an id hold; how many there are depends on limits.
_PADDING_ID = np.iinfo(np.int32).max
# Of each of two; their squares are exact in float32.
_HASH_BITS = 11
# Knuth's multiplicative hash: 2^32 divided by the golden ratio, made prime.
_MULTIPLIER = np.uint32(2654435761)


def warn_of_default() -> None:
  """For layers whose tables are parameters since nobody said where they are."""
  warnings.warn(
      "The tables of SparseCoreEmbed are parameters, which is not said: from the"
      " next release on, the default is tables='ref', mutable arrays that are"
      " updated in place. Pass tables='param' to keep parameters, or 'ref'.",
      FutureWarning,
      stacklevel=3,
  )


def initial_seal(places: Sequence[int] = ()) -> np.ndarray:
  """The seal of tables without an update, f32[7 + places].

  Args:
    places: the numbers of _table_state.places_by_stack.
  """
  return np.array([1, *[0] * (_NUM_GUARDS + 1), *places], np.float32)


def num_updates(seal: jax.Array) -> jax.Array | None:
  """How often the tables were updated, i32[]; None if the seal does not say."""
  if seal.shape[0] < _NUM_GUARDS + 2:
    return None
  low, high = seal[_NUM_GUARDS : _NUM_GUARDS + 2].astype(jnp.int32)
  return low + high * _HIGH


def restored(seal: jax.Array, num_updates: int) -> jax.Array:
  """The seal of tables that took the place of those of `seal`.

  Args:
    seal: says where tables are, and on which devices it is.
    num_updates: how often the new ones were updated.
  """
  value = np.array(seal)
  value[:_NUM_GUARDS] = [1, *[0] * (_NUM_GUARDS - 1)]
  if len(value) >= _NUM_GUARDS + 2:
    counts = num_updates % _HIGH, num_updates // _HIGH
    value[_NUM_GUARDS : _NUM_GUARDS + 2] = counts
  return jax.device_put(value, seal.sharding if seal.committed else None)


def places(seal: jax.Array) -> jax.Array:
  """Where the tables are; zero or empty if the seal does not say.

  The sum of two seals does not, and should not be mistaken for tables of
  another layout.
  """
  numbers = seal[_NUM_GUARDS + 2 :]
  return jnp.where(seal[0] == 1, numbers, 0) if numbers.size else numbers


def after_update(
    seal: jax.Array,
    inputs: embedding.PreprocessedInput,
    is_update: jax.typing.ArrayLike = True,
) -> jax.Array:
  """The seal that follows `seal`, of tables that this batch updated.

  Args:
    seal: before.
    inputs: the batch.
    is_update: bool[], whether it counts: a wrong batch changes no table.
  """
  guards = _guards_of_batch(inputs)
  count = num_updates(seal)
  if count is None:
    return guards
  count += jnp.asarray(is_update).astype(jnp.int32)
  numbers = jnp.stack([count % _HIGH, count // _HIGH]).astype(jnp.float32)
  return jnp.concatenate([guards, numbers, seal[_NUM_GUARDS + 2 :]])


def hash_of_batch(inputs: embedding.PreprocessedInput) -> jax.Array:
  """u32[], another one for other ids, as a rule; any padding gives the same."""
  # Of a sum, the order does not matter, nor which device adds what. It is not
  # one of the ids as they are: 1 and 4 would be 2 and 3.
  total = sum(
      jnp.sum(
          jnp.where(
              jnp.asarray(ids) == _PADDING_ID,
              jnp.uint32(0),
              _mix(jnp.asarray(ids).astype(jnp.uint32)),
          ),
          dtype=jnp.uint32,
      )
      for ids in (
          *inputs.lhs_embedding_ids.values(),
          *(samples.ids for samples in inputs.samples.values()),
      )
  )
  return total * _MULTIPLIER


def _mix(x: jax.Array) -> jax.Array:
  x *= _MULTIPLIER
  return x ^ (x >> 15)


def _guards_of_batch(inputs: embedding.PreprocessedInput) -> jax.Array:
  """The first numbers of the seal of tables that this batch updated."""
  # The high bits are those that all bits of the sum reach.
  bits = hash_of_batch(inputs) >> (32 - 2 * _HASH_BITS)
  h = (bits >> _HASH_BITS).astype(jnp.float32)
  g = (bits & (2**_HASH_BITS - 1)).astype(jnp.float32)
  return jnp.stack([jnp.ones_like(h), h, h * h, g, g * g])


def check(
    seal: jax.Array, inputs: embedding.PreprocessedInput
) -> embedding.PreprocessedInput:
  """`inputs` of one device, for lookups in tables with this seal.

  A lookup in tables whose seal is broken raises JaxRuntimeError on CPU. Other
  platforms cannot raise; there the activations are NaN.
  """
  guards, message = guards_of(seal)
  return _check(guards, inputs, message)


def fail_unless(
    condition: jax.typing.ArrayLike,
    inputs: embedding.PreprocessedInput,
    message: str,
) -> embedding.PreprocessedInput:
  """`inputs` of one device; lookups fail as those with a broken seal do."""
  guards, message = guards_unless(condition, message)
  return _check(guards, inputs, message)


def look_up_checked(
    checks: Sequence[tuple[jax.Array, str]],
    look_up: Callable[[jax.Array], dict[str, jax.Array]],
) -> dict[str, jax.Array]:
  """What `look_up` gives, which fails as lookups of checked inputs do.

  Args:
    checks: the guards f32[5] and message of each check.
    look_up: num_minibatches i32[] -> stack name -> activations. It has to read
      its argument, which is 1: that is what makes it wait.
  """
  num_minibatches = jnp.int32(1)
  for guards, message in checks:
    (num_minibatches,) = check_seal.check_seal_p.bind(
        guards, num_minibatches, message=message
    )
  activations = look_up(num_minibatches)
  for guards, message in checks:
    names, values = zip(*activations.items())
    # Where a program cannot raise; elsewhere nothing is left of it.
    _, *values = check_seal.check_seal_p.bind(
        guards, jnp.int32(1), *values, message=message
    )
    activations = dict(zip(names, values))
  return activations


def guards_of(seal: jax.Array) -> tuple[jax.Array, str]:
  """The check of a seal."""
  return seal[:_NUM_GUARDS], _BROKEN


def guards_unless(
    condition: jax.typing.ArrayLike, message: str
) -> tuple[jax.Array, str]:
  """A check that fails as that of a broken seal does."""
  first = jnp.asarray(condition).astype(jnp.float32)
  return jnp.zeros(_NUM_GUARDS, jnp.float32).at[0].set(first), message


def _check(
    guards: jax.Array, inputs: embedding.PreprocessedInput, message: str
) -> embedding.PreprocessedInput:
  arrays = inputs.sparse_dense_matmul_input
  gains, structure = jax.tree.flatten(
      (
          dict(arrays.lhs_gains),
          {name: samples.gains for name, samples in inputs.samples.items()},
      )
  )
  num_minibatches, *gains = check_seal.check_seal_p.bind(
      guards,
      jnp.asarray(inputs.num_minibatches),
      *map(jnp.asarray, gains),
      message=message,
  )
  of_buffers, of_samples = jax.tree.unflatten(structure, gains)
  return inputs.replace(
      sparse_dense_matmul_input=arrays._replace(lhs_gains=of_buffers),
      samples={
          name: dataclasses.replace(samples, gains=of_samples[name]).wait_for(
              jnp.max(num_minibatches)
          )
          for name, samples in inputs.samples.items()
      },
      num_minibatches=num_minibatches,
  )


def replace(old: Any, new: Any, seal: jax.Array) -> Any:
  """The variables after a step: `new`, or `old` if the step was not theirs.

  Args:
    old: any tree of arrays.
    new: the same tree with the "gradients" of a lookup in `old`, or with zeros
      if the loss has no such lookup.
    seal: the "gradient" of their seal. Of layers that nn.scan runs one after
      the other it has leading axes, as all of their arrays have.

  Raises:
    ValueError: if the seal is broken and can be looked at. Where it is traced,
      the next lookup raises. Or if the arrays lack the leading axes.
  """
  is_traced = isinstance(seal, jax.core.Tracer)
  if not is_traced:
    used = [x for x in np.asarray(seal).reshape(-1, seal.shape[-1]) if x.any()]
    if not used:
      return old
    for of_layer in used:
      _check_concrete(of_layer)
    if len(used) == math.prod(seal.shape[:-1]):
      return new
  # The first number of a layer is a constant, 1 of a lookup and 0 of none, so
  # XLA makes the choice when it compiles, and copies no table for it. Of layers
  # in a scan it is none, and tables are copied.
  is_used = seal[..., 0] != 0
  return jax.tree.map(
      lambda a, b: jnp.where(_of_layers(is_used, b), b, a), old, new
  )


def _of_layers(is_used: jax.Array, array: jax.Array) -> jax.Array:
  """`is_used` of each layer, to be broadcast over its part of `array`."""
  layers = is_used.shape
  if array.shape[: len(layers)] != layers:
    raise ValueError(
        f"The seal of embedding tables has the leading axes {layers}, and an"
        f" array beside it has shape {array.shape}. Arrays of layers in a scan"
        " begin with the axis of the scan: variable_axes={'params': 0}."
    )
  return is_used.reshape(layers + (1,) * (array.ndim - len(layers)))


def _check_concrete(seal: np.ndarray) -> None:
  first, h, h_square, g, g_square = seal[:_NUM_GUARDS]
  if first != 1 or h_square != h * h or g_square != g * g:
    numbers = ", ".join(map(str, (first, h, h_square, g, g_square)))
    raise ValueError(f"{_BROKEN} (The seal is {numbers}.)")
