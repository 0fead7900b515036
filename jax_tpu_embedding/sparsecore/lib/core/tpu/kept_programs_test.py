# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A program that was kept is the one that is asked for."""

import importlib.util
import os
import pathlib
from unittest import mock

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import overlap_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology


def _lowered(mesh, function=jnp.dot, size=512):
  split = jax.sharding.NamedSharding(mesh, jax.P("x"))
  x = jax.ShapeDtypeStruct((size, size), jnp.float32, sharding=split)
  return jax.jit(function, donate_argnums=0).lower(x, x)


def _product_at(line, scope="scope"):
  """A function that is at that line of its file."""
  names = {"jax": jax}
  source = f"""
def product(x, y):
  with jax.named_scope("{scope}"):
    return x @ y
"""
  exec(compile(line * "\n" + source, "product.py", "exec"), names)
  return names["product"]


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class KeptProgramsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._cache = pathlib.Path(self.create_tempdir().full_path)
    self.addCleanup(
        jax.config.update,
        "jax_compilation_cache_dir",
        jax.config.jax_compilation_cache_dir,
    )
    jax.config.update("jax_compilation_cache_dir", str(self._cache))
    self._compile = self.enter_context(
        mock.patch.object(
            kept_programs, "_compile", side_effect=kept_programs._compile
        )
    )
    self._mesh = topology.topology_mesh("v5e:2x2")

  def test_reports_are_those_of_the_compiled_program(self):
    programs = [
        kept_programs.compile_for(self._mesh, _lowered(self._mesh))
        for _ in range(2)
    ]
    self._compile.assert_called_once()
    compiled, kept = (memory_report.memory_report(x) for x in programs)
    self.assertEqual(kept, compiled)
    self.assertGreater(kept.aliased_bytes, 0)
    compiled, kept = (overlap_report.overlap_report(x) for x in programs)
    self.assertEqual(kept, compiled)
    self.assertGreater(kept.matmul_cost, 0)

  def test_what_the_compiler_refuses_is_refused_again(self):
    messages = []
    for _ in range(2):
      with self.assertRaises(jax.errors.JaxRuntimeError) as caught:
        kept_programs.compile_for(self._mesh, _lowered(self._mesh, size=2**17))
      messages.append(str(caught.exception))
    self._compile.assert_called_once()
    self.assertIn("memory", messages[0])
    self.assertEqual(*messages)

  def test_other_programs_devices_and_flags_have_other_names(self):
    turned = jax.sharding.Mesh(self._mesh.devices[::-1], "x")
    name = lambda *args: kept_programs._name(self._mesh, _lowered(*args))
    names = [
        name(self._mesh),
        name(self._mesh, jnp.subtract),
        name(self._mesh, _product_at(1)),
        # An overlap report reads it.
        name(self._mesh, _product_at(1, scope="other")),
        kept_programs._name(turned, _lowered(turned)),
    ]
    with mock.patch.dict(os.environ, LIBTPU_INIT_ARGS="--xla_x=1"):
      names.append(name(self._mesh))
    with mock.patch("importlib.metadata.version", return_value="0"):
      names.append(name(self._mesh))
    self.assertLen(set(names), len(names))
    self.assertEqual(name(self._mesh), names[0])
    self.assertEqual(name(self._mesh, _product_at(2)), names[2])

  def test_what_is_damaged_is_compiled(self):
    for damaged in range(2):
      compiled = kept_programs.compile_for(self._mesh, _lowered(self._mesh))
      (path,) = (self._cache / "libtpu").iterdir()
      self.assertEqual(self._compile.call_count, damaged + 1)
      path.write_bytes(path.read_bytes()[:-10])
    self.assertIn("is_scheduled=true", compiled.as_text())

  def test_without_a_cache_nothing_is_kept(self):
    jax.config.update("jax_compilation_cache_dir", None)
    for _ in range(2):
      kept_programs.compile_for(self._mesh, _lowered(self._mesh))
    self.assertEqual(self._compile.call_count, 2)
    self.assertEmpty(list(self._cache.iterdir()))

  def test_programs_of_the_library_are_kept_too(self):
    with kept_programs.all_for(self._mesh):
      for _ in range(2):
        _lowered(self._mesh).compile()
    self._compile.assert_called_once()


if __name__ == "__main__":
  absltest.main()
