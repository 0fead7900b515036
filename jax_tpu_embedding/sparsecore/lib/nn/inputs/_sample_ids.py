# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The ids of replicated tables, sample by sample.

A table that each device has as a whole needs no buffers: ids are not sent, so
they are neither sorted nor cut into partitions. Each sample has a row of ids,
and one of gains. Samples are in the order of their stack's device batch, see
_feature_stacking.py. Ragged ids of a program may all be of one sample: they stay
entries, with the sample of each beside them.

On the host the converter reads ids, for the sake of all the forms that they
come in; inside jit, what policies and combiners make of them is that of the
conversion in jnp, and there is no more to do.
"""

from __future__ import annotations

from collections.abc import Sequence
import copy
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import occurrences
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_batch
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_axes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _counts
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

_ONE_SPARSECORE = layout.Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=1
)


def of_host(
    ids: Sequence[Any],
    weights: Sequence[Any | None],
    features: Sequence[_tables.FeatureSpec],
    *,
    local_device_count: int,
    global_device_count: int,
    num_runs: int,
    has_leading_dimension: bool,
    num_threads: int | None,
) -> tuple[dict[str, _buffers.SampleIds], dict[str, int]]:
  """The samples of replicated stacks, and how many ids policies dropped of each.

  K is the width of arrays of ids. Where samples of a feature have any number of
  ids, it is the most that one of the batch has, rounded up to a power of two:
  programs are compiled for each K. Several processes have to have the same K
  without asking each other: there it is what input_shape says.

  Args:
    ids: of each feature, as the converter takes them.
    weights: of each feature, or None.
    features: their specs, all of replicated tables, with this batch.
    local_device_count: L.
    global_device_count: devices of all processes.
    num_runs: runs of a device batch.
    has_leading_dimension: whether arrays are [L, B, K].
    num_threads: of the conversion.

  Raises:
    ValueError and TypeError: as preprocess_sparse_dense_matmul_input does; and
      ValueError if there are several processes, and input_shape does not say
      how many ids a sample has, or a sample has more.
  """
  is_of_one_process = local_device_count == global_device_count
  sizes = [
      span.stop - span.start
      for span in (
          _feature_stacking.span_in_run(feature, global_device_count, num_runs)
          for feature in features
      )
  ]
  # All samples as those of one SparseCore: rows and samples are then what they
  # are in table and batch.
  row_pointers, rows, samples, gains, _, stats = (
      converter.preprocess_sparse_dense_matmul_input(
          list(ids),
          list(weights),
          _with_room(
              ids,
              _of_process(features, local_device_count, global_device_count),
          ),
          1,
          1,
          num_sc_per_device=1,
          num_threads=num_threads,
      )
  )
  by_stack = {}
  for i, feature in enumerate(features):
    name = feature.table_spec.setting_in_stack.stack_name
    by_stack.setdefault(name, []).append(i)
  result = {}
  for name, members in by_stack.items():
    members.sort(key=lambda i: features[i].id_transformation.row_offset)
    num_cells = int(row_pointers[name][0])
    sizes_of_stack = [sizes[i] for i in members]
    num_parts = local_device_count * num_runs
    of_ids, of_gains = (
        _in_device_order(array, sizes_of_stack, local_device_count, num_runs)
        for array in _by_sample(
            *(x[name][:num_cells] for x in (rows, samples, gains)),
            sum(sizes_of_stack) * num_parts,
            *_valency(
                [ids[i] for i in members],
                [features[i] for i in members],
                is_of_one_process,
            ),
        )
    )
    has_failed = np.zeros((local_device_count, 1), bool)
    if not has_leading_dimension:
      of_ids, of_gains, has_failed = map(
          np.concatenate, (of_ids, of_gains, has_failed)
      )
    result[name] = _buffers.SampleIds(
        ids=of_ids, gains=of_gains, has_failed=has_failed
    )
  return result, dict(stats.dropped_id_count)


def _in_device_order(
    by_sample: np.ndarray,
    sizes: Sequence[int],
    num_devices: int,
    num_runs: int,
) -> np.ndarray:
  """[B, K] in the order of features as [devices, B / devices, K].

  Args:
    by_sample: the samples of one feature after those of another.
    sizes: how many of each there are in a run.
    num_devices: of this process.
    num_runs: of a device batch.
  """
  ends = np.cumsum(sizes) * num_devices * num_runs
  parts = np.split(by_sample, ends[:-1])
  valency = by_sample.shape[1]
  runs = [part.reshape(num_devices, num_runs, -1, valency) for part in parts]
  return np.concatenate(runs, axis=2).reshape(num_devices, -1, valency)


def _of_process(
    features: Sequence[_tables.FeatureSpec], num_local: int, num_devices: int
) -> Sequence[_tables.FeatureSpec]:
  """The specs, with the batch of one of several processes."""
  batches = {
      feature.name: feature.output_shape[0] * num_local // num_devices
      for feature in features
  }
  return _batch_sizes.resize(
      list(features), batches if num_local < num_devices else {}
  )


def _with_room(
    ids: Sequence[Any], features: Sequence[_tables.FeatureSpec]
) -> list[_tables.FeatureSpec]:
  """Copies of the specs, with limits that all ids of the batch are within."""
  features = [copy.copy(feature) for feature in features]
  num_ids = {}
  counts = _counts.count_ids(list(ids), features)
  for feature in features:
    table = feature.table_spec = copy.copy(feature.table_spec)
    stack = table.setting_in_stack.stack_name
    of_feature = int(counts[feature.name].num_ids)
    num_ids[stack] = num_ids.get(stack, 1) + of_feature
  for feature in features:
    table = feature.table_spec
    room = num_ids[table.setting_in_stack.stack_name]
    table.stacked_table_spec = table.stacked_table_spec.replace(
        max_ids_per_partition=room,
        max_unique_ids_per_partition=room,
        suggested_coo_buffer_size_per_device=None,
    )
  return features


def _by_sample(
    rows: np.ndarray,
    samples: np.ndarray,
    gains: np.ndarray,
    num_samples: int,
    valency: int,
    too_many: str | None,
) -> tuple[np.ndarray, np.ndarray]:
  """Ids and gains [num_samples, K] of cells in any order.

  Args:
    rows: of the table.
    samples: of all features, one feature after another.
    gains: of each cell.
    num_samples: of all features.
    valency: the least K.
    too_many: the error where a sample has more; None: K is more, too.
  """
  num_ids = np.bincount(samples, minlength=num_samples)
  most = int(num_ids.max(initial=1))
  if most > valency:
    if too_many is not None:
      raise ValueError(too_many.format(most))
    valency = 2 ** (most - 1).bit_length()
  # NumPy sorts numbers of 16 bits by radix, in a fraction of the time.
  small = num_samples <= 2**16
  order = np.argsort(samples.astype("u2") if small else samples, kind="stable")
  first = np.cumsum(num_ids) - num_ids
  sample = samples[order]
  place = np.arange(len(order)) - first[sample]
  of_ids = np.full((num_samples, valency), _buffers.NO_ID, np.int32)
  of_gains = np.zeros((num_samples, valency), np.float32)
  of_ids[sample, place] = rows[order]
  of_gains[sample, place] = gains[order]
  return of_ids, of_gains


def _valency(
    ids: Sequence[Any],
    features: Sequence[_tables.FeatureSpec],
    is_of_one_process: bool,
) -> tuple[int, str | None]:
  """How many ids samples of a stack have, and the error if one has more.

  Raises:
    ValueError: if there are several processes, and nothing says.
  """
  widths = [_width(x) for x in ids]
  if is_of_one_process:
    return max(1, *(width or 1 for width in widths)), None
  table = features[0].table_spec.name
  for i, feature in enumerate(features):
    if widths[i] is None:
      shape = feature.input_shape
      if len(shape) < 2 or shape[-1] is None:
        raise ValueError(
            f"Feature {feature.name!r}: its table {table!r} has placement"
            " 'tensorcore', for which processes have to know how many ids a"
            f" sample has at most, and input_shape {tuple(shape)} does not say."
            " Give it as (batch, ids per sample), or pass arrays of ids."
        )
      widths[i] = shape[-1]
  names = [feature.name for feature in features]
  return max(1, *widths), (
      f"Table {table!r} has placement 'tensorcore', and a sample of one of its"
      f" features {names} has {{}} ids, where there is room for"
      f" {max(widths)} in every process. Raise the last number of input_shape,"
      " or pass arrays of ids."
  )


def _width(ids: Any) -> int | None:
  """The most ids of a sample, if arrays are of as many."""
  if not isinstance(ids, (np.ndarray, jax.Array)) or ids.dtype == object:
    return None
  return ids.shape[1] if ids.ndim == 2 else 1


def of_device(
    features: Sequence[raw_ids.Feature],
    operands: Sequence[jax.Array],
    *,
    combiner: str,
    num_devices: int,
    num_runs: int,
    keeps_errors: bool,
) -> _buffers.SampleIds:
  """The samples of a replicated stack on one device, inside of a program.

  Args:
    features: those of the stack, by row offset.
    operands: theirs, as raw_ids.Operands, in that order.
    combiner: of the stack.
    num_devices: that share the batch.
    num_runs: runs of a device batch.
    keeps_errors: see _convert.convert_ids.

  Raises:
    ValueError: if the runs cannot share the samples of a feature.
    jax.errors.JaxRuntimeError: as convert_ids does.
  """
  grouped = raw_ids.group_operands(features, operands)
  for feature, of_feature in zip(features, grouped):
    if of_feature.num_samples % num_runs:
      raise ValueError(
          f"Feature {feature.name!r}: ids must have a number of samples that the"
          f" {num_runs} SparseCores of a device can share equally, got"
          f" {of_feature.num_samples} samples. Use a multiple of {num_runs}."
      )
  # One SparseCore has all rows, and the samples of the device.
  num_samples = np.cumsum([0, *(x.num_samples for x in grouped)])
  features = [
      dataclasses.replace(
          feature, row_offset=int(first), col_offset=0, col_shift=0
      )
      for feature, first in zip(features, num_samples)
  ]
  occurring, failures = [], []
  # As in the conversion to buffers: the gains have the same bits.
  with jax.enable_x64(True):
    for feature, of_feature in zip(features, grouped):
      places = raw_ids.SamplePlaces(0, of_feature.num_samples, 0)
      found, has_error = occurrences.occurrences(
          feature, of_feature, places, combiner, _ONE_SPARSECORE
      )
      failures.append(has_error)
      occurring.append(
          found._replace(
              row=jnp.where(found.is_kept, found.row, _buffers.NO_ID),
              gain=jnp.where(found.is_kept, found.gain, 0),
          )
      )
    if any(feature.is_ragged for feature in features):
      ids, gains, sample = _as_entries(occurring, grouped, num_runs)
    else:
      ids, gains = _as_samples(occurring, grouped, num_runs)
      sample = None
  return _buffers.SampleIds(
      ids=ids.astype(jnp.int32),
      gains=gains.astype(jnp.float32),
      has_failed=_say_what_failed(
          jnp.any(jnp.stack(failures)),
          features,
          operands,
          combiner,
          num_devices,
          keeps_errors,
      )[None],
      sample=sample,
  )


def _say_what_failed(
    has_failed: jax.Array,
    features: Sequence[raw_ids.Feature],
    operands: Sequence[jax.Array],
    combiner: str,
    num_devices: int,
    keeps_errors: bool,
) -> jax.Array:
  """has_failed bool[], of which a program on CPU has said why.

  Only a native call can. It is that of the conversion to buffers, for the sake
  of its messages, and of their check, which says on which device the sample is.
  They run if something is wrong.
  """
  device, num_devices = _place_among(num_devices, operands[0])
  features = tuple(
      dataclasses.replace(x, row_offset=num_devices * x.row_offset)
      for x in features
  )

  def convert():
    buffers = convert_ids.convert_ids_p.bind(
        *operands,
        combiner=combiner,
        features=features,
        feature_stacking_strategy="SPLIT_THEN_STACK",
        global_device_count=num_devices,
        num_sc_per_device=1,
        keeps_errors=keeps_errors,
    )
    _, is_wrong = check_batch.check_batch_p.bind(
        *buffers,
        jnp.int32(1),  # minibatch
        device,
        num_devices=num_devices,
        num_sc_per_device=1,
        rows_per_device=features[0].vocabulary_size,
        batch_size=max(
            sum(
                of_feature.num_samples
                for of_feature in raw_ids.group_operands(features, operands)
            ),
            1,
        ),
        enable_minibatching=False,
    )
    return is_wrong[0]

  said = jax.lax.platform_dependent(
      cpu=lambda: jax.lax.cond(has_failed, convert, lambda: has_failed),
      default=lambda: has_failed,
  )
  return has_failed | said


def _place_among(num_devices: int, ids: jax.Array) -> tuple[jax.Array, int]:
  """The number of this device, and how many there are; 0 of 1 if unknown."""
  axes = _batch_axes.axes_that_may_split(ids)
  mesh = jax.sharding.get_abstract_mesh()
  if (
      num_devices == 1
      or not set(axes) <= set(mesh.manual_axes)
      or math.prod(mesh.shape[name] for name in axes) != num_devices
  ):
    return jnp.int32(0), 1
  return jax.lax.axis_index(tuple(axes)).astype(jnp.int32), num_devices


def _as_samples(
    occurring: Sequence[occurrences.Occurrences],
    operands: Sequence[raw_ids.Operands],
    num_runs: int,
) -> tuple[jax.Array, jax.Array]:
  """Ids and gains [B, K] of features whose ids are arrays."""
  valency = max(of_feature.ids.shape[1] for of_feature in operands)

  def in_runs(array, of_feature, padding):
    num_samples, width = of_feature.ids.shape
    by_sample = jnp.pad(
        array.reshape(num_samples, width),
        ((0, 0), (0, valency - width)),
        constant_values=np.asarray(padding, array.dtype),
    )
    return by_sample.reshape(num_runs, num_samples // num_runs, valency)

  def joined(arrays, padding):
    parts = [in_runs(*pair, padding) for pair in zip(arrays, operands)]
    runs = jnp.concatenate(parts, axis=1)
    return runs.reshape(num_runs * runs.shape[1], valency)

  return (
      joined([found.row for found in occurring], _buffers.NO_ID),
      joined([found.gain for found in occurring], 0),
  )


def _as_entries(
    occurring: Sequence[occurrences.Occurrences],
    operands: Sequence[raw_ids.Operands],
    num_runs: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Ids and gains [N, 1], and the sample i32[N] of each, of any features."""
  sizes = [of_feature.num_samples // num_runs for of_feature in operands]
  samples = []
  for i, found in enumerate(occurring):
    run, in_run = jnp.divmod(found.sample, max(sizes[i], 1))
    samples.append(run * sum(sizes) + sum(sizes[:i]) + in_run)
  return (
      jnp.concatenate([found.row for found in occurring])[:, None],
      jnp.concatenate([found.gain for found in occurring])[:, None],
      jnp.concatenate(samples).astype(jnp.int32),
  )
