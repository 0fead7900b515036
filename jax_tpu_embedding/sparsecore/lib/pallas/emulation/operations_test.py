# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Small kernels, one for each operation, against NumPy."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np

_V6E = pallas.on_chip(jax.sharding.AbstractMesh((1,), ("x",)), "v6e")
_V5P = pallas.on_chip(jax.sharding.AbstractMesh((1,), ("x",)), "v5p")
_VECTOR = pallas.vector_subcore_mesh(chip="v6e")
_SCALAR = pallas.scalar_subcore_mesh(chip="v6e")
_TENSOR = pallas.tensor_core_mesh(chip="v5p")
_WORKERS, _SUBCORES = _VECTOR.size, _VECTOR.shape["subcore"]
_LANES = 8
P = jax.sharding.PartitionSpec
_DMA = pltpu.SemaphoreType.DMA
_INTERLEAVED = plsc.PackFormat.INTERLEAVED
_COMPRESSED = plsc.PackFormat.COMPRESSED

_rng = np.random.default_rng(0)
_F = _rng.normal(size=(_WORKERS, _LANES)).astype(np.float32)
_G = _rng.normal(size=(_WORKERS, _LANES)).astype(np.float32)
_I = _rng.integers(0, 5, (_WORKERS, _LANES)).astype(np.int32)
_SIGNED = _rng.integers(-9, 9, (_WORKERS, _LANES)).astype(np.int32)
_PLACES = np.argsort(_rng.random((_WORKERS, _LANES)), 1).astype(np.int32)
_B16 = _rng.normal(size=(_WORKERS, 2 * _LANES)).astype(jnp.bfloat16)
_TABLE = _rng.normal(size=(40, 16)).astype(np.float32)
_IDS = _rng.integers(0, 40, (_WORKERS, _LANES)).astype(np.int32)


def _me():
  return jax.lax.axis_index("core") * _SUBCORES + jax.lax.axis_index("subcore")


def _positive(x):
  return x > 0


def _expanded(x, mask):
  """What load_expanded loads, 0 where that is undefined."""
  result = np.zeros_like(x)
  result[mask] = x[: mask.sum()]
  return result


def _compressed(x, mask, old):
  result = old.copy()
  result[: mask.sum()] = x[mask]
  return result


def _counts(x, mask):
  return np.array(
      [(mask & (x == x[i]))[: i + 1].sum() for i in range(x.size)], np.int32
  )


def _last(x, mask):
  later = [(mask & (x == x[i]))[i + 1 :].any() for i in range(x.size)]
  return (mask & ~np.array(later)).astype(np.int32)


def _running_max(x, mask):
  seen = np.maximum.accumulate(np.where(mask, x, -np.inf))
  return np.where(np.isinf(seen), x, seen).astype(np.float32)


def _sorted(x, mask, descending=False):
  order = np.argsort(-x if descending else x, kind="stable")
  return order[np.argsort(~mask[order], kind="stable")]


def _store(ref, indices, x, **options):
  plsc.store_scatter(ref, indices, x, **options)


_ALL = np.ones(_LANES, bool)

# pylint: disable=line-too-long
# Name -> operands of all workers, body on VMEM of one, what NumPy computes.
# A body gets its operands, and a copy of the last of them for the result.
_REGISTERS = {
    "add": ([_F, _G, _F], lambda a, b, o: o.set(a[...] + b[...]), lambda a, b, _: a + b),
    "divide": ([_F, _G, _F], lambda a, b, o: o.set(a[...] / b[...]), lambda a, b, _: a / b),
    "exp": ([_F, _F], lambda a, o: o.set(jnp.exp(a[...])), lambda a, _: np.exp(a)),
    "abs": ([_F, _F], lambda a, o: o.set(jnp.abs(a[...])), lambda a, _: abs(a)),
    "sign": ([_F, _F], lambda a, o: o.set(jnp.sign(a[...])), lambda a, _: np.sign(a)),
    "maximum": ([_F, _G, _F], lambda a, b, o: o.set(jnp.maximum(a[...], b[...])), lambda a, b, _: np.maximum(a, b)),
    "where": ([_F, _G, _F], lambda a, b, o: o.set(jnp.where(a[...] > 0, a[...], b[...])), lambda a, b, _: np.where(a > 0, a, b)),
    "clip": ([_F, _F], lambda a, o: o.set(jnp.clip(a[...], -1, 1)), lambda a, _: np.clip(a, -1, 1)),
    "remainder": ([_SIGNED, _I], lambda a, o: o.set(jax.lax.rem(a[...], 5)), lambda a, _: np.fmod(a, 5)),
    "to_float": ([_SIGNED, _F], lambda a, o: o.set(a[...].astype(jnp.float32)), lambda a, _: a.astype(np.float32)),
    "to_bfloat16": ([_F, _B16[:, :8]], lambda a, o: o.set(a[...].astype(jnp.bfloat16)), lambda a, _: a.astype(jnp.bfloat16)),
    "bits": ([_F, _I], lambda a, o: o.set(jax.lax.bitcast_convert_type(a[...], jnp.int32)), lambda a, _: a.view(np.int32)),
    "element": ([_F, _F], lambda a, o: o.set(a[...] * a[...][3]), lambda a, _: a * a[3]),
    "sum": ([_F, _F], lambda a, o: o.set(jnp.full((8,), jnp.sum(a[...]))), lambda a, _: np.full(8, a.sum())),
    "load_expanded": (
        [_F, _F],
        lambda a, o: o.set(jnp.where(a[...] > 0, plsc.load_expanded(a.at[...], mask=a[...] > 0), 0.0)),
        lambda a, _: _expanded(a, a > 0),
    ),
    "store_compressed": (
        [_F, _G],
        lambda a, o: plsc.store_compressed(o.at[...], a[...], mask=a[...] > 0),
        lambda a, o: _compressed(a, a > 0, o),
    ),
    "addupdate": ([_F, _G], lambda a, o: plsc.addupdate(o.at[...], a[...]), lambda a, o: a + o),
    "addupdate_compressed": (
        [_F, _G],
        lambda a, o: plsc.addupdate_compressed(o.at[...], a[...], mask=a[...] > 0),
        lambda a, o: o + _compressed(a, a > 0, np.zeros_like(o)),
    ),
    "load_gather": ([_F, _PLACES, _F], lambda a, i, o: o.set(plsc.load_gather(a, [i[...]])), lambda a, i, _: a[i]),
    "load_gather_masked": (
        [_F, _PLACES, _F],
        lambda a, i, o: o.set(jnp.where(i[...] > 2, plsc.load_gather(a, [i[...]], mask=i[...] > 2), 0.0)),
        lambda a, i, _: np.where(i > 2, a[i], 0),
    ),
    "store_scatter": ([_F, _PLACES, _G], lambda a, i, o: _store(o, [i[...]], a[...]), lambda a, i, o: a[np.argsort(i)]),
    "store_scatter_masked": (
        [_F, _PLACES, _G],
        lambda a, i, o: _store(o, [i[...]], a[...], mask=i[...] > 2),
        lambda a, i, o: np.where(np.arange(8) > 2, a[np.argsort(i)], o),
    ),
    "addupdate_scatter": (
        [_F, _I, _G],
        lambda a, i, o: plsc.addupdate_scatter(o, [i[...]], a[...]),
        lambda a, i, o: o + np.bincount(i, a, 8).astype(np.float32),
    ),
    "cumsum": ([_F, _F], lambda a, o: o.set(plsc.cumsum(a[...])), lambda a, _: np.cumsum(a)),
    "cumsum_masked": (
        [_F, _F],
        lambda a, o: o.set(plsc.cumsum(a[...], mask=a[...] > 0)),
        lambda a, _: np.cumsum(np.where(a > 0, a, 0)),
    ),
    "cummax": ([_F, _F], lambda a, o: o.set(plsc.cummax(a[...])), lambda a, _: np.maximum.accumulate(a)),
    "cummax_masked": (
        [_F, _F],
        lambda a, o: o.set(plsc.cummax(a[...], mask=a[...] > 0.5)),
        lambda a, _: _running_max(a, a > 0.5),
    ),
    "sort_keys": (
        [_F, _I, _F],
        lambda a, v, o: o.set(plsc.sort_key_val(a[...], v[...])[0]),
        lambda a, v, _: np.sort(a),
    ),
    "sort_values": (
        [_F, _I, _I],
        lambda a, v, o: o.set(plsc.sort_key_val(a[...], v[...])[1]),
        lambda a, v, _: v[_sorted(a, _ALL)],
    ),
    "sort_descending": (
        [_F, _I, _I],
        lambda a, v, o: o.set(plsc.sort_key_val(a[...], v[...], descending=True)[1]),
        lambda a, v, _: v[_sorted(a, _ALL, True)],
    ),
    "sort_masked": (
        [_F, _I, _F],
        lambda a, v, o: o.set(jnp.where((s := plsc.sort_key_val(a[...], v[...], mask=v[...] > 1))[2], s[0], 0)),
        lambda a, v, _: np.where((v > 1)[_sorted(a, v > 1)], a[_sorted(a, v > 1)], 0),
    ),
    "scan_count": ([_I, _I], lambda a, o: o.set(plsc.scan_count(a[...])[0]), lambda a, _: _counts(a, _ALL)),
    "scan_count_last": (
        [_I, _I],
        lambda a, o: o.set(plsc.scan_count(a[...], a[...] > 1)[1].astype(jnp.int32)),
        lambda a, _: _last(a, a > 1),
    ),
    "count_true": (
        [_F, _I],
        lambda a, o: o.set(plsc.all_reduce_population_count(a[...] > 0)),
        lambda a, _: np.full(8, (a > 0).sum()),
    ),
    "first_true": (
        [_F, _I],
        lambda a, o: o.set(plsc.all_reduce_ffs(a[...] > 0.8)),
        lambda a, _: np.full(8, np.argmax(a > 0.8) if (a > 0.8).any() else 8),
    ),
    "pack": (
        [_F, _G, _B16],
        lambda a, b, o: o.set(plsc.pack(a[...], b[...], format=_INTERLEAVED)),
        lambda a, b, _: np.stack([a, b], 1).reshape(-1).astype(jnp.bfloat16),
    ),
    "pack_compressed": (
        [_F, _G, _B16],
        lambda a, b, o: o.set(plsc.pack(a[...], b[...], format=_COMPRESSED).reshape(16)),
        lambda a, b, _: np.concatenate([a, b]).astype(jnp.bfloat16),
    ),
    "unpack": (
        [_B16, _F],
        lambda a, o: o.set(sum(plsc.unpack(a[...], format=_INTERLEAVED))),
        lambda a, _: a[::2].astype(np.float32) + a[1::2].astype(np.float32),
    ),
    "bitcast_to_smaller": (
        [_F, _B16],
        lambda a, o: o.set(plsc.bitcast(a[...], jnp.bfloat16)),
        lambda a, _: a.view(jnp.bfloat16),
    ),
    "bitcast_to_larger": ([_B16, _I], lambda a, o: o.set(plsc.bitcast(a[...], jnp.int32)), lambda a, _: a.view(np.int32)),
    "bitcast": ([_F, _I], lambda a, o: o.set(plsc.bitcast(a[...], jnp.int32)), lambda a, _: a.view(np.int32)),
}  # fmt: skip
# pylint: enable=line-too-long


# --- Bodies with control flow and copies; they get HBM ---


def _loop(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)

  @pl.loop(0, _me() % 3)
  def _(k):
    row[...] = row[...] + k + 1

  pltpu.sync_copy(row, o.at[_me()])


def _loop_with_carry(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  total = pl.loop(0, 4, init_carry=jnp.zeros((8,), jnp.float32))(
      lambda k, total: total + row[...] * k
  )
  row[...] = total
  pltpu.sync_copy(row, o.at[_me()])


def _while(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  row[...] = jax.lax.while_loop(
      lambda v: v[0] < 3.0, lambda v: v + 1.0, row[...]
  )
  pltpu.sync_copy(row, o.at[_me()])


def _cond(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  row[...] = jax.lax.cond(
      _me() % 2 == 0, lambda: row[...] + 1, lambda: row[...] * 2
  )
  pltpu.sync_copy(row, o.at[_me()])


def _parallel_loop(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)

  @plsc.parallel_loop(0, 8, step=8)
  def _(k):
    row[pl.ds(k, 8)] = row[pl.ds(k, 8)] * 3

  pltpu.sync_copy(row, o.at[_me()])


def _parallel_loop_with_carry(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  start = jnp.zeros((8,), jnp.float32)
  row[...] = plsc.parallel_loop(0, 6, step=2, carry=start)(
      lambda k, total: total + row[...] * k
  )
  pltpu.sync_copy(row, o.at[_me()])


def _scoped(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)

  @pl.loop(0, 2)
  def _(k):
    del k

    @pl.with_scoped(pltpu.VMEM((8,), jnp.float32))
    def twice(own):
      own[...] = row[...]
      row[...] = own[...] + row[...]

    twice()

  pltpu.sync_copy(row, o.at[_me()])


def _nested_jit(x, o, row):
  pltpu.sync_copy(x.at[_me()], row)
  row[...] = jax.jit(lambda v: jnp.where(v > 0, v, -2 * v))(row[...])
  pltpu.sync_copy(row, o.at[_me()])


def _ring_of_copies(x, o, rows, sems):
  for k in range(2):
    pltpu.async_copy(x.at[_me()], rows.at[k], sems.at[k])
  for k in range(2):
    pltpu.make_async_copy(x.at[_me()], rows.at[k], sems.at[k]).wait()
  rows[0, :] = rows[0, :] + rows[1, :]
  pltpu.sync_copy(rows.at[0], o.at[_me()])


def _columns(x, o, row):
  pltpu.sync_copy(x.at[_me(), pl.ds(4, 4)], row.at[pl.ds(0, 4)])
  pltpu.sync_copy(x.at[_me(), pl.ds(0, 4)], row.at[pl.ds(4, 4)])
  pltpu.sync_copy(row, o.at[_me()])


def _barrier(x, o, row, shared):
  core, subcore = jax.lax.axis_index("core"), jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[_me()], row)
  pltpu.sync_copy(row, shared.at[subcore])
  plsc.subcore_barrier()
  pltpu.sync_copy(shared.at[(subcore + 1) % _SUBCORES], row)
  row[...] = row[...] + core.astype(jnp.float32)
  pltpu.sync_copy(row, o.at[_me()])


def _barrier_in_loop(x, o, row, shared, count=None):
  subcore = jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[_me()], row)

  @pl.loop(0, 3 if count is None else count())
  def _(k):
    del k
    pltpu.sync_copy(row, shared.at[subcore])
    plsc.subcore_barrier()
    pltpu.sync_copy(shared.at[(subcore + 1) % _SUBCORES], row)
    plsc.subcore_barrier()

  pltpu.sync_copy(row, o.at[_me()])


def _barrier_in_loop_of_core(x, o, row, shared):
  _barrier_in_loop(x, o, row, shared, lambda: 1 + jax.lax.axis_index("core"))


def _barrier_in_branch(x, o, row, shared):
  subcore = jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[_me()], row)

  @pl.when(jax.lax.axis_index("core") == 1)
  def _():
    pltpu.sync_copy(row, shared.at[subcore])
    plsc.subcore_barrier()
    pltpu.sync_copy(shared.at[(subcore + 2) % _SUBCORES], row)

  pltpu.sync_copy(row, o.at[_me()])


def _fetch_and_add(x, o, row, counter):
  subcore = jax.lax.axis_index("subcore")
  counter[0] = 0
  plsc.subcore_barrier()
  plsc.fetch_and_add(counter.at[0], subcore + 1, subcore_id=subcore // 2)
  plsc.subcore_barrier()
  pltpu.sync_copy(x.at[_me()], row)
  row[...] = row[...] * counter[0].astype(jnp.float32)
  pltpu.sync_copy(row, o.at[_me()])


def _rolled(x, by):
  return np.roll(x.reshape(-1, _SUBCORES, 8), -by, 1).reshape(x.shape)


_ROW = pltpu.VMEM((8,), jnp.float32)
_SHARED = pltpu.VMEM_SHARED((_SUBCORES, 8), jnp.float32)
_CORE = np.arange(_WORKERS)[:, None] // _SUBCORES
_ME = np.arange(_WORKERS)[:, None]


def _grown(x):
  for _ in range(20):
    x = np.where(x[:, :1] < 3, x + 1, x)
  return x


# Name -> body, scratch memory, what NumPy computes.
_PROGRAMS = {
    "loop": (_loop, [_ROW], lambda x: x + np.array([0, 1, 3])[_ME % 3]),
    "loop_with_carry": (_loop_with_carry, [_ROW], lambda x: x * 6),
    "while": (_while, [_ROW], _grown),
    "cond": (_cond, [_ROW], lambda x: np.where(_ME % 2 == 0, x + 1, x * 2)),
    "parallel_loop": (_parallel_loop, [_ROW], lambda x: 3 * x),
    "parallel_loop_with_carry": (
        _parallel_loop_with_carry,
        [_ROW],
        lambda x: 6 * x,
    ),
    "scoped": (_scoped, [_ROW], lambda x: 4 * x),
    "nested_jit": (_nested_jit, [_ROW], lambda x: np.where(x > 0, x, -2 * x)),
    "ring_of_copies": (
        _ring_of_copies,
        [pltpu.VMEM((2, 8), jnp.float32), _DMA((2,))],
        lambda x: 2 * x,
    ),
    "columns": (_columns, [_ROW], lambda x: np.roll(x, 4, 1)),
    "barrier": (_barrier, [_ROW, _SHARED], lambda x: _rolled(x, 1) + _CORE),
    "barrier_in_loop": (
        _barrier_in_loop,
        [_ROW, _SHARED],
        lambda x: _rolled(x, 3),
    ),
    "barrier_in_loop_of_core": (
        _barrier_in_loop_of_core,
        [_ROW, _SHARED],
        lambda x: np.where(_CORE == 0, _rolled(x, 1), _rolled(x, 2)),
    ),
    "barrier_in_branch": (
        _barrier_in_branch,
        [_ROW, _SHARED],
        lambda x: np.where(_CORE == 0, x, _rolled(x, 2)),
    ),
    "fetch_and_add": (
        _fetch_and_add,
        [_ROW, pltpu.SMEM((1,), jnp.int32)],
        lambda x: x
        * np.where(_ME % 16 < 8, 4 * (_ME % 16) + 3, 0).astype(np.float32),
    ),
}


class VectorSubcoreTest(parameterized.TestCase):

  @parameterized.named_parameters((name, name) for name in _REGISTERS)
  def test_operation(self, name):
    operands, body, expected = _REGISTERS[name]

    def kernel_body(*refs):
      hbm, o = refs[: len(operands)], refs[len(operands)]
      vmem = refs[len(operands) + 1 :]
      for x, own in zip(hbm, vmem):
        pltpu.sync_copy(x.at[_me()], own)
      body(*vmem)
      pltpu.sync_copy(vmem[-1], o.at[_me()])

    result = self.run_kernel(
        kernel_body,
        [pltpu.VMEM(x.shape[1:], x.dtype) for x in operands],
        operands[-1],
        *operands,
    )
    want = np.stack([expected(*xs) for xs in zip(*operands)])
    self.assert_equal(result, want)

  @parameterized.named_parameters((name, name) for name in _PROGRAMS)
  def test_program(self, name):
    body, scratch, expected = _PROGRAMS[name]
    self.assert_equal(self.run_kernel(body, scratch, _F, _F), expected(_F))

  @parameterized.parameters(jnp.float32, jnp.bfloat16, jnp.int8)
  def test_gather_of_rows(self, dtype):
    table = (10 * _TABLE).astype(dtype)

    def body(table, ids, o, ids_v, rows):
      pltpu.sync_copy(ids.at[_me()], ids_v)
      pltpu.sync_copy(table.at[ids_v], rows)
      pltpu.sync_copy(rows, o.at[_me()])

    result = self.run_kernel(
        body,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), dtype)],
        jax.ShapeDtypeStruct((_WORKERS, 8, 16), dtype),
        table,
        _IDS,
    )
    np.testing.assert_array_equal(result, table[_IDS])

  def test_gather_with_ignored_rows_keeps_what_was_there(self):
    ids = np.where(_IDS % 3 == 0, -1, _IDS)

    def body(table, ids, o, ids_v, rows):
      pltpu.sync_copy(ids.at[_me()], ids_v)
      for i in range(8):
        rows[i, :] = jnp.full((16,), 7.0)
      pltpu.sync_copy(table.at[plsc.Indices(ids_v, ignored_value=-1)], rows)
      pltpu.sync_copy(rows, o.at[_me()])

    result = self.run_kernel(
        body,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), jnp.float32)],
        jax.ShapeDtypeStruct((_WORKERS, 8, 16), jnp.float32),
        _TABLE,
        ids,
    )
    want = np.where(ids[..., None] < 0, 7.0, _TABLE[ids])
    np.testing.assert_array_equal(result, want)

  def test_gather_that_adds(self):
    def body(table, ids, o, ids_v, rows):
      pltpu.sync_copy(ids.at[_me()], ids_v)
      pltpu.sync_copy(table.at[ids_v], rows)
      pltpu.sync_copy(table.at[ids_v], rows, add=True)
      pltpu.sync_copy(rows, o.at[_me()])

    result = self.run_kernel(
        body,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), jnp.float32)],
        jax.ShapeDtypeStruct((_WORKERS, 8, 16), jnp.float32),
        _TABLE,
        _IDS,
    )
    np.testing.assert_array_equal(result, 2 * _TABLE[_IDS])

  def test_sums_in_shared_memory(self):
    ids = np.where(_I == 0, -1, _I)

    def body(x, ids, o, ids_v, x_v, sums):
      subcore = jax.lax.axis_index("subcore")
      x_v[...] = jnp.zeros((8, 8), jnp.float32)

      @pl.when(subcore == 0)
      def _():
        pltpu.sync_copy(x_v, sums)

      plsc.subcore_barrier()
      pltpu.sync_copy(ids.at[_me()], ids_v)
      for i in range(8):
        pltpu.sync_copy(x.at[_me()], x_v.at[i])
      pltpu.sync_copy(
          x_v, sums.at[plsc.Indices(ids_v, ignored_value=-1)], add=True
      )
      plsc.subcore_barrier()

      @pl.when(subcore == 0)
      def _():
        pltpu.sync_copy(sums, o.at[jax.lax.axis_index("core")])

    result = self.run_kernel(
        body,
        [
            pltpu.VMEM((8,), jnp.int32),
            pltpu.VMEM((8, 8), jnp.float32),
            pltpu.VMEM_SHARED((8, 8), jnp.float32),
        ],
        jax.ShapeDtypeStruct((2, 8, 8), jnp.float32),
        _F,
        ids,
    )
    want = np.zeros((2, 8, 8), np.float32)
    for worker in range(_WORKERS):
      for i in ids[worker]:
        if i >= 0:
          want[worker // _SUBCORES, i] += _F[worker]
    np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)

  @parameterized.parameters(1, 5, 8)
  def test_copy_of_a_size_known_at_run_time(self, size):
    sizes = np.full((_WORKERS, 8), size, np.int32)

    def body(x, sizes, o, row, size_v):
      pltpu.sync_copy(sizes.at[_me()], size_v)
      n = size_v[...][0]
      row[...] = jnp.zeros((8,), jnp.float32)
      pltpu.sync_copy(x.at[_me(), pl.ds(0, n)], row.at[pl.ds(0, n)])
      pltpu.sync_copy(row, o.at[_me()])

    result = self.run_kernel(
        body, [_ROW, pltpu.VMEM((8,), jnp.int32)], _F, _F, sizes
    )
    np.testing.assert_array_equal(result, np.where(np.arange(8) < size, _F, 0))

  def test_rows_are_changed_in_place(self):
    def body(table, ids, ids_v, rows):
      pltpu.sync_copy(ids.at[_me()], ids_v)
      pltpu.sync_copy(table.at[ids_v], rows)
      for i in range(8):
        rows[i, :] = rows[i, :] * 2
      pltpu.sync_copy(rows, table.at[ids_v])

    table = _rng.normal(size=(1024, 16)).astype(np.float32)
    ids = _rng.permutation(1024)[: _WORKERS * 8].reshape(-1, 8)
    kernel = pallas.kernel(
        body,
        _VECTOR,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), jnp.float32)],
        P(),
        P(),
        mesh=_V6E,
        in_place=[0],
    )
    result = kernel(table, ids.astype(np.int32))
    want = table.copy()
    want[ids.reshape(-1)] *= 2
    np.testing.assert_array_equal(result, want)

  def test_pipeline(self):
    x = _rng.normal(size=(_WORKERS * 16, 128)).astype(np.float32)

    def add_one(x, o):
      @pl.loop(0, 8)
      def _(r):
        @pl.loop(0, 128, step=8)
        def _(c):
          o[r, pl.ds(c, 8)] = x[r, pl.ds(c, 8)] + 1

    def body(x, o):
      spec = pl.BlockSpec(
          (pl.BoundedSlice(8), 128),
          lambda i: (pl.ds(pl.multiple_of(_me() * 16 + i * 8, 8), 8), 0),
      )
      pltpu.emit_pipeline(
          add_one, grid=(2,), in_specs=[spec], out_specs=[spec]
      )(x, o)

    np.testing.assert_array_equal(self.run_kernel(body, [], x, x), x + 1)

  def run_kernel(self, body, scratch, out, *operands):
    kernel = pallas.kernel(
        body,
        _VECTOR,
        scratch,
        P(),
        P(),
        out_type=jax.ShapeDtypeStruct(out.shape, out.dtype),
        mesh=_V6E,
    )
    return np.asarray(kernel(*operands))

  def assert_equal(self, result, want):
    np.testing.assert_allclose(
        result.astype(np.float64),
        want.astype(np.float64),
        rtol=1e-6,
        atol=1e-6,
    )


class ScalarSubcoreTest(absltest.TestCase):

  def test_sums_in_smem(self):
    def body(x, o, row, sem):
      core = jax.lax.axis_index("core")
      pltpu.async_copy(x.at[core], row, sem).wait()

      @pl.loop(1, 8)
      def _(k):
        row[k] = row[k] + row[k - 1]

      pltpu.async_copy(row, o.at[core], sem).wait()

    x = _I[: _SCALAR.size]
    kernel = pallas.kernel(
        body,
        _SCALAR,
        [pltpu.SMEM((8,), jnp.int32), _DMA],
        P(),
        P(),
        mesh=_V6E,
    )
    result = kernel(x)
    np.testing.assert_array_equal(result, np.cumsum(x, 1))


def _tensor_elementwise(x, o, block):
  core = jax.lax.axis_index("core")
  pltpu.sync_copy(x.at[core], block)
  block[...] = jnp.sqrt(jnp.abs(block[...])) + jnp.tanh(block[...])
  pltpu.sync_copy(block, o.at[core])


def _tensor_dot(x, o, block):
  core = jax.lax.axis_index("core")
  pltpu.sync_copy(x.at[core], block)
  block[...] = jnp.dot(
      block[...], jnp.full((128, 128), 0.5), precision="highest"
  )
  pltpu.sync_copy(block, o.at[core])


def _tensor_rows(x, o, block):
  core = jax.lax.axis_index("core")
  pltpu.sync_copy(x.at[core], block)
  top = pl.ds(core * 4, 4)
  block[top, :] = block[top, :] * 2
  pltpu.sync_copy(block, o.at[core])


def _tensor_reduce(x, o, block):
  core = jax.lax.axis_index("core")
  pltpu.sync_copy(x.at[core], block)
  total = jnp.sum(block[...], axis=1, keepdims=True)
  block[...] = jnp.broadcast_to(total, block.shape)
  pltpu.sync_copy(block, o.at[core])


def _tensor_signals(x, o, block, sem):
  core = jax.lax.axis_index("core")
  pl.semaphore_signal(sem, 2, device_id={"core": 1 - core})
  pl.semaphore_wait(sem, 1)
  left = pl.semaphore_read(sem)
  pl.semaphore_wait(sem, 1)
  pltpu.sync_copy(x.at[core], block)
  block[...] = block[...] + left.astype(jnp.float32)
  pltpu.sync_copy(block, o.at[core])


def _tensor_swap(x, o, block, other, sent, received, ready):
  core = jax.lax.axis_index("core")
  pl.semaphore_signal(ready, 1, device_id={"core": 1 - core})
  pl.semaphore_wait(ready, 1)
  pltpu.sync_copy(x.at[core], block)
  copy = pltpu.make_async_remote_copy(
      block, other, sent, received, device_id={"core": 1 - core}
  )
  copy.start()
  copy.wait()
  pltpu.sync_copy(other, o.at[core])


def _tensor_smem(x, o, block, factor):
  core = jax.lax.axis_index("core")
  factor[0] = core.astype(jnp.float32) + 2
  pltpu.sync_copy(x.at[core], block)
  block[...] = block[...] * factor[0]
  pltpu.sync_copy(block, o.at[core])


def _tensor_mapped(x, o, block):
  core = jax.lax.axis_index("core")
  size = jax.lax.axis_size("core")
  pltpu.sync_copy(x.at[(core + 1) % size], block)
  pltpu.sync_copy(block, o.at[core])


_BLOCK = pltpu.VMEM((8, 128), jnp.float32)
_X = _rng.normal(size=(2, 8, 128)).astype(np.float32)
_REGULAR = pltpu.SemaphoreType.REGULAR
_ON_TENSOR_CORES = {
    "elementwise": (
        _tensor_elementwise,
        [_BLOCK],
        lambda x: np.sqrt(abs(x)) + np.tanh(x),
    ),
    "dot": (
        _tensor_dot,
        [_BLOCK],
        lambda x: np.broadcast_to(x.sum(-1, keepdims=True) / 2, x.shape),
    ),
    "rows": (
        _tensor_rows,
        [_BLOCK],
        lambda x: x
        * np.where(
            np.arange(8)[:, None] // 4 == np.arange(2)[:, None, None], 2, 1
        ),
    ),
    "reduce": (
        _tensor_reduce,
        [_BLOCK],
        lambda x: np.broadcast_to(x.sum(-1, keepdims=True), x.shape),
    ),
    "signals": (_tensor_signals, [_BLOCK, _REGULAR], lambda x: x + 1),
    "swap": (
        _tensor_swap,
        [_BLOCK, _BLOCK, _DMA, _DMA, _REGULAR],
        lambda x: x[::-1],
    ),
    "smem": (
        _tensor_smem,
        [_BLOCK, pltpu.SMEM((1,), jnp.float32)],
        lambda x: x * np.array([2, 3])[:, None, None],
    ),
    "axis_size": (_tensor_mapped, [_BLOCK], lambda x: x[::-1]),
}


class TensorCoreTest(parameterized.TestCase):

  @parameterized.named_parameters((name, name) for name in _ON_TENSOR_CORES)
  def test_operation(self, name):
    body, scratch, expected = _ON_TENSOR_CORES[name]
    result = pallas.kernel(body, _TENSOR, scratch, P(), P(), mesh=_V5P)(_X)
    np.testing.assert_allclose(result, expected(_X), rtol=1e-5, atol=1e-5)

  def test_what_is_not_emulated_is_refused_by_name(self):
    def body(x, o):
      del x, o
      pltpu.prng_seed(0)

    with self.assertRaisesRegex(
        NotImplementedError,
        r"Kernel 'body', operations_test.py:\d+: 'prng_seed' is not emulated."
        " Make random bits outside",
    ):
      jax.eval_shape(pallas.kernel(body, _TENSOR, (), P(), P(), mesh=_V5P), _X)


# Public names that are no operations, or that kernels above use by them.
_NOT_OPERATIONS = {
    "PackFormat",
    "ScalarSubcoreMesh",
    "SparseCorePushStreamWarning",
    "VectorSubcoreMesh",
    "get_sparse_core_info",
}
# What the engine refuses by name.
_REFUSED = {"slice_subcore_vmem_from_shared"}


class CoverageTest(absltest.TestCase):

  @absltest.skipIf(
      not hasattr(plsc, "slice_subcore_vmem_from_shared"),
      "This JAX does not have it.",
  )
  def test_a_subcores_part_of_shared_memory_is_refused_by_name(self):
    def body(x, o, shared):
      own = plsc.slice_subcore_vmem_from_shared(shared)
      pltpu.sync_copy(x.at[_me()], own)
      pltpu.sync_copy(own, o.at[_me()])

    shared = pltpu.VMEM_SHARED((_SUBCORES * 8,), jnp.float32)
    kernel = pallas.kernel(body, _VECTOR, [shared], P(), P(), mesh=_V6E)
    with self.assertRaisesRegex(
        NotImplementedError, "slice_subcore_vmem_from_shared is not emulated"
    ):
      jax.eval_shape(kernel, _F)

  def test_every_public_name_of_tpu_sc_is_covered_or_refused(self):
    source = pathlib.Path(__file__).read_text()
    for name in dir(plsc):
      if name.startswith("_") or name in _NOT_OPERATIONS | _REFUSED:
        continue
      self.assertIn(f"plsc.{name}", source, f"{name} has no kernel here.")

  def test_there_are_sixty_kernels(self):
    count = len(_REGISTERS) + len(_PROGRAMS) + len(_ON_TENSOR_CORES)
    self.assertGreaterEqual(count, 60)


if __name__ == "__main__":
  absltest.main()
