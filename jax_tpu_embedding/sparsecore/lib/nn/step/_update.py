# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Update: gradients of activations to new tables and slots."""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import numbers
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_gradient_stack
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_axes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _custom_optimizer
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _device_batch
from jax_tpu_embedding.sparsecore.lib.nn.step import _frozen_tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _one_hot
import numpy as np


@functools.partial(jax.named_call, name="tpu_sparse_dense_matmul_grad")
def tpu_sparse_dense_matmul_grad(
    activation_gradients: _tables.Nested[jax.Array],
    preprocessed_inputs: (
        _buffers.PreprocessedInput | _buffers.SparseDenseMatmulInput
    ),
    embedding_variables: Mapping[str, Any],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    *,
    global_device_count: int | None = None,
    sharding_strategy: str = "MOD",
    label: str = "",
    step: jax.typing.ArrayLike | Mapping[str, Any] | None = None,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool | None = None,
    perform_stacking: bool = True,
    use_gradient_stacking_primitive: bool = False,
    embedding_var_limits: (
        Mapping[str, tuple[float | None, float | None]] | None
    ) = None,
    feature_stacking_strategy: str | None = None,
    rounding_seed: jax.typing.ArrayLike | Mapping[str, Any] | None = None,
    frozen: Collection[str] = (),
) -> dict[str, Any]:
  """Updates tables and slots with the gradients of one device's activations.

  The gradient of a row is the sum of gain * activation gradient over every id
  of the batch that names the row; the optimizer then runs once per row. Rows
  that the batch does not name stay as they are, slots too. When the variables
  are donated, the update happens in place.

  Inputs know what they were made for, their `settings`: arguments that repeat
  it can be left out, and must agree.

  Args:
    activation_gradients: the tree of `feature_specs` with f32[*output_shape];
      or, with `perform_stacking=False`, stack name -> f32[device_batch, D].
    preprocessed_inputs: the buffers that the lookup read.
    embedding_variables: stack name -> (table, slots) of this device. Tables
      with placement "tensorcore" are not split over devices: P() for these.
    feature_specs: the prepared specs, any tree.
    global_device_count: devices of the job; default: that of the inputs.
    sharding_strategy: "MOD".
    label: appended to the name of the update in the compiled program.
    step: passed to learning rates that are schedules, and to optimizers whose
      rule depends on it; counts from 0. Or stack name -> step. Without it Adam
      and F2A take every step as step 0, and LaProp a decay of b2, which is
      logged: there is no count here to go by.
    num_sc_per_device: SparseCores per device; default: that of the inputs.
    enable_minibatching: whether the inputs were preprocessed with it; default:
      what they say.
    perform_stacking: False takes the gradients of whole stacks.
    use_gradient_stacking_primitive: see stack_embedding_gradients.
    embedding_var_limits: stack name -> (min, max) to clamp new table values
      to, either of them None. Must have every stack but those with a custom
      optimizer.
    feature_stacking_strategy: that of the preprocessing; default: what the
      inputs say.
    rounding_seed: an integer below 2^32, another one in every step, such as the
      step. Tables of bfloat16 and float16 are then rounded at random, such that
      small steps are not lost; without it to the nearest value. Or stack name
      -> seed.
    frozen: names of tables that are not updated, all or none of a stack. Their
      optimizers do not run, and they need no slots.

  Returns:
    Stack name -> updated (table, slots), in the tree of the input variables.

  Raises:
    ValueError: if the arguments do not belong together, a schedule needs
      `step`, a step that is no array of JAX is negative, slots are missing, or
      a part of a stack is frozen.
    KeyError: if `embedding_var_limits` lacks a stack.
    NotImplementedError: over several devices outside of shard_map, or if
      several axes of the mesh may split the tables.
  """
  strategy = _conversion.sharding_strategy_to_enum(sharding_strategy)
  kept = {}
  if frozen:
    frozen_stacks = _frozen_tables.stacks_of(feature_specs, frozen)
    kept = {name: embedding_variables[name] for name in frozen_stacks}
    (
        feature_specs,
        activation_gradients,
        preprocessed_inputs,
        embedding_variables,
    ) = _frozen_tables.leave_out(
        frozen_stacks,
        feature_specs,
        activation_gradients,
        preprocessed_inputs,
        embedding_variables,
        gradients_are_by_stack=not perform_stacking,
    )
    if not feature_specs:
      return kept
  settings, feature_specs, stacks, buffers = _device_batch.read(
      feature_specs,
      preprocessed_inputs,
      embedding_variables,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      enable_minibatching=enable_minibatching,
      feature_stacking_strategy=feature_stacking_strategy,
      num_samples=None if perform_stacking else _rows(activation_gradients),
  )
  if perform_stacking:
    activation_gradients = stack_embedding_gradients(
        activation_gradients,
        feature_specs,
        settings.num_sc_per_device,
        settings.global_device_count,
        use_gradient_stacking_primitive,
        feature_stacking_strategy=settings.feature_stacking_strategy,
    )
  _device_batch.check_stack_names(
      stacks, activation_gradients=activation_gradients
  )
  updated = step_stacks(
      stacks,
      feature_specs,
      buffers,
      activation_gradients,
      embedding_variables,
      strategy=strategy,
      label=label,
      step=step,
      partition_limits=dict(settings.limits),
      global_device_count=settings.global_device_count,
      enable_minibatching=settings.enable_minibatching,
      embedding_var_limits=embedding_var_limits,
      rounding_seed=rounding_seed,
  )
  return updated | kept


def _rows(gradients: Any) -> dict[str, int]:
  """Stack name -> samples of one device, which are as many as gradients have.

  Specs may declare another batch. What is no mapping is refused later.
  """
  if not isinstance(gradients, Mapping):
    return {}
  return {name: jnp.shape(x)[0] for name, x in gradients.items()}


def _of_stack(value: Any, name: str) -> Any:
  """`value`, or if it is a mapping from the names of stacks, its entry."""
  return value.get(name) if isinstance(value, Mapping) else value


def step_stacks(
    stacks: Mapping[str, _tables.StackedTableSpec],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    buffers: Mapping[str, _device_batch.DeviceBuffers | _buffers.SampleIds],
    gradients: Mapping[str, jax.Array],
    variables: Mapping[str, Any],
    *,
    strategy: int,
    label: str,
    step: jax.typing.ArrayLike | Mapping[str, Any] | None,
    partition_limits: Mapping[str, layout.PartitionLimits],
    global_device_count: int,
    enable_minibatching: bool,
    embedding_var_limits: (
        Mapping[str, tuple[float | None, float | None]] | None
    ),
    rounding_seed: jax.typing.ArrayLike | Mapping[str, Any] | None,
) -> dict[str, Any]:
  """Steps the optimizers of all stacks.

  Args:
    stacks: name -> spec.
    feature_specs: the prepared specs, any tree.
    buffers: stack name -> those of one device; the samples of a replicated
      stack.
    gradients: stack name -> f32[device_batch, D], of the activations.
    variables: stack name -> (table, slots) of this device.
    strategy: a member of ShardingStrategy.
    label: as in tpu_sparse_dense_matmul_grad.
    step: as there.
    partition_limits: stack name -> those that hold for the buffers; a
      replicated stack has none.
    global_device_count: devices that share the batch.
    enable_minibatching: as there.
    embedding_var_limits: as there.
    rounding_seed: as there.

  Returns:
    Stack name -> new (table, slots), in the tree of `variables`.

  Raises:
    ValueError: if an optimizer depends on the width of tables, and those of
      its stack differ.
    KeyError: if `embedding_var_limits` lacks a stack.
  """
  results, split = {}, []
  for name, stack in stacks.items():
    update = _update_of_stack(
        stack,
        feature_specs,
        buffers[name],
        gradients[name],
        variables[name],
        step=_of_stack(step, name),
        value_limits=_value_limits(embedding_var_limits, stack),
        rounding_seed=_of_stack(rounding_seed, name),
    )
    if stack.is_replicated:
      with jax.named_scope(f"update/{name}"):
        results[name] = _one_hot.update(
            update.primitive,
            update.operands,
            buffers[name],
            _batch_axes.axes_of_batch(buffers[name], global_device_count),
            stack=stack,
            **update.params,
        )
      continue
    params = update.params | dict(
        **partition_limits[name]._asdict(),
        computation_name=f"{stack.optimizer.short_name()}-{name}{label}",
        sharding_strategy=int(strategy),
        enable_minibatching=enable_minibatching,
    )
    split.append(update._replace(params=params))
  stepped = of_stacks.bind(
      of_stacks.update_of_stacks_p, split, num_devices=global_device_count
  )
  for update, new in zip(split, stepped, strict=True):
    results[update.stack] = new
  return {
      name: jax.tree.unflatten(
          jax.tree.structure(variables[name]), jax.tree.leaves(results[name])
      )
      for name in stacks
  }


def _update_of_stack(
    stack: _tables.StackedTableSpec,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    buffers: _device_batch.DeviceBuffers | _buffers.SampleIds,
    gradient: jax.Array,
    variables: Any,
    *,
    step: jax.typing.ArrayLike | None,
    value_limits: tuple[float | None, float | None],
    rounding_seed: jax.typing.ArrayLike | None,
) -> of_stacks.OfStack:
  """The update of one stack, whose arguments are those of step_stacks."""
  minimum, maximum = value_limits
  _check_step(stack, step)
  if step is None and stack.optimizer.depends_on_step:
    # Programs that were written for the reference do so, with this result.
    logging.log_first_n(
        logging.WARNING,
        "Stack %r is updated without a step, on which %s depends: each update"
        " is as at the first step. Pass step=.",
        1,
        stack.stack_name,
        type(stack.optimizer).__name__,
    )
  table, *slots = jax.tree.leaves(variables)
  _check_slots(stack, len(slots))
  options = stack.optimizer.get_row_options(step)
  operands = stack.optimizer.order_operands(
      coo=(None,) * 5 if stack.is_replicated else tuple(buffers),
      table=table,
      slots=tuple(slots),
      gradient=gradient,
      hyperparameters=(
          *stack.optimizer.get_hyperparameters(step),
          *(number for number in options.values() if number is not None),
      ),
  )
  # Only where there are any: primitives of users may not know them.
  params = {"row_options": tuple(options)} if options else {}
  if stack.optimizer.depends_on_embedding_dim:
    params["embedding_dim"] = _prepared.embedding_dim_of_tables(
        stack, feature_specs
    )
  if rounding_seed is not None and table.dtype != jnp.float32:
    operands += (_as_seed(rounding_seed),)
    params["stochastic_rounding"] = True
  params |= stack.optimizer.get_static_params()
  params |= dict(min_value=minimum, max_value=maximum)
  return of_stacks.OfStack(
      stack.stack_name,
      stack.optimizer.get_optimizer_primitive(),
      operands,
      params,
      num_results=1 + len(slots),
  )


def _check_step(
    stack: _tables.StackedTableSpec, step: jax.typing.ArrayLike | None
) -> None:
  """Raises ValueError unless the step, if it is known here, is possible."""
  if not isinstance(step, (numbers.Real, np.ndarray)):
    return  # There is none, or the program would have to wait for it.
  if np.size(step) != 1 or not 0 <= np.asarray(step).item() < 2**31:
    raise ValueError(
        f"Stack {stack.stack_name!r}: step must be one number from 0 to"
        f" 2^31 - 1, got {step!r}. It counts from 0."
    )


def _as_seed(rounding_seed: jax.typing.ArrayLike) -> jax.Array:
  """As the primitives take it, u32[]."""
  if isinstance(rounding_seed, numbers.Integral):
    # JAX would take a number for an int32.
    if not 0 <= rounding_seed < 2**32:
      raise ValueError(
          "rounding_seed must be an integer from 0 to 2^32 - 1, got"
          f" {rounding_seed}."
      )
    rounding_seed = np.uint32(rounding_seed)
  return jnp.asarray(rounding_seed).astype(jnp.uint32)


def _check_slots(stack: _tables.StackedTableSpec, found: int) -> None:
  """Raises ValueError unless there are as many as the optimizer has."""
  expected = stack.optimizer.slot_variables_initializers()
  count = len(jax.tree.leaves(expected))
  if found == count:
    return
  names = ", ".join(getattr(expected, "_fields", ()))
  raise ValueError(
      f"Stack {stack.stack_name!r}: an update with"
      f" {type(stack.optimizer).__name__} needs {count} slots"
      f"{names and f' ({names})'} beside the table, and there are {found}. A"
      " lookup needs none, but where it is differentiated the optimizer runs."
      " Pass the slots that init_embedding_variables or"
      " create_embedding_variables made, with specs of the same optimizer, or"
      " name the tables of the stack in `frozen`."
  )


def _value_limits(
    embedding_var_limits: (
        Mapping[str, tuple[float | None, float | None]] | None
    ),
    stack: _tables.StackedTableSpec,
) -> tuple[float | None, float | None]:
  """The entry of a stack in `embedding_var_limits`."""
  name = stack.stack_name
  if embedding_var_limits is None:
    return None, None
  if name in embedding_var_limits:
    return embedding_var_limits[name]
  if isinstance(stack.optimizer, _custom_optimizer.CustomOptimizerSpec):
    return None, None
  raise KeyError(
      f"embedding_var_limits has no entry for stack {name!r}. Add one; (None,"
      " None) leaves the stack without limits."
  )


def stack_embedding_gradients(
    activation_gradients: _tables.Nested[jax.Array],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    num_sc_per_device: int,
    global_device_count: int | None = None,
    use_gradient_stacking_primitive: bool = False,
    *,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
) -> dict[str, jax.Array]:
  """Joins the gradients of features into those of stacks.

  The inverse of unstack_embedding_activations; columns that a table has beyond
  its features' width get zeros.

  Args:
    activation_gradients: the tree of `feature_specs` with f32[*output_shape],
      the batch divided by `global_device_count`.
    feature_specs: the prepared specs, any tree.
    num_sc_per_device: SparseCores per device.
    global_device_count: devices of the job; default: as many as the first
      gradient has a part of the batch for.
    use_gradient_stacking_primitive: whether one primitive joins each stack,
      which cannot be differentiated, instead of plain operations. The results
      are the same.
    feature_stacking_strategy: which samples each SparseCore has; the module
      _feature_stacking.py has the picture.

  Returns:
    Stack name -> f32[device_batch, D].

  Raises:
    ValueError: if the trees differ, a gradient has another shape than its
      feature's output, or a batch cannot be split evenly over the SparseCores.
  """
  _structure.assert_same_structure(
      feature_specs,
      activation_gradients,
      "feature_specs",
      "activation_gradients",
  )
  num_runs = _feature_stacking.runs_per_device(
      _feature_stacking.feature_stacking_strategy_to_enum(
          feature_stacking_strategy
      ),
      num_sc_per_device,
  )
  features = jax.tree.leaves(feature_specs)
  gradients = jax.tree.leaves(activation_gradients)
  if global_device_count is None:
    global_device_count = _num_devices(features, gradients)
  by_stack = collections.defaultdict(list)
  sizes = {}
  for feature, gradient in zip(features, gradients):
    expected = (
        feature.output_shape[0] // global_device_count,
        *feature.output_shape[1:],
    )
    if gradient.shape != expected:
      raise ValueError(
          f"Feature {feature.name!r}: the activation gradient has shape"
          f" {gradient.shape}, expected {expected}, the output_shape"
          f" {tuple(feature.output_shape)} on one of {global_device_count}"
          " devices."
      )
    setting = feature.table_spec.setting_in_stack
    samples = jnp.asarray(gradient).reshape(-1, gradient.shape[-1])
    padding = setting.padded_embedding_dim - samples.shape[-1]
    if padding:
      samples = jnp.pad(samples, ((0, 0), (0, padding)))
    span = _feature_stacking.span_in_run(feature, global_device_count, num_runs)
    by_stack[setting.stack_name].append((feature, span, samples))
    sizes[setting.stack_name] = (
        feature.table_spec.stacked_table_spec.total_sample_count
        // (global_device_count * num_runs)
    )
  join = _join_with_primitive if use_gradient_stacking_primitive else _join
  return {
      stack_name: join(
          _without_gaps(
              sorted(parts, key=lambda part: part[1].start),
              sizes[stack_name],
              num_runs,
          ),
          num_runs,
      )
      for stack_name, parts in by_stack.items()
  }


def _num_devices(
    features: Sequence[_tables.FeatureSpec], gradients: Sequence[jax.Array]
) -> int:
  """How many devices share the batch, if the first gradient is one's part."""
  if not gradients or not gradients[0].shape:
    return 1
  # At least one: gradients that do not fit are refused by their shapes.
  return max(features[0].output_shape[0] // max(gradients[0].shape[0], 1), 1)


def _without_gaps(
    parts: Sequence[tuple[_tables.FeatureSpec, slice, jax.Array]],
    run_size: int,
    num_runs: int,
) -> list[jax.Array]:
  """The gradients of all samples of a stack: zeros of those of no feature.

  Args:
    parts: features, the samples that they have of each run, and gradients, in
      order.
    run_size: samples of a run.
    num_runs: of a device.

  Raises:
    ValueError: if samples are those of two features, or beyond the run.
  """
  _feature_stacking.check_spans(
      [(feature, span) for feature, span, _ in parts], run_size
  )
  gradients, end = [], 0

  def fill(size):
    if size:
      _, _, samples = parts[0]
      shape = (num_runs * size, samples.shape[1])
      gradients.append(jnp.zeros(shape, samples.dtype))

  for _, span, samples in parts:
    fill(span.start - end)
    gradients.append(samples)
    end = span.stop
  fill(run_size - end)
  return gradients


def _join(gradients: Sequence[jax.Array], num_runs: int) -> jax.Array:
  """Runs of a stack, of the runs of each of its features."""
  if len(gradients) == 1:
    return gradients[0]
  width = gradients[0].shape[1]
  runs = [gradient.reshape(num_runs, -1, width) for gradient in gradients]
  return jnp.concatenate(runs, axis=1).reshape(-1, width)


def _join_with_primitive(
    gradients: Sequence[jax.Array], num_runs: int
) -> jax.Array:
  """The same."""
  primitive = (
      sparse_dense_matmul_gradient_stack.tpu_sparse_dense_matmul_gradient_stack_primitive
  )
  return primitive.bind(
      *gradients,
      stacked_batch_size=sum(gradient.shape[0] for gradient in gradients),
      stacked_feature_dim=gradients[0].shape[1],
      num_sc_per_device=num_runs,
  )
