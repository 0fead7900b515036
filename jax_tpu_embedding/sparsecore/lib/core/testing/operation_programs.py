# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A program for each operation, by the shapes of its operands, for tests."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_batch
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_seal
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.primitives import stacking
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands

PLAIN = tpu_operands.Sizes()
MINIBATCHED = tpu_operands.Sizes(enable_minibatching=True)


class Program(NamedTuple):
  """One call of an operation."""

  operation: str  # one of those in table.py
  function: Callable[..., Any]
  operands: tuple[jax.ShapeDtypeStruct, ...]

  def text(self, platform: str) -> str:
    """What it becomes for `platform`, whatever libtpu there is."""
    traced = jax.jit(self.function).trace(*self.operands)
    with mock.patch.object(
        libtpu_features, "installed_version", return_value=None
    ):
      return traced.lower(lowering_platforms=(platform,)).as_text()


def lookup_program(sizes: tpu_operands.Sizes, **params: Any) -> Program:
  """With parameters beside those of `sizes`."""
  return Program(
      "lookup",
      functools.partial(
          lookup.lookup_p.bind,
          device_batch_size=sizes.batch_size,
          enable_minibatching=sizes.enable_minibatching,
          **tpu_operands.LIMITS,
          **params,
      ),
      (*sizes.coo(), sizes.table),
  )


def update_program(
    name: str,
    sizes: tpu_operands.Sizes,
    options: tuple[str, ...] = (),
    **params: Any,
) -> Program:
  """That of the rule `name`."""
  rule = update_rules.UPDATE_RULES[name]
  with_options = update_rules.with_options(rule, options)
  return Program(
      f"update_{name}",
      functools.partial(
          update.UPDATE_PRIMITIVES[name].bind,
          enable_minibatching=sizes.enable_minibatching,
          row_options=options,
          **tpu_operands.LIMITS,
          **tpu_operands.static_params(rule),
          **params,
      ),
      (
          *sizes.coo(),
          sizes.table,
          *sizes.slots(rule),
          sizes.gradient,
          *tpu_operands.hyperparameters(with_options),
      ),
  )


def custom_update_program(sizes: tpu_operands.Sizes, **params: Any) -> Program:
  """With two hyperparameters and one slot."""
  return Program(
      "custom_update",
      functools.partial(
          custom_update.custom_update_p.bind,
          num_hyperparameters=2,
          enable_minibatching=sizes.enable_minibatching,
          **tpu_operands.LIMITS,
          **params,
      ),
      (
          *sizes.coo(),
          sizes.gradient,
          _f32(),
          _f32(1),
          sizes.table,
          sizes.table,
      ),
  )


def _decayed_sum(gradient, row, total, learning_rate, decay):
  total = decay * total + gradient
  return row - learning_rate * jnp.tanh(total), total


def _row_gradients(sizes):
  return Program(
      "row_gradients",
      functools.partial(
          row_gradients.row_gradients_p.bind,
          global_device_count=sizes.num_devices,
          rows_per_device=sizes.num_rows,
          max_unique_ids_per_partition=8,
          enable_minibatching=sizes.enable_minibatching,
      ),
      (*sizes.coo(), sizes.gradient),
  )


def _check_batch(sizes):
  return Program(
      "check_batch",
      functools.partial(
          check_batch.check_batch_p.bind,
          num_devices=sizes.num_devices,
          num_sc_per_device=sizes.num_sc_per_device,
          rows_per_device=sizes.num_rows,
          batch_size=sizes.batch_size,
          enable_minibatching=sizes.enable_minibatching,
      ),
      (*sizes.coo(), _i32()),
  )


def _without_columns(sizes):
  return dataclasses.replace(sizes, embedding_dim=None)


def _i32(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.int32)


def _f32(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.float32)


# Name -> program, of sizes.
OF_BUFFERS = {
    "check_batch": _check_batch,
    "lookup": lookup_program,
    "lookup_quantized": functools.partial(
        lookup_program, quantization_config=(-1.0, 1.5, 256)
    ),
    "lookup_without_columns": lambda sizes: lookup_program(
        _without_columns(sizes)
    ),
    "row_gradients": _row_gradients,
    "custom_update": functools.partial(
        custom_update_program,
        custom_computation_fn=_decayed_sum,
        computation_name="custom-stack",
    ),
    "adam_with_options": functools.partial(
        update_program,
        "adam",
        options=row_options.ROW_OPTIONS,
        computation_name="adam-stack",
        min_value=-2.0,
        max_value=2.0,
    ),
    "adam_without_columns": lambda sizes: update_program(
        "adam", _without_columns(sizes)
    ),
} | {
    f"update_{name}": functools.partial(update_program, name)
    for name in update_rules.UPDATE_RULES
}

# One feature with every operand, and one with none but ids.
_CONVERSION = dict(
    combiner="mean",
    global_device_count=2,
    num_sc_per_device=4,
    feature_stacking_strategy="SPLIT_THEN_STACK",
    features=(
        raw_ids.Feature(
            name="a",
            vocabulary_size=60,
            is_ragged=True,
            has_weights=True,
            non_finite_weights="keep",
        ),
        raw_ids.Feature(
            name="b",
            vocabulary_size=30,
            row_offset=16,
            col_offset=64,
            col_shift=3,
            out_of_range_ids="drop",
        ),
    ),
)
_IDS = (_i32(24), _i32(9), _f32(24), _i32(16, 2))

OTHERS = {
    "check_seal": Program(
        "check_seal",
        functools.partial(check_seal.check_seal_p.bind, message="Not a seal."),
        (_f32(5), _i32(), _f32(256), _f32(24)),
    ),
    "convert_ids": Program(
        "convert_ids",
        functools.partial(convert_ids.convert_ids_p.bind, **_CONVERSION),
        _IDS,
    ),
    "lookup_ids": Program(
        "lookup_ids",
        functools.partial(
            lookup_ids.lookup_ids_p.bind,
            device_batch_size=32,
            keeps_errors=True,
            **tpu_operands.LIMITS,
            **_CONVERSION | dict(global_device_count=1),
        ),
        (PLAIN.table, _i32(), *_IDS),
    ),
    "local_lookup": Program(
        "local_lookup",
        functools.partial(
            local_lookup.local_lookup_p.bind, device_batch_size=32
        ),
        (_i32(24), _i32(24), _f32(24), PLAIN.table),
    ),
    "nan_if_failed": Program(
        "nan_if_failed",
        check_batch.nan_if_failed_p.bind,
        (_f32(32, 16), jax.ShapeDtypeStruct((1,), jnp.bool_)),
    ),
    "stack_gradients": Program(
        "stack_gradients",
        functools.partial(
            stacking.stack_gradients_p.bind,
            stacked_batch_size=32,
            stacked_feature_dim=16,
            num_sc_per_device=4,
        ),
        (_f32(8, 16), _f32(24, 5)),
    ),
    "sum_rows": Program(
        "sum_rows",
        row_gradients.sum_rows_p.bind,
        (_i32(8), _f32(8, 16), _i32(24), _f32(24, 16)),
    ),
    "unstack_activations": Program(
        "unstack_activations",
        functools.partial(
            stacking.unstack_activations_p.bind,
            per_feature_batch_sizes=(8, 24),
            per_feature_dims=(16, 5),
            num_sc_per_device=4,
        ),
        (_f32(32, 16),),
    ),
}

# Name -> program.
PROGRAMS = (
    {name: program(PLAIN) for name, program in OF_BUFFERS.items()}
    | {
        f"{name}_minibatched": program(MINIBATCHED)
        for name, program in OF_BUFFERS.items()
    }
    | OTHERS
)
