# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One of several processes that train a layer together, for a test.

Every process has its part of each batch. All forms of the layer make one step
with raw ids, one with an id out of range, which is to change nothing, and one
with inputs that were preprocessed. One table is split over the devices, and all
of them have the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

NUM_DEVICES = 4
_BATCH, _VOCAB, _DIM = 16, 32, 8
P = jax.sharding.PartitionSpec


def train() -> dict[str, list[dict[int, np.ndarray]]]:
  """The tables and slots of each form, after its two steps.

  Returns:
    Form -> for each array, the number of a device -> its part; of the devices
    of this process.
  """
  # Compiling is all that takes time here.
  jax.config.update("jax_disable_most_optimizations", True)
  options = dict(
      mesh=jax.sharding.Mesh(jax.devices(), ("x",)),
      sharding_axis="x",
      num_sc_per_device=1,
  )
  forms = dict(refs=_train_refs, parameters=_train_parameters, nnx=_train_nnx)
  return {name: _parts(form(options)) for name, form in forms.items()}


def look_up_many_rows() -> dict[str, np.ndarray]:
  """A batch of raw ids that names far more rows than default limits allow.

  Returns:
    "found", the activations of this process's samples, and "expected".
  """
  options = dict(
      mesh=jax.sharding.Mesh(jax.devices(), ("x",)),
      sharding_axis="x",
      num_sc_per_device=1,
  )
  batch, valency, num_rows = 2048, 20, 100_000
  row_numbers = (
      lambda key, shape: jnp.arange(shape[0] * shape[1])
      .reshape(shape)
      .astype(jnp.float32)
  )
  table = embedding_spec.TableSpec(
      name="t",
      vocabulary_size=num_rows,
      embedding_dim=_DIM,
      initializer=row_numbers,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
  )
  specs = embedding_spec.FeatureSpec(
      name="f",
      table_spec=table,
      input_shape=(batch, valency),
      output_shape=(batch, _DIM),
  )
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0), **options
  )
  layer = embed.SparseCoreEmbed(specs, **options, tables="ref")
  ids = np.random.default_rng(0).integers(
      0, num_rows, (batch, valency), dtype=np.int32
  )
  of_process = np.split(ids, jax.process_count())[jax.process_index()]
  raw = jax.make_array_from_process_local_data(
      jax.sharding.NamedSharding(layer.mesh, P("x")), of_process
  )
  params = layer.init(jax.random.key(1), raw)["params"]

  @jax.jit
  def look_up(params, tables, ids):
    return layer.apply({"params": params, "embedding": tables}, ids)

  activations = look_up(params, tables, raw)
  (found,) = [shard.data for shard in activations.addressable_shards]
  first = of_process.astype(np.float64).sum(axis=1) * _DIM
  return dict(
      found=np.asarray(found),
      expected=first[:, None] + valency * np.arange(_DIM),
  )


def _train_refs(options: dict[str, Any]) -> Any:
  specs = _specs()
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0), **options
  )
  layer = embed.SparseCoreEmbed(specs, **options, tables="ref")
  batches = _batches(layer, _preprocess_with(layer))
  params = layer.init(jax.random.key(1), batches[0])["params"]

  @jax.jit
  def gradient(params, tables, inputs):
    apply = lambda p: layer.apply({"params": p, "embedding": tables}, inputs)
    return jax.grad(lambda p: _loss(apply(p)))(params)

  for inputs in batches:
    gradient(params, tables, inputs)
  # Without the state of the stack, which every device has.
  return jax.tree.map(
      lambda ref: ref[...], {k: v[:2] for k, v in tables.items()}
  )


def _train_parameters(options: dict[str, Any]) -> Any:
  layer = embed.SparseCoreEmbed(_specs(), **options, tables="param")
  batches = _batches(layer, _preprocess_with(layer))
  params = layer.init(jax.random.key(0), batches[0])["params"]

  @jax.jit
  def gradient(params, inputs):
    return jax.grad(lambda p: _loss(layer.apply({"params": p}, inputs)))(params)

  for inputs in batches:
    # Outside of jit, where it looks at the seal.
    params = embed_optimizer.apply_updates_for_sc_model(
        params, gradient(params, inputs)
    )
  return params[embed.EMBEDDING_PARAM_NAME]


def _train_nnx(options: dict[str, Any]) -> Any:
  layer = nnx_embed.SparseCoreEmbed(_specs(), rngs=nnx.Rngs(0), **options)
  optimizer = nnx_embed.PartitionedOptimizer(layer, optax.sgd(0.1))

  def preprocess(ids):
    return embedding.preprocess_sparse_dense_matmul_input(
        ids,
        None,
        layer.feature_specs,
        jax.local_device_count(),
        NUM_DEVICES,
        num_sc_per_device=1,
    )[0]

  @nnx.jit
  def step(layer, optimizer, inputs):
    optimizer.update(layer, nnx.grad(lambda m: _loss(m(inputs)))(layer))

  for inputs in _batches(layer, preprocess):
    step(layer, optimizer, inputs)
  return layer.embedding_table.get_value()


def _specs() -> dict[str, embedding_spec.FeatureSpec]:
  split, whole = (
      embedding_spec.TableSpec(
          name=placement,
          vocabulary_size=_VOCAB,
          embedding_dim=_DIM,
          combiner="sum",
          optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
          placement=placement,
      )
      for placement in ("sparsecore", "tensorcore")
  )
  make = lambda name, table: embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=(_BATCH, 2),
      output_shape=(_BATCH, _DIM),
  )
  return {
      "dense": make("dense", split),
      "ragged": make("ragged", split),
      "dense_of_all": make("dense_of_all", whole),
      "ragged_of_all": make("ragged_of_all", whole),
  }


def _preprocess_with(layer: embed.SparseCoreEmbed) -> Callable[[Any], Any]:
  return lambda ids: layer.preprocess_inputs(0, ids, None)


def _batches(layer: Any, preprocess: Callable[[Any], Any]) -> list[Any]:
  """A batch of raw ids, a wrong one, and a preprocessed one, over all devices.

  Args:
    layer: with the mesh.
    preprocess: converts this process's samples, as NumPy arrays.
  """
  rng = np.random.default_rng(0)
  ids = lambda *shape: rng.integers(0, _VOCAB, shape, dtype=np.int32)
  # A pair for each device, after one another: four samples have these of its
  # eight values.
  row_splits = np.tile(np.int32([0, 2, 2, 5, 6]), NUM_DEVICES)
  raw = {
      "dense": ids(_BATCH, 2),
      "ragged": (ids(NUM_DEVICES * 8), row_splits),
      "dense_of_all": ids(_BATCH, 2),
      "ragged_of_all": (ids(NUM_DEVICES * 8), row_splits),
  }
  second = {name: ids(_BATCH, 2) for name in raw}
  # The last process has it.
  wrong = raw | {"dense": raw["dense"].copy()}
  wrong["dense"][-1, 0] = _VOCAB

  process, num_processes = jax.process_index(), jax.process_count()
  of_process = lambda x: np.split(x, num_processes)[process]
  sharding = jax.sharding.NamedSharding(layer.mesh, P("x"))
  local = [
      jax.tree.map(of_process, raw),
      jax.tree.map(of_process, wrong),
      preprocess(jax.tree.map(of_process, second)),
  ]
  return jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(sharding, x), local
  )


def _loss(activations: Any) -> jax.Array:
  return sum(jnp.sum(x**2) for x in jax.tree.leaves(activations))


def _parts(variables: Any) -> list[dict[int, np.ndarray]]:
  return [
      {
          jax.devices().index(shard.device): np.asarray(shard.data)
          for shard in array.addressable_shards
      }
      for array in jax.tree.leaves(variables)
  ]
