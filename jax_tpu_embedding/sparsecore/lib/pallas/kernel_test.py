# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import time

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec
_CORES = pallas.tensor_core_mesh(chip="v5p")
_BLOCK = pltpu.VMEM((8, 128), jnp.float32)


def _mesh():
  return jax.make_mesh((4,), ("device",))


def double(x, o, block):
  core = jax.lax.axis_index("core")
  pltpu.sync_copy(x.at[core], block)
  block[...] = block[...] * 2
  pltpu.sync_copy(block, o.at[core])


def double_in_place(x, block):
  double(x, x, block)


def add_and_subtract(xs, total, difference, block, other):
  core = jax.lax.axis_index("core")
  pltpu.sync_copy(xs["a"].at[core], block)
  pltpu.sync_copy(xs["b"].at[core], other)
  block[...], other[...] = block[...] + other[...], block[...] - other[...]
  pltpu.sync_copy(block, total.at[core])
  pltpu.sync_copy(other, difference.at[core])


_X = np.random.default_rng(0).normal(size=(8, 8, 128)).astype(np.float32)
_TYPE = jax.ShapeDtypeStruct((2, 8, 128), jnp.float32)
_SPECS = dict(in_specs=P("device"), out_specs=P("device"))


class KernelTest(parameterized.TestCase):

  @parameterized.parameters("mesh", "set_mesh", "operand")
  def test_it_is_sharded_over_the_mesh_at_hand(self, where):
    mesh = _mesh()
    x = jax.device_put(_X, jax.sharding.NamedSharding(mesh, P("device")))
    if where == "mesh":
      result = pallas.kernel(double, _CORES, [_BLOCK], **_SPECS, mesh=mesh)(x)
    elif where == "set_mesh":
      with jax.set_mesh(mesh):
        result = pallas.kernel(double, _CORES, [_BLOCK], **_SPECS)(x)
    else:
      result = pallas.kernel(double, _CORES, [_BLOCK], **_SPECS)(x)
    np.testing.assert_array_equal(result, 2 * _X)
    self.assertLen(result.sharding.device_set, 4)

  def test_without_specs_it_is_for_the_arrays_of_one_device(self):
    run = pallas.kernel(double, _CORES, [_BLOCK])
    np.testing.assert_array_equal(run(_X[:2]), 2 * _X[:2])
    np.testing.assert_array_equal(jax.jit(run)(_X[:2]), 2 * _X[:2])
    mesh = _mesh()
    x = jax.device_put(_X, jax.sharding.NamedSharding(mesh, P("device")))
    sharded = jax.shard_map(
        run,
        mesh=pallas.on_chip(mesh),
        in_specs=P("device"),
        out_specs=P("device"),
        check_vma=False,
    )
    np.testing.assert_array_equal(jax.jit(sharded)(x), 2 * _X)

  def test_a_mesh_that_says_no_chip_is_an_error(self):
    mesh = _mesh()
    x = jax.device_put(_X, jax.sharding.NamedSharding(mesh, P("device")))
    sharded = jax.shard_map(
        pallas.kernel(double, _CORES, [_BLOCK]),
        mesh=mesh,
        in_specs=P("device"),
        out_specs=P("device"),
        check_vma=False,
    )
    with self.assertRaisesRegex(
        ValueError, r"emulated on a mesh of 'cpu'.*mesh=on_chip\(mesh, 'v5p'"
    ):
      jax.eval_shape(sharded, x)

  def test_it_is_a_decorator(self):
    @pallas.kernel(core_mesh=_CORES, scratch_shapes=dict(block=_BLOCK))
    def by_name(x, o, *, block):
      double(x, o, block)

    np.testing.assert_array_equal(by_name(_X[:2]), 2 * _X[:2])

  def test_trees_of_operands_and_several_results(self):
    run = pallas.kernel(
        add_and_subtract, _CORES, [_BLOCK] * 2, out_type=(_TYPE, _TYPE)
    )
    total, difference = run({"a": _X[:2], "b": _X[2:4]})
    np.testing.assert_array_equal(total, _X[:2] + _X[2:4])
    np.testing.assert_array_equal(difference, _X[:2] - _X[2:4])

  def test_in_place_operands_are_results_and_consumed(self):
    mesh = _mesh()
    x = jax.device_put(_X, jax.sharding.NamedSharding(mesh, P("device")))
    run = pallas.kernel(
        double_in_place, _CORES, [_BLOCK], **_SPECS, in_place=[0]
    )
    text = run.lower(x).compile().as_text()
    self.assertIn("input_output_alias", text)
    np.testing.assert_array_equal(run(x), 2 * _X)
    self.assertTrue(x.is_deleted())

  def test_the_chip_is_that_of_the_mesh(self):
    seen = []

    def body(o, row):
      seen.append(pltpu.get_tpu_info().sparse_core.num_lanes)
      row[...] = jnp.ones((16,))
      pltpu.sync_copy(row, o.at[jax.lax.axis_index("core")])

    mesh = _mesh()
    for chip, lanes in (("7x", 16), ("v6e", 8)):
      run = pallas.kernel(
          body,
          pallas.scalar_subcore_mesh(chip=chip),
          [pltpu.SMEM((16,), jnp.float32)],
          in_specs=(),
          out_specs=P("device"),
          out_type=jax.ShapeDtypeStruct((2, 16), jnp.float32),
          mesh=pallas.on_chip(mesh, chip),
      )
      with self.subTest(chip):
        try:
          run.lower()
        except Exception:  # pylint: disable=broad-exception-caught
          pass  # Scalar subcores have no vectors; what was seen counts.
        self.assertEqual(seen[-1], lanes)

  def test_without_check_mistakes_are_not_looked_for(self):
    def body(x, o, block):
      del x
      pltpu.sync_copy(block, o.at[jax.lax.axis_index("core")])
      block[...] = block[...] + 1

    run = pallas.kernel(body, _CORES, [_BLOCK])
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "has written"):
      jax.block_until_ready(run(_X[:2]))
    silent = pallas.kernel(body, _CORES, [_BLOCK], check=False)
    self.assertTrue(np.isnan(silent(_X[:2])).all())


class WrongCallsTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(body=3), TypeError, "body must be a function of refs, got int"),
      (
          dict(core_mesh=None),
          TypeError,
          "'double': core_mesh must be a mesh of cores.*got NoneType",
      ),
      (
          dict(core_mesh=jax.sharding.AbstractMesh((4,), ("device",))),
          TypeError,
          "got AbstractMesh. That is a mesh of devices, which is the argument",
      ),
      (
          dict(in_specs=P("device")),
          ValueError,
          "in_specs without out_specs. Pass both, or neither",
      ),
      (
          dict(mesh=jax.sharding.AbstractMesh((4,), ("device",))),
          ValueError,
          "mesh without in_specs and out_specs",
      ),
      (
          dict(mesh="v5p", **_SPECS),
          TypeError,
          "mesh must be a jax.sharding.Mesh of devices, got str",
      ),
      (
          dict(out_type=_TYPE, out_shape=(2, 8)),
          ValueError,
          r"out_type=.* beside out_shape=\(2, 8\).*Pass out_type alone",
      ),
      (
          dict(engine="gpu"),
          ValueError,
          "There is no engine 'gpu'. Use one of tpu, emulate, interpret",
      ),
      (
          dict(in_place=[-1]),
          ValueError,
          "in_place must have numbers of operands, from 0, got -1",
      ),
      (
          dict(in_place=[0, 0]),
          ValueError,
          r"in_place has an operand twice: \(0, 0\)",
      ),
      (
          dict(in_place=[1]),
          ValueError,
          "in_place has operand 1, and there are 1. The first is 0",
      ),
      (
          dict(out_type=(3,)),
          TypeError,
          "out_type must have jax.ShapeDtypeStructs, got 3",
      ),
      (
          _SPECS,
          ValueError,
          "for a mesh of devices, and there is none. Pass mesh, call",
      ),
      (
          dict(core_mesh=pallas.tensor_core_mesh(chip="v5p"), chip="v6e"),
          ValueError,
          "core_mesh has 2 cores, and chip 'v6e' has 1.*chip='v6e'",
      ),
      (
          dict(operand=3),
          TypeError,
          "operand 0 has a int, 3. Pass arrays; a number that is fixed can be",
      ),
      (
          dict(operands=()),
          ValueError,
          "no operand whose shape and dtype its result could have. Pass out_t",
      ),
  )
  def test_message_names_argument_value_and_remedy(
      self, arguments, error, message
  ):
    arguments = dict(
        body=double, core_mesh=_CORES, scratch_shapes=[_BLOCK]
    ) | dict(arguments)
    operands = arguments.pop("operands", (arguments.pop("operand", _X[:2]),))
    chip = arguments.pop("chip", "v5p")
    if chip != "v5p":
      one = jax.sharding.AbstractMesh((1,), ("x",))
      arguments |= dict(
          in_specs=P(), out_specs=P(), mesh=pallas.on_chip(one, chip)
      )
    with self.assertRaisesRegex(error, message):
      pallas.kernel(**arguments)(*operands)

  def test_the_baseline_is_right(self):
    run = pallas.kernel(double, _CORES, [_BLOCK])
    np.testing.assert_array_equal(run(_X[:2]), 2 * _X[:2])


class SizeTest(absltest.TestCase):
  """Work of a size that JAX's own interpreter would take minutes for.

  No times are asserted; what the engine takes is printed.
  """

  def test_rows_are_stepped_in_place(self):
    share, chunk, width = 64, 32, 128

    def adagrad(table, sums, ids, gradients, ids_v, g, row, total):
      worker = jax.lax.axis_index("core") * 16 + jax.lax.axis_index("subcore")

      @pl.loop(0, share // chunk)
      def _(k):
        part = pl.ds(worker * share + k * chunk, chunk)
        pltpu.sync_copy(ids.at[part], ids_v)
        pltpu.sync_copy(gradients.at[part], g)
        pltpu.sync_copy(table.at[ids_v], row)
        pltpu.sync_copy(sums.at[ids_v], total)

        @pl.loop(0, chunk)
        def _(r):
          @pl.loop(0, width, step=8)
          def _(c):
            at = r, pl.ds(c, 8)
            total[at] = total[at] + g[at] * g[at]
            row[at] = row[at] - 0.1 * g[at] * jax.lax.rsqrt(total[at])

        pltpu.sync_copy(row, table.at[ids_v])
        pltpu.sync_copy(total, sums.at[ids_v])

    rng = np.random.default_rng(0)
    num_rows, num_ids = 10_000, 32 * share
    table = rng.normal(size=(num_rows, width)).astype(np.float32)
    sums = np.ones_like(table)
    ids = rng.permutation(num_rows)[:num_ids].astype(np.int32)
    gradients = rng.normal(size=(num_ids, width)).astype(np.float32)
    block = pltpu.VMEM((chunk, width), jnp.float32)
    run = pallas.kernel(
        adagrad,
        pallas.vector_subcore_mesh(chip="v6e"),
        [pltpu.VMEM((chunk,), jnp.int32), block, block, block],
        P(),
        P(),
        mesh=pallas.on_chip(jax.sharding.AbstractMesh((1,), ("x",)), "v6e"),
        in_place=[0, 1],
        check=False,
    )
    compiled = run.lower(table, sums, ids, gradients).compile()
    want_table, want_sums = table.copy(), sums.copy()
    want_sums[ids] += gradients**2
    want_table[ids] -= 0.1 * gradients / np.sqrt(want_sums[ids])
    donated = jnp.array(table), jnp.array(sums)
    start = time.process_time()
    new_table, new_sums = jax.block_until_ready(
        compiled(*donated, ids, gradients)
    )
    seconds = max(time.process_time() - start, 1e-9)
    print(f"{num_ids / seconds / 1e3:.0f} K rows of Adagrad per CPU second")
    np.testing.assert_allclose(new_sums, want_sums, rtol=1e-6)
    np.testing.assert_allclose(new_table, want_table, rtol=1e-5, atol=1e-5)

  def test_rows_are_gathered(self):
    mesh = pallas.vector_subcore_mesh(chip="v6e")
    share, window = 512, 128

    def gather(table, ids, o, ids_v, rows):
      worker = jax.lax.axis_index("core") * 16 + jax.lax.axis_index("subcore")

      def step(k, carry):
        at = worker * share + k * window
        pltpu.sync_copy(ids.at[pl.ds(at, window)], ids_v)
        pltpu.sync_copy(table.at[plsc.Indices(ids_v, ignored_value=-1)], rows)
        pltpu.sync_copy(rows, o.at[pl.ds(at, window)])
        return carry

      jax.lax.fori_loop(0, share // window, step, 0)

    rng = np.random.default_rng(0)
    table = rng.normal(size=(20_000, 128)).astype(np.float32)
    ids = rng.integers(0, 20_000, 32 * share).astype(np.int32)
    run = pallas.kernel(
        gather,
        mesh,
        [
            pltpu.VMEM((window,), jnp.int32),
            pltpu.VMEM((window, 128), jnp.float32),
        ],
        P(),
        P(),
        out_type=jax.ShapeDtypeStruct((ids.size, 128), jnp.float32),
        mesh=pallas.on_chip(jax.sharding.AbstractMesh((1,), ("x",)), "v6e"),
        check=False,
    )
    compiled = run.lower(table, ids).compile()
    result = jax.block_until_ready(compiled(table, ids))
    np.testing.assert_array_equal(result, table[ids])
    start = time.process_time()
    jax.block_until_ready(compiled(table, ids))
    seconds = max(time.process_time() - start, 1e-9)
    print(f"{ids.size / seconds / 1e6:.2f} M rows of 512 bytes per CPU second")


if __name__ == "__main__":
  absltest.main()
