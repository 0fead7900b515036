# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Small kernels, one for each operation, and what NumPy computes.

The engine is tested with them, and TPUs by first_hour.py. Operands have a row
for each vector subcore of a v6e, or of the TPU that is here, which has to have
as many lanes.
"""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np


def _mesh_and_chip(chip):
  """One device of a chip, or of the TPU that is here."""
  if jax.default_backend() == "tpu":
    return jax.sharding.Mesh(jax.devices()[:1], ("x",)), None
  one_device = jax.sharding.AbstractMesh((1,), ("x",))
  return pallas.on_chip(one_device, chip), chip


def chip_with_sparsecores(mesh, chip):
  """The chip whose cores are meant; another one where a TPU has none.

  Then nothing here runs on any, but this can be imported.
  """
  if chip is None and pallas.find_chip(mesh).facts.sparse_core is None:
    return "v6e"
  return chip


SPARSE_MESH, _chip = _mesh_and_chip("v6e")
_chip = chip_with_sparsecores(SPARSE_MESH, _chip)
VECTOR = pallas.vector_subcore_mesh(chip=_chip)
SCALAR = pallas.scalar_subcore_mesh(chip=_chip)
TENSOR_MESH, _chip = _mesh_and_chip("v5p")
TENSOR = pallas.tensor_core_mesh(chip=_chip)
WORKERS, SUBCORES = VECTOR.size, VECTOR.shape["subcore"]
LANES = 8
P = jax.sharding.PartitionSpec
_DMA = pltpu.SemaphoreType.DMA
_INTERLEAVED = plsc.PackFormat.INTERLEAVED
_COMPRESSED = plsc.PackFormat.COMPRESSED

_rng = np.random.default_rng(0)
F = _rng.normal(size=(WORKERS, LANES)).astype(np.float32)
G = _rng.normal(size=(WORKERS, LANES)).astype(np.float32)
INTS = _rng.integers(0, 5, (WORKERS, LANES)).astype(np.int32)
_SIGNED = _rng.integers(-9, 9, (WORKERS, LANES)).astype(np.int32)
_PLACES = np.argsort(_rng.random((WORKERS, LANES)), 1).astype(np.int32)
_B16 = _rng.normal(size=(WORKERS, 2 * LANES)).astype(jnp.bfloat16)
TABLE = _rng.normal(size=(40, 16)).astype(np.float32)
IDS = _rng.integers(0, 40, (WORKERS, LANES)).astype(np.int32)


def me():
  return jax.lax.axis_index("core") * SUBCORES + jax.lax.axis_index("subcore")


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


_ALL = np.ones(LANES, bool)

# pylint: disable=line-too-long
# Name -> operands of all workers, body on VMEM of one, what NumPy computes.
# A body gets its operands, and a copy of the last of them for the result.
REGISTERS = {
    "add": ([F, G, F], lambda a, b, o: o.set(a[...] + b[...]), lambda a, b, _: a + b),
    "divide": ([F, G, F], lambda a, b, o: o.set(a[...] / b[...]), lambda a, b, _: a / b),
    "exp": ([F, F], lambda a, o: o.set(jnp.exp(a[...])), lambda a, _: np.exp(a)),
    "abs": ([F, F], lambda a, o: o.set(jnp.abs(a[...])), lambda a, _: abs(a)),
    "sign": ([F, F], lambda a, o: o.set(jnp.sign(a[...])), lambda a, _: np.sign(a)),
    "maximum": ([F, G, F], lambda a, b, o: o.set(jnp.maximum(a[...], b[...])), lambda a, b, _: np.maximum(a, b)),
    "where": ([F, G, F], lambda a, b, o: o.set(jnp.where(a[...] > 0, a[...], b[...])), lambda a, b, _: np.where(a > 0, a, b)),
    "clip": ([F, F], lambda a, o: o.set(jnp.clip(a[...], -1, 1)), lambda a, _: np.clip(a, -1, 1)),
    "remainder": ([_SIGNED, INTS], lambda a, o: o.set(jax.lax.rem(a[...], 5)), lambda a, _: np.fmod(a, 5)),
    "to_float": ([_SIGNED, F], lambda a, o: o.set(a[...].astype(jnp.float32)), lambda a, _: a.astype(np.float32)),
    "to_bfloat16": ([F, _B16[:, :8]], lambda a, o: o.set(a[...].astype(jnp.bfloat16)), lambda a, _: a.astype(jnp.bfloat16)),
    "bits": ([F, INTS], lambda a, o: o.set(jax.lax.bitcast_convert_type(a[...], jnp.int32)), lambda a, _: a.view(np.int32)),
    "element": ([F, F], lambda a, o: o.set(a[...] * a[...][3]), lambda a, _: a * a[3]),
    "sum": ([F, F], lambda a, o: o.set(jnp.full((8,), jnp.sum(a[...]))), lambda a, _: np.full(8, a.sum())),
    "load_expanded": (
        [F, F],
        lambda a, o: o.set(jnp.where(a[...] > 0, plsc.load_expanded(a.at[...], mask=a[...] > 0), 0.0)),
        lambda a, _: _expanded(a, a > 0),
    ),
    "store_compressed": (
        [F, G],
        lambda a, o: plsc.store_compressed(o.at[...], a[...], mask=a[...] > 0),
        lambda a, o: _compressed(a, a > 0, o),
    ),
    "addupdate": ([F, G], lambda a, o: plsc.addupdate(o.at[...], a[...]), lambda a, o: a + o),
    "addupdate_compressed": (
        [F, G],
        lambda a, o: plsc.addupdate_compressed(o.at[...], a[...], mask=a[...] > 0),
        lambda a, o: o + _compressed(a, a > 0, np.zeros_like(o)),
    ),
    "load_gather": ([F, _PLACES, F], lambda a, i, o: o.set(plsc.load_gather(a, [i[...]])), lambda a, i, _: a[i]),
    "load_gather_masked": (
        [F, _PLACES, F],
        lambda a, i, o: o.set(jnp.where(i[...] > 2, plsc.load_gather(a, [i[...]], mask=i[...] > 2), 0.0)),
        lambda a, i, _: np.where(i > 2, a[i], 0),
    ),
    "store_scatter": ([F, _PLACES, G], lambda a, i, o: _store(o, [i[...]], a[...]), lambda a, i, o: a[np.argsort(i)]),
    "store_scatter_masked": (
        [F, _PLACES, G],
        lambda a, i, o: _store(o, [i[...]], a[...], mask=i[...] > 2),
        lambda a, i, o: np.where(np.arange(8) > 2, a[np.argsort(i)], o),
    ),
    "addupdate_scatter": (
        [F, INTS, G],
        lambda a, i, o: plsc.addupdate_scatter(o, [i[...]], a[...]),
        lambda a, i, o: o + np.bincount(i, a, 8).astype(np.float32),
    ),
    "cumsum": ([F, F], lambda a, o: o.set(plsc.cumsum(a[...])), lambda a, _: np.cumsum(a)),
    "cumsum_masked": (
        [F, F],
        lambda a, o: o.set(plsc.cumsum(a[...], mask=a[...] > 0)),
        lambda a, _: np.cumsum(np.where(a > 0, a, 0)),
    ),
    "cummax": ([F, F], lambda a, o: o.set(plsc.cummax(a[...])), lambda a, _: np.maximum.accumulate(a)),
    "cummax_masked": (
        [F, F],
        lambda a, o: o.set(plsc.cummax(a[...], mask=a[...] > 0.5)),
        lambda a, _: _running_max(a, a > 0.5),
    ),
    "sort_keys": (
        [F, INTS, F],
        lambda a, v, o: o.set(plsc.sort_key_val(a[...], v[...])[0]),
        lambda a, v, _: np.sort(a),
    ),
    "sort_values": (
        [F, INTS, INTS],
        lambda a, v, o: o.set(plsc.sort_key_val(a[...], v[...])[1]),
        lambda a, v, _: v[_sorted(a, _ALL)],
    ),
    "sort_descending": (
        [F, INTS, INTS],
        lambda a, v, o: o.set(plsc.sort_key_val(a[...], v[...], descending=True)[1]),
        lambda a, v, _: v[_sorted(a, _ALL, True)],
    ),
    "sort_masked": (
        [F, INTS, F],
        lambda a, v, o: o.set(jnp.where((s := plsc.sort_key_val(a[...], v[...], mask=v[...] > 1))[2], s[0], 0)),
        lambda a, v, _: np.where((v > 1)[_sorted(a, v > 1)], a[_sorted(a, v > 1)], 0),
    ),
    "scan_count": ([INTS, INTS], lambda a, o: o.set(plsc.scan_count(a[...])[0]), lambda a, _: _counts(a, _ALL)),
    "scan_count_last": (
        [INTS, INTS],
        lambda a, o: o.set(plsc.scan_count(a[...], a[...] > 1)[1].astype(jnp.int32)),
        lambda a, _: _last(a, a > 1),
    ),
    "count_true": (
        [F, INTS],
        lambda a, o: o.set(plsc.all_reduce_population_count(a[...] > 0)),
        lambda a, _: np.full(8, (a > 0).sum()),
    ),
    "first_true": (
        [F, INTS],
        lambda a, o: o.set(plsc.all_reduce_ffs(a[...] > 0.8)),
        lambda a, _: np.full(8, np.argmax(a > 0.8) if (a > 0.8).any() else 8),
    ),
    "pack": (
        [F, G, _B16],
        lambda a, b, o: o.set(plsc.pack(a[...], b[...], format=_INTERLEAVED)),
        lambda a, b, _: np.stack([a, b], 1).reshape(-1).astype(jnp.bfloat16),
    ),
    "pack_compressed": (
        [F, G, _B16],
        lambda a, b, o: o.set(plsc.pack(a[...], b[...], format=_COMPRESSED).reshape(16)),
        lambda a, b, _: np.concatenate([a, b]).astype(jnp.bfloat16),
    ),
    "unpack": (
        [_B16, F],
        lambda a, o: o.set(sum(plsc.unpack(a[...], format=_INTERLEAVED))),
        lambda a, _: a[::2].astype(np.float32) + a[1::2].astype(np.float32),
    ),
    "bitcast_to_smaller": (
        [F, _B16],
        lambda a, o: o.set(plsc.bitcast(a[...], jnp.bfloat16)),
        lambda a, _: a.view(jnp.bfloat16),
    ),
    "bitcast_to_larger": ([_B16, INTS], lambda a, o: o.set(plsc.bitcast(a[...], jnp.int32)), lambda a, _: a.view(np.int32)),
    "bitcast": ([F, INTS], lambda a, o: o.set(plsc.bitcast(a[...], jnp.int32)), lambda a, _: a.view(np.int32)),
}  # fmt: skip
# pylint: enable=line-too-long


# --- Bodies with control flow and copies; they get HBM ---


def _loop(x, o, row):
  pltpu.sync_copy(x.at[me()], row)

  @pl.loop(0, me() % 3)
  def _(k):
    row[...] = row[...] + k + 1

  pltpu.sync_copy(row, o.at[me()])


def _loop_with_carry(x, o, row):
  pltpu.sync_copy(x.at[me()], row)
  total = pl.loop(0, 4, init_carry=jnp.zeros((8,), jnp.float32))(
      lambda k, total: total + row[...] * k
  )
  row[...] = total
  pltpu.sync_copy(row, o.at[me()])


def _while(x, o, row):
  pltpu.sync_copy(x.at[me()], row)
  row[...] = jax.lax.while_loop(
      lambda v: v[0] < 3.0, lambda v: v + 1.0, row[...]
  )
  pltpu.sync_copy(row, o.at[me()])


def _cond(x, o, row):
  pltpu.sync_copy(x.at[me()], row)
  row[...] = jax.lax.cond(
      me() % 2 == 0, lambda: row[...] + 1, lambda: row[...] * 2
  )
  pltpu.sync_copy(row, o.at[me()])


def _parallel_loop(x, o, row):
  pltpu.sync_copy(x.at[me()], row)

  @plsc.parallel_loop(0, 8, step=8)
  def _(k):
    row[pl.ds(k, 8)] = row[pl.ds(k, 8)] * 3

  pltpu.sync_copy(row, o.at[me()])


def _parallel_loop_with_carry(x, o, row):
  pltpu.sync_copy(x.at[me()], row)
  start = jnp.zeros((8,), jnp.float32)
  row[...] = plsc.parallel_loop(0, 6, step=2, carry=start)(
      lambda k, total: total + row[...] * k
  )
  pltpu.sync_copy(row, o.at[me()])


def _scoped(x, o, row):
  pltpu.sync_copy(x.at[me()], row)

  @pl.loop(0, 2)
  def _(k):
    del k

    @pl.with_scoped(pltpu.VMEM((8,), jnp.float32))
    def twice(own):
      own[...] = row[...]
      row[...] = own[...] + row[...]

    twice()

  pltpu.sync_copy(row, o.at[me()])


def _nested_jit(x, o, row):
  pltpu.sync_copy(x.at[me()], row)
  row[...] = jax.jit(lambda v: jnp.where(v > 0, v, -2 * v))(row[...])
  pltpu.sync_copy(row, o.at[me()])


def _ring_of_copies(x, o, rows, sems):
  for k in range(2):
    pltpu.async_copy(x.at[me()], rows.at[k], sems.at[k])
  for k in range(2):
    pltpu.make_async_copy(x.at[me()], rows.at[k], sems.at[k]).wait()
  rows[0, :] = rows[0, :] + rows[1, :]
  pltpu.sync_copy(rows.at[0], o.at[me()])


def _columns(x, o, row):
  pltpu.sync_copy(x.at[me(), pl.ds(4, 4)], row.at[pl.ds(0, 4)])
  pltpu.sync_copy(x.at[me(), pl.ds(0, 4)], row.at[pl.ds(4, 4)])
  pltpu.sync_copy(row, o.at[me()])


def _barrier(x, o, row, shared):
  core, subcore = jax.lax.axis_index("core"), jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[me()], row)
  pltpu.sync_copy(row, shared.at[subcore])
  plsc.subcore_barrier()
  pltpu.sync_copy(shared.at[(subcore + 1) % SUBCORES], row)
  row[...] = row[...] + core.astype(jnp.float32)
  pltpu.sync_copy(row, o.at[me()])


def _barrier_in_loop(x, o, row, shared, count=None):
  subcore = jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[me()], row)

  @pl.loop(0, 3 if count is None else count())
  def _(k):
    del k
    pltpu.sync_copy(row, shared.at[subcore])
    plsc.subcore_barrier()
    pltpu.sync_copy(shared.at[(subcore + 1) % SUBCORES], row)
    plsc.subcore_barrier()

  pltpu.sync_copy(row, o.at[me()])


def _barrier_in_loop_of_core(x, o, row, shared):
  _barrier_in_loop(x, o, row, shared, lambda: 1 + jax.lax.axis_index("core"))


def _barrier_in_branch(x, o, row, shared):
  subcore = jax.lax.axis_index("subcore")
  pltpu.sync_copy(x.at[me()], row)

  @pl.when(jax.lax.axis_index("core") == 1)
  def _():
    pltpu.sync_copy(row, shared.at[subcore])
    plsc.subcore_barrier()
    pltpu.sync_copy(shared.at[(subcore + 2) % SUBCORES], row)

  pltpu.sync_copy(row, o.at[me()])


def _fetch_and_add(x, o, row, counter):
  subcore = jax.lax.axis_index("subcore")
  counter[0] = 0
  plsc.subcore_barrier()
  plsc.fetch_and_add(counter.at[0], subcore + 1, subcore_id=subcore // 2)
  plsc.subcore_barrier()
  pltpu.sync_copy(x.at[me()], row)
  row[...] = row[...] * counter[0].astype(jnp.float32)
  pltpu.sync_copy(row, o.at[me()])


def _rolled(x, by):
  return np.roll(x.reshape(-1, SUBCORES, 8), -by, 1).reshape(x.shape)


ROW = pltpu.VMEM((8,), jnp.float32)
_SHARED = pltpu.VMEM_SHARED((SUBCORES, 8), jnp.float32)
_CORE = np.arange(WORKERS)[:, None] // SUBCORES
_ME = np.arange(WORKERS)[:, None]


def _grown(x):
  for _ in range(20):
    x = np.where(x[:, :1] < 3, x + 1, x)
  return x


# Name -> body, scratch memory, what NumPy computes.
PROGRAMS = {
    "loop": (_loop, [ROW], lambda x: x + np.array([0, 1, 3])[_ME % 3]),
    "loop_with_carry": (_loop_with_carry, [ROW], lambda x: x * 6),
    "while": (_while, [ROW], _grown),
    "cond": (_cond, [ROW], lambda x: np.where(_ME % 2 == 0, x + 1, x * 2)),
    "parallel_loop": (_parallel_loop, [ROW], lambda x: 3 * x),
    "parallel_loop_with_carry": (
        _parallel_loop_with_carry,
        [ROW],
        lambda x: 6 * x,
    ),
    "scoped": (_scoped, [ROW], lambda x: 4 * x),
    "nested_jit": (_nested_jit, [ROW], lambda x: np.where(x > 0, x, -2 * x)),
    "ring_of_copies": (
        _ring_of_copies,
        [pltpu.VMEM((2, 8), jnp.float32), _DMA((2,))],
        lambda x: 2 * x,
    ),
    "columns": (_columns, [ROW], lambda x: np.roll(x, 4, 1)),
    "barrier": (_barrier, [ROW, _SHARED], lambda x: _rolled(x, 1) + _CORE),
    "barrier_in_loop": (
        _barrier_in_loop,
        [ROW, _SHARED],
        lambda x: _rolled(x, 3),
    ),
    "barrier_in_loop_of_core": (
        _barrier_in_loop_of_core,
        [ROW, _SHARED],
        lambda x: np.where(_CORE == 0, _rolled(x, 1), _rolled(x, 2)),
    ),
    "barrier_in_branch": (
        _barrier_in_branch,
        [ROW, _SHARED],
        lambda x: np.where(_CORE == 0, x, _rolled(x, 2)),
    ),
    "fetch_and_add": (
        _fetch_and_add,
        [ROW, pltpu.SMEM((1,), jnp.int32)],
        lambda x: x
        * np.where(_ME % 16 < 8, 4 * (_ME % 16) + 3, 0).astype(np.float32),
    ),
}


# --- Bodies for TensorCores; they get HBM ---


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
X = _rng.normal(size=(2, 8, 128)).astype(np.float32)
_REGULAR = pltpu.SemaphoreType.REGULAR
ON_TENSOR_CORES = {
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


def body_of_registers(name: str):
  """Of REGISTERS: the body of a kernel on HBM, and its scratch memory."""
  operands, body, _ = REGISTERS[name]

  def kernel_body(*refs):
    hbm, o = refs[: len(operands)], refs[len(operands)]
    vmem = refs[len(operands) + 1 :]
    for x, own in zip(hbm, vmem, strict=True):
      pltpu.sync_copy(x.at[me()], own)
    body(*vmem)
    pltpu.sync_copy(vmem[-1], o.at[me()])

  return kernel_body, [pltpu.VMEM(x.shape[1:], x.dtype) for x in operands]


def result_of_registers(name: str) -> np.ndarray:
  """Of REGISTERS: what NumPy computes, for all workers."""
  operands, _, expected = REGISTERS[name]
  return np.stack([expected(*xs) for xs in zip(*operands, strict=True)])


def on_vector_subcores(body, scratch, out, *operands) -> np.ndarray:
  """The result, like `out`, of a kernel on the vector subcores."""
  kernel = pallas.kernel(
      body,
      VECTOR,
      scratch,
      P(),
      P(),
      out_type=jax.ShapeDtypeStruct(out.shape, out.dtype),
      mesh=SPARSE_MESH,
  )
  return np.asarray(kernel(*operands))


def on_tensor_cores(name: str) -> np.ndarray:
  """The result of a kernel of ON_TENSOR_CORES for X."""
  body, scratch, _ = ON_TENSOR_CORES[name]
  kernel = pallas.kernel(body, TENSOR, scratch, P(), P(), mesh=TENSOR_MESH)
  return np.asarray(kernel(X))
