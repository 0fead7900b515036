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

Where nothing is differentiated, raw ids are looked up as they are: buffers are
for updates.

In a train step that a pipeline takes apart, both write markers, see _sites.py.
The pipeline then does what they would have done, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _checked_batch
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _raw_ids
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _remat
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _sites
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _table_state
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.step import _frozen_tables

P = jax.sharding.PartitionSpec


def init(
    config: _lookup_config.LookupConfig, rng: jax.Array
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
    config: _lookup_config.LookupConfig, rng: jax.Array
) -> dict[str, _table_state.TableVariables]:
  """The same in mutable arrays, with the state of each stack."""
  states = _on_every_device(config, _table_state.initial(config))
  variables = {
      name: _table_state.TableVariables(*of_stack, states[name])
      for name, of_stack in init(config, rng).items()
  }
  return jax.tree.map(jax.new_ref, variables)


def initial_seal(config: _lookup_config.LookupConfig) -> jax.Array:
  """The seal of tables without an update, on the devices of the config."""
  places = _table_state.places_by_stack(config).values()
  numbers = [number for of_tables in places for number in of_tables.values()]
  return _on_every_device(config, _seal.initial_seal(numbers))


def _on_every_device(config: _lookup_config.LookupConfig, tree: Any) -> Any:
  """Where what an update returns beside tables is, so that no type changes."""
  if not config.commits:
    return jax.tree.map(jnp.asarray, tree)
  return jax.device_put(tree, jax.sharding.NamedSharding(config.mesh, P()))


def lookup(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput | _raw_ids.RawIds,
    variables: Mapping[str, embedding.EmbeddingVariables],
    *,
    seal: jax.Array | None = None,
    places: Mapping[str, jax.Array] | None = None,
    perform_unstacking: bool = True,
) -> tuple[Any, jax.Array | None]:
  """The activations of every feature; nothing is mutated.

  Args:
    config: specs and devices.
    inputs: the buffers of all devices, or their ids.
    variables: stack name -> (table, slots); slots may be missing.
    seal: checked if given; see _seal.check.
    places: what is known of where tables are, see _table_state.py. If they are
      elsewhere, a program fails as with a broken seal if there is one, and as
      with a wrong batch if there is none.
    perform_unstacking: False returns the activations of whole stacks.

  Returns:
    The tree of feature specs with f32[*output_shape], or stack name ->
    f32[B, D]; and bool[G], on which devices some are NaN because of what is
    wrong with the inputs. None for ids, which nothing is updated with.

  Raises:
    ValueError: if inputs, variables and specs do not belong together.
  """
  tables = {name: variables[name][0] for name in variables}
  is_laid_out = _table_state.is_laid_out_for(config, places or {})
  if not isinstance(is_laid_out, jax.core.Tracer):
    is_laid_out = None  # It is known to be so.
  if isinstance(inputs, _raw_ids.RawIds):
    function = _look_up_ids_of_device
    partition = _raw_ids.partition(config, inputs)
  else:
    function = (
        _lookup_of_device if perform_unstacking else _lookup_stacks_of_device
    )
    partition = config.partition_inputs(inputs)
  return config.on_each_device(
      function,
      (partition, config.partition_tables(tables), P(), P()),
      config.data_partition,
  )(inputs, tables, seal, is_laid_out)


def _lookup_of_device(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    tables: Mapping[str, jax.Array],
    seal: jax.Array | None,
    is_laid_out: jax.Array | None,
) -> tuple[Any, jax.Array]:
  """`lookup` with one device's parts."""
  stacked, has_failed = _lookup_stacks_of_device(
      config, inputs, tables, seal, is_laid_out
  )
  return _unstack_of_device(config, stacked, inputs), has_failed


def _lookup_stacks_of_device(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    tables: Mapping[str, jax.Array],
    seal: jax.Array | None,
    is_laid_out: jax.Array | None,
) -> tuple[dict[str, jax.Array], jax.Array]:
  """The same without unstacking."""
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
  activations = _checked_batch.nan_if_failed(activations, has_failed)
  return activations, _checked_batch.any_stack(has_failed)


def _look_up_ids_of_device(
    config: _lookup_config.LookupConfig,
    inputs: _raw_ids.RawIds,
    tables: Mapping[str, jax.Array],
    seal: jax.Array | None,
    is_laid_out: jax.Array | None,
) -> tuple[Any, None]:
  """`lookup` with one device's parts, from ids."""
  ids, weights = _raw_ids.of_device(config, inputs)
  checks = []
  if seal is not None:
    checks.append(_seal.guards_of(seal))
    if is_laid_out is not None:
      message = _table_state.wrong_layout(config)
      checks.append(_seal.guards_unless(is_laid_out, message))

  def look_up(num_minibatches):
    return embedding.lookup_ids(
        ids,
        weights,
        {name: (table,) for name, table in tables.items()},
        config.feature_specs,
        config.topology,
        sharding_strategy=config.table_sharding_strategy,
        feature_stacking_strategy=config.feature_stacking_strategy,
        keeps_errors=True,
        num_minibatches=num_minibatches,
        perform_unstacking=False,
    )

  activations = _seal.look_up_checked(checks, look_up)
  if seal is None and is_laid_out is not None:
    activations = _checked_batch.nan_if_failed(
        activations, dict.fromkeys(activations, ~is_laid_out[None])
    )
  return _unstack(config, activations, _raw_ids.resize(config, ids)), None


def _unstack_of_device(
    config: _lookup_config.LookupConfig,
    stacked: Mapping[str, jax.Array],
    inputs: embedding.PreprocessedInput,
) -> Any:
  """The activations of every feature on one device."""
  return _unstack(config, stacked, _features_of_batch(config, inputs))


def _unstack(
    config: _lookup_config.LookupConfig,
    stacked: Mapping[str, jax.Array],
    feature_specs: Any,
) -> Any:
  return embedding.unstack_embedding_activations(
      dict(stacked),
      feature_specs,
      config.num_shards,
      config.num_sc_per_device,
      feature_stacking_strategy=config.feature_stacking_strategy,
  )


def _stack_of_device(
    config: _lookup_config.LookupConfig,
    gradients: Any,
    inputs: embedding.PreprocessedInput,
) -> dict[str, jax.Array]:
  """The inverse, of gradients."""
  return embedding.stack_embedding_gradients(
      jax.tree.map(lambda g: g.astype(jnp.float32), gradients),
      _features_of_batch(config, inputs),
      config.num_sc_per_device,
      config.num_shards,
      feature_stacking_strategy=config.feature_stacking_strategy,
  )


def _features_of_batch(
    config: _lookup_config.LookupConfig, inputs: embedding.PreprocessedInput
) -> Any:
  """The specs, with the number of samples that this batch has."""
  return _batch_sizes.of_settings(config.feature_specs, inputs.settings)


def update(
    config: _lookup_config.LookupConfig,
    gradients: Any,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
    step: jax.typing.ArrayLike | None,
    has_failed: jax.Array | None = None,
    num_updates: Mapping[str, jax.Array] | None = None,
    perform_stacking: bool = True,
) -> dict[str, embedding.EmbeddingVariables]:
  """The variables after the optimizer ran on every row that inputs name.

  They are the old ones if something is wrong with the inputs of any stack.
  Those of frozen stacks are what was given, whatever that is.

  Tables of bfloat16 and float16 are rounded at random, by numbers that depend
  on the batch and the step.

  Args:
    config: specs and devices.
    gradients: the tree of feature specs with gradients of the activations; or,
      with `perform_stacking=False`, those of whole stacks.
    inputs: the buffers that the lookup read.
    variables: stack name -> (table, slots).
    step: passed to optimizers and schedules, or None.
    has_failed: bool[G], of the lookup; None if there was none.
    num_updates: stack name -> what stands for the step if there is none.
    perform_stacking: see `gradients`.

  Raises:
    ValueError: if the arguments do not belong together, a step is needed and
      there is none, or see _checked_batch.check_features.
  """
  if has_failed is None:
    has_failed = _failed_devices(config, inputs, variables)
  frozen = config.frozen_stacks
  kept = {name: variables[name] for name in frozen}
  if frozen:
    features, gradients, inputs, variables = _frozen_tables.leave_out(
        frozen,
        config.feature_specs,
        gradients,
        inputs,
        variables,
        gradients_are_by_stack=not perform_stacking,
    )
    if not features:
      return kept
    config = dataclasses.replace(config, feature_specs=features, frozen=())
  _checked_batch.check_features(config, inputs)
  num_updates = num_updates or {}
  steps, rounding_seeds = {}, {}
  for name, stack in embedding.get_stacked_table_specs(
      config.feature_specs
  ).items():
    steps[name] = num_updates.get(name) if step is None else step
    if steps[name] is None and _table_state.depends_on_step(stack):
      raise ValueError(_table_state.no_step(stack))
    if stack.dtype != jnp.float32:
      rounding_seeds[name] = _seal.hash_of_batch(inputs) + jnp.asarray(
          steps[name]
      ).astype(jnp.uint32)

  return (
      config.on_each_device(
          _update_of_device if perform_stacking else _update_stacks_of_device,
          (
              config.data_partition,
              config.partition_inputs(inputs),
              config.partition_tables(variables),
              P(),
              P(),
              P(),
          ),
          config.partition_tables(variables),
      )(
          jax.tree.map(lambda g: g.astype(jnp.float32), gradients),
          inputs,
          variables,
          steps,
          rounding_seeds,
          jnp.any(has_failed),
      )
      | kept
  )


def _failed_devices(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
) -> jax.Array:
  """bool[G], on which devices something is wrong with the inputs."""
  tables = {name: table for name, (table, *_) in variables.items()}
  return _checked_batch.failed_devices(config, inputs, tables)


def _update_of_device(
    config: _lookup_config.LookupConfig,
    gradients: Any,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
    steps: Mapping[str, Any],
    rounding_seeds: Mapping[str, Any],
    failed: jax.Array,
    perform_stacking: bool = True,
) -> dict[str, embedding.EmbeddingVariables]:
  """`update` with one device's parts."""
  return embedding.tpu_sparse_dense_matmul_grad(
      gradients,
      _checked_batch.without_ids_if(failed, config, inputs),
      variables,
      config.feature_specs,
      step=steps,
      rounding_seed=rounding_seeds,
      perform_stacking=perform_stacking,
      **_options(config),
  )


def _update_stacks_of_device(
    config: _lookup_config.LookupConfig, *args: Any
) -> dict[str, embedding.EmbeddingVariables]:
  """The same with the gradients of whole stacks."""
  return _update_of_device(config, *args, perform_stacking=False)


def lookup_updating_refs(
    config: _lookup_config.LookupConfig,
    anchor: jax.Array,
    inputs: embedding.PreprocessedInput | _raw_ids.RawIds,
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
    inputs: the buffers of all devices, or their ids.
    refs: stack name -> variables whose leaves are jax.Ref. Tables that were
      made elsewhere may have no state, and to be looked up no slots. A stack
      whose leaves are arrays is frozen.
    step: passed to optimizers and schedules; None: the number of updates.

  Returns:
    The tree of feature specs with f32[*output_shape].

  Raises:
    ValueError: if a stack has both arrays and jax.Refs.
  """
  config = config.freezing(_stacks_of_arrays(refs))
  if _sites.are_marked():
    site = _site(config, _read_refs, _update_refs, returns_tables=False)
    inputs = _raw_ids.convert(config, inputs)
    return _sites.lookup(site, anchor, inputs, dict(refs), step)

  @jax.custom_vjp
  def differentiable(anchor, inputs, refs, step):
    del anchor, step
    return _read_refs(config, inputs, refs)[0]

  def forward(anchor, inputs, refs, step):
    del anchor
    inputs = _raw_ids.convert(config, inputs)
    activations, has_failed = _remat.save(_read_refs(config, inputs, refs))
    return activations, (inputs, refs, step, has_failed)

  def backward(residuals, gradients):
    inputs, refs, step, has_failed = residuals
    _update_refs(config, inputs, refs, gradients, has_failed, step)
    return jnp.zeros((), jnp.result_type(anchor)), None, None, None

  differentiable.defvjp(forward, backward)
  return differentiable(anchor, inputs, dict(refs), step)


def _site(
    config: _lookup_config.LookupConfig,
    read: Callable[..., Any],
    write: Callable[..., Any],
    *,
    returns_tables: bool,
) -> _sites.Site:
  """What a pipeline does in place of a layer.

  Args:
    config: specs and devices.
    read: (config, inputs, tables, perform_unstacking) -> activations, failed.
    write: (config, inputs, tables, gradients, failed, step, perform_stacking)
      -> new tables, or None.
    returns_tables: see Site.
  """

  def of_data(function, values, inputs):
    return config.on_each_device(
        function,
        (config.data_partition, config.partition_inputs(inputs)),
        config.data_partition,
    )(values, inputs)

  return _sites.Site(
      stacks=tuple(embedding.get_stacked_table_specs(config.feature_specs)),
      returns_tables=returns_tables,
      lookup=functools.partial(read, config, perform_unstacking=False),
      unstack=functools.partial(of_data, _unstack_of_device),
      stack=functools.partial(of_data, _stack_of_device),
      update=functools.partial(write, config, perform_stacking=False),
  )


def _read_refs(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput | _raw_ids.RawIds,
    refs: Mapping[str, _table_state.TableVariables],
    **options: Any,
) -> tuple[Any, jax.Array | None]:
  """`lookup` in mutable arrays, or arrays where stacks are frozen."""
  tables = {name: (_value(v[0]),) for name, v in refs.items()}
  states = _read_states(refs)
  places = {name: state[1:] for name, state in states.items()}
  return lookup(config, inputs, tables, places=places, **options)


def _update_refs(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    refs: Mapping[str, _table_state.TableVariables],
    gradients: Any,
    has_failed: jax.Array,
    step: jax.typing.ArrayLike | None,
    **options: Any,
) -> None:
  """`update` in mutable arrays, which are written."""
  frozen = config.frozen_stacks
  refs = {name: v for name, v in refs.items() if name not in frozen}
  variables = {name: tuple(refs_of[:2]) for name, refs_of in refs.items()}
  values = jax.tree.map(lambda ref: ref[...], variables)
  states = _read_states(refs)
  num_updates = {name: state[0] for name, state in states.items()}
  # Tables of frozen stacks are not even read.
  values |= dict.fromkeys(frozen)
  new = update(
      config,
      gradients,
      inputs,
      values,
      step,
      has_failed,
      num_updates,
      **options,
  )
  _write(variables, {name: new[name] for name in variables})
  is_update = ~jnp.any(has_failed)
  stacks = embedding.get_stacked_table_specs(config.feature_specs)
  for name, state in states.items():
    # Where nothing reads the count, tables are all that changes.
    if _table_state.depends_on_step(stacks[name]):
      refs[name][2][...] = state.at[0].add(is_update.astype(jnp.int32))


def _read_states(
    refs: Mapping[str, _table_state.TableVariables],
) -> dict[str, jax.Array]:
  return {name: _value(v[2]) for name, v in refs.items() if len(v) > 2}


def _value(array: Any) -> jax.Array:
  return array[...] if isinstance(array, jax.Ref) else jnp.asarray(array)


def _stacks_of_arrays(refs: Mapping[str, Any]) -> list[str]:
  """Stacks without jax.Refs.

  Raises:
    ValueError: if some of a stack's variables are, and some are not.
  """
  stacks = []
  for name, of_stack in refs.items():
    paths = jax.tree.leaves_with_path(of_stack)
    arrays = [
        jax.tree_util.keystr(path).lstrip(".")
        for path, leaf in paths
        if not isinstance(leaf, jax.Ref)
    ]
    if len(arrays) == len(paths):
      stacks.append(name)
    elif arrays:
      raise ValueError(
          f"Stack {name!r}: arrays ({', '.join(arrays)}) are mixed with"
          " jax.Refs. Pass jax.Refs for all, of which the backward pass updates"
          " the table; or arrays for all, and the stack is frozen:"
          " jax.tree.map(lambda ref: ref[...], variables)."
      )
  return stacks


def lookup_returning_tables(
    config: _lookup_config.LookupConfig,
    variables: Mapping[str, embedding.EmbeddingVariables],
    seal: jax.Array | None,
    inputs: embedding.PreprocessedInput | _raw_ids.RawIds,
    step: jax.typing.ArrayLike | None,
) -> Any:
  """Activations with the new variables as the "gradient" of `variables`.

  Args:
    config: specs and devices.
    variables: stack name -> (table, slots).
    seal: beside the tables; its "gradient" is the new seal. The lookup raises
      if another thing than such a gradient was put in its place. None: nothing
      is checked.
    inputs: the buffers of all devices, or their ids. They have no gradient.
    step: passed to optimizers and schedules; None: the number of updates.

  Returns:
    The tree of feature specs with f32[*output_shape].
  """

  if _sites.are_marked():
    site = _site(config, _read_sealed, update_sealed, returns_tables=True)
    inputs = _raw_ids.convert(config, inputs)
    return _sites.lookup(site, None, inputs, (dict(variables), seal), step)

  @jax.custom_vjp
  def differentiable(variables, seal, inputs, step):
    del step
    return _read_sealed(config, inputs, (variables, seal))[0]

  def forward(variables, seal, inputs, step):
    inputs = _raw_ids.convert(config, inputs)
    activations, has_failed = _remat.save(
        _read_sealed(config, inputs, (variables, seal))
    )
    return activations, (variables, seal, inputs, step, has_failed)

  def backward(residuals, gradients):
    variables, seal, inputs, step, has_failed = residuals
    new = update_sealed(
        config, inputs, (variables, seal), gradients, has_failed, step
    )
    return *new, None, None

  differentiable.defvjp(forward, backward)
  return differentiable(variables, seal, inputs, step)


def _read_sealed(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput | _raw_ids.RawIds,
    variables_and_seal: tuple[Any, jax.Array | None],
    **options: Any,
) -> tuple[Any, jax.Array | None]:
  """`lookup` in variables with a seal, if there is one."""
  variables, seal = variables_and_seal
  places = {}
  if seal is not None:
    places = dict.fromkeys(variables, _seal.places(seal))
  return lookup(config, inputs, variables, seal=seal, places=places, **options)


def update_sealed(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    variables_and_seal: tuple[
        Mapping[str, embedding.EmbeddingVariables], jax.Array | None
    ],
    gradients: Any,
    has_failed: jax.Array | None,
    step: jax.typing.ArrayLike | None,
    **options: Any,
) -> tuple[dict[str, embedding.EmbeddingVariables], jax.Array | None]:
  """The variables after an update, and their seal; see `update`."""
  variables, seal = variables_and_seal
  if has_failed is None:
    has_failed = _failed_devices(config, inputs, variables)
  count = None if seal is None else _seal.num_updates(seal)
  num_updates = {} if count is None else dict.fromkeys(variables, count)
  new = update(
      config,
      gradients,
      inputs,
      variables,
      step,
      has_failed,
      num_updates,
      **options,
  )
  if seal is not None:
    seal = _seal.after_update(seal, inputs, ~jnp.any(has_failed))
  return new, seal


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


def _options(config: _lookup_config.LookupConfig) -> dict[str, Any]:
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
