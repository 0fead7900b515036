# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The kernels of operations.py, and some that are larger, against NumPy."""

import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import operations
import numpy as np

P = jax.sharding.PartitionSpec
_DMA = pltpu.SemaphoreType.DMA
_rng = np.random.default_rng(0)


class VectorSubcoreTest(parameterized.TestCase):

  @parameterized.named_parameters((name, name) for name in operations.REGISTERS)
  def test_operation(self, name):
    operands, _, _ = operations.REGISTERS[name]
    body, scratch = operations.body_of_registers(name)
    result = self.run_kernel(body, scratch, operands[-1], *operands)
    self.assert_equal(result, operations.result_of_registers(name))

  @parameterized.named_parameters((name, name) for name in operations.PROGRAMS)
  def test_program(self, name):
    body, scratch, expected = operations.PROGRAMS[name]
    self.assert_equal(
        self.run_kernel(body, scratch, operations.F, operations.F),
        expected(operations.F),
    )

  @parameterized.parameters(jnp.float32, jnp.bfloat16, jnp.int8)
  def test_gather_of_rows(self, dtype):
    table = (10 * operations.TABLE).astype(dtype)

    def body(table, ids, o, ids_v, rows):
      pltpu.sync_copy(ids.at[operations.me()], ids_v)
      pltpu.sync_copy(table.at[ids_v], rows)
      pltpu.sync_copy(rows, o.at[operations.me()])

    result = self.run_kernel(
        body,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), dtype)],
        jax.ShapeDtypeStruct((operations.WORKERS, 8, 16), dtype),
        table,
        operations.IDS,
    )
    np.testing.assert_array_equal(result, table[operations.IDS])

  def test_gather_with_ignored_rows_keeps_what_was_there(self):
    ids = np.where(operations.IDS % 3 == 0, -1, operations.IDS)

    def body(table, ids, o, ids_v, rows):
      pltpu.sync_copy(ids.at[operations.me()], ids_v)
      for i in range(8):
        rows[i, :] = jnp.full((16,), 7.0)
      pltpu.sync_copy(table.at[plsc.Indices(ids_v, ignored_value=-1)], rows)
      pltpu.sync_copy(rows, o.at[operations.me()])

    result = self.run_kernel(
        body,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), jnp.float32)],
        jax.ShapeDtypeStruct((operations.WORKERS, 8, 16), jnp.float32),
        operations.TABLE,
        ids,
    )
    want = np.where(ids[..., None] < 0, 7.0, operations.TABLE[ids])
    np.testing.assert_array_equal(result, want)

  @parameterized.parameters(-1, 0)
  def test_scatter_leaves_ignored_rows_alone(self, ignored):
    ids = np.arange(operations.WORKERS * 8, dtype=np.int32).reshape(-1, 8)
    ids[:, ::3] = ignored

    def body(ids, out, ids_v, rows):
      pltpu.sync_copy(ids.at[operations.me()], ids_v)
      rows[...] = jnp.full((8, 16), 7.0)
      pltpu.sync_copy(rows, out.at[plsc.Indices(ids_v, ignored_value=ignored)])

    kernel = pallas.kernel(
        body,
        operations.VECTOR,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), jnp.float32)],
        P(),
        P(),
        mesh=operations.SPARSE_MESH,
        in_place=[1],
    )
    out = np.zeros((operations.WORKERS * 8, 16), np.float32)
    want = out.copy()
    want[ids[ids != ignored]] = 7.0
    np.testing.assert_array_equal(kernel(ids, out), want)

  def test_gather_that_adds(self):
    def body(table, ids, o, ids_v, rows):
      pltpu.sync_copy(ids.at[operations.me()], ids_v)
      pltpu.sync_copy(table.at[ids_v], rows)
      pltpu.sync_copy(table.at[ids_v], rows, add=True)
      pltpu.sync_copy(rows, o.at[operations.me()])

    result = self.run_kernel(
        body,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), jnp.float32)],
        jax.ShapeDtypeStruct((operations.WORKERS, 8, 16), jnp.float32),
        operations.TABLE,
        operations.IDS,
    )
    np.testing.assert_array_equal(result, 2 * operations.TABLE[operations.IDS])

  def test_a_tpu_without_sparsecores_has_those_of_another_chip(self):
    mesh = jax.sharding.AbstractMesh((1,), ("x",))
    for name, expected in (("v5e", "v6e"), ("7x", None)):
      self.assertEqual(
          operations.chip_with_sparsecores(pallas.on_chip(mesh, name), None),
          expected,
      )

  def test_sums_in_shared_memory(self):
    ids = np.where(operations.INTS == 0, -1, operations.INTS)

    def body(x, ids, o, ids_v, x_v, sums):
      subcore = jax.lax.axis_index("subcore")
      x_v[...] = jnp.zeros((8, 8), jnp.float32)

      @pl.when(subcore == 0)
      def _():
        pltpu.sync_copy(x_v, sums)

      plsc.subcore_barrier()
      pltpu.sync_copy(ids.at[operations.me()], ids_v)
      for i in range(8):
        pltpu.sync_copy(x.at[operations.me()], x_v.at[i])
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
        operations.F,
        ids,
    )
    want = np.zeros((2, 8, 8), np.float32)
    for worker in range(operations.WORKERS):
      for i in ids[worker]:
        if i >= 0:
          want[worker // operations.SUBCORES, i] += operations.F[worker]
    np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)

  @parameterized.parameters(1, 5, 8)
  def test_copy_of_a_size_known_at_run_time(self, size):
    sizes = np.full((operations.WORKERS, 8), size, np.int32)

    def body(x, sizes, o, row, size_v):
      pltpu.sync_copy(sizes.at[operations.me()], size_v)
      n = size_v[...][0]
      row[...] = jnp.zeros((8,), jnp.float32)
      pltpu.sync_copy(x.at[operations.me(), pl.ds(0, n)], row.at[pl.ds(0, n)])
      pltpu.sync_copy(row, o.at[operations.me()])

    result = self.run_kernel(
        body,
        [operations.ROW, pltpu.VMEM((8,), jnp.int32)],
        operations.F,
        operations.F,
        sizes,
    )
    np.testing.assert_array_equal(
        result, np.where(np.arange(8) < size, operations.F, 0)
    )

  def test_rows_are_changed_in_place(self):
    def body(table, ids, ids_v, rows):
      pltpu.sync_copy(ids.at[operations.me()], ids_v)
      pltpu.sync_copy(table.at[ids_v], rows)
      for i in range(8):
        rows[i, :] = rows[i, :] * 2
      pltpu.sync_copy(rows, table.at[ids_v])

    table = _rng.normal(size=(1024, 16)).astype(np.float32)
    ids = _rng.permutation(1024)[: operations.WORKERS * 8].reshape(-1, 8)
    kernel = pallas.kernel(
        body,
        operations.VECTOR,
        [pltpu.VMEM((8,), jnp.int32), pltpu.VMEM((8, 16), jnp.float32)],
        P(),
        P(),
        mesh=operations.SPARSE_MESH,
        in_place=[0],
    )
    result = kernel(table, ids.astype(np.int32))
    want = table.copy()
    want[ids.reshape(-1)] *= 2
    np.testing.assert_array_equal(result, want)

  def test_pipeline(self):
    x = _rng.normal(size=(operations.WORKERS * 16, 128)).astype(np.float32)

    def add_one(x, o):
      @pl.loop(0, 8)
      def _(r):
        @pl.loop(0, 128, step=8)
        def _(c):
          o[r, pl.ds(c, 8)] = x[r, pl.ds(c, 8)] + 1

    def body(x, o):
      spec = pl.BlockSpec(
          (pl.BoundedSlice(8), 128),
          lambda i: (
              pl.ds(pl.multiple_of(operations.me() * 16 + i * 8, 8), 8),
              0,
          ),
      )
      pltpu.emit_pipeline(
          add_one, grid=(2,), in_specs=[spec], out_specs=[spec]
      )(x, o)

    np.testing.assert_array_equal(self.run_kernel(body, [], x, x), x + 1)

  def run_kernel(self, *args):
    return operations.on_vector_subcores(*args)

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

    x = operations.INTS[: operations.SCALAR.size]
    kernel = pallas.kernel(
        body,
        operations.SCALAR,
        [pltpu.SMEM((8,), jnp.int32), _DMA],
        P(),
        P(),
        mesh=operations.SPARSE_MESH,
    )
    result = kernel(x)
    np.testing.assert_array_equal(result, np.cumsum(x, 1))


class TensorCoreTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (name, name) for name in operations.ON_TENSOR_CORES
  )
  def test_operation(self, name):
    _, _, expected = operations.ON_TENSOR_CORES[name]
    result = operations.on_tensor_cores(name)
    want = expected(operations.X)
    np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)

  @parameterized.parameters(
      ((20, 128), (16, 128), jnp.float32),
      ((5, 128), (8, 128), jnp.int32),
      ((20, 300), (16, 256), jnp.bfloat16),
      ((1200,), (1024,), jnp.float32),
  )
  def test_pipeline_whose_last_block_is_cut_off(self, shape, block, dtype):
    def add_one(x, o):
      o[...] = x[...] + 1

    def body(x, o):
      spec = pl.BlockSpec(block, lambda *place: place)
      grid = tuple(pl.cdiv(n, size) for n, size in zip(shape, block))

      @pl.when(jax.lax.axis_index("core") == 0)
      def _():
        pltpu.emit_pipeline(
            add_one, grid=grid, in_specs=[spec], out_specs=[spec]
        )(x, o)

    x = jnp.arange(np.prod(shape)).reshape(shape).astype(dtype)
    kernel = pallas.kernel(
        body, operations.TENSOR, (), P(), P(), mesh=operations.TENSOR_MESH
    )
    np.testing.assert_array_equal(kernel(x), x + 1)

  def test_strides_beside_fixed_indices(self):
    def body(x, o, buffer):
      @pl.when(jax.lax.axis_index("core") == 0)
      def _():
        pltpu.sync_copy(x, buffer)
        buffer[0, pl.ds(0, 64, 2)] = buffer[1, pl.ds(1, 64, 2)]
        pltpu.sync_copy(buffer, o)

    x = jnp.arange(8 * 128, dtype=jnp.float32).reshape(8, 128)
    kernel = pallas.kernel(
        body,
        operations.TENSOR,
        [pltpu.VMEM(x.shape, x.dtype)],
        P(),
        P(),
        mesh=operations.TENSOR_MESH,
    )
    np.testing.assert_array_equal(
        kernel(x), x.at[0, 0:128:2].set(x[1, 1:128:2])
    )

  @parameterized.parameters(jnp.int4, jnp.uint4, jnp.bool_, jnp.float8_e4m3fn)
  def test_numbers_of_at_most_a_byte(self, dtype):
    def body(x, o, buffer):
      @pl.when(jax.lax.axis_index("core") == 0)
      def _():
        pltpu.sync_copy(x, buffer)
        pltpu.sync_copy(buffer, o)

    x = (jnp.arange(8 * 128) % 2).reshape(8, 128).astype(dtype)
    kernel = pallas.kernel(
        body,
        operations.TENSOR,
        [pltpu.VMEM(x.shape, dtype)],
        P(),
        P(),
        mesh=operations.TENSOR_MESH,
    )
    np.testing.assert_array_equal(kernel(x), x)

  @parameterized.parameters(0, 1)
  def test_cores_of_one_branch_wait_for_those_of_the_other(self, waiting):
    def body(x, o, row, sem):
      def wait():
        pl.semaphore_wait(sem, 1)
        pltpu.sync_copy(x, row)
        pltpu.sync_copy(row, o)

      def send():
        pl.semaphore_signal(sem, 1, device_id={"core": waiting})

      branches = [wait, send] if waiting == 0 else [send, wait]
      jax.lax.switch(jax.lax.axis_index("core"), branches)

    kernel = pallas.kernel(
        body,
        operations.TENSOR,
        [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.REGULAR],
        P(),
        P(),
        mesh=operations.TENSOR_MESH,
    )
    x = jnp.ones((8, 128))
    np.testing.assert_array_equal(kernel(x), x)

  def test_what_is_not_emulated_is_refused_by_name(self):
    def body(x, o):
      del x, o
      pltpu.prng_seed(0)

    with self.assertRaisesRegex(
        NotImplementedError,
        r"Kernel 'body', operations_test.py:\d+: 'prng_seed' is not emulated."
        " Make random bits outside",
    ):
      jax.eval_shape(
          pallas.kernel(
              body, operations.TENSOR, (), P(), P(), mesh=operations.TENSOR_MESH
          ),
          operations.X,
      )


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
      pltpu.sync_copy(x.at[operations.me()], own)
      pltpu.sync_copy(own, o.at[operations.me()])

    shared = pltpu.VMEM_SHARED((operations.SUBCORES * 8,), jnp.float32)
    kernel = pallas.kernel(
        body, operations.VECTOR, [shared], P(), P(), mesh=operations.SPARSE_MESH
    )
    with self.assertRaisesRegex(
        NotImplementedError, "slice_subcore_vmem_from_shared is not emulated"
    ):
      jax.eval_shape(kernel, operations.F)

  def test_every_public_name_of_tpu_sc_is_covered_or_refused(self):
    folder = pathlib.Path(__file__).parent
    source = (folder / "operations.py").read_text()
    source += pathlib.Path(__file__).read_text()
    # Whole names: addupdate is in those of two other operations.
    used = set(re.findall(r"plsc\.(\w+)", source))
    for name in dir(plsc):
      if name.startswith("_") or name in _NOT_OPERATIONS | _REFUSED:
        continue
      self.assertIn(name, used, f"{name} has no kernel here.")

  def test_there_are_sixty_kernels(self):
    count = (
        len(operations.REGISTERS)
        + len(operations.PROGRAMS)
        + len(operations.ON_TENSOR_CORES)
    )
    self.assertGreaterEqual(count, 60)


if __name__ == "__main__":
  absltest.main()
