# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preprocessing on the host: ids of a batch to the buffers of every device."""

from __future__ import annotations

import threading
from typing import Any
from typing import Literal
from typing import NamedTuple

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _to_buffers
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

# Held while limits of specs are raised, so that they are raised once.
_RAISES = threading.Lock()


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
    output_pool: _conversion.OutputPool | None = None,
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
    _conversion.sharding_strategy_to_enum(sharding_strategy)  # raises
  conversion = _conversion.Conversion(
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
    return _convert_growing(
        conversion, features, features_weights, feature_specs, batch_number
    )
  if isinstance(limits, _limits.Limits):
    _check_minibatching(limits, enable_minibatching)
  return _to_buffers.to_buffers(
      conversion,
      features,
      features_weights,
      feature_specs,
      allow_id_dropping,
      batch_number,
      limits if isinstance(limits, _limits.Limits) else None,
  )


def _convert_growing(
    conversion: _conversion.Conversion,
    features: Any,
    features_weights: Any | None,
    feature_specs: Any,
    batch_number: int,
) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
  """A batch in the limits of the specs, which are raised if it does not fit.

  For those who keep no AdaptiveLimits, with one process and one pass.
  """
  while True:
    num_changes = _limits.num_changes()
    try:
      # Only to count: what does not fit is converted again.
      inputs, stats = _to_buffers.to_buffers(
          conversion,
          features,
          features_weights,
          feature_specs,
          True,
          batch_number,
      )
    except ValueError:
      if num_changes == _limits.num_changes():
        raise
      continue
    if num_changes == _limits.num_changes():
      if not any(stats.id_drop_counters.values()):
        return inputs, stats
      needs = _limits.needs_of(stats)
      with _RAISES:
        # Other threads may have raised them; else policies dropped ids.
        if num_changes == _limits.num_changes() and not _raise_limits(
            feature_specs, conversion, needs
        ):
          return inputs, stats
    # Limits were raised, here or by another thread, maybe between two tables
    # of a stack: the batch is converted in the new ones.


def _raise_limits(
    feature_specs: Any,
    conversion: _conversion.Conversion,
    needs: _limits.Limits,
) -> bool:
  """Whether limits of the specs, in place, had to grow for these needs."""
  old = _limits.Limits.of(
      feature_specs,
      conversion.global_device_count,
      conversion.num_sc_per_device,
  )
  if old.covers(needs):
    return False
  rule = _growth.GrowthRule()
  num_scs = conversion.topology.num_scs
  new = rule.grown(
      old,
      rule.wanted(old, needs, needs),
      _growth.Bounds(_growth.rows_per_sc(feature_specs, num_scs), num_scs),
  )
  if not new.covers(needs):  # else the batch would be converted for ever
    raise RuntimeError(f"Limits grow to {new}, and a batch needs {needs}.")
  new.set_on(feature_specs, conversion.num_sc_per_device)
  _growth.log_growth(_growth.growths_of(0, old, new, needs))
  return True


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
    limits: _limits.Limits | str | None, conversion: _conversion.Conversion
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
    output_pool: _conversion.OutputPool | None = None,
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
