# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Meshes of several axes: which ones work, and what the others are told."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)

_P = jax.sharding.PartitionSpec
_NUM_SCS = 4
_BATCH = _NUM_SCS * 8
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
_COO = random_coo.random_coo(
    num_sc_per_device=_NUM_SCS,
    rows_per_shard=16,
    batch_size_per_sc=8,
    ids_per_sample=3,
)
_TABLE = np.float32(np.random.default_rng(0).normal(size=(_NUM_SCS * 16, 4)))
# Four devices have the table, twice.
_MESH = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("d", "x"))
_MESH_OF_TWO_BY_TWO = jax.sharding.Mesh(
    np.array(jax.devices()[:4]).reshape(2, 2), ("d", "x")
)


def _step(num_devices):
  """The lookup and then an update, with the activations as gradient."""

  def step(*operands):
    activations = lookup.lookup_p.bind(
        *operands, device_batch_size=_BATCH // num_devices, **_LIMITS
    )
    return activations, update.UPDATE_PRIMITIVES["sgd"].bind(
        *operands, activations, np.float32(0.1), **_LIMITS
    )

  return step


def _over_devices(spec=_P("x"), mesh=_MESH, **kwargs):
  specs = (*[spec] * 4, _P(), spec)
  return jax.jit(
      jax.shard_map(
          _step(4),
          mesh=mesh,
          in_specs=specs,
          out_specs=spec,
          **kwargs,
      )
  )(*_COO.operands, _TABLE)


class MeshAxisTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("seen_by_what_varies", _MESH, dict()),
      ("named", _MESH, dict(axis_names={"x"}, check_vma=False)),
      (
          "others_of_one_device",
          jax.sharding.Mesh(
              np.array(jax.devices()[:4]).reshape(1, 4, 1), ("d", "x", "m")
          ),
          dict(check_vma=False),
      ),
  )
  def test_one_axis_of_several_splits_the_table(self, mesh, kwargs):
    expected = jax.jit(_step(1))(*_COO.operands, _TABLE)
    actual = _over_devices(mesh=mesh, **kwargs)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)

  @parameterized.product(
      axes=["x", ("x",), ("d", "x"), ("x", "d")], check_vma=[False, True]
  )
  def test_axes_that_are_named_split_the_table_in_their_order(
      self, axes, check_vma
  ):
    # Four SparseCores: on the four devices of "x", or one on each of four.
    mesh = _MESH if len(axes) == 1 else _MESH_OF_TWO_BY_TWO
    expected = jax.jit(_step(1))(*_COO.operands, _TABLE)
    with mesh_axis.rows_are_split_over(axes):
      actual = _over_devices(_P(axes), mesh=mesh, check_vma=check_vma)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)

  def test_names_hold_in_loops_and_recomputed_programs(self):
    def step(*operands):
      *coo, table = operands

      def body(table, _):
        with mesh_axis.rows_are_split_over(("x", "d")):
          return _step(4)(*coo, table)[1], None

      return jax.lax.scan(jax.checkpoint(body), table, length=2)[0]

    spec = _P(("x", "d"))
    actual = jax.jit(
        jax.shard_map(
            step,
            mesh=_MESH_OF_TWO_BY_TWO,
            in_specs=(*[spec] * 4, _P(), spec),
            out_specs=spec,
            check_vma=False,
        )
    )(*_COO.operands, _TABLE)
    one = jax.jit(_step(1))
    expected = one(*_COO.operands, one(*_COO.operands, _TABLE)[1])[1]
    np.testing.assert_array_equal(actual, expected)

  def test_one_named_axis_of_one_device_exchanges_nothing(self):
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 8), ("d", "x"))
    expected = jax.jit(_step(1))(*_COO.operands, _TABLE)
    with mesh_axis.rows_are_split_over(("d",)):
      actual = jax.jit(
          jax.shard_map(
              _step(1),
              mesh=mesh,
              in_specs=(*[_P("d")] * 4, _P(), _P("d")),
              out_specs=_P("d"),
              check_vma=False,
          )
      )(*_COO.operands, _TABLE)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)

  @parameterized.named_parameters(
      ("any_of_two", _P("x"), dict(check_vma=False)),
      ("both", _P(("d", "x")), dict()),
  )
  def test_axes_that_may_split_the_table_raise_with_their_names(
      self, spec, kwargs
  ):
    with self.assertRaisesRegex(
        NotImplementedError,
        r"any of the mesh axes \['d', 'x'\], with sizes \[2, 4\].*axis_names",
    ):
      _over_devices(spec, **kwargs)

  @parameterized.parameters((("z",),), (("x", "z"),))
  def test_axes_that_no_mesh_has_raise_with_those_it_has(self, axes):
    with (
        mesh_axis.rows_are_split_over(axes),
        self.assertRaisesRegex(
            ValueError, r"over the mesh axes \['d', 'x'\], without \['z'\]"
        ),
    ):
      _over_devices(check_vma=False)

  def test_axes_that_shard_map_does_not_split_raise(self):
    with (
        mesh_axis.rows_are_split_over("d"),
        self.assertRaisesRegex(
            ValueError, r"over the mesh axes \['x'\], without \['d'\]"
        ),
    ):
      _over_devices(axis_names={"x"}, check_vma=False)

  @parameterized.parameters(((),), ([],), (("x", "x"),))
  def test_axes_that_split_nothing_raise(self, axes):
    with self.assertRaisesRegex(ValueError, "mesh axes .* each once, got"):
      mesh_axis.rows_are_split_over(axes)

  def test_gradient_of_a_sum_over_devices_is_that_of_one_device(self):
    # With check_vma, which knows from the types what differs between devices.
    def gradient(num_devices):
      def loss(activations):
        total = (activations**2).sum()
        return jax.lax.psum(total, "x") if num_devices > 1 else total

      def run(*operands):
        activations = lookup.lookup_p.bind(
            *operands, device_batch_size=_BATCH // num_devices, **_LIMITS
        )
        return jax.grad(loss)(activations)

      if num_devices > 1:
        run = jax.shard_map(
            run,
            mesh=_MESH,
            in_specs=(*[_P("x")] * 4, _P(), _P("x")),
            out_specs=_P("x"),
        )
      return jax.jit(run)(*_COO.operands, _TABLE)

    np.testing.assert_array_equal(gradient(4), gradient(1))

  def test_table_is_carried_through_a_loop(self):
    def steps(*operands):
      *coo, table = operands

      def body(table, _):
        return _step(4)(*coo, table)[1], None

      return jax.lax.scan(body, table, length=2)[0]

    table = jax.jit(
        jax.shard_map(
            steps,
            mesh=_MESH,
            in_specs=(*[_P("x")] * 4, _P(), _P("x")),
            out_specs=_P("x"),
        )
    )(*_COO.operands, _TABLE)
    one = jax.jit(_step(1))
    expected = one(*_COO.operands, one(*_COO.operands, _TABLE)[1])[1]
    np.testing.assert_array_equal(table, expected)


if __name__ == "__main__":
  absltest.main()
