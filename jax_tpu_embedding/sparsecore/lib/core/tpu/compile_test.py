# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and every update compile for TPU, in place and without copies.

One slice per process, named by the environment variable TOPOLOGY: a program
that the compiler cannot take may end the process. With FEW_PROGRAMS, only those
that ask different things of the compiler: rules differ in their row function.
"""

from __future__ import annotations

import functools
import importlib.util
import os

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import table_format
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology

P = jax.sharding.PartitionSpec

_TOPOLOGY = os.environ.get("TOPOLOGY", "v5p:2x2x1")
_ROWS = 2**20  # of one device

setUpModule = absltest.skipIf(  # pylint: disable=invalid-name
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)(lambda: None)


@functools.cache
def _mesh():
  return topology.topology_mesh(_TOPOLOGY)


def _sizes(**changes):
  return tpu_operands.Sizes(
      num_devices=_mesh().size,
      num_sc_per_device=hardware.num_sparsecores_per_device(
          _mesh().devices.flat[0]
      ),
      num_rows=_ROWS,
      num_cells=4096,
      batch_size=1024,
      **(dict(embedding_dim=32) | changes),
  )


def _rule_update(name, row_options=(), **params):
  """The rule, and its update of (coo, tables, gradient, numbers)."""
  rule = update_rules.UPDATE_RULES[name]

  def apply(sizes, coo, tables, gradient, numbers):
    return update.UPDATE_PRIMITIVES[name].bind(
        *coo,
        *tables,
        gradient,
        *numbers,
        row_options=row_options,
        computation_name=f"{name}-stack",
        enable_minibatching=sizes.enable_minibatching,
        **tpu_operands.LIMITS,
        **tpu_operands.static_params(rule) | params,
    )

  return update_rules.with_options(rule, row_options), apply


def _custom_update(**computation):
  def apply(sizes, coo, tables, gradient, numbers):
    return custom_update.custom_update_p.bind(
        *coo,
        gradient,
        *numbers,
        *tables,
        num_hyperparameters=len(numbers),
        computation_name="custom-stack",
        enable_minibatching=sizes.enable_minibatching,
        **tpu_operands.LIMITS,
        **computation,
    )

  # Its slots and numbers are like those of Adagrad.
  return update_rules.UPDATE_RULES["adagrad"], apply


def _decayed_sum(gradient, row, total, learning_rate):
  total = 0.9 * total + jnp.where(gradient > 0, gradient, jnp.exp(gradient))
  return row - learning_rate * jnp.tanh(total), total


_PROGRAM = """
    func.func @main(%g: tensor<1x32xf32>, %w: tensor<1x32xf32>,
                    %s: tensor<1x32xf32>, %rate: tensor<1x32xf32>)
        -> (tensor<1x32xf32>, tensor<1x32xf32>) {
      %step = stablehlo.multiply %g, %rate : tensor<1x32xf32>
      %row = stablehlo.subtract %w, %step : tensor<1x32xf32>
      %sum = func.call @add(%s, %g)
          : (tensor<1x32xf32>, tensor<1x32xf32>) -> tensor<1x32xf32>
      return %row, %sum : tensor<1x32xf32>, tensor<1x32xf32>
    }
    func.func private @add(%a: tensor<1x32xf32>, %b: tensor<1x32xf32>)
        -> tensor<1x32xf32> {
      %sum = stablehlo.add %a, %b : tensor<1x32xf32>
      return %sum : tensor<1x32xf32>
    }"""


def _program(updated, sizes, *, depends=True, sparsecore_layout=True):
  """Jitted lookup and update on the slice, and its arguments."""
  rule, apply = updated

  def step(coo, tables, numbers):
    activations = lookup.lookup_p.bind(
        *coo,
        tables[0],
        device_batch_size=sizes.batch_size,
        enable_minibatching=sizes.enable_minibatching,
        **tpu_operands.LIMITS,
    )
    gradient = jnp.tanh(activations) if depends else jnp.ones_like(activations)
    new = apply(sizes, coo, tables, gradient, numbers)
    return activations, tuple(jax.tree.leaves(new))

  mesh = _mesh()
  rows = jax.sharding.NamedSharding(mesh, P("x"))
  whole = jax.sharding.NamedSharding(mesh, P())

  def arg(x, is_table=False):
    if not x.shape:
      return x.update(sharding=whole)
    x = x.update(shape=(sizes.num_devices * x.shape[0], *x.shape[1:]))
    sharding = rows
    if is_table and sparsecore_layout:
      sharding = table_format.table_format(rows, x.shape)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  tables = tuple(
      arg(x, is_table=True) for x in (sizes.table, *sizes.slots(rule))
  )
  specs = [P("x") if x.shape else P() for x in sizes.coo()]
  jitted = jax.jit(
      jax.shard_map(
          step,
          mesh=mesh,
          in_specs=(tuple(specs), P("x"), P()),
          out_specs=P("x"),
          check_vma=False,
      ),
      donate_argnums=1,
      out_shardings=(
          rows,
          tuple(x.format if sparsecore_layout else rows for x in tables),
      ),
  )
  numbers = tuple(map(arg, tpu_operands.hyperparameters(rule)))
  return jitted, (tuple(map(arg, sizes.coo())), tables, numbers)


_UPDATES = {
    f"{name}{suffix}": (_rule_update(name), dict(enable_minibatching=minibatch))
    for name, rule in update_rules.UPDATE_RULES.items()
    for suffix, minibatch in (("", False), ("_minibatched", True))
} | {
    "options": (
        _rule_update(
            "adam",
            row_options=("l2_weight_decay", "decoupled_weight_decay"),
            min_value=-1.0,
            max_value=1.0,
        ),
        {},
    ),
    "ftrl_unscaled_linear": (
        _rule_update("ftrl", multiply_linear_by_learning_rate=False),
        {},
    ),
    "width_of_12": (_rule_update("sgd"), dict(embedding_dim=12)),
    "without_columns": (_rule_update("ftrl"), dict(embedding_dim=None)),
    "without_columns_minibatched": (
        _rule_update(
            "adagrad_momentum",
            row_options=("skip_non_finite_gradients", "max_gradient_norm"),
        ),
        dict(embedding_dim=None, enable_minibatching=True),
    ),
    "custom_function": (_custom_update(custom_computation_fn=_decayed_sum), {}),
    "custom_program": (_custom_update(stablehlo=_PROGRAM), {}),
    "max_gradient_norm": (
        _rule_update("sgd", row_options=("max_gradient_norm",)),
        {},
    ),
    "skip_non_finite_gradients": (
        _rule_update("adam", row_options=("skip_non_finite_gradients",)),
        {},
    ),
    "skip_in_row_slots": (
        _rule_update(
            "rowwise_adagrad",
            row_options=("skip_non_finite_gradients", "max_gradient_norm"),
        ),
        {},
    ),
}
if "FEW_PROGRAMS" in os.environ:
  _FEW = (
      "sgd",
      "adam_minibatched",
      "f2a",
      "options",
      "width_of_12",
      "without_columns",
      "without_columns_minibatched",
      "custom_function",
      "custom_program",
      "skip_in_row_slots",
  )
  _UPDATES = {name: _UPDATES[name] for name in _FEW}

# Those that not every libtpu compiles.
_FEATURES = {
    "max_gradient_norm": libtpu_features.SUM_OVER_COLUMNS,
    "skip_non_finite_gradients": libtpu_features.SUM_OVER_COLUMNS,
    "skip_in_row_slots": libtpu_features.SUM_OVER_COLUMNS,
    "rowwise_adagrad": libtpu_features.SUM_OVER_COLUMNS,
    "rowwise_adagrad_minibatched": libtpu_features.SUM_OVER_COLUMNS,
    "width_of_12": libtpu_features.ANY_WIDTH,
    "without_columns_minibatched": libtpu_features.MINIBATCHES_WITHOUT_COLUMNS,
}
_FEATURES = {name: x for name, x in _FEATURES.items() if name in _UPDATES}


class CompileTestCase(parameterized.TestCase):

  def assert_in_place(self, program, sizes, num_tables):
    jitted, args = program
    table_bytes = _ROWS * (sizes.embedding_dim or 1) * 4
    report = memory_report.memory_report(
        kept_programs.compile_for(_mesh(), jitted.lower(*args)),
        min_move_bytes=table_bytes // 4,
    )
    self.assertIn(report.moves, ((), None), str(report))
    self.assertGreaterEqual(report.aliased_bytes, num_tables * table_bytes)
    self.assertLess(report.temporary_bytes, table_bytes, str(report))

  def assert_update_in_place(self, name):
    updated, changes = _UPDATES[name]
    rule, _ = updated
    sizes = _sizes(**changes)
    num_tables = 1 + len(rule.slots) - len(rule.row_slots)
    self.assert_in_place(_program(updated, sizes), sizes, num_tables)


class FeaturesTest(CompileTestCase):

  @parameterized.parameters(*_FEATURES)
  def test_update_compiles_in_place_or_calls_raise(self, name):
    if not _FEATURES[name].is_missing():
      self.assert_update_in_place(name)
      return
    self.assertNotIn("HAS_ALL_FEATURES", os.environ)
    updated, changes = _UPDATES[name]
    # Unless calls are asked for, kernels do it: tpu_kernels/compile_test.py.
    with (
        choice.lower_by("calls"),
        self.assertRaisesRegex(NotImplementedError, "Use libtpu"),
    ):
      jitted, args = _program(updated, _sizes(**changes))
      jitted.lower(*args)


class CompileTest(CompileTestCase):

  @parameterized.parameters(
      *(name for name in _UPDATES if name not in _FEATURES)
  )
  def test_update_compiles_in_place(self, name):
    self.assert_update_in_place(name)

  def test_update_that_ignores_the_lookup_is_in_place_too(self):
    program = _program(_rule_update("adam"), _sizes(), depends=False)
    self.assert_in_place(program, _sizes(), num_tables=3)

  def test_the_check_sees_copies(self):
    jitted, args = _program(
        _rule_update("sgd"), _sizes(), sparsecore_layout=False
    )
    report = memory_report.memory_report(
        kept_programs.compile_for(_mesh(), jitted.lower(*args))
    )
    self.assertGreater(report.temporary_bytes, _ROWS * 32 * 4)
    if report.moves is not None:
      self.assertIn("copy", [move.operation for move in report.moves])

  def test_lookups_compile(self):
    sizes = _sizes()

    def lookups(coo, table):
      quantized = lookup.lookup_p.bind(
          *coo,
          table,
          device_batch_size=sizes.batch_size,
          quantization_config=(-1.0, 1.0, 256),
          **tpu_operands.LIMITS,
      )
      local = local_lookup.local_lookup_p.bind(
          *coo[1:4], table, device_batch_size=sizes.batch_size
      )
      return quantized, local

    _, (coo, (table, *_), _) = _program(_rule_update("sgd"), sizes)
    specs = tuple(P("x") if x.shape else P() for x in coo)
    jitted = jax.jit(
        jax.shard_map(
            lookups,
            mesh=_mesh(),
            in_specs=(specs, P("x")),
            out_specs=P("x"),
            check_vma=False,
        )
    )
    report = memory_report.memory_report(
        kept_programs.compile_for(_mesh(), jitted.lower(coo, table))
    )
    self.assertIn(report.moves, ((), None))
    self.assertLess(report.temporary_bytes, _ROWS * 32)


if __name__ == "__main__":
  absltest.main()
