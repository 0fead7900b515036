# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Train steps and steps of rows by kernels, compiled for a TPU: tables are updated in place.

Nothing runs. CHIP names another chip than v6e. Of the train step, RULE names
another optimizer, DTYPE another type of the table. ALL=1 compiles every step of
rows, in half an hour of CPU.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import itertools
import multiprocessing
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import on_device
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import step_rows
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import sum_runs
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import table_format
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.pallas import inspection

P = jax.sharding.PartitionSpec

_CHIP = os.environ.get("CHIP", "v6e")
_DTYPE = os.environ.get("DTYPE", "bfloat16")
_RULE = update_rules.UPDATE_RULES[os.environ.get("RULE", "adagrad")]
_NUM_DEVICES = int(os.environ.get("DEVICES", "1"))
_ROWS, _DIM, _BATCH = 2**18, 128, 256
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)


def _compile():
  """Memory of a step on one device: lookup, tanh for a model, and update."""
  mesh = topology.topology_mesh(pallas.CHIPS[_CHIP].topology)
  mesh = jax.sharding.Mesh(mesh.devices.flat[:_NUM_DEVICES], ("x",))
  num_scs = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  sizes = tpu_operands.Sizes(
      num_devices=_NUM_DEVICES, num_sc_per_device=num_scs
  )
  static = {"multiply_linear_by_learning_rate": False, "embedding_dim": _DIM}
  static = {name: static[name] for name in _RULE.static_params}
  is_rounded = _DTYPE != "float32"

  def step(coo, tables, numbers, seed):
    table, *slots = tables
    activations = lookup.lookup_p.bind(
        *coo, table, device_batch_size=_BATCH, **_LIMITS
    )
    return update.UPDATE_PRIMITIVES[_RULE.name].bind(
        *coo,
        table,
        *slots,
        jnp.tanh(activations),
        *numbers,
        *([seed] if is_rounded else []),
        stochastic_rounding=is_rounded,
        **static,
        **_LIMITS,
    )

  def arg(shape, dtype, spec):
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
    )

  def table(dtype, shape=(_ROWS * _NUM_DEVICES, _DIM)):
    x = arg(shape, dtype, P("x"))
    return x.update(
        sharding=table_format.table_format(x.sharding, shape, dtype)
    )

  coo = [
      arg((_NUM_DEVICES * x.size,), x.dtype, P("x"))
      if x.shape
      else arg((), x.dtype, P())
      for x in sizes.coo()
  ]
  tables = [table(_DTYPE)]
  tables += [
      table("float32", _RULE.slot_shape(name, tables[0].shape))
      for name in _RULE.slots
  ]
  numbers = [
      arg((), bool if name in _RULE.bool_hyperparameters else "float32", P())
      for name in _RULE.hyperparameters
  ]
  with choice.lower_by("kernels"):
    lowered = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=([x.sharding.spec for x in coo], P("x"), P(), P()),
            out_specs=P("x"),
            check_vma=False,
        ),
        donate_argnums=1,
        out_shardings=[x.format for x in tables],
    ).lower(coo, tables, numbers, arg((), "uint32", P()))
  compiled = kept_programs.compile_for(mesh, lowered)
  sizes = [x.size * x.dtype.itemsize // _NUM_DEVICES for x in tables]
  return memory_report.memory_report(
      compiled, min_move_bytes=sizes[0] // 8
  ), sum(sizes)


# Bundles for a row of 128 columns in float32, once the loop over rows runs; by
# libtpu of the lock file for Python 3.11.
_LIBTPU = "0.0.42.1"
_BUNDLES_OF_ROW = {
    ("v5p", "sgd"): 32,
    ("v5p", "adagrad"): 116,
    ("v5p", "adam"): 252,
    ("v6e", "sgd"): 32,
    ("v6e", "adagrad"): 116,
    ("v6e", "adam"): 184,
    ("7x", "sgd"): 12,
    ("7x", "adagrad"): 52,
    ("7x", "adam"): 88,
}

_STEPS = [
    ("adam", "all options", "float32", 32),
    ("rowwise_adagrad", "no option", "bfloat16 at random", 64),
]
if os.environ.get("ALL"):
  _STEPS = list(
      itertools.product(
          update_rules.UPDATE_RULES,
          ("no option", "all options"),
          ("float32", "bfloat16", "bfloat16 at random"),
          (8, 16, 32, 64, 128, 256, 512),
      )
  )


def _one_device(chip=_CHIP):
  """A sharding of whole arrays on one device of the chip."""
  mesh = topology.topology_mesh(pallas.CHIPS[chip].topology)
  mesh = jax.sharding.Mesh(mesh.devices.flat[:1], ("x",))
  return jax.sharding.NamedSharding(mesh, P())


def _compile_sums_of_codes():
  """Memory of sums of rows of codes, and bytes of the table."""
  everywhere = _one_device()

  def arg(dtype):
    return jax.ShapeDtypeStruct((4096,), dtype, sharding=everywhere)

  shape = (_ROWS, quantized_rows.words_per_row(_DIM))
  table = jax.ShapeDtypeStruct(
      shape,
      "int32",
      sharding=table_format.table_format(everywhere, shape, "int32"),
  )
  sums = jax.shard_map(
      functools.partial(sum_runs.sum_runs, num_runs=256, int8_columns=_DIM),
      mesh=everywhere.mesh,
      in_specs=P(),
      out_specs=P(),
      check_vma=False,
  )
  with pallas.for_tpu():
    lowered = jax.jit(sums).lower(
        table, arg("int32"), arg("float32"), arg("int32")
    )
  compiled = kept_programs.compile_for(everywhere.mesh, lowered)
  size = table.size * table.dtype.itemsize
  return memory_report.memory_report(compiled, min_move_bytes=size // 8), size


def _compile_step(
    name, options, dtype, dim, chip=_CHIP, compile_for=kept_programs.compile_for
):
  """Memory of the step of rows, and bytes of table and slots."""
  everywhere = _one_device(chip)
  dtype, _, is_rounded = dtype.partition(" ")
  options = row_options.ROW_OPTIONS if options == "all options" else ()
  rule = update_rules.with_options(
      update_rules.UPDATE_RULES[name],
      options,
      stochastic_rounding=bool(is_rounded),
  )
  static = {"multiply_linear_by_learning_rate": False, "embedding_dim": dim}
  params = {x: static[x] for x in rule.static_params}

  def step(tables, rows, gradients, numbers, seed):
    table, *slots = tables
    return step_rows.step_rows(
        functools.partial(on_device._step, rule, params),
        table,
        slots,
        rows,
        gradients,
        numbers,
        rounding=step_rows.Rounding(seed, rows) if is_rounded else None,
    )

  def arg(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

  def of_rows(shape, dtype):
    return jax.ShapeDtypeStruct(
        shape,
        dtype,
        sharding=table_format.table_format(everywhere, shape, dtype),
    )

  tables = [of_rows((_ROWS, dim), dtype)]
  tables += [
      of_rows(rule.slot_shape(slot, (_ROWS, dim)), "float32")
      for slot in rule.slots
  ]
  numbers = [
      arg((), bool if x in rule.bool_hyperparameters else "float32")
      for x in rule.hyperparameters
  ]
  with pallas.for_tpu():
    lowered = jax.jit(
        jax.shard_map(
            step,
            mesh=everywhere.mesh,
            in_specs=P(),
            out_specs=P(),
            check_vma=False,
        ),
        donate_argnums=0,
        out_shardings=tuple(x.format for x in tables),
    ).lower(
        tables,
        arg((4096,), "int32"),
        of_rows((4096, dim), "float32"),
        numbers,
        arg((), "uint32"),
    )
  compiled = compile_for(everywhere.mesh, lowered)
  sizes = [x.size * x.dtype.itemsize for x in tables]
  return memory_report.memory_report(
      compiled, min_move_bytes=sizes[0] // 8
  ), sum(sizes)


def _write_bundles(chip, rules, directory):
  """Writes what subcores run into a folder for each rule.

  In a process of its own: libtpu reads where to write when it is loaded.
  """
  os.environ["LIBTPU_INIT_ARGS"] = f"--xla_sc_dump_bundles_to={directory}"
  directory = pathlib.Path(directory)
  for rule in rules:
    _compile_step(
        rule,
        "no option",
        "float32",
        128,
        chip,
        compile_for=lambda _, lowered: lowered.compile(),
    )
    (directory / rule).mkdir()
    for path in directory.glob("*_bundles.txt"):
      path.rename(directory / rule / path.name)


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CompileTest(absltest.TestCase):

  def test_tables_stay_where_they_are(self):
    report, table_bytes = _compile()
    print(_CHIP, _RULE.name, _DTYPE, report)
    self.assertGreaterEqual(report.aliased_bytes, table_bytes)
    moves = [move for move in report.moves if move.operation != "fusion"]
    self.assertEmpty(moves, str(report))


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class StepsTest(parameterized.TestCase):

  @parameterized.parameters(*_STEPS)
  def test_rows_are_stepped_in_place(self, *case):
    try:
      report, table_bytes = _compile_step(*case)
    except subcores.NotTaken as refused:
      _, _, dtype, dim = case
      per_load = 2 * pallas.CHIPS[_CHIP].facts.sparse_core.num_lanes
      if dtype != "float32" and dim % per_load:
        self.assertIn(f"Use a multiple of {per_load} columns", str(refused))
      else:
        self.assertEqual(dim, 512, f"{case}: {refused}")
        self.assertIn("Use fewer columns", str(refused))
      return
    self.assertGreaterEqual(report.aliased_bytes, table_bytes)
    moves = [move for move in report.moves if move.operation != "fusion"]
    self.assertEmpty(moves, str(report))

  def test_rows_of_codes_are_read_where_they_are(self):
    report, table_bytes = _compile_sums_of_codes()
    self.assertLess(table_bytes, _ROWS * (_DIM + 40))
    self.assertEmpty(report.moves, str(report))

  @parameterized.parameters("v5p", "v6e", "7x")
  def test_instructions_are_on_record(self, chip):
    if importlib.metadata.version("libtpu") != _LIBTPU:
      self.skipTest(f"The record is of libtpu {_LIBTPU}.")
    directory = self.create_tempdir().full_path
    rules = [rule for of_chip, rule in _BUNDLES_OF_ROW if of_chip == chip]
    process = multiprocessing.get_context("spawn").Process(
        target=_write_bundles, args=(chip, rules, directory)
    )
    process.start()
    process.join()
    self.assertEqual(process.exitcode, 0)
    windows = 128 // (4 * pallas.CHIPS[chip].facts.sparse_core.num_lanes)
    for rule in rules:
      (loop,) = inspection.loops_in(pathlib.Path(directory, rule))
      self.assertLessEqual(loop * windows, _BUNDLES_OF_ROW[chip, rule], rule)


if __name__ == "__main__":
  absltest.main()
