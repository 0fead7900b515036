# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs keep their layouts and donation from machine to machine."""

import importlib.util

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import export
from jax.experimental import layout
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import program_export
from jax_tpu_embedding.sparsecore.lib.core.tpu import table_format
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology

P = jax.sharding.PartitionSpec

_ROWS, _DIM = 2**18, 32  # of one device
_TABLE_BYTES = _ROWS * _DIM * 4
_SIZES = tpu_operands.Sizes(num_devices=4, num_rows=_ROWS, embedding_dim=_DIM)


def _step(unused, coo, tables, rate):
  activations = lookup.lookup_p.bind(
      *coo,
      tables["table"],
      device_batch_size=_SIZES.batch_size,
      **tpu_operands.LIMITS,
  )
  tables = update.UPDATE_PRIMITIVES["adagrad"].bind(
      *coo,
      tables["table"],
      tables["accumulator"],
      jnp.tanh(activations),
      rate,
      **tpu_operands.LIMITS,
  )
  return dict(zip(("table", "accumulator"), tables)), activations


def _program(mesh):
  """The step on a mesh, and its arguments."""
  rows = jax.sharding.NamedSharding(mesh, P("x"))
  coo = [
      x.update(shape=(4 * x.shape[0],), sharding=rows) if x.shape else x
      for x in _SIZES.coo()
  ]
  table = jax.ShapeDtypeStruct(
      (4 * _ROWS, _DIM),
      jnp.float32,
      sharding=table_format.table_format(rows, (4 * _ROWS, _DIM)),
  )
  tables = {"table": table, "accumulator": table}
  scalar = jax.ShapeDtypeStruct((), jnp.float32)
  specs = [P("x") if x.shape else P() for x in coo]
  jitted = jax.jit(
      jax.shard_map(
          _step,
          mesh=mesh,
          in_specs=(P(), specs, P("x"), P()),
          out_specs=P("x"),
          check_vma=False,
      ),
      donate_argnums=2,
      out_shardings=({name: table.format for name in tables}, None),
  )
  return jitted, (scalar, coo, tables, scalar)


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class ProgramExportTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.mesh = topology.topology_mesh("v5p:2x2x1")
    jitted, cls.args = _program(cls.mesh)
    cls.exported = export.deserialize(
        program_export.export_program(jitted, *cls.args).serialize()
    )

  def report(self, jitted):
    return memory_report.memory_report(
        jitted.lower(*self.args).compile(), min_move_bytes=_TABLE_BYTES // 4
    )

  def test_loaded_program_updates_tables_in_place(self):
    report = self.report(program_export.load_program(self.exported, self.mesh))
    self.assertIn(report.moves, ((), None), str(report))
    self.assertEqual(report.aliased_bytes, 2 * _TABLE_BYTES)
    self.assertLess(report.temporary_bytes, _TABLE_BYTES)

  def test_program_that_is_only_jitted_does_not(self):
    report = self.report(jax.jit(self.exported.call))
    self.assertEqual(report.aliased_bytes, 0)
    self.assertGreater(report.temporary_bytes, _TABLE_BYTES)

  def test_results_have_the_layouts_of_the_export(self):
    loaded = program_export.load_program(self.exported, self.mesh)
    tables, activations = loaded.lower(*self.args).compile().output_formats
    for found in (tables["table"], tables["accumulator"]):
      self.assertEqual(found.layout, table_format.table_layout((_ROWS, _DIM)))
    self.assertEqual(activations.sharding.spec, P("x"))

  def test_mesh_of_another_size_raises(self):
    mesh = topology.topology_mesh("v5p:2x2x2")
    with self.assertRaisesRegex(
        ValueError, "exported for 4 devices; the mesh has 8"
    ):
      program_export.load_program(self.exported, mesh)


class LoadTest(parameterized.TestCase):

  def test_keyword_arguments_raise_with_their_names(self):
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    exported = export.export(
        jax.jit(lambda x, *, rate: x * rate), platforms=("tpu",)
    )(scalar, rate=scalar)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    with self.assertRaisesRegex(ValueError, r"keyword arguments, \['rate'\]"):
      program_export.load_program(exported, mesh)

  @parameterized.parameters(
      ("{1,0:T(8)}", (0, 1), ((8,),)),
      ("{0,1:T(8,128)}", (1, 0), ((8, 128),)),
      ("{1,0:T(8,128)(2,1)}", (0, 1), ((8, 128), (2, 1))),
      ("{0:T(1024)}", (0,), ((1024,),)),
      ("{2,0,1}", (1, 0, 2), None),
      ("{}", (), None),
  )
  def test_layouts_are_read(self, text, dimensions, tiling):
    self.assertEqual(
        program_export.parse_layout(text),
        layout.Layout(major_to_minor=dimensions, tiling=tiling),
    )

  @parameterized.parameters("auto", "{1,0:T(8)S(1)}", "{1,0:T(8)L(1024)}")
  def test_layout_with_more_raises(self, text):
    with self.assertRaisesRegex(ValueError, "is not of the form"):
      program_export.parse_layout(text)


if __name__ == "__main__":
  absltest.main()
