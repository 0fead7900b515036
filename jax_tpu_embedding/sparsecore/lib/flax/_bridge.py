# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over a mesh, and lookups whose backward pass updates.

Shared by the layers of all libraries. Arrays are global ones, in and out; each
device works on its part under shard_map.

JAX has gradients shaped like the parameters, and that of a table would be a
table, mostly zeros. So the backward pass of a lookup does not return a
gradient. It runs the optimizer on the rows that the batch names, and there are
two forms of where the result goes:

* lookup_updating_refs: tables are mutable arrays (jax.Ref), and their rows are
  written in place. Nothing flows back that could be summed, clipped or fed to
  another optimizer by mistake.
* lookup_returning_tables: tables are ordinary values, and the "gradient" of a
  table is the new table, to be put in its place. A seal guards it, _seal.py.

Neither fails for what is wrong with a batch: see _checked_batch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import _checked_batch
from jax_tpu_embedding.sparsecore.lib.flax import _lookup_config
from jax_tpu_embedding.sparsecore.lib.flax import _raw_ids
from jax_tpu_embedding.sparsecore.lib.flax import _remat
from jax_tpu_embedding.sparsecore.lib.flax import _seal
from jax_tpu_embedding.sparsecore.lib.flax import _table_state
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

P = jax.sharding.PartitionSpec

LookupConfig = _lookup_config.LookupConfig
num_devices_along = _lookup_config.num_devices_along
as_preprocessed = _raw_ids.as_preprocessed
convert = _raw_ids.convert


def init(
    config: LookupConfig, rng: jax.Array
) -> dict[str, embedding.EmbeddingVariables]:
  """Initial tables and slots on the devices of the config, by stack name."""
  return embedding.init_embedding_variables(
      rng,
      embedding.get_table_specs(config.feature_specs),
      jax.sharding.NamedSharding(config.mesh, config.table_partition),
      config.num_sc_per_device,
      # A mesh of the user may have some of the devices, in any order.
      bypass_mesh_check=True,
      commit=config.commits,
  )


def init_refs(
    config: LookupConfig, rng: jax.Array
) -> dict[str, _table_state.TableVariables]:
  """The same in mutable arrays, with the state of each stack."""
  states = _on_every_device(config, _table_state.initial(config))
  variables = {
      name: _table_state.TableVariables(*of_stack, states[name])
      for name, of_stack in init(config, rng).items()
  }
  return jax.tree.map(jax.new_ref, variables)


def initial_seal(config: LookupConfig) -> jax.Array:
  """The seal of tables without an update, on the devices of the config."""
  places = _table_state.places_by_stack(config).values()
  numbers = [number for of_tables in places for number in of_tables.values()]
  return _on_every_device(config, _seal.initial_seal(numbers))


def _on_every_device(config: LookupConfig, tree: Any) -> Any:
  """Where what an update returns beside tables is, so that no type changes."""
  if not config.commits:
    return jax.tree.map(jnp.asarray, tree)
  return jax.device_put(tree, jax.sharding.NamedSharding(config.mesh, P()))


def lookup(
    config: LookupConfig,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
    *,
    seal: jax.Array | None = None,
    places: Mapping[str, jax.Array] | None = None,
) -> tuple[Any, _checked_batch.HasFailed]:
  """The activations of every feature; nothing is mutated.

  Args:
    config: specs and devices.
    inputs: the buffers of all devices.
    variables: stack name -> (table, slots); slots may be missing.
    seal: checked if given; see _seal.check.
    places: what is known of where tables are, see _table_state.py. If they are
      elsewhere, a program fails as with a broken seal if there is one, and as
      with a wrong batch if there is none.

  Returns:
    The tree of feature specs with f32[*output_shape]; and stack name -> bool[G],
    whether activations of a device are NaN because of what is wrong with its
    inputs.

  Raises:
    ValueError: if inputs, variables and specs do not belong together.
  """
  tables = {name: variables[name][0] for name in variables}
  is_laid_out = _table_state.is_laid_out_for(config, places or {})

  def of_device(inputs, tables, seal, is_laid_out):
    if seal is not None:
      inputs = _seal.check(seal, inputs)
      if is_laid_out is not None:
        inputs = _seal.fail_unless(
            is_laid_out, inputs, _table_state.wrong_layout(config)
        )
    inputs, has_failed = _checked_batch.check(config, inputs, tables)
    if seal is None and is_laid_out is not None:
      # Programs with mutable tables do not fail, which would lose these.
      has_failed = {name: x | ~is_laid_out for name, x in has_failed.items()}
    activations = embedding.tpu_sparse_dense_matmul(
        inputs,
        {name: (table,) for name, table in tables.items()},
        config.feature_specs,
        perform_unstacking=False,
        **_options(config),
    )
    activations = embedding.unstack_embedding_activations(
        _checked_batch.nan_if_failed(activations, has_failed),
        config.feature_specs,
        config.num_shards,
        config.num_sc_per_device,
        feature_stacking_strategy=config.feature_stacking_strategy,
    )
    return activations, has_failed

  return config.on_each_device(
      of_device,
      (config.partition_inputs(inputs), config.table_partition, P(), P()),
      config.data_partition,
  )(
      inputs,
      tables,
      seal,
      # Otherwise it is known to be so.
      is_laid_out if isinstance(is_laid_out, jax.core.Tracer) else None,
  )


def update(
    config: LookupConfig,
    gradients: Any,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
    step: jax.typing.ArrayLike | None,
    has_failed: _checked_batch.HasFailed | None = None,
    num_updates: Mapping[str, jax.Array] | None = None,
) -> dict[str, embedding.EmbeddingVariables]:
  """The variables after the optimizer ran on every row that inputs name.

  They are the old ones if something is wrong with the inputs of any stack.

  Tables of bfloat16 and float16 are rounded at random, by numbers that depend
  on the batch and the step.

  Args:
    config: specs and devices.
    gradients: the tree of feature specs with gradients of the activations.
    inputs: the buffers that the lookup read.
    variables: stack name -> (table, slots).
    step: passed to optimizers and schedules, or None.
    has_failed: of the lookup; None if there was none.
    num_updates: stack name -> what stands for the step if there is none.

  Raises:
    ValueError: if the arguments do not belong together, or a step is needed and
      there is none.
  """
  if has_failed is None:
    tables = {name: table for name, (table, *_) in variables.items()}
    has_failed = _checked_batch.check_global(config, inputs, tables)
  num_updates = num_updates or {}
  steps, rounding_seeds = {}, {}
  for name, stack in embedding.get_stacked_table_specs(
      config.feature_specs
  ).items():
    steps[name] = num_updates.get(name) if step is None else step
    is_rounded = stack.dtype != jnp.float32
    if steps[name] is None and (is_rounded or stack.optimizer.depends_on_step):
      raise ValueError(_no_step(stack))
    if is_rounded:
      rounding_seeds[name] = _seal.hash_of_batch(inputs) + jnp.asarray(
          steps[name]
      ).astype(jnp.uint32)

  def of_device(gradients, inputs, variables, steps, rounding_seeds, failed):
    return embedding.tpu_sparse_dense_matmul_grad(
        gradients,
        _checked_batch.without_ids_if(failed, inputs),
        variables,
        config.feature_specs,
        step=steps,
        rounding_seed=rounding_seeds,
        **_options(config),
    )

  return config.on_each_device(
      of_device,
      (
          config.data_partition,
          config.partition_inputs(inputs),
          config.table_partition,
          P(),
          P(),
          P(),
      ),
      config.table_partition,
  )(
      jax.tree.map(lambda g: g.astype(jnp.float32), gradients),
      inputs,
      variables,
      steps,
      rounding_seeds,
      _checked_batch.any_failed(has_failed),
  )


def _no_step(stack: embedding_spec.StackedTableSpec) -> str:
  if stack.dtype != jnp.float32:
    reason = f"its tables are {stack.dtype}, which are rounded at random"
  else:
    reason = f"{type(stack.optimizer).__name__} depends on it"
  return (
      f"Stack {stack.stack_name!r}: an update needs the number of the training"
      f" step, since {reason}. Pass step=, counted from 0. Layers count updates"
      f" by themselves if tables come with the `state` that"
      f" create_embedding_variables makes, or the parameter {_seal.NAME!r} that"
      " their initialization makes; these do not."
  )


def lookup_updating_refs(
    config: LookupConfig,
    anchor: jax.Array,
    inputs: embedding.PreprocessedInput,
    refs: Mapping[str, _table_state.TableVariables],
    step: jax.typing.ArrayLike | None,
) -> Any:
  """Activations whose backward pass updates `refs` in place.

  JAX runs a backward pass only for values that something differentiable flows
  into, and ids are integers. So a layer owns one float parameter, the anchor,
  that the lookup takes and ignores; its gradient is zero.

  Args:
    config: specs and devices.
    anchor: f32[], a parameter that the loss is differentiated by.
    inputs: the buffers of all devices.
    refs: stack name -> variables whose leaves are jax.Ref. Tables that were
      made elsewhere may have no state, and to be looked up no slots.
    step: passed to optimizers and schedules; None: the number of updates.

  Returns:
    The tree of feature specs with f32[*output_shape].
  """

  def read(inputs, refs):
    tables = {name: (variables[0][...],) for name, variables in refs.items()}
    states = _read_states(refs)
    places = {name: state[1:] for name, state in states.items()}
    return lookup(config, inputs, tables, places=places)

  @jax.custom_vjp
  def differentiable(anchor, inputs, refs, step):
    del anchor, step
    return read(inputs, refs)[0]

  def forward(anchor, inputs, refs, step):
    del anchor
    activations, has_failed = _remat.save(read(inputs, refs))
    return activations, (inputs, refs, step, has_failed)

  def backward(residuals, gradients):
    inputs, refs, step, has_failed = residuals
    variables = {name: tuple(refs_of[:2]) for name, refs_of in refs.items()}
    values = jax.tree.map(lambda ref: ref[...], variables)
    states = _read_states(refs)
    num_updates = {name: state[0] for name, state in states.items()}
    _write(
        variables,
        update(
            config, gradients, inputs, values, step, has_failed, num_updates
        ),
    )
    is_update = ~_checked_batch.any_failed(has_failed)
    for name, state in states.items():
      refs[name][2][...] = state.at[0].add(is_update.astype(jnp.int32))
    return jnp.zeros(()), None, None, None

  differentiable.defvjp(forward, backward)
  return differentiable(anchor, inputs, dict(refs), step)


def _read_states(
    refs: Mapping[str, _table_state.TableVariables],
) -> dict[str, jax.Array]:
  return {name: v[2][...] for name, v in refs.items() if len(v) > 2}


def lookup_returning_tables(
    config: LookupConfig,
    variables: Mapping[str, embedding.EmbeddingVariables],
    seal: jax.Array | None,
    inputs: embedding.PreprocessedInput,
    step: jax.typing.ArrayLike | None,
) -> Any:
  """Activations with the new variables as the "gradient" of `variables`.

  Args:
    config: specs and devices.
    variables: stack name -> (table, slots).
    seal: beside the tables; its "gradient" is the new seal. The lookup raises
      if another thing than such a gradient was put in its place. None: nothing
      is checked.
    inputs: the buffers of all devices. They have no gradient.
    step: passed to optimizers and schedules; None: the number of updates.

  Returns:
    The tree of feature specs with f32[*output_shape].
  """

  def read(variables, seal, inputs):
    places = {}
    if seal is not None:
      places = dict.fromkeys(variables, _seal.places(seal))
    return lookup(config, inputs, variables, seal=seal, places=places)

  @jax.custom_vjp
  def differentiable(variables, seal, inputs, step):
    del step
    return read(variables, seal, inputs)[0]

  def forward(variables, seal, inputs, step):
    activations, has_failed = _remat.save(read(variables, seal, inputs))
    return activations, (variables, seal, inputs, step, has_failed)

  def backward(residuals, gradients):
    variables, seal, inputs, step, has_failed = residuals
    new = update_sealed(
        config, gradients, inputs, variables, seal, step, has_failed
    )
    return *new, None, None

  differentiable.defvjp(forward, backward)
  return differentiable(variables, seal, inputs, step)


def update_sealed(
    config: LookupConfig,
    gradients: Any,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
    seal: jax.Array | None,
    step: jax.typing.ArrayLike | None,
    has_failed: _checked_batch.HasFailed | None = None,
) -> tuple[dict[str, embedding.EmbeddingVariables], jax.Array | None]:
  """The variables after an update, and their seal; see `update`."""
  count = None if seal is None else _seal.num_updates(seal)
  num_updates = {} if count is None else dict.fromkeys(variables, count)
  new = update(
      config, gradients, inputs, variables, step, has_failed, num_updates
  )
  return new, None if seal is None else _seal.after_update(seal, inputs)


def scale_gradients(activations: Any, scale: jax.typing.ArrayLike) -> Any:
  """`activations`, whose gradients are divided by `scale` on their way back.

  As float32: a scaled gradient may be too large for a type of 16 bits, or too
  small once it is not scaled any more.
  """

  @jax.custom_vjp
  def identity(activations, scale):
    del scale
    return activations

  def backward(scale, gradients):
    return jax.tree.map(lambda g: g / scale, gradients), None

  identity.defvjp(lambda activations, scale: (activations, scale), backward)
  return identity(activations, jnp.asarray(scale, jnp.float32))


def _options(config: LookupConfig) -> dict[str, Any]:
  return dict(
      global_device_count=config.num_shards,
      num_sc_per_device=config.num_sc_per_device,
      sharding_strategy=config.table_sharding_strategy,
      enable_minibatching=config.enable_minibatching,
      feature_stacking_strategy=config.feature_stacking_strategy,
  )


def _write(refs: Any, values: Any) -> None:
  for ref, value in zip(jax.tree.leaves(refs), jax.tree.leaves(values)):
    ref[...] = value
