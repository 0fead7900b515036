# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import re
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import export
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu
from jax_tpu_embedding.sparsecore.lib.core.lowering import table as lowerings
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_COO = random_coo.random_coo(
    num_sc_per_device=1,
    rows_per_shard=16,
    batch_size_per_sc=8,
    ids_per_sample=2,
)
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)


def _lookup(table):
  return lookup.lookup_p.bind(
      *_COO.operands, table, device_batch_size=8, **_LIMITS
  )


def _update(table):
  gradient = np.ones((8, 8), np.float32)
  return update.UPDATE_PRIMITIVES["sgd"].bind(
      *_COO.operands, table, gradient, np.float32(1), **_LIMITS
  )


def _update_with_slot(table):
  gradient = np.ones((8, 8), np.float32)
  return update.UPDATE_PRIMITIVES["adagrad"].bind(
      *_COO.operands, table, table + 1, gradient, np.float32(1), **_LIMITS
  )


_OPERATIONS = [("lookup", _lookup), ("update", _update)]


def _shard_map(function, num_devices):
  axis = jax.sharding.PartitionSpec("x")
  return jax.jit(
      jax.shard_map(
          function,
          mesh=jax.sharding.Mesh(jax.devices()[:num_devices], ("x",)),
          in_specs=axis,
          out_specs=axis,
          check_vma=False,
      )
  )


class TableTest(parameterized.TestCase):

  def test_every_operation_has_a_rule_for_any_platform(self):
    rules = lowerings.RULES | lowerings.NATIVE_RULES | lowerings.MLIR_RULES
    operations = {operation for operation, _ in rules}
    self.assertContainsSubset(
        {"lookup", "convert_ids"}
        | {f"update_{name}" for name in update_rules.UPDATE_RULES},
        operations,
    )
    self.assertContainsSubset(lowerings.OF_STACKS, operations)
    for operation in operations - lowerings.BY_PARTS - lowerings.OF_STACKS:
      self.assertIn((operation, None), lowerings.RULES)

  def test_every_native_step_is_that_of_a_rule(self):
    self.assertNotEmpty(cpu.FUSED_UPDATE_RULES)
    self.assertContainsSubset(cpu.FUSED_UPDATE_RULES, update_rules.UPDATE_RULES)
    for name in cpu.FUSED_UPDATE_RULES:
      self.assertIn((f"update_{name}", "cpu"), lowerings.NATIVE_RULES)

  def test_a_rule_that_would_never_be_used_is_refused(self):
    rules = {("toy", None): lambda *_: [], ("toy", "gpu"): lambda *_: []}
    with mock.patch.dict(lowerings.RULES, rules):
      with self.assertRaisesRegex(
          ValueError, "rule of 'toy' for platform 'gpu'.*'cuda' or 'rocm'"
      ):
        lowerings.lowering_rules("toy")

  def test_no_operation_has_two_rules_for_a_platform(self):
    tables = (lowerings.RULES, lowerings.NATIVE_RULES, lowerings.MLIR_RULES)
    self.assertLen(set().union(*tables), sum(map(len, tables)))

  @parameterized.named_parameters(_OPERATIONS)
  def test_platform_without_a_rule_gets_plain_operations(self, function):
    # Lowered only; there need not be such a device.
    table = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    traced = jax.jit(function).trace(table)
    for platform, num_calls in (("rocm", 0), ("tpu", 0), ("cpu", 1)):
      text = traced.lower(lowering_platforms=(platform,)).as_text()
      self.assertEqual(text.count("custom_call @jte_"), num_calls, platform)

  @parameterized.product(
      function=[_lookup, _update, _update_with_slot],
      platforms=[("cpu", "cuda"), ("rocm", "cpu", "tpu")],
  )
  def test_program_for_several_platforms_runs_on_each(
      self, function, platforms
  ):
    table = jnp.arange(128.0).reshape(16, 8)
    exported = export.export(
        jax.jit(function),
        platforms=platforms,
        disabled_checks=[
            export.DisabledSafetyCheck.custom_call(target)
            for target in (
                "jte_lookup_cpu",
                "jte_update_cpu",
                "jte_group_by_row_cuda",
                "jte_group_by_sample_cuda",
                "jte_pool_samples_cuda",
                "jte_step_rows_cuda",
                *calls.TARGETS,
            )
        ],
    )(table)
    text = exported.mlir_module()
    self.assertEqual("SparseDenseMatmul" in text, "tpu" in platforms)
    jax.tree.map(
        np.testing.assert_array_equal, exported.call(table), function(table)
    )

  @parameterized.parameters("tpu", "cpu")
  def test_stacks_that_exchange_nothing_are_lowered_by_themselves(
      self, platform
  ):
    params = dict(device_batch_size=8, **_LIMITS)

    def together(*tables):
      return of_stacks.bind(
          of_stacks.lookup_of_stacks_p,
          [
              of_stacks.OfStack(
                  f"t{k}", lookup.lookup_p, (*_COO.operands, table), params
              )
              for k, table in enumerate(tables)
          ],
          num_devices=4,  # than which the program has fewer
      )

    def apart(*tables):
      return [[_lookup(table)] for table in tables]

    def lowered(function):
      traced = jax.jit(function).trace(
          *[jax.ShapeDtypeStruct((16, dim), jnp.float32) for dim in (8, 16)]
      )
      with mock.patch.object(
          libtpu_features, "installed_version", return_value=None
      ):
        return traced.lower(lowering_platforms=(platform,))

    def operations(function):
      # Without names of values, of which constants have others.
      lines = re.sub(r"%\w+", "%", lowered(function).as_text()).splitlines()
      return sorted(line for line in lines if "% = " in line)

    self.assertEqual(operations(together), operations(apart))
    self.assertIn("lookup/t1", lowered(together).as_text(debug_info=True))
    if platform == "cpu":
      self.assertIn(
          "jit(together)/lookup/t1/sparse_dense_matmul_csr",
          lowered(together).compile().as_text(),
      )

  @parameterized.named_parameters(_OPERATIONS)
  def test_mesh_of_one_device_is_the_device(self, function):
    table = jnp.arange(128.0).reshape(16, 8)
    np.testing.assert_array_equal(
        _shard_map(function, 1)(table), function(table)
    )

  @parameterized.named_parameters(_OPERATIONS)
  def test_sharded_table_outside_of_shard_map_raises(self, function):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    table = jax.device_put(jnp.ones((16, 8)), sharding)
    with self.assertRaisesRegex(
        NotImplementedError, "over 2 devices outside of jax.shard_map"
    ):
      jax.jit(function)(table)


# What lowering by kernels imports must change nothing that JAX keeps traced
# programs by. (JAX 0.12 has such imports.)
_LOWERED_BY_KERNELS = """
import importlib, sys, jax
importlib.import_module(sys.argv[1])
traces = []
step = jax.jit(lambda x: traces.append(x) or x)
step(1.0)
importlib.import_module(sys.argv[2])
step(1.0)
print(len(traces))
"""


class ImportTest(absltest.TestCase):

  def test_lowering_has_no_program_traced_again(self):
    rules = lowerings.__package__ + ".tpu_kernels.rules"
    output = subprocess.check_output(
        [sys.executable, "-c", _LOWERED_BY_KERNELS, lowerings.__name__, rules],
        env={"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"},
        text=True,
    )
    self.assertEqual(output, "1\n")


if __name__ == "__main__":
  absltest.main()
