# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""inspect() says what a kernel needs, or what the compiler says against it."""

import importlib.util
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.pallas import inspection


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


class LoopsTest(absltest.TestCase):

  def test_loops_of_subcores_are_measured(self):
    # A loop of the scalar core; one with a branch inside, and in it one of two
    # bundles, and two more that follow its branch.
    program = """scs
.LBB1_1:
0x0: {  (pc) =\tsbr.rel @p0 .LBB1_1-.Ltmp0  }
tec
.LBB2_1:
0x0: {  s1 =\tsadd.s32 $0x1, s1  }
.LBB2_2:
0x1: {  v1 =\tvld [tilespmem:s1+$0x0]  }
.Ltmp1:
0x2: {  v1 =\tvmul.f32 v1, v1;
\t(pc) =\tsbr.rel @p0 .LBB2_2-.Ltmp1  }
0x3: {  [tilespmem:s1+$0x0] =\tvst v1  }
0x4: {  _ = \tsnop  }
.Ltmp2:
0x5: {  (pc) =\tsbr.rel @p1 .LBB2_1-.Ltmp2  }
"""
    directory = self.create_tempdir()
    directory.create_file("a/step_1_bundles.txt", program)
    path = pathlib.Path(directory.full_path)
    self.assertEqual(inspection.loops_in(path), [4])


if __name__ == "__main__":
  absltest.main()
