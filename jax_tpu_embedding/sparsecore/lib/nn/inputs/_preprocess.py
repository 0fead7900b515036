# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preprocessing on the host: ids of a batch to the buffers of every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import Literal
from typing import NamedTuple

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _adaptive_limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _to_buffers
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

OutputPool = _to_buffers.OutputPool
sharding_strategy_to_enum = _to_buffers.sharding_strategy_to_enum


def preprocess_sparse_dense_matmul_input(
    features: Any,
    features_weights: Any | None,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int | None = None,
    sharding_strategy: str = "MOD",
    has_leading_dimension: bool = False,
    allow_id_dropping: bool = False,
    batch_number: int = 0,
    enable_minibatching: bool = False,
    all_reduce_interface: Any | None = None,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
    num_threads: int | None = None,
    output_pool: OutputPool | None = None,
    limits: _limits.Limits | Literal["specs", "grow"] | None = None,
) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
  """Converts this process's part of a batch to the buffers of its devices.

  Runs on the host with NumPy arrays, releases the interpreter lock while it
  works, and may be called from several threads at once. The result depends
  neither on the number of threads nor on the form that the ids come in.

  Args:
    features: the tree of `feature_specs` with the ids of each feature, samples
      in device order. For each feature one of

      * an integer array [samples, valency] or [samples], with any strides; a
        feature with one vector per position may also have the shape of its
        positions;
      * a 1-D object array of integer rows;
      * a tuple (values, row_splits): sample r has the ids
        values[row_splits[r] : row_splits[r + 1]];
      * a sparse tensor, that is an object with `indices` [n, 2] of (sample,
        position), `values` [n] and `dense_shape`; entries of a sample in the
        order in which they come;
      * a SciPy sparse array [samples, vocabulary_size], whose columns are ids
        and whose values are their weights;
      * a pyarrow array of integer lists, or of integers.

    features_weights: the same tree with a weight per id, in the form of the
      ids; None for ones, of some features or of all. Truth values are 0 and 1.
    feature_specs: prepared specs, any tree. Their `out_of_range_ids` and
      `non_finite_weights` say what to do with such ids and weights. A batch of
      another size than they declare is looked up as it is, if SparseCores can
      share it evenly.
    local_device_count: devices of this process.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device; default: as JAX's first device.
    sharding_strategy: "MOD".
    has_leading_dimension: return [devices, size] arrays instead of flat ones.
    allow_id_dropping: drop and count the ids beyond the limits of a stack,
      instead of raising.
    batch_number: names the batch in reductions between hosts; each number at
      most once.
    enable_minibatching: let a batch that exceeds the limits take several
      passes.
    all_reduce_interface: how hosts agree on minibatches, from
      get_all_reduce_interface. Needed for minibatching with several processes.
    feature_stacking_strategy: "SPLIT_THEN_STACK", where each SparseCore gets a
      part of every feature, or "STACK_THEN_SPLIT", where the features of a
      stack follow one another and each SparseCore gets an equal part of the
      whole. Lookup and update need the same.
    num_threads: how many threads work; default: one per CPU, or what the
      environment variable SPARSECORE_INPUT_PREPROCESSING_THREADS says if that
      is less. They end with the call.
    output_pool: where the buffers' memory comes from, and returns to when they
      are no longer used; default: the pool of the process,
      OutputPool.of_process(), which keeps at most 128 MiB.
    limits: which ones hold. A value holds in place of those of the specs;
      "specs" are those of the specs; with "grow" they are, and where a batch
      needs more, they are raised in place, by the rule of AdaptiveLimits, and
      nothing is dropped or refused for them. Default: "grow" where devices
      have one SparseCore, as CPUs and GPUs do, in one process and one pass:
      there limits cost nothing, and those that a client made for a TPU would
      lose ids. Else "specs".

  Returns:
    The buffers, and what they needed.

  Raises:
    ValueError: for bad arguments or data, and for ids beyond the limits of a
      stack without `allow_id_dropping`.
    TypeError: for ids that are not integers, and weights that are no numbers;
      and for leaves of feature_specs that are something else.
    RuntimeError: when the reduction between hosts fails.
  """
  if sharding_strategy != "MOD":
    sharding_strategy_to_enum(sharding_strategy)  # raises
  conversion = _to_buffers.Conversion(
      local_device_count,
      global_device_count,
      hardware.resolve_num_sc_per_device(num_sc_per_device),
      has_leading_dimension,
      enable_minibatching,
      all_reduce_interface,
      _feature_stacking.feature_stacking_strategy_name(
          feature_stacking_strategy
      ),
      num_threads,
      output_pool,
  )
  if _grows(limits, conversion):
    return _adaptive_limits.preprocess_growing(
        conversion, features, features_weights, feature_specs
    )
  if isinstance(limits, _limits.Limits):
    _check_minibatching(limits, enable_minibatching)
    feature_specs = limits.on_copies(
        feature_specs, conversion.num_sc_per_device
    )
  return _to_buffers.to_buffers(
      conversion,
      features,
      features_weights,
      feature_specs,
      allow_id_dropping,
      batch_number,
  )


def _check_minibatching(limits: _limits.Limits, enable_minibatching: bool):
  if limits.enable_minibatching != enable_minibatching:
    raise ValueError(
        f"limits have enable_minibatching={limits.enable_minibatching}, and"
        f" the call has {enable_minibatching}."
    )


class _SparseTensor(NamedTuple):
  indices: Any  # integers [n, 2]
  values: Any  # integers [n]
  dense_shape: Any  # integers [2]


def _grows(
    limits: _limits.Limits | str | None, conversion: _to_buffers.Conversion
) -> bool:
  """Whether limits that a batch exceeds are raised."""
  if limits is None:
    return (
        conversion.num_sc_per_device == 1
        and conversion.local_device_count == conversion.global_device_count
        and not conversion.enable_minibatching
    )
  if isinstance(limits, _limits.Limits) or limits == "specs":
    return False
  if limits != "grow":
    raise ValueError(
        f"limits must be Limits, 'specs', 'grow' or None, got {limits!r}."
    )
  if not conversion.is_of_one_process:
    raise ValueError(
        "limits='grow' is for one process: several have to agree. Use"
        " AdaptiveLimits with an all_reduce_interface."
    )
  if conversion.enable_minibatching:
    raise ValueError(
        "limits='grow' is for one pass: with enable_minibatching, what exceeds"
        " limits takes several. Use AdaptiveLimits to have both."
    )
  return True


def preprocess_sparse_dense_matmul_input_from_sparse_tensor(
    indices: Any,
    values: Any,
    dense_shapes: Any,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int | None = None,
    sharding_strategy: str = "MOD",
    has_leading_dimension: bool = False,
    allow_id_dropping: bool = False,
    batch_number: int = 0,
    enable_minibatching: bool = False,
    all_reduce_interface: Any | None = None,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
    num_threads: int | None = None,
    output_pool: OutputPool | None = None,
) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
  """preprocess_sparse_dense_matmul_input of sparse tensors in three trees.

  Args:
    indices: the tree of `feature_specs` with integers [n, 2]: the sample and
      the position of each id.
    values: the same tree with integers [n]: the ids.
    dense_shapes: the same tree with integers [2]: the number of samples of this
      process, and a number that plays no role.
    feature_specs: as there, like everything below.
    local_device_count: devices of this process.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device.
    sharding_strategy: "MOD".
    has_leading_dimension: return [devices, size] arrays.
    allow_id_dropping: drop and count ids beyond limits.
    batch_number: names the batch in reductions between hosts.
    enable_minibatching: let a batch take several passes.
    all_reduce_interface: how hosts agree on minibatches.
    feature_stacking_strategy: which samples each SparseCore gets.
    num_threads: how many threads work.
    output_pool: where the buffers' memory comes from.

  Returns:
    The buffers, and what they needed.

  Raises:
    What preprocess_sparse_dense_matmul_input raises.
  """
  parts = [
      _structure.flatten_like(tree, feature_specs, name, "feature_specs")
      for tree, name in (
          (indices, "indices"),
          (values, "values"),
          (dense_shapes, "dense_shapes"),
      )
  ]
  tensors = [_SparseTensor(*leaves) for leaves in zip(*parts)]
  return preprocess_sparse_dense_matmul_input(
      jax.tree.unflatten(jax.tree.structure(feature_specs), tensors),
      None,
      feature_specs,
      local_device_count,
      global_device_count,
      num_sc_per_device=num_sc_per_device,
      sharding_strategy=sharding_strategy,
      has_leading_dimension=has_leading_dimension,
      allow_id_dropping=allow_id_dropping,
      batch_number=batch_number,
      enable_minibatching=enable_minibatching,
      all_reduce_interface=all_reduce_interface,
      feature_stacking_strategy=feature_stacking_strategy,
      num_threads=num_threads,
      output_pool=output_pool,
  )


def eval_preprocess_sparse_dense_matmul_input_shape(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int | None = None,
    has_leading_dimension: bool = False,
    enable_minibatching: bool = False,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
) -> _buffers.PreprocessedInput:
  """Shapes and dtypes of what preprocessing returns, as ShapeDtypeStructs.

  For L local devices with R row pointers and B cells each.

  Args:
    feature_specs: prepared specs, any tree.
    local_device_count: devices of this process.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device; default: those of the hardware.
    has_leading_dimension: [L, R] and [L, B] in place of [L * R] and [L * B].
    enable_minibatching: as in preprocessing.
    feature_stacking_strategy: as in preprocessing.

  Raises:
    ValueError: if a count is not positive, there are more local than global
      devices, specs are not prepared, or a suggested buffer size exceeds what
      the limits of the stack can fill.
  """
  topology = layout.Topology(
      local_device_count=local_device_count,
      global_device_count=global_device_count,
      num_sc_per_device=hardware.resolve_num_sc_per_device(num_sc_per_device),
  )
  cells = _plan.compute_coo_buffer_size_per_device(
      feature_specs,
      global_device_count,
      topology.num_sc_per_device,
      enable_minibatching,
  )
  num_row_pointers = layout.row_pointers_per_device(
      topology, enable_minibatching
  )

  strategy = _feature_stacking.feature_stacking_strategy_to_enum(
      feature_stacking_strategy
  ).name
  layouts = _batch_sizes.layouts(
      jax.tree.leaves(feature_specs),
      {},
      topology.num_scs,
      keeps_places=strategy == "SPLIT_THEN_STACK",
  )
  feature_specs = _batch_sizes.lay_out(feature_specs, {}, layouts)

  def per_device(size, dtype, *others):
    if has_leading_dimension:
      return jax.ShapeDtypeStruct((local_device_count, size, *others), dtype)
    return jax.ShapeDtypeStruct((local_device_count * size, *others), dtype)

  return _buffers.PreprocessedInput(
      _buffers.SparseDenseMatmulInput(
          {name: per_device(num_row_pointers, np.int32) for name in cells},
          {name: per_device(size, np.int32) for name, size in cells.items()},
          {name: per_device(size, np.int32) for name, size in cells.items()},
          {name: per_device(size, np.float32) for name, size in cells.items()},
      ),
      per_device(1, np.int32),
      _buffers.BufferSettings(
          global_device_count=global_device_count,
          num_sc_per_device=topology.num_sc_per_device,
          limits=_buffers.limits_of_specs(jax.tree.leaves(feature_specs)),
          enable_minibatching=enable_minibatching,
          feature_stacking_strategy=strategy,
          layouts=layouts,
      ),
      _shapes_of_samples(feature_specs, global_device_count, per_device),
  )


def _shapes_of_samples(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    per_device: Callable[..., jax.ShapeDtypeStruct],
) -> dict[str, _buffers.SampleIds]:
  """Those of replicated stacks, whose features say how many ids samples have."""
  valency = {}
  for feature in jax.tree.leaves(feature_specs):
    stack = feature.table_spec.stacked_table_spec
    if not stack.is_replicated:
      continue
    shape = feature.input_shape
    if len(shape) < 2 or shape[-1] is None:
      raise ValueError(
          f"Feature {feature.name!r}: its table has placement 'tensorcore', for"
          " which the shape of preprocessed inputs depends on the ids of a"
          f" sample, and input_shape {tuple(shape)} does not say how many there"
          " are. Give it as (batch, ids per sample)."
      )
    most = valency.get(stack.stack_name, (stack, 1))[1]
    valency[stack.stack_name] = stack, max(most, shape[-1])
  result = {}
  for name, (stack, most) in valency.items():
    size = stack.total_sample_count // global_device_count
    result[name] = _buffers.SampleIds(
        ids=per_device(size, np.int32, most),
        gains=per_device(size, np.float32, most),
        has_failed=per_device(1, np.bool_),
    )
  return result


def compute_row_pointers_size_per_device(
    *,
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> int:
  """Row pointers of one device.

  Raises:
    ValueError: if a count is not positive.
  """
  return layout.row_pointers_per_device(
      _one_process(global_device_count, num_sc_per_device), enable_minibatching
  )


def compute_theoretical_max_coo_buffer_size(
    max_ids_per_partition: int,
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> int:
  """Cells of one device that hold any batch within `max_ids_per_partition`.

  Raises:
    ValueError: if a count of devices or SparseCores is not positive.
  """
  return layout.max_coo_cells_per_device(
      max_ids_per_partition,
      _one_process(global_device_count, num_sc_per_device),
      enable_minibatching,
  )


def _one_process(
    global_device_count: int, num_sc_per_device: int | None
) -> layout.Topology:
  return layout.Topology(
      local_device_count=global_device_count,
      global_device_count=global_device_count,
      num_sc_per_device=hardware.resolve_num_sc_per_device(num_sc_per_device),
  )
