# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs that the TPU compiler would take, and that would be wrong."""

from __future__ import annotations

import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands

P = jax.sharding.PartitionSpec

jax.config.update("jax_num_cpu_devices", 2)

_ONE_DEVICE = tpu_operands.Sizes()
_FOUR_DEVICES = tpu_operands.Sizes(num_devices=4)


def _mesh(shape=(4,), names=("x",), device_kind="TPU v5"):
  """Devices that are known by their kind only."""
  return jax.sharding.AbstractMesh(
      shape,
      names,
      axis_types=(jax.sharding.AxisType.Auto,) * len(names),
      abstract_device=jax.sharding.AbstractDevice(
          device_kind=device_kind, num_cores=1, platform="tpu"
      ),
  )


def _lookup_program(sizes, limits):
  bind = functools.partial(
      lookup.lookup_p.bind,
      device_batch_size=sizes.batch_size,
      enable_minibatching=sizes.enable_minibatching,
      **limits,
  )
  return bind, (*sizes.coo(), sizes.table)


def _update_program(sizes, limits, name="adagrad", **params):
  rule = update_rules.UPDATE_RULES[name]
  bind = functools.partial(
      update.UPDATE_PRIMITIVES[name].bind,
      enable_minibatching=sizes.enable_minibatching,
      computation_name="adagrad-stack",
      **limits,
      **tpu_operands.static_params(rule),
      **params,
  )
  options = update_rules.with_options(rule, params.get("row_options", ()))
  return bind, (
      *sizes.coo(),
      sizes.table,
      *sizes.slots(rule),
      sizes.gradient,
      *tpu_operands.hyperparameters(options),
  )


_PROGRAMS = {"lookup": _lookup_program, "update": _update_program}


def _lower(
    program, sizes, mesh=None, limits=tpu_operands.LIMITS, axis_names=None
):
  """Lowers for TPU: on one device, or with shard_map on those of a mesh."""
  bind, operands = program(sizes, limits)
  if mesh is not None:
    axis_names = axis_names or mesh.axis_names
    spec = P(axis_names)
    bind = jax.shard_map(
        bind,
        mesh=mesh,
        in_specs=tuple(spec if x.shape else P() for x in operands),
        out_specs=spec,
        axis_names=set(axis_names),
        check_vma=False,
    )
    operands = [
        x.update(shape=(sizes.num_devices * x.shape[0], *x.shape[1:]))
        if x.shape
        else x
        for x in operands
    ]
  traced = jax.jit(bind).trace(*operands)
  return traced.lower(lowering_platforms=("tpu",))


# Changed fields of _ONE_DEVICE, and the error.
_WRONG_SIZES = {
    "row_pointers": (
        dict(num_row_pointers=33),
        ValueError,
        "row_pointers has 33 entries, which fits no number of SparseCores",
    ),
    "cells": (
        dict(num_cells=248),
        ValueError,
        "embedding_ids has 248 cells, which must be a multiple of 32 for 4",
    ),
    "cells_minibatched": (
        dict(num_cells=100, enable_minibatching=True),
        ValueError,
        "embedding_ids has 100 cells, which must be a multiple of 8 for 4",
    ),
    "samples": (
        dict(batch_size=30),
        ValueError,
        "4 SparseCores cannot share the 30 samples of a device evenly.*"
        "multiple of 4,",
    ),
    "rows": (
        dict(num_rows=72),
        ValueError,
        "table has 72 rows on a device, which must be a multiple of 32",
    ),
    "one_column": (
        dict(embedding_dim=1),
        NotImplementedError,
        r"table has shape \(64, 1\).*Use shape \(64,\)",
    ),
    "large_table": (
        dict(num_rows=2**28 + 32, embedding_dim=16),
        ValueError,
        r"table of shape \(268435488, 16\) has 16.0 GiB on a device; "
        "SparseCores address 16 GiB of a table. Use more devices",
    ),
    "large_table_with_padding": (
        dict(num_rows=2**28 + 32, embedding_dim=9),
        ValueError,
        "has 16.0 GiB",
    ),
}


class TpuChecksTest(parameterized.TestCase):

  @parameterized.product(
      operation=tuple(_PROGRAMS),
      changes=(
          {},
          dict(enable_minibatching=True),
          dict(enable_minibatching=True, num_cells=104),
          dict(embedding_dim=None),
          dict(num_sc_per_device=2, num_rows=48),
          dict(num_rows=2**28),  # 16 GiB
      ),
  )
  def test_sizes_that_fit_are_lowered(self, operation, changes):
    _lower(_PROGRAMS[operation], dataclasses.replace(_ONE_DEVICE, **changes))

  @parameterized.product(operation=tuple(_PROGRAMS), case=tuple(_WRONG_SIZES))
  def test_wrong_size_raises_with_what_would_fit(self, operation, case):
    changes, error, message = _WRONG_SIZES[case]
    with self.assertRaisesRegex(error, message):
      _lower(_PROGRAMS[operation], dataclasses.replace(_ONE_DEVICE, **changes))

  @parameterized.parameters(
      ("lookup", "^Lookup: "), ("update", "^Update 'adagrad-stack': ")
  )
  def test_errors_begin_with_the_operation(self, operation, message):
    with self.assertRaisesRegex(ValueError, message):
      _lower(
          _PROGRAMS[operation], dataclasses.replace(_ONE_DEVICE, num_rows=72)
      )

  @parameterized.product(
      operation=tuple(_PROGRAMS),
      limit=("max_ids_per_partition", "max_unique_ids_per_partition"),
  )
  def test_limit_beyond_what_the_compiler_counts_raises(self, operation, limit):
    limits = dict(max_ids_per_partition=9, max_unique_ids_per_partition=9)
    program = _PROGRAMS[operation]
    _lower(program, _ONE_DEVICE, limits=limits | {limit: 2**28})
    with self.assertRaisesRegex(
        ValueError,
        f"{limit} is 268435457, and can be 268435456 at most with 4"
        " SparseCores",
    ):
      _lower(program, _ONE_DEVICE, limits=limits | {limit: 2**28 + 1})
    with self.assertRaisesRegex(
        ValueError, "can be 67108864 at most with 16 SparseCores"
    ):
      _lower(
          program, _FOUR_DEVICES, _mesh((4,)), limits=limits | {limit: 2**28}
      )

  def test_low_precision_table_raises(self):
    sizes = dataclasses.replace(_ONE_DEVICE, table_dtype=jnp.bfloat16)
    with self.assertRaisesRegex(
        NotImplementedError,
        "table is bfloat16, and SparseCores have float32 tables only",
    ):
      _lower(_PROGRAMS["update"], sizes)

  def test_local_table_of_one_column_raises(self):
    ids = jax.ShapeDtypeStruct((24,), jnp.int32)
    bind = functools.partial(
        local_lookup.local_lookup_p.bind, device_batch_size=8
    )
    with self.assertRaisesRegex(NotImplementedError, r"shape \(64, 1\)"):
      jax.jit(bind).trace(
          ids,
          ids,
          ids.update(dtype=jnp.float32),
          jax.ShapeDtypeStruct((64, 1), jnp.float32),
      ).lower(lowering_platforms=("tpu",))


class DevicesTest(parameterized.TestCase):

  @parameterized.parameters(*_PROGRAMS)
  def test_sizes_for_the_devices_of_a_mesh_are_lowered(self, operation):
    for mesh in (_mesh(), _mesh((2, 2), ("x", "y"))):
      _lower(_PROGRAMS[operation], _FOUR_DEVICES, mesh)

  @parameterized.product(
      operation=tuple(_PROGRAMS), enable_minibatching=(False, True)
  )
  def test_buffers_for_another_chip_raise(self, operation, enable_minibatching):
    sizes = dataclasses.replace(
        _FOUR_DEVICES, enable_minibatching=enable_minibatching
    )
    num_row_pointers = 1024 if enable_minibatching else 16
    with self.assertRaisesRegex(
        ValueError,
        f"4 devices with 2 SparseCores each have {num_row_pointers} with"
        ".*Preprocess with global_device_count=4 and num_sc_per_device=2",
    ):
      _lower(_PROGRAMS[operation], sizes, _mesh(device_kind="TPU v6 lite"))

  @parameterized.parameters(*_PROGRAMS)
  def test_chip_of_an_unknown_kind_raises(self, operation):
    with self.assertRaisesRegex(
        NotImplementedError, "'TPU v9' is not known to have SparseCores"
    ):
      _lower(_PROGRAMS[operation], _FOUR_DEVICES, _mesh(device_kind="TPU v9"))

  @parameterized.parameters(*_PROGRAMS)
  def test_chip_without_sparsecores_has_no_calls_of_them(self, operation):
    found = {
        kind: "SparseDenseMatmul"
        in _lower(
            _PROGRAMS[operation], _FOUR_DEVICES, _mesh(device_kind=kind)
        ).as_text()
        for kind in ("TPU v5", "TPU v5 lite", "TPU v4")
    }
    self.assertEqual(
        found, {"TPU v5": True, "TPU v5 lite": False, "TPU v4": False}
    )

  @parameterized.parameters(*_PROGRAMS)
  def test_rows_that_are_split_in_another_order_raise(self, operation):
    mesh = _mesh((2, 2), ("x", "y"))
    with mesh_axis.rows_are_split_over(("x", "y")):
      _lower(_PROGRAMS[operation], _FOUR_DEVICES, mesh)
    with mesh_axis.rows_are_split_over(("y", "x")):
      with self.assertRaisesRegex(
          NotImplementedError,
          r"split over the mesh axes \['y', 'x'\].*over \['x', 'y'\]",
      ):
        _lower(_PROGRAMS[operation], _FOUR_DEVICES, mesh)

  @parameterized.parameters(*_PROGRAMS)
  def test_axis_that_is_left_to_the_compiler_raises(self, operation):
    with self.assertRaisesRegex(
        NotImplementedError, r"leaves the mesh axes \['y'\] to the compiler"
    ):
      _lower(
          _PROGRAMS[operation],
          _FOUR_DEVICES,
          _mesh((4, 2), ("x", "y")),
          axis_names=("x",),
      )

  @parameterized.parameters(*_PROGRAMS)
  def test_sharded_arrays_outside_of_shard_map_raise(self, operation):
    bind, operands = _PROGRAMS[operation](_ONE_DEVICE, tpu_operands.LIMITS)
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    rows = jax.sharding.NamedSharding(mesh, P("x"))
    operands = [x.update(sharding=rows) if x.shape else x for x in operands]
    with self.assertRaisesRegex(
        NotImplementedError, "sharded over 2 devices.*under jax.shard_map"
    ):
      jax.jit(bind).trace(*operands).lower(lowering_platforms=("tpu",))

  @parameterized.parameters(*_PROGRAMS)
  def test_sparsecores_beyond_what_compiles_raise(self, operation):
    program = _PROGRAMS[operation]
    most = dataclasses.replace(_FOUR_DEVICES, num_devices=1024)
    _lower(program, most, _mesh((1024,)))
    with self.assertRaisesRegex(
        NotImplementedError,
        "2048 devices with 4 SparseCores each are 8192 SparseCores; the TPU"
        " compiler takes 4096",
    ):
      _lower(
          program,
          dataclasses.replace(most, num_devices=2048),
          _mesh((2048,)),
      )


class LibtpuTest(parameterized.TestCase):
  """What some versions of libtpu cannot compile, or die of."""

  def lower(self, version, program, sizes=_ONE_DEVICE):
    with mock.patch.object(
        libtpu_features, "installed_version", return_value=version
    ):
      _lower(program, sizes)

  @parameterized.parameters(
      functools.partial(_update_program, row_options=("max_gradient_norm",)),
      functools.partial(
          _update_program, row_options=("skip_non_finite_gradients",)
      ),
      functools.partial(_update_program, name="rowwise_adagrad"),
  )
  def test_rule_with_a_sum_needs_a_new_libtpu(self, program):
    for version in (None, (0, 0, 51), (0, 1)):
      self.lower(version, program)
    with self.assertRaisesRegex(
        NotImplementedError,
        "'adagrad-stack': a step with a sum.*more than libtpu 0.0.50.1 can"
        " compile. Use libtpu 0.0.51 or later",
    ):
      self.lower((0, 0, 50, 1), program)

  def test_rule_without_a_sum_does_not(self):
    self.lower((0, 0, 42, 1), _update_program)

  def test_minibatches_of_a_table_without_columns_need_a_new_libtpu(self):
    plain = dataclasses.replace(_ONE_DEVICE, embedding_dim=None)
    sizes = dataclasses.replace(plain, enable_minibatching=True)
    self.lower((0, 0, 42, 1), _update_program, plain)
    self.lower((0, 0, 42, 1), _lookup_program, sizes)
    self.lower((0, 0, 48), _update_program, sizes)
    with self.assertRaisesRegex(
        NotImplementedError, "without columns with minibatching .*libtpu 0.0.42"
    ):
      self.lower((0, 0, 42), _update_program, sizes)

  @parameterized.parameters(*_PROGRAMS)
  def test_any_width_needs_a_new_libtpu(self, operation):
    program = _PROGRAMS[operation]
    sizes = dataclasses.replace(_ONE_DEVICE, embedding_dim=100)
    for version in (None, (0, 0, 48, 1)):
      self.lower(version, program, sizes)
    with self.assertRaisesRegex(
        NotImplementedError,
        "a table of a width that is not a multiple of 8 is more than libtpu"
        " 0.0.45 can compile. Use libtpu 0.0.48 or later",
    ):
      self.lower((0, 0, 45), program, sizes)

  def test_sum_in_a_program_of_the_user_is_seen(self):
    program = """
        func.func private @sum(%x: tensor<1x16xf32>) -> tensor<1xf32> {
          %zero = stablehlo.constant dense<0.0> : tensor<f32>
          %sum = stablehlo.reduce(%x init: %zero)
              applies stablehlo.add across dimensions = [1]
              : (tensor<1x16xf32>, tensor<f32>) -> tensor<1xf32>
          return %sum : tensor<1xf32>
        }
        func.func @main(%g: tensor<1x16xf32>, %w: tensor<1x16xf32>)
            -> tensor<1x16xf32> {
          %sum = func.call @sum(%g) : (tensor<1x16xf32>) -> tensor<1xf32>
          %row = stablehlo.broadcast_in_dim %sum, dims = [0]
              : (tensor<1xf32>) -> tensor<1x16xf32>
          return %row : tensor<1x16xf32>
        }"""

    def custom(sizes, limits):
      bind = functools.partial(
          custom_update.custom_update_p.bind,
          num_hyperparameters=0,
          stablehlo=program,
          **limits,
      )
      return bind, (*sizes.coo(), sizes.gradient, sizes.table)

    self.lower((0, 0, 51), custom)
    with self.assertRaisesRegex(NotImplementedError, "a step with a sum"):
      self.lower((0, 0, 42), custom)


if __name__ == "__main__":
  absltest.main()
