# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""inspect() says what a kernel needs, or what the compiler says against it."""

import importlib.util

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas


def _double(table, row):
  me = jax.lax.axis_index("core") * 16 + jax.lax.axis_index("subcore")
  row = row.at[pl.ds(0, 16)]
  pltpu.sync_copy(table.at[me], row)
  row[...] = row[...] * 2
  pltpu.sync_copy(row, table.at[me])


def in_place(table):
  return pallas.kernel(
      _double,
      pallas.vector_subcore_mesh(),
      [pltpu.VMEM((16,), jnp.float32)],
      in_place=[0],
  )(table)


def too_large(table):
  return pallas.kernel(
      _double,
      pallas.vector_subcore_mesh(),
      [pltpu.VMEM((2**20,), jnp.float32)],
      in_place=[0],
  )(table)


_TABLE = jax.ShapeDtypeStruct((64, 16), jnp.float32)


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class InspectTest(parameterized.TestCase):

  @parameterized.parameters("v6e", "tpu7x:2x2x1")
  def test_report(self, chip):
    report = pallas.inspect(in_place, _TABLE, chip=chip, donate=[0])
    self.assertIn("tile_execute_core_sequencer", report.bundles)
    self.assertGreater(min(report.bundles.values()), 0)
    self.assertGreaterEqual(report.aliased_bytes, 64 * 16 * 4)
    self.assertRegex(
        str(report), r"(?s)compiled for .*\d+ bundles of tile_execute_core"
    )

  def test_what_the_compiler_refuses_is_an_error_here(self):
    with self.assertRaisesRegex(
        RuntimeError, "'too_large' for v6e:2x2: JaxRuntimeError: INTERNAL"
    ):
      pallas.inspect(too_large, _TABLE, chip="v6e")

  def test_unknown_chips_are_errors(self):
    with self.assertRaisesRegex(ValueError, "There is no chip 'v9'"):
      pallas.inspect(in_place, _TABLE, chip="v9")

  def test_functions_that_no_process_can_import_are_errors(self):
    with self.assertRaisesRegex(
        ValueError, "'<lambda>' cannot be imported by the process .* top of a m"
    ):
      pallas.inspect(lambda table: in_place(table), _TABLE)


if __name__ == "__main__":
  absltest.main()
