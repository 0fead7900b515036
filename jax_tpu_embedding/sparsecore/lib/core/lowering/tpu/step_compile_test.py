# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The TPU compiler takes the steps of which step_operations says so.

Those that it does not take are not tried: they may end the process.
"""

from __future__ import annotations

import importlib.util
import os

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import step_operations
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_step_programs
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology

P = jax.sharding.PartitionSpec

setUpModule = absltest.skipIf(  # pylint: disable=invalid-name
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)(lambda: None)


def _compile(functions):
  """Compiles a step that adds up what `functions` return."""

  def sum_of_all(g, w):
    for function in functions:
      g = g + function(g, w)
    return g

  mesh = topology.topology_mesh("v5p:2x2x1")
  update, operands = tpu_step_programs.custom_program(
      tpu_step_programs.step_of(sum_of_all),
      sizes=tpu_operands.Sizes(
          num_devices=mesh.size,
          num_sc_per_device=hardware.num_sparsecores_per_device(
              mesh.devices.flat[0]
          ),
      ),
  )

  def arg(x):
    spec = P("x") if x.shape else P()
    shape = (mesh.size * x.shape[0], *x.shape[1:]) if x.shape else ()
    return jax.ShapeDtypeStruct(
        shape, x.dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
    )

  args = jax.tree.map(arg, operands)
  lowered = jax.jit(
      jax.shard_map(
          update,
          mesh=mesh,
          in_specs=jax.tree.map(lambda x: x.sharding.spec, args),
          out_specs=P("x"),
          check_vma=False,
      )
  ).lower(*args)
  kept_programs.compile_for(mesh, lowered)


class TpuStepCompileTest(absltest.TestCase):

  def test_installed_compiler_is_one_that_was_measured(self):
    version = libtpu_features.installed_version()
    self.assertLessEqual(
        version[:3],
        step_operations.NEWEST_MEASURED,
        "Find out what it takes of tpu_step_programs.REFUSED.",
    )

  def test_allowed_steps_compile(self):
    _compile(tpu_step_programs.ALLOWED.values())

  def test_steps_for_a_newer_compiler_compile_with_it(self):
    if libtpu_features.SUM_OVER_COLUMNS.is_missing():
      self.assertNotIn("HAS_ALL_FEATURES", os.environ)
      self.skipTest("tpu_step_operations_test has the errors.")
    _compile([function for function, _ in tpu_step_programs.NEWER.values()])


if __name__ == "__main__":
  absltest.main()
