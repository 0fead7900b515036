# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What nobody knows of kernels of SparseCores before they have run on a TPU.

    python -m jax_tpu_embedding.sparsecore.lib.pallas.first_hour

prints a table, in the order in which to look: each line is right, wrong, fails,
or is not asked here. On a CPU the emulation engine runs all of it with small
arrays, which says that the program itself is right, and nothing of TPUs.

It stands above the library whose kernels it runs; nothing imports it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import sys
import time

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import gather_rows
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import step_rows
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import operations
import numpy as np

_RIGHT, _WRONG, _FAILS, _NOT_HERE = "right", "WRONG", "FAILS", "not here"


@dataclasses.dataclass(frozen=True)
class Line:
  """One question and its answer."""

  question: str
  answer: str  # one of the four above
  detail: str = ""

  def __str__(self):
    return f"{self.answer:8}  {self.question:48}  {self.detail}".rstrip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """How large arrays are."""

  rows: int  # of a table
  entries: int  # that are gathered
  batch: int
  repeats: int  # of what is timed


_ON_TPU = Sizes(rows=2**20, entries=2**18, batch=4096, repeats=20)
_EMULATED = Sizes(rows=512, entries=256, batch=64, repeats=1)


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the table; returns 0 if no line is wrong or fails."""
  parser = argparse.ArgumentParser(
      prog="python -m jax_tpu_embedding.sparsecore.lib.pallas.first_hour",
      description=__doc__.splitlines()[0],
  )
  parser.add_argument(
      "--only", default="", help="questions that have this in their name"
  )
  parser.add_argument(
      "--every",
      type=int,
      default=1,
      help="of the operations, every so many; the rest is left out",
  )
  arguments = parser.parse_args(argv)
  device = jax.devices()[0]
  print(f"{device.device_kind}, {jax.device_count()} devices, JAX", end=" ")
  print(jax.__version__)
  sizes = _ON_TPU if _is_tpu() else _EMULATED
  if not _is_tpu():
    print("Emulated: times are those of this machine, and say nothing.")
  bad = 0
  for question, ask in _questions(sizes, arguments.every):
    if arguments.only not in question:
      continue
    line = _answer(question, ask)
    bad += line.answer in (_WRONG, _FAILS)
    print(line, flush=True)
  print("Nothing is wrong." if not bad else f"{bad} lines are wrong or fail.")
  return int(bad > 0)


def _is_tpu() -> bool:
  return jax.default_backend() == "tpu"


class _NotHere(Exception):
  """A question that this machine has no answer to."""


def _answer(question: str, ask: Callable[[], str | None]) -> Line:
  """Runs what raises AssertionError if a result is wrong."""
  try:
    return Line(question, _RIGHT, ask() or "")
  except _NotHere as reason:
    return Line(question, _NOT_HERE, str(reason))
  except AssertionError as error:
    return Line(question, _WRONG, " ".join(str(error).split())[:200])
  except Exception as error:  # pylint: disable=broad-exception-caught
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Line(question, _FAILS, text[:200])


def _questions(
    sizes: Sizes, every: int
) -> Iterator[tuple[str, Callable[[], str | None]]]:
  """Names, and functions that raise or return what else there is to say."""
  kernels = [
      *(
          (f"operation {x}", functools.partial(_register, x))
          for x in operations.REGISTERS
      ),
      *(
          (f"operation {x}", functools.partial(_program, x))
          for x in operations.PROGRAMS
      ),
      *(
          (f"TensorCore operation {x}", functools.partial(_tensor, x))
          for x in operations.ON_TENSOR_CORES
      ),
  ]
  yield from kernels[::every]
  for dtype in ("float32", "bfloat16", "float16", "int8"):
    yield (
        f"copies by lists of rows of {dtype}",
        functools.partial(_gather, sizes, dtype=dtype),
    )
  yield "ignored rows of a list", functools.partial(_gather, sizes, ignored=3)
  yield "gathers that add, at once", functools.partial(_gathers_that_add, sizes)
  for copies in (1, 2, 4, 8, 16):
    yield (
        f"GB/s of gather, {copies} copies under way",
        functools.partial(_gather, sizes, buffers=copies),
    )
  for dim in (8, 16, 32, 64, 128, 256):
    yield (
        f"GB/s of gather, {dim} columns",
        functools.partial(_gather, sizes, dim=dim),
    )
  for name in ("sgd", "adagrad", "adam"):
    for way in choice.WAYS:
      yield (
          f"step with {name} by {way}",
          functools.partial(_step, sizes, name, way),
      )
  for name in ("exp", "log", "sqrt"):
    yield (
        f"{name} against float64",
        functools.partial(_function, sizes, name),
    )


# --- Operations ---


def _needs_lanes() -> None:
  lanes = pallas.find_chip(operations.SPARSE_MESH).facts.sparse_core
  if lanes is None:
    raise _NotHere("no SparseCores")
  if lanes.num_lanes != operations.LANES:
    raise _NotHere(f"written for {operations.LANES} lanes")


def _register(name):
  _needs_lanes()
  operands, _, _ = operations.REGISTERS[name]
  body, scratch = operations.body_of_registers(name)
  result = operations.on_vector_subcores(body, scratch, operands[-1], *operands)
  _assert_close(result, operations.result_of_registers(name))


def _program(name):
  _needs_lanes()
  body, scratch, expected = operations.PROGRAMS[name]
  x = operations.F
  result = operations.on_vector_subcores(body, scratch, x, x)
  _assert_close(result, expected(x))


def _tensor(name):
  if operations.TENSOR.shape["core"] != 2:
    raise _NotHere("written for devices of two TensorCores")
  _, _, expected = operations.ON_TENSOR_CORES[name]
  _assert_close(operations.on_tensor_cores(name), expected(operations.X), 1e-5)


def _assert_close(result, want, tolerance=1e-6):
  np.testing.assert_allclose(
      np.float64(result), np.float64(want), rtol=tolerance, atol=tolerance
  )


# --- Rows ---


def _run(function, *operands):
  """`function` for the TPU, or emulated; jitted, and called once."""
  if not _is_tpu():
    function = pallas.emulate(function)
  jitted = jax.jit(function)
  return jitted, jax.block_until_ready(jitted(*operands))


def _seconds(jitted, repeats, *operands):
  """Of a call, of the fastest third of repeats."""
  times = []
  for _ in range(repeats):
    begin = time.perf_counter()
    jax.block_until_ready(jitted(*operands))
    times.append(time.perf_counter() - begin)
  return float(np.mean(sorted(times)[: max(1, repeats // 3)]))


def _needs_sparsecores():
  if pallas.find_chip().facts.sparse_core is None:
    raise _NotHere("no SparseCores")


def _gather(sizes, *, dtype="float32", dim=128, buffers=8, ignored=0):
  """Rows by their numbers, and GB/s of what is read."""
  _needs_sparsecores()
  rng = np.random.default_rng(0)
  table = rng.integers(-100, 100, (sizes.rows, dim)).astype(dtype)
  rows = rng.integers(0, sizes.rows, sizes.entries).astype(np.int32)
  if ignored:
    rows[::ignored] = gather_rows.NO_ROW
  function = functools.partial(gather_rows.gather_rows, buffers=buffers)
  table, rows = jnp.asarray(table), jnp.asarray(rows)
  jitted, result = _run(function, table, rows)
  is_row = rows >= 0
  np.testing.assert_array_equal(result[is_row], table[rows[is_row]])
  seconds = _seconds(jitted, sizes.repeats, table, rows)
  read = int(is_row.sum()) * dim * table.dtype.itemsize
  return f"{read / seconds / 1e9:.3f} GB/s"


def _gathers_that_add(sizes):
  """Several copies that add to one place of a subcore's memory, at once."""
  _needs_sparsecores()
  cores = subcores.of_chip()
  valency, dim, chunk = 4, 32, cores.lanes
  rng = np.random.default_rng(0)
  table = rng.integers(-100, 100, (sizes.rows, dim)).astype(np.float32)
  shape = (cores.num_workers, valency, chunk)
  rows = rng.integers(0, sizes.rows, shape).astype(np.int32)

  def body(table, rows, out, row_v, sums, semaphore):
    worker = cores.worker()
    pltpu.sync_copy(rows.at[worker], row_v)

    @pl.loop(0, chunk)
    def _(r):
      for c in range(0, dim, cores.lanes):
        sums[r, pl.ds(c, cores.lanes)] = jnp.zeros((cores.lanes,), jnp.float32)

    copies = [
        pltpu.async_copy(
            table.at[plsc.Indices(row_v.at[v])], sums, semaphore, add=True
        )
        for v in range(valency)
    ]
    for copy in copies:
      copy.wait()
    pltpu.sync_copy(sums, out.at[worker])

  def sums(table, rows):
    return cores.kernel(
        body,
        [
            pltpu.VMEM((valency, chunk), jnp.int32),
            pltpu.VMEM((chunk, dim), jnp.float32),
            pltpu.SemaphoreType.DMA,
        ],
        out_type=jax.ShapeDtypeStruct(
            (cores.num_workers, chunk, dim), jnp.float32
        ),
        name="gathers_that_add",
    )(table, rows)

  _, result = _run(sums, table, rows)
  np.testing.assert_array_equal(result, table[rows].sum(1))


# --- Steps of the library ---

_OPTIMIZERS = {
    "sgd": embedding_spec.SGDOptimizerSpec,
    "adagrad": embedding_spec.AdagradOptimizerSpec,
    "adam": embedding_spec.AdamOptimizerSpec,
}


def _step(sizes, optimizer, way):
  """A lookup and an update by a way, against those of NumPy's sums."""
  if way == "calls" and not _is_tpu():
    raise _NotHere("calls are for TPUs")
  if way != "plain":
    _needs_sparsecores()
  num_sc = hardware.num_sparsecores_per_device(jax.devices()[0])
  dim, valency = 128, 4
  table = embedding_spec.TableSpec(
      name="t",
      vocabulary_size=sizes.rows,
      embedding_dim=dim,
      optimizer=_OPTIMIZERS[optimizer](0.1),
      max_ids_per_partition=sizes.batch * valency,
      max_unique_ids_per_partition=min(4096, sizes.batch * valency),
  )
  specs = {
      "f": embedding_spec.FeatureSpec(
          name="f",
          table_spec=table,
          input_shape=(sizes.batch, valency),
          output_shape=(sizes.batch, dim),
      )
  }
  embedding.prepare_feature_specs_for_training(
      specs, 1, num_sc_per_device=num_sc
  )
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  variables = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
      num_sc,
  )
  ids = np.random.default_rng(0).integers(
      0, sizes.rows, (sizes.batch, valency), np.int32
  )
  inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
      {"f": ids}, None, specs, 1, 1, num_sc_per_device=num_sc
  )

  def step(way, inputs, variables):
    with choice.lower_by(way):
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      return activations, embedding.tpu_sparse_dense_matmul_grad(
          jax.tree.map(jnp.tanh, activations), inputs, variables, specs, step=0
      )

  jitted = jax.jit(functools.partial(step, way))
  results = jax.block_until_ready(jitted(inputs, variables))
  expected = jax.jit(functools.partial(step, "plain"))(inputs, variables)
  for actual, want in zip(
      jax.tree.leaves(results), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(actual, want, rtol=1e-4, atol=1e-5)
  seconds = _seconds(jitted, sizes.repeats, inputs, variables)
  return f"{seconds * 1e3:.3f} ms, with a copy of the table"


_FUNCTIONS = {"exp": jnp.exp, "log": jnp.log, "sqrt": jnp.sqrt}


def _function(sizes, name):
  """Units in the last place that a function of rows is off, at most."""
  _needs_sparsecores()
  dim, num_rows = 32, min(sizes.rows, 4096)
  rng = np.random.default_rng(0)
  x = np.exp(rng.uniform(-60, 60, (num_rows, dim))).astype(np.float32)
  if name == "exp":
    x = rng.uniform(-80, 80, (num_rows, dim)).astype(np.float32)

  def step(gradient, unused_row, unused_slots, unused_hyperparameters):
    return _FUNCTIONS[name](gradient), ()

  def run(table, rows, x):
    return step_rows.step_rows(step, table, (), rows, x, ())

  rows = np.arange(num_rows, dtype=np.int32)
  _, (result,) = _run(run, jnp.zeros_like(x), rows, x)
  with np.errstate(over="ignore"):
    exact = getattr(np, name)(np.float64(x))
  ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
  off = np.max(np.abs(np.float64(result) - exact) / ulp)
  assert off < _MOST_ULPS, f"{off:.1f} units in the last place"
  return f"{off:.2f} units in the last place"


# Those of row_program_test.py are fewer; the argument of exp is rounded.
_MOST_ULPS = 64

if __name__ == "__main__":
  sys.exit(main())
