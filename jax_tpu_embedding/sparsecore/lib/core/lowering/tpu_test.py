# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The StableHLO text that every operation becomes for TPU.

testdata/tpu has the texts. After a change that is meant, write them anew with

  bazel run //jax_tpu_embedding/sparsecore/lib/core/lowering:tpu_test -- \
      --update=$PWD/jax_tpu_embedding/sparsecore/lib/core/lowering/testdata/tpu

and review the difference like code.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.lowering import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
import numpy as np

_UPDATE = flags.DEFINE_string("update", None, "Directory to write texts to.")
_TEXTS = pathlib.Path(__file__).parent / "testdata" / "tpu"

_SIZES = tpu_operands.Sizes()


def _lower(bind, *operands):
  traced = jax.jit(bind).trace(*operands)
  # Whatever libtpu there is.
  with mock.patch.object(
      libtpu_features, "installed_version", return_value=None
  ):
    return traced.lower(lowering_platforms=("tpu",)).as_text()


def _lookup(sizes, **params):
  return _lower(
      functools.partial(
          lookup.lookup_p.bind,
          device_batch_size=sizes.batch_size,
          enable_minibatching=sizes.enable_minibatching,
          **tpu_operands.LIMITS,
          **params,
      ),
      *sizes.coo(),
      sizes.table,
  )


def _update(name, sizes, options=(), **params):
  rule = update_rules.UPDATE_RULES[name]
  return _lower(
      functools.partial(
          update.UPDATE_PRIMITIVES[name].bind,
          enable_minibatching=sizes.enable_minibatching,
          row_options=options,
          **tpu_operands.LIMITS,
          **tpu_operands.static_params(rule),
          **params,
      ),
      *sizes.coo(),
      sizes.table,
      *sizes.slots(rule),
      sizes.gradient,
      *tpu_operands.hyperparameters(update_rules.with_options(rule, options)),
  )


def _custom_update(sizes, **params):
  scalar = jax.ShapeDtypeStruct((), jnp.float32)
  return _lower(
      functools.partial(
          custom_update.custom_update_p.bind,
          num_hyperparameters=2,
          enable_minibatching=sizes.enable_minibatching,
          **tpu_operands.LIMITS,
          **params,
      ),
      *sizes.coo(),
      sizes.gradient,
      scalar,
      scalar.update(shape=(1,)),
      sizes.table,
      sizes.table,
  )


def _decayed_sum(gradient, row, total, learning_rate, decay):
  total = decay * total + gradient
  return row - learning_rate * jnp.tanh(total), total


def _local_lookup(unused_sizes):
  ids = jax.ShapeDtypeStruct((24,), jnp.int32)
  return _lower(
      functools.partial(local_lookup.local_lookup_p.bind, device_batch_size=32),
      ids,
      ids,
      ids.update(dtype=jnp.float32),
      _SIZES.table,
  )


def _without_columns(sizes):
  return dataclasses.replace(sizes, embedding_dim=None)


# Name -> text, of sizes.
_CASES = {
    "lookup": _lookup,
    "lookup_quantized": functools.partial(
        _lookup, quantization_config=(-1.0, 1.5, 256)
    ),
    "lookup_without_columns": lambda sizes: _lookup(_without_columns(sizes)),
    "custom_update": functools.partial(
        _custom_update,
        custom_computation_fn=_decayed_sum,
        computation_name="custom-stack",
    ),
    "adam_with_options": functools.partial(
        _update,
        "adam",
        options=row_options.ROW_OPTIONS,
        computation_name="adam-stack",
        min_value=-2.0,
        max_value=2.0,
    ),
    "adam_without_columns": lambda sizes: _update(
        "adam", _without_columns(sizes)
    ),
} | {
    f"update_{name}": functools.partial(_update, name)
    for name in update_rules.UPDATE_RULES
}
_PLAIN = {name: (text, _SIZES) for name, text in _CASES.items()}
_MINIBATCHED = {
    f"{name}_minibatched": (
        text,
        dataclasses.replace(_SIZES, enable_minibatching=True),
    )
    for name, text in _CASES.items()
}
_GOLDEN = {"local_lookup": (_local_lookup, _SIZES)} | _PLAIN | _MINIBATCHED


class TpuTest(parameterized.TestCase):

  @parameterized.parameters(*_GOLDEN)
  def test_text_is_the_one_on_record(self, name):
    text, sizes = _GOLDEN[name]
    if _UPDATE.value:
      path = pathlib.Path(_UPDATE.value) / f"{name}.mlir"
      path.write_text(text(sizes))
      return
    self.assertMultiLineEqual(
        text(sizes), (_TEXTS / f"{name}.mlir").read_text()
    )

  def test_every_text_on_record_is_compared(self):
    self.assertSameElements(
        [path.stem for path in _TEXTS.glob("*.mlir")], _GOLDEN
    )


class CallTest(parameterized.TestCase):
  """What holds for any version of JAX."""

  def test_numbers_of_numpy_are_numbers(self):
    quantization = (np.float32(-1.0), np.float32(1.5), np.int64(256))
    self.assertEqual(
        _lookup(_SIZES, quantization_config=quantization),
        _CASES["lookup_quantized"](_SIZES),
    )

  @parameterized.parameters(*_PLAIN)
  def test_minibatched_call_has_the_target_of_minibatches(self, name):
    for suffix, targets in (
        (
            "",
            (
                "SparseDenseMatmulOp",
                "SparseDenseMatmulGradOpWithOptimizerUpdate",
            ),
        ),
        (
            "_minibatched",
            (
                "SparseDenseMatmulWithMinibatchingOp",
                "SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp",
            ),
        ),
    ):
      text, sizes = _GOLDEN[name + suffix]
      (call,) = re.findall(r"custom_call @(\w+)\(", text(sizes))
      self.assertIn(call, targets)

  @parameterized.parameters(
      ("update_sgd", 0, 1),
      ("update_adagrad", 1, 1),
      ("update_adagrad_momentum", 2, 6),
      ("update_adam", 2, 4),
      ("update_ftrl", 2, 5),
      ("update_laprop", 2, 4),
      ("update_f2a", 2, 6),
      ("update_rowwise_adagrad", 1, 2),
      ("update_momentum", 1, 3),
      ("update_lion", 1, 3),
      ("adam_with_options", 2, 7),
      ("adam_without_columns", 2, 5),
      ("custom_update", 1, 2),
  )
  def test_config_of_an_update_counts_slots_and_numbers(
      self, name, num_slots, num_numbers
  ):
    text, sizes = _GOLDEN[name]
    (config,) = re.findall(r'backend_config = "(.*?[^\\])"', text(sizes))
    self.assertEqual(
        json.loads(config.replace("\\22", '"')),
        {
            "sparse_dense_matmul_config": {
                "max_ids_per_partition": 16,
                "max_unique_ids_per_partition": 8,
                "pad_value": 2147483647,
                "sharding_strategy": 1,
                "num_slot_variables": num_slots,
                "num_hyperparameters": num_numbers,
            },
            "device_type": "DEVICE_TYPE_SPARSECORE",
        },
    )

  def test_updates_of_one_name_have_functions_of_their_own(self):
    sizes = _SIZES

    def two_updates(coo, table, gradient, rate):
      for bound in (1.0, 2.0):
        table = update.UPDATE_PRIMITIVES["sgd"].bind(
            *coo,
            table,
            gradient,
            rate,
            computation_name="sgd-stack",
            max_value=bound,
            **tpu_operands.LIMITS,
        )
      return table

    text = _lower(
        two_updates,
        sizes.coo(),
        sizes.table,
        sizes.gradient,
        jax.ShapeDtypeStruct((), jnp.float32),
    )
    called = re.findall(r'called_computations = \[@"(.*?)"\]', text)
    defined = re.findall(r'func.func private @"(.*?)"', text)
    self.assertLen(set(called), 2)
    self.assertSameElements(called, defined)
    self.assertEqual(called[0], "sgd-stack")

  def test_program_as_custom_optimizer_is_the_function_of_the_call(self):
    program = """
        func.func @main(%g: tensor<1x16xf32>, %w: tensor<1x16xf32>,
                        %s: tensor<1x16xf32>, %a: tensor<1x16xf32>,
                        %b: tensor<1x16xf32>)
            -> (tensor<1x16xf32>, tensor<1x16xf32>) {
          return %g, %s : tensor<1x16xf32>, tensor<1x16xf32>
        }"""
    text = _custom_update(_SIZES, stablehlo=program, computation_name="mine")
    self.assertRegex(text, r"func.func private @mine\(")
    self.assertRegex(text, r"called_computations = \[@mine\]")

  def test_custom_optimizer_without_slots_may_return_a_bare_row(self):
    text = _lower(
        functools.partial(
            custom_update.custom_update_p.bind,
            num_hyperparameters=0,
            custom_computation_fn=lambda gradient, row: row - gradient,
            **tpu_operands.LIMITS,
        ),
        *_SIZES.coo(),
        _SIZES.gradient,
        _SIZES.table,
    )
    self.assertRegex(text, r"return .* : tuple<tensor<1x16xf32>>")

  def test_gradient_with_a_column_fits_a_table_without(self):
    sizes = _without_columns(_SIZES)
    rule = update_rules.UPDATE_RULES["sgd"]
    text = _lower(
        functools.partial(
            update.UPDATE_PRIMITIVES["sgd"].bind, **tpu_operands.LIMITS
        ),
        *sizes.coo(),
        sizes.table,
        jax.ShapeDtypeStruct((sizes.batch_size, 1), jnp.float32),
        *tpu_operands.hyperparameters(rule),
    )
    self.assertRegex(text, r"reshape .*tensor<32x1xf32>\) -> tensor<32xf32>")


if __name__ == "__main__":
  absltest.main()
