# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Kernels with a mistake are reported; the same without it are not."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np

P = jax.sharding.PartitionSpec

_MESH = pallas.vector_subcore_mesh(chip="v6e")
_V6E = pallas.on_chip(jax.sharding.AbstractMesh((1,), ("x",)), "v6e")
_NUM_SUBCORES = _MESH.shape["subcore"]
_NUM_WORKERS = _MESH.size
_ROWS = jax.ShapeDtypeStruct((_NUM_WORKERS, 8), jnp.int32)
_DMA = pltpu.SemaphoreType.DMA
_ROW = pltpu.VMEM((8,), jnp.int32)
_SHARED = pltpu.VMEM_SHARED((_NUM_SUBCORES, 8), jnp.int32)


def _me():
  return jax.lax.axis_index("core") * _NUM_SUBCORES + jax.lax.axis_index(
      "subcore"
  )


def _copy(scratch=(), out_type=_ROWS, operands=1):
  """Decorates a body that gets `mistaken` before its refs."""

  def decorate(body):
    def make(mistaken):
      def named(*refs, **scratch_refs):
        body(mistaken, *refs, **scratch_refs)

      named.__name__ = body.__name__
      return pallas.kernel(
          named, _MESH, scratch, P(), P(), out_type=out_type, mesh=_V6E
      )

    make.operands = operands
    return make

  return decorate


@_copy([_ROW, _DMA])
def never_waited_for(mistaken, x, o, row, sem):
  pltpu.sync_copy(x.at[_me()], row)
  copy = pltpu.async_copy(row, o.at[_me()], sem)
  if not mistaken:
    copy.wait()


@_copy([_ROW, _DMA])
def waited_for_twice(mistaken, x, o, row, sem):
  copy = pltpu.async_copy(x.at[_me()], row, sem)
  copy.wait()
  if mistaken:
    copy.wait()
  pltpu.sync_copy(row, o.at[_me()])


@_copy(
    [_ROW, pltpu.VMEM((8, 8), jnp.int32)],
    out_type=jax.ShapeDtypeStruct((_NUM_WORKERS, 8, 8), jnp.int32),
)
def row_out_of_range(mistaken, x, o, rows, found):
  lanes = jax.lax.iota(jnp.int32, 8)
  last = _NUM_WORKERS if mistaken else _NUM_WORKERS - 1
  rows[...] = jnp.where((lanes == 3) & (_me() == 5), last, lanes)
  pltpu.sync_copy(x.at[rows], found)
  pltpu.sync_copy(found, o.at[_me()])


@_copy([_ROW])
def element_out_of_range(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  start = jnp.where(_me() == 5, 1 if mistaken else 0, 0) * 4
  row[pl.ds(start, 8)] = row[pl.ds(0, 8)]
  pltpu.sync_copy(row, o.at[_me()])


@_copy([pltpu.VMEM((16,), jnp.int32), _ROW])
def stride_out_of_range(mistaken, x, o, twice, row):
  for half in range(2):
    pltpu.sync_copy(x.at[_me()], twice.at[pl.ds(8 * half, 8)])
  start = jnp.where(_me() == 5, 2 if mistaken else 1, 0)
  row[...] = twice[pl.ds(start, 8, 2)]
  pltpu.sync_copy(row, o.at[_me()])


@_copy([pltpu.VMEM((2, 8), jnp.int32)])
def fixed_index_out_of_range(mistaken, x, o, rows):
  pltpu.sync_copy(x.at[_me()], rows.at[1])
  rows[0, :] = rows[2 if mistaken else 1, :]
  pltpu.sync_copy(rows.at[0], o.at[_me()])


@_copy([_ROW])
def too_much_at_run_time(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  n = jnp.where(_me() == 5, 9 if mistaken else 8, row[...][0] % 8)
  pltpu.sync_copy(x.at[_me(), pl.ds(0, n)], row.at[pl.ds(0, n)])
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def before_the_first_at_run_time(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  start = jnp.where(_me() == 5, -4 if mistaken else 4, 0)
  n = 4 + row[...][0] * 0
  pltpu.sync_copy(x.at[_me(), pl.ds(start, n)], row.at[pl.ds(0, n)])
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def row_out_of_range_of_a_part(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  n = 4 + row[...][0] * 0
  source = jnp.where(_me() == 5, _NUM_WORKERS if mistaken else 0, _me())
  pltpu.sync_copy(x.at[source, pl.ds(0, n)], row.at[pl.ds(0, n)])
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def unwritten_memory(mistaken, x, o, row):
  @pl.when(jnp.logical_or(not mistaken, _me() != 5))
  def _():
    pltpu.sync_copy(x.at[_me()], row)

  row[...] = row[...] + 1
  pltpu.sync_copy(row, o.at[_me()])


@_copy(
    [pltpu.VMEM((8,), jnp.bfloat16)],
    out_type=jax.ShapeDtypeStruct((_NUM_WORKERS, 8), jnp.bfloat16),
)
def unwritten_bfloat16(mistaken, x, o, row):
  del x

  # NaN that somebody wrote is no mistake.
  @pl.when(jnp.logical_or(not mistaken, _me() != 5))
  def _():
    row[...] = jnp.full((8,), jnp.nan, jnp.bfloat16)

  row[...] = row[...] + row[...]
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def two_writers(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  target = jnp.where(_me() == 6, 5 if mistaken else 6, _me())
  pltpu.sync_copy(row, o.at[target])


@_copy([_ROW, _ROW])
def two_scatters(mistaken, x, o, row, rows):
  pltpu.sync_copy(x.at[_me()], row)
  target = jnp.where(_me() == 6, 5 if mistaken else 6, _me())
  lanes = jax.lax.iota(jnp.int32, 8)
  rows[...] = jnp.where(lanes == 0, target, -1)

  @pl.with_scoped(pltpu.VMEM((8, 8), jnp.int32))
  def scatter(buffer):
    for i in range(8):
      buffer[i, :] = row[...]
    pltpu.sync_copy(buffer, o.at[plsc.Indices(rows, ignored_value=-1)])

  scatter()


@_copy([_ROW])
def two_writers_and_a_barrier(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])
  if not mistaken:
    plsc.subcore_barrier()
  core, subcore = jax.lax.axis_index("core"), jax.lax.axis_index("subcore")
  after = jnp.where(subcore == _NUM_SUBCORES - 1, 0, subcore + 1)
  pltpu.sync_copy(row, o.at[core * _NUM_SUBCORES + after])


@_copy([_ROW])
def barrier_of_one_core(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])
  plsc.subcore_barrier()
  # A barrier orders the subcores of one SparseCore only.
  distance = _NUM_SUBCORES if mistaken else 0
  pltpu.sync_copy(row, o.at[(_me() + distance) % _NUM_WORKERS])


@_copy([_ROW])
def barrier_that_some_miss(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  # All subcores of a SparseCore may leave one out.
  misses = (_me() == 5) if mistaken else (jax.lax.axis_index("core") == 0)

  @pl.when(jnp.logical_not(misses))
  def _():
    plsc.subcore_barrier()

  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, pltpu.SemaphoreType.REGULAR])
def signal_that_never_comes(mistaken, x, o, row, sem):
  pl.semaphore_signal(sem, 1 if mistaken else 2)
  pl.semaphore_wait(sem, 2)
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, _ROW])
def expanded_out_of_range(mistaken, x, o, row, found):
  pltpu.sync_copy(x.at[_me()], row)
  start = jnp.where(_me() == 5, 4 if mistaken else 0, 0)
  found[...] = plsc.load_expanded(row.at[pl.ds(start, 8)], mask=row[...] >= 0)
  pltpu.sync_copy(found, o.at[_me()])


@_copy([_ROW, _ROW])
def masked_out_of_range(mistaken, x, o, row, found):
  pltpu.sync_copy(x.at[_me()], row)
  start = jnp.where(_me() == 5, 4 if mistaken else 0, 0)
  found[...] = pltpu.load(row.at[pl.ds(start, 8)], mask=row[...] >= 0)
  pltpu.sync_copy(found, o.at[_me()])


@_copy([_ROW, _ROW])
def gathered_out_of_range(mistaken, x, o, row, found):
  pltpu.sync_copy(x.at[_me()], row)
  start = jnp.where(_me() == 5, 4 if mistaken else 0, 0)
  lanes = jax.lax.iota(jnp.int32, 8)
  found[...] = plsc.load_gather(row.at[pl.ds(start, 8)], [lanes])
  pltpu.sync_copy(found, o.at[_me()])


@_copy([_ROW, _ROW])
def scattered_out_of_range(mistaken, x, o, row, found):
  pltpu.sync_copy(x.at[_me()], row)
  start = jnp.where(_me() == 5, 4 if mistaken else 0, 0)
  lanes = jax.lax.iota(jnp.int32, 8)
  plsc.store_scatter(found.at[pl.ds(start, 8)], [lanes], row[...])
  pltpu.sync_copy(found, o.at[_me()])


@_copy([_ROW, pltpu.SMEM((2,), jnp.int32)])
def counter_out_of_range(mistaken, x, o, row, counters):
  counters[0] = counters[1] = 0
  plsc.subcore_barrier()
  which = jnp.where(_me() == 5, 2 if mistaken else 1, 0)
  plsc.fetch_and_add(counters.at[which], 1, subcore_id=0)
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, _DMA((2,))])
def semaphore_out_of_range(mistaken, x, o, row, sems):
  which = jnp.where(_me() == 5, 2 if mistaken else 1, 0)
  pltpu.async_copy(x.at[_me()], row, sems.at[which]).wait()
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, pltpu.SemaphoreType.REGULAR((2,))])
def signal_out_of_range(mistaken, x, o, row, sems):
  which = jnp.where(_me() == 5, 2 if mistaken else 1, 0)
  pl.semaphore_signal(sems.at[which], 1)
  pl.semaphore_wait(sems.at[which], 1)
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, pltpu.SemaphoreType.REGULAR])
def signal_to_nobody(mistaken, x, o, row, sem):
  core, subcore = jax.lax.axis_index("core"), jax.lax.axis_index("subcore")
  other = core + 2 if mistaken else 1 - core
  pl.semaphore_signal(sem, 1, device_id={"core": other, "subcore": subcore})
  pl.semaphore_wait(sem, 1)
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def unwritten_sum(mistaken, x, o, row):
  del x
  if not mistaken:
    row[...] = jnp.zeros((8,), jnp.int32)
  plsc.addupdate(row.at[...], jnp.ones((8,), jnp.int32))
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def unwritten_scattered_sum(mistaken, x, o, row):
  del x
  if not mistaken:
    row[...] = jnp.zeros((8,), jnp.int32)
  lanes = jax.lax.iota(jnp.int32, 8)
  plsc.addupdate_scatter(row, [lanes], jnp.ones((8,), jnp.int32))
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, _ROW, pltpu.VMEM((8, 8), jnp.int32), _SHARED])
def unwritten_shared_sum(mistaken, x, o, row, rows, buffer, shared):
  subcore = jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[_me()], row)
  if not mistaken:
    pltpu.sync_copy(row, shared.at[subcore])
  plsc.subcore_barrier()
  for i in range(8):
    buffer[i, :] = row[...]
  rows[...] = jax.lax.iota(jnp.int32, 8)
  pltpu.sync_copy(buffer, shared.at[rows], add=True)
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, pltpu.VMEM((8, 8), jnp.int32)])
def unwritten_gathered_sum(mistaken, x, o, rows, buffer):
  lanes = jax.lax.iota(jnp.int32, 8)
  rows[...] = jnp.where(lanes == 0, _me(), -1)
  if not mistaken:
    buffer[0, :] = lanes  # Others are ignored, and may be anything.
  wanted = plsc.Indices(rows, ignored_value=-1)
  pltpu.sync_copy(x.at[wanted], buffer, add=True)
  pltpu.sync_copy(buffer.at[0], o.at[_me()])


@_copy([_ROW, pltpu.SMEM((1,), jnp.int32)])
def unwritten_counter(mistaken, x, o, row, counter):
  if not mistaken:
    counter[0] = 0
  plsc.subcore_barrier()
  plsc.fetch_and_add(counter.at[0], 1, subcore_id=0)
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def read_of_another(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, o.at[_me()])
  if not mistaken:
    plsc.subcore_barrier()
  first = jax.lax.axis_index("core") * _NUM_SUBCORES
  pltpu.sync_copy(o.at[first], row)


@_copy([_ROW, _SHARED])
def shared_read_of_another(mistaken, x, o, row, shared):
  subcore = jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[_me()], row)

  # A loop, after whose barriers everybody may write and read again.
  @pl.loop(0, 2)
  def _(k):
    del k
    pltpu.sync_copy(row, shared.at[subcore])
    if not mistaken:
      plsc.subcore_barrier()
    pltpu.sync_copy(shared.at[jnp.maximum(subcore - 1, 0)], row)
    plsc.subcore_barrier()

  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, _SHARED])
def two_shared_writers(mistaken, x, o, row, shared):
  subcore = jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, shared.at[0 if mistaken else subcore])
  pltpu.sync_copy(row, o.at[_me()])


_WHERE = r"core 0, subcore 5, mistakes_test.py:\d+"
_MISTAKES = (
    (never_waited_for, "core 0, subcore 0.*ends with a semaphore that is 32"),
    (waited_for_twice, r"core 0.*waits for a copy of 32 bytes, of which 0 are"),
    (row_out_of_range, _WHERE + ".*copies row 32 of memory that has 32 rows"),
    (element_out_of_range, _WHERE + r".*rows 4 to 4 \+ 8 of memory that has 8"),
    (
        stride_out_of_range,
        _WHERE + r".*rows 2 to 2 \+ 15 of memory that has 16",
    ),
    (
        fixed_index_out_of_range,
        "subcore 0.*uses row 2 of memory that has 2 there",
    ),
    (
        too_much_at_run_time,
        _WHERE + r".*size, start or end is 9, of memory that has 8 there",
    ),
    (
        before_the_first_at_run_time,
        _WHERE + r".*size, start or end is -4, of memory that has 8 there",
    ),
    (row_out_of_range_of_a_part, _WHERE + ".*row 32 of memory that has 32"),
    (unwritten_memory, _WHERE + r".*that nobody has written \(8 of 8 numbers"),
    (unwritten_bfloat16, _WHERE + r".*that nobody has written \(8 of 8"),
    (two_writers, "core 0, subcore 6.*writes what another worker has written"),
    (two_scatters, "core 0, subcore 6.*writes what another worker has written"),
    (two_writers_and_a_barrier, "core 0, subcore 1.*another worker"),
    (barrier_of_one_core, "core 0, subcore 0.*another worker has written"),
    (barrier_that_some_miss, _WHERE + ".*does not reach a barrier"),
    (signal_that_never_comes, "the semaphore is 1, and 2 is waited for"),
    (
        expanded_out_of_range,
        _WHERE + r".*rows 4 to 4 \+ 8 of memory that has 8",
    ),
    (masked_out_of_range, _WHERE + r".*rows 4 to 4 \+ 8 of memory that has 8"),
    (
        gathered_out_of_range,
        _WHERE + r".*rows 4 to 4 \+ 8 of memory that has 8",
    ),
    (scattered_out_of_range, _WHERE + r".*rows 4 to 4 \+ 8 of memory that has"),
    (
        counter_out_of_range,
        _WHERE + ".*index 2 of memory whose size there is 2",
    ),
    (semaphore_out_of_range, _WHERE + ".*row 2 of memory that has 2 there"),
    (signal_out_of_range, _WHERE + ".*row 2 of memory that has 2 there"),
    (signal_to_nobody, "core 0, subcore 0.*names core 2 of 2 in device_id"),
    (unwritten_sum, r"core 0, subcore 0.*nobody has written \(8 of 8 numbers"),
    (unwritten_scattered_sum, r"core 0, subcore 0.*written \(8 of 8 numbers"),
    (unwritten_shared_sum, r"core 0, subcore 0.*written \(64 of 64 numbers"),
    (unwritten_gathered_sum, r"core 0, subcore 0.*written \(8 of 64 numbers"),
    (unwritten_counter, r"core 0, subcore 0.*written \(1 of 1 numbers"),
    (read_of_another, "core 0, subcore 1.*reads what another worker has writt"),
    (shared_read_of_another, "core 0, subcore 1.*reads what another worker"),
    (two_shared_writers, "core 0, subcore 1.*writes what another worker has"),
)


class MistakesTest(parameterized.TestCase):

  def run_kernel(self, make, mistaken):
    x = jnp.arange(_NUM_WORKERS * 8, dtype=jnp.int32).reshape(-1, 8)
    return np.asarray(jax.block_until_ready(make(mistaken)(x)))

  @parameterized.parameters(*_MISTAKES)
  def test_mistake_is_reported_with_kernel_worker_and_line(self, make, message):
    with self.assertRaises(jax.errors.JaxRuntimeError) as caught:
      self.run_kernel(make, mistaken=True)
    report = str(caught.exception).split("KernelMistake: ")[-1]
    self.assertRegex(report, r"Kernel '(?!named)\w+', core \d, subcore \d+, ")
    self.assertRegex(report, message)
    self.assertRegex(report, r"mistakes_test\.py:\d+: ")

  @parameterized.parameters(*(make for make, _ in _MISTAKES))
  def test_its_twin_without_the_mistake_is_silent(self, make):
    self.run_kernel(make, mistaken=False)


@_copy([_ROW, pltpu.VMEM((2, 4), jnp.int32)])
def copy_to_another_shape(mistaken, x, o, row, other):
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row if mistaken else row.at[pl.ds(0, 4)], other.at[0])
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, pltpu.VMEM((8,), jnp.float32)])
def copy_to_another_type(mistaken, x, o, row, other):
  pltpu.sync_copy(x.at[_me()], other if mistaken else row)
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def copy_into_an_operand(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, x.at[_me()] if mistaken else o.at[_me()])


@_copy([_ROW])
def copy_with_a_stride(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  columns = pl.ds(0, 4, 2 if mistaken else 1)
  pltpu.sync_copy(x.at[_me(), columns], row.at[pl.ds(0, 4)])
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW])
def load_from_hbm(mistaken, x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  row[...] = (x[_me(), :] if mistaken else row[...]) + 1
  pltpu.sync_copy(row, o.at[_me()])


@_copy([_ROW, _SHARED])
def store_to_shared_memory(mistaken, x, o, row, shared):
  pltpu.sync_copy(x.at[_me()], row)
  if mistaken:
    shared[0, :] = row[...]
  pltpu.sync_copy(row, o.at[_me()])


_SEEN_IN_THE_PROGRAM = (
    (
        copy_to_another_shape,
        pallas.KernelMistake,
        r"a copy of int32\[8\] to int32\[4\]",
    ),
    (
        copy_to_another_type,
        pallas.KernelMistake,
        r"a copy of int32\[8\] to float32\[8\]",
    ),
    (
        copy_into_an_operand,
        pallas.KernelMistake,
        "a copy into an operand that is no result.*Name it in in_place",
    ),
    (
        copy_with_a_stride,
        NotImplementedError,
        "A copy of a slice with a stride",
    ),
    (load_from_hbm, NotImplementedError, "'get' on a ref in HBM"),
    (store_to_shared_memory, NotImplementedError, "'swap' on .* VMEM_SHARED"),
)


class ProgramsTest(parameterized.TestCase):
  """Mistakes that are there before a kernel runs."""

  @parameterized.parameters(*_SEEN_IN_THE_PROGRAM)
  def test_mistake_is_an_error_of_the_call(self, make, error, message):
    x = jnp.zeros(_ROWS.shape, jnp.int32)
    where = r"Kernel '\w+', mistakes_test\.py:\d+: "
    with self.assertRaisesRegex(error, where + message):
      jax.eval_shape(make(mistaken=True), x)
    jax.eval_shape(make(mistaken=False), x)

  def test_arrays_that_a_core_map_closes_over_are_in_hbm(self):
    @pallas.emulate
    def run(x):
      source, target = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))

      @pl.core_map(_MESH)
      def copy_all_to_one_row():
        pl.run_scoped(
            lambda row: (
                pltpu.sync_copy(source.at[_me()], row),
                pltpu.sync_copy(row, target.at[0]),
            )[:0],
            _ROW,
        )

      return target[...]

    sharded = jax.shard_map(
        run, mesh=_V6E, in_specs=P(), out_specs=P(), check_vma=False
    )
    with self.assertRaisesRegex(
        jax.errors.JaxRuntimeError, "writes what another worker has written"
    ):
      jax.block_until_ready(jax.jit(sharded)(jnp.zeros(_ROWS.shape, jnp.int32)))


class SizesTest(parameterized.TestCase):

  @parameterized.parameters(
      ([pltpu.VMEM((65535,), jnp.int32)], None),
      (
          [pltpu.VMEM((65536,), jnp.int32)],
          "65536 words of VMEM of a subcore, of which v6e has 65535",
      ),
      ([pltpu.VMEM((65536 * 2,), jnp.bfloat16)], "65536 words of VMEM"),
      (
          [
              pltpu.VMEM((32768,), jnp.int32),
              pltpu.VMEM_SHARED((16, 32768), jnp.int32),
          ],
          "1048576 words of VMEM_SHARED, and the VMEM of all subcores",
      ),
      ([_DMA((26,))], None),
      ([_DMA((28,))], "28 of semaphores of a subcore, of which v6e has 27"),
  )
  def test_more_memory_than_the_chip_has(self, scratch, message):
    kernel = pallas.kernel(
        lambda x, o, *_: pltpu.sync_copy(x.at[_me()], o.at[_me()]),
        _MESH,
        scratch,
        P(),
        P(),
        mesh=_V6E,
    )
    x = jnp.zeros(_ROWS.shape, jnp.int32)
    if message is None:
      jax.eval_shape(kernel, x)
    else:
      with self.assertRaisesRegex(pallas.KernelMistake, message):
        jax.eval_shape(kernel, x)


if __name__ == "__main__":
  absltest.main()
