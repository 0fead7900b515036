# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Each name of jax_versions.py is what the room needs it for."""

import inspect
import pathlib
import re

from absl.testing import absltest
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions
import numpy as np


def _equations(f, *args):
  return jax.make_jaxpr(f)(*args).jaxpr.eqns


def _equation(name, f, *args):
  (found,) = [e for e in _equations(f, *args) if e.primitive.name == name]
  return found


def _double(x, o):
  del x, o


class RefsTest(absltest.TestCase):

  def test_parts_of_refs_are_read_and_stored(self):
    @jax.jit
    def run(x):
      ref = jax.new_ref(x)
      part = jax_versions.TransformedRef(ref, ref.at[1:3].transforms)
      whole_before = jax_versions.store(ref, x + 1)
      before = jax_versions.store(part, jnp.zeros(2))
      self.assertTrue(jax_versions.is_ref(ref))
      self.assertFalse(jax_versions.is_ref(x))
      return whole_before, before, ref[...]

    whole, before, after = run(jnp.arange(4.0))
    np.testing.assert_array_equal(whole, [0, 1, 2, 3])
    np.testing.assert_array_equal(before, [2, 3])
    np.testing.assert_array_equal(after, [1, 0, 0, 4])

  def test_selections_have_indices_and_slices(self):
    seen = []

    def run(x):
      seen.extend(jax.new_ref(x).at[2, pl.ds(1, 3)].transforms)
      return x

    jax.make_jaxpr(run)(jnp.zeros((4, 8)))
    (transform,) = seen
    self.assertIsInstance(transform, jax_versions.Selection)
    row, columns = transform.indices
    self.assertEqual(row, 2)
    self.assertIsInstance(columns, jax_versions.Slice)
    self.assertEqual((columns.start, columns.size), (1, 3))
    self.assertEqual(transform.shape, (4, 8))

  def test_a_stride_beside_a_fixed_index_can_be_read(self):
    @jax.jit
    def run(x):
      ref = jax.new_ref(x)
      (plain,) = ref.at[1, pl.ds(1, 3)].transforms
      (strided,) = ref.at[1, pl.ds(1, 3, 2)].transforms
      self.assertFalse(jax_versions.has_stride(plain))
      self.assertTrue(jax_versions.has_stride(strided))
      self.assertEqual(jax_versions.readable(plain), (plain,))
      part = jax_versions.TransformedRef(ref, jax_versions.readable(strided))
      return part[...]

    part = run(jnp.arange(16.0).reshape(2, 8))
    self.assertEqual(part.tolist(), [9, 11, 13])

  def test_types_of_refs(self):
    seen = []

    def run(x):
      seen.append(jax.new_ref(x).aval)
      return x

    jax.make_jaxpr(run)(jnp.ones(3))
    self.assertIsInstance(seen[0], jax_versions.AbstractRef)


class EquationsTest(absltest.TestCase):

  def test_source_line_is_that_of_the_user(self):
    equation = _equation("sin", lambda x: jnp.sin(x), 1.0)
    self.assertRegex(
        jax_versions.source_line(equation), r"^jax_versions_test.py:\d+$"
    )

  def test_equations_are_evaluated(self):
    equation = _equation("add", lambda x: x + 2.0, 1.0)
    literal = equation.invars[1]
    self.assertTrue(jax_versions.is_literal(literal))
    self.assertFalse(jax_versions.is_literal(equation.invars[0]))
    self.assertEqual(jax_versions.evaluate(equation, [3.0, literal.val]), [5.0])

  def test_jaxprs_are_run_by_a_function_of_equations(self):
    constant = np.arange(3.0)
    program = jax.make_jaxpr(lambda x, y: (jnp.sin(x) + 2.0, constant, y))(1, 4)
    seen = []

    def run_equation(equation, operands):
      seen.append(equation.primitive.name)
      return jax_versions.evaluate(equation, operands)

    results = jax_versions.run_jaxpr(
        program.jaxpr, ["a constant"], [0, 5], run_equation
    )
    self.assertEqual(results, [2.0, "a constant", 5])
    self.assertContainsSubset(["sin", "add"], seen)

  def test_scans_have_constants_carry_and_elements(self):
    constant = jnp.ones(3)

    def run(x):
      return jax.lax.scan(lambda carry, e: (carry + e, constant * e), 0.0, x)

    equation = _equation("scan", run, jnp.ones(5))
    operands = ["constant", "carry", "elements"][-len(equation.invars) :]
    _, carry, elements = jax_versions.scan_operands(equation, operands)
    self.assertEqual((carry, elements), (["carry"], ["elements"]))
    carry, elements = jax_versions.scan_results(equation, ["c", "e"], 1)
    self.assertEqual((carry, elements), (["c"], ["e"]))

  def test_jaxprs_are_found_and_opened(self):
    equation = _equation("jit", jax.jit(lambda x: jnp.sin(x)), 1.0)
    (inner,) = jax_versions.jaxprs_of(equation)
    jaxpr, consts = jax_versions.open_jaxpr(equation.params["jaxpr"])
    self.assertEqual([e.primitive.name for e in jaxpr.eqns], ["sin"])
    self.assertEqual([e.primitive.name for e in inner.eqns], ["sin"])
    self.assertEmpty(consts)

  def test_scoped_jaxpr_has_its_operands_as_constants(self):
    def run(x):
      ref = jax.new_ref(x)

      def body(own):
        own[...] = ref[...]
        ref[...] = own[...]

      pl.run_scoped(body, pltpu.VMEM((3,), jnp.float32))
      return ref[...]

    equation = _equation("run_scoped", run, jnp.ones(3))
    jaxpr, consts = jax_versions.scoped_jaxpr(equation, ["the ref"])
    self.assertEqual(list(consts), ["the ref"])
    self.assertLen(jaxpr.constvars, 1)


class KernelsTest(absltest.TestCase):

  def test_kernels_are_found_with_mesh_and_name(self):
    mesh = pallas.tensor_core_mesh(chip="v5p")
    run = pl.kernel(
        _double,
        jax.ShapeDtypeStruct((8, 128), jnp.float32),
        mesh=mesh,
        name="double",
    )
    with jax_versions.pipelines_as_loops():
      jaxpr = jax.make_jaxpr(run)(jnp.ones((8, 128)))
    found = []

    def search(jaxpr):
      for equation in jaxpr.eqns:
        if equation.primitive.name in jax_versions.KERNEL_PRIMITIVES:
          found.append(equation)
        for inner in jax_versions.jaxprs_of(equation):
          search(inner)

    search(jaxpr.jaxpr)
    (kernel,) = found
    self.assertEqual(kernel.params["meshes"], (mesh,))
    self.assertIn("double", str(kernel.params["name"]))
    self.assertEqual(dict(kernel.params["input_output_aliases"]), {})

  def test_tensor_core_mesh_has_its_cores(self):
    mesh = jax_versions.tensor_core_mesh("core", 2)
    self.assertEqual(dict(mesh.shape), {"core": 2})

  def test_plain_kernels_run_after_install_and_no_longer_after_that(self):
    mesh = pallas.vector_subcore_mesh(chip="v6e")

    def body(o, row):
      me = jax.lax.axis_index("core") * 16 + jax.lax.axis_index("subcore")
      row[...] = jnp.full((8,), me)
      pltpu.sync_copy(row, o.at[me])

    def program():
      one = jax.sharding.AbstractMesh((1,), ("x",))
      spec = jax.sharding.PartitionSpec()
      kernel = pl.kernel(
          body,
          jax.ShapeDtypeStruct((mesh.size, 8), jnp.int32),
          mesh=mesh,
          scratch_types=[pltpu.VMEM((8,), jnp.int32)],
      )
      return jax.jit(
          jax.shard_map(
              kernel,
              mesh=pallas.on_chip(one, "v6e"),
              in_specs=(),
              out_specs=spec,
              check_vma=False,
          )
      )

    # register_kernel_lowering is what it calls.
    disable = pallas.emulation.install()
    np.testing.assert_array_equal(
        program()(), np.broadcast_to(np.arange(mesh.size)[:, None], (32, 8))
    )
    disable()
    jax.clear_caches()
    with self.assertRaisesRegex(
        NotImplementedError, "is for cores of TPUs. On CPUs it runs by"
    ):
      jax.block_until_ready(program()())


class CompletenessTest(absltest.TestCase):

  def test_every_function_has_a_test(self):
    tests = pathlib.Path(__file__).read_text()
    for name, function in inspect.getmembers(jax_versions, inspect.isfunction):
      if function.__module__ == jax_versions.__name__:
        self.assertRegex(tests, rf"\b{name}\b")

  def test_no_other_file_of_the_room_depends_on_the_version(self):
    room = pathlib.Path(jax_versions.__file__).parent
    files = [*room.glob("*.py"), *room.glob("emulation/*.py")]
    self.assertGreater(len(files), 10)
    for path in files:
      if path.name not in ("jax_versions.py", "jax_versions_test.py"):
        self.assertFalse(
            re.search(
                r"jax\._src|__version_info__|__version__ *[<=>!.]",
                path.read_text(),
            ),
            path,
        )


if __name__ == "__main__":
  absltest.main()
