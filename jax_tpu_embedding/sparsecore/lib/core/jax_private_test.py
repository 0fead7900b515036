# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Each function of jax_private.py does what the library needs it for."""

import inspect
import os
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import export
from jax.experimental import io_callback
from jax.experimental import xla_metadata
from jax.extend import core
from jax.extend.mlir.dialects import func
from jax.interpreters import ad
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import jax_private
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_SPLIT = jax.sharding.PartitionSpec("x")


def _primitive(lower, abstract_eval=lambda x, **params: x):
  """Of one operand, that is lowered by `lower(ctx, operand, **params)`."""
  primitive = core.Primitive("of_jax_private_test")
  primitive.def_abstract_eval(abstract_eval)
  mlir.register_lowering(primitive, lower, cacheable=False)
  return primitive


def _seen_while_lowering(see, shard=False, check_vma=True, **metadata):
  """What `see(ctx)` returns for an operation."""
  seen = []

  def lower(ctx, operand):
    seen.append(see(ctx))
    return [operand]

  bind = _primitive(lower).bind
  if shard:
    bind = jax.shard_map(
        bind,
        mesh=_mesh(),
        in_specs=_SPLIT,
        out_specs=_SPLIT,
        check_vma=check_vma,
    )
  with xla_metadata.set_xla_metadata(**metadata):
    traced = jax.jit(bind).trace(jnp.ones(2))
  traced.lower()
  (result,) = seen
  return result


def _mesh():
  return jax.sharding.Mesh(jax.devices(), ("x",))


class LoweringTest(parameterized.TestCase):

  @parameterized.parameters(
      (("cpu",), {"cosine"}),
      (("tpu",), {"sine"}),
      (("cpu", "tpu"), {"cosine", "sine"}),
  )
  def test_every_platform_gets_its_rule(self, platforms, functions):
    def lower(ctx, operand, **params):
      return jax_private.lower_per_platform(
          ctx,
          "test",
          {"cpu": mlir.lower_fun(lambda x, power: [jnp.cos(x) ** power])},
          mlir.lower_fun(lambda x, power: [jnp.sin(x) ** power]),
          operand,
          **params,
      )

    primitive = _primitive(lower)
    exported = export.export(
        jax.jit(lambda x: primitive.bind(x, power=2)), platforms=platforms
    )(jnp.ones(3))
    found = re.findall(r"stablehlo\.(cosine|sine)\b", exported.mlir_module())
    self.assertCountEqual(found, functions)
    if "cpu" in platforms:
      np.testing.assert_allclose(
          exported.call(jnp.ones(3)), np.full(3, np.cos(1.0) ** 2), rtol=1e-5
      )

  def test_module_becomes_a_function_of_the_program(self):
    text = """func.func @helper(%x: tensor<3xf32>) -> tensor<3xf32> {
          %y = stablehlo.add %x, %x : tensor<3xf32>
          return %y : tensor<3xf32>
        }
        func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
          %y = call @helper(%x) : (tensor<3xf32>) -> tensor<3xf32>
          return %y : tensor<3xf32>
        }"""

    def lower(ctx, operand):
      module = mlir.ir.Module.parse(text, ctx.module_context.context)
      name = jax_private.add_module(ctx, "doubled", module)
      symbol = mlir.ir.FlatSymbolRefAttr.get(name)
      return func.CallOp([operand.type], symbol, [operand]).results

    double = _primitive(lower).bind
    twice = jax.jit(lambda x: double(double(x)))
    np.testing.assert_array_equal(twice(jnp.arange(3.0)), [0, 4, 8])

  def test_context_of_one_device(self):
    context = _seen_while_lowering(jax_private.axis_context)
    self.assertFalse(hasattr(context, "mesh"))
    self.assertEqual(context.num_devices, 1)

  def test_context_of_shard_map(self):
    context = _seen_while_lowering(jax_private.axis_context, shard=True)
    self.assertEqual(dict(context.mesh.shape), {"x": 2})
    self.assertEqual(set(context.manual_axes), {"x"})

  def test_metadata_stays_with_the_operation(self):
    found = _seen_while_lowering(
        jax_private.metadata_of_operation, some_key="some value"
    )
    self.assertEqual(found["some_key"], "some value")
    self.assertFalse(_seen_while_lowering(jax_private.metadata_of_operation))

  def test_metadata_while_tracing(self):
    with xla_metadata.set_xla_metadata(some_key="some value"):
      found = jax_private.current_metadata()
    self.assertEqual(found["some_key"], "some value")
    self.assertFalse(jax_private.current_metadata())


class VaryingTest(parameterized.TestCase):

  def test_abstract_evaluation_says_along_which_axes_results_differ(self):
    seen = []

    def abstract_eval(x):
      seen.append(jax_private.varies_over(x))
      result = jax.core.ShapedArray(x.shape, x.dtype)
      return jax_private.vary_over(result, jax_private.varies_over(x))

    primitive = _primitive(lambda ctx, x: [x], abstract_eval)

    @jax.jit
    def run(x):
      return jax.shard_map(
          lambda x: jax.lax.psum(primitive.bind(x), "x"),
          mesh=_mesh(),
          in_specs=_SPLIT,
          out_specs=jax.sharding.PartitionSpec(),
      )(x)

    # psum takes only what varies, and its result may leave unsplit.
    np.testing.assert_array_equal(run(jnp.arange(4.0)), [2, 4])
    self.assertEqual(set(seen), {frozenset({"x"})})

  @parameterized.parameters(True, False)
  def test_check_vma_is_known_while_lowering(self, check_vma):
    def see(ctx):
      (operand,) = ctx.avals_in
      with jax_private.without_check_vma():
        off = jax_private.is_vma_checked()
      return jax_private.is_vma_checked(), off, operand

    checked, off, operand = _seen_while_lowering(
        see, shard=True, check_vma=check_vma
    )
    self.assertEqual((checked, off), (check_vma, False))
    if check_vma:
      self.assertEqual(jax_private.varies_over(operand), {"x"})

  def test_lowered_function_may_mix_axes_without_check_vma(self):
    def lower(ctx, operand):
      function = mlir.lower_fun(
          lambda x: [jax.lax.fori_loop(0, 2, lambda i, y: y + x, jnp.zeros(1))]
      )
      with jax_private.without_check_vma():
        return function(ctx, operand)

    run = jax.shard_map(
        _primitive(lower).bind, mesh=_mesh(), in_specs=_SPLIT, out_specs=_SPLIT
    )
    np.testing.assert_array_equal(jax.jit(run)(jnp.arange(2.0)), [0, 2])


class TracingTest(parameterized.TestCase):

  def test_mesh_with_its_devices_is_known_in_traced_code(self):
    seen = []

    @jax.jit
    def run(x):
      seen.append(jax_private.concrete_mesh())
      return x

    with jax.set_mesh(_mesh()):
      run(jnp.ones(2))
    self.assertEqual(list(seen[0].devices), jax.devices())
    outside = jax_private.concrete_mesh()
    self.assertTrue(outside is None or outside.empty)

  def test_operands_of_a_scan(self):
    constants = jnp.ones(3), jnp.ones(2)

    def run(x, y, z):
      def body(carry, element):
        x, y = carry
        return (x + element, y * constants[0].sum()), constants[1]

      return jax.lax.scan(body, (x, y), z)

    scans = [
        eqn
        for eqn in jax.make_jaxpr(run)(1.0, 2.0, jnp.ones(5)).eqns
        if eqn.primitive.name == "scan"
    ]
    self.assertLen(scans, 1)
    num_consts, num_carry = jax_private.num_consts_and_carry(scans[0].params)
    self.assertEqual(num_carry, 2)
    self.assertEqual(num_consts + num_carry + 1, len(scans[0].invars))

  def test_results_that_are_never_recomputed(self):
    twice_p = core.Primitive("twice")
    twice_p.def_impl(lambda x: 2 * x)
    twice_p.def_abstract_eval(lambda x: x)
    ad.deflinear(twice_p, lambda gradient: [2 * gradient])

    def count():
      def loss(x):
        return jnp.sin(twice_p.bind(jnp.sin(x)))

      checkpointed = jax.checkpoint(loss)
      return str(jax.make_jaxpr(jax.grad(checkpointed))(1.0)).count("= twice")

    self.assertEqual(count(), 2)
    jax_private.never_recompute(twice_p)
    self.assertEqual(count(), 1)

  def test_a_nan_of_one_operation_is_not_looked_for(self):
    calls = []

    def nan_like(x):
      calls.append(x)
      return jnp.nan * x

    jax_private.has_one_operation(nan_like)
    with jax.debug_nans(True):
      with self.assertRaisesRegex(FloatingPointError, "in .*nan_like"):
        jax.jit(nan_like)(1.0)
    self.assertLen(calls, 1)

  def test_operations_with_a_kept_effect_stay(self):
    effect = jax_private.kept_effect()
    note_p = core.Primitive("note")
    note_p.def_effectful_abstract_eval(lambda x: (x, {effect}))

    @jax.custom_vjp
    def identity(x):
      return x

    def backward(unused, gradient):
      note_p.bind(gradient)
      return (gradient,)

    identity.defvjp(lambda x: (x, None), backward)

    @jax.checkpoint
    def loss(x):
      return jnp.sin(identity(jnp.sin(x)))

    gradient = jax.jit(jax.grad(jax.jit(loss)))
    program = str(jax.make_jaxpr(gradient)(1.0))
    self.assertEqual(program.count("= note "), 1, program)
    text = str(jax.make_jaxpr(lambda x: jax.lax.map(gradient, x))(jnp.ones(2)))
    self.assertEqual(text.count("= note "), 1, text)


class EffectsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("read", lambda x, a, b: b[...], set()),
      ("set", lambda x, a, b: jax.ref.set(b, ..., x), {2}),
      ("jit", jax.jit(lambda x, a, b: jax.ref.set(a, ..., x + b[...])), {1}),
      ("add", lambda x, a, b: jax.ref.addupdate(a, ..., x), {1}),
  )
  def test_references_that_are_written(self, function, expected):
    x = jnp.float32(1)
    refs = [jax.new_ref(x) for _ in range(2)]
    program = jax.make_jaxpr(function)(x, *refs).jaxpr
    written = {
        program.invars.index(eqn.invars[i])
        for eqn in program.eqns
        for i in jax_private.written_operands(eqn)
    }
    self.assertEqual(written, expected)

  @parameterized.named_parameters(
      ("math", jnp.sin, True),
      ("print", lambda x: jax.debug.print("{}", x), True),
      ("own_ref", jax.jit(lambda x: jax.freeze(jax.new_ref(x))), True),
      ("ref", lambda x: jax.freeze(jax.new_ref(x)), False),
      ("call", lambda x: io_callback(lambda: None, None), False),
      (
          "ordered_call",
          lambda x: io_callback(lambda: None, None, ordered=True),
          False,
      ),
  )
  def test_what_may_run_twice(self, function, expected):
    program = jax.make_jaxpr(function)(1.0)
    found = [jax_private.may_run_twice(eqn) for eqn in program.eqns]
    self.assertEqual(all(found), expected)

  def test_what_reads_a_reference_may_not_run_twice(self):
    program = jax.make_jaxpr(lambda ref: ref[...])(jax.new_ref(1.0))
    self.assertFalse(jax_private.may_run_twice(program.eqns[0]))


class PutTest(parameterized.TestCase):

  @parameterized.product(
      spec=(
          jax.sharding.PartitionSpec("x"),
          jax.sharding.PartitionSpec(),
          jax.sharding.PartitionSpec(None, "x"),
      ),
      dtype=(np.float32, np.int32, np.bool_, jnp.bfloat16),
      num_devices=(1, 2),
  )
  def test_is_device_put(self, spec, dtype, num_devices):
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], "x")
    sharding = jax.sharding.NamedSharding(mesh, spec)
    x = np.arange(24).reshape(4, 6).astype(dtype)
    put = jax_private.put(x, sharding)
    expected = jax.device_put(x, sharding)
    np.testing.assert_array_equal(put, x)
    self.assertEqual(put.aval, expected.aval)
    self.assertEqual(put.sharding, expected.sharding)
    self.assertEqual(put.committed, expected.committed)
    for shard, of_device_put in zip(
        put.addressable_shards, expected.addressable_shards, strict=True
    ):
      self.assertEqual(shard.device, of_device_put.device)
      np.testing.assert_array_equal(shard.data, of_device_put.data)

  def test_shares_the_memory_that_device_put_would(self):
    # XLA takes memory at multiples of a cache line as it is.
    memory = np.zeros(1024 + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    x = memory[begin : begin + 1024]
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    put = jax_private.put(x, sharding)
    self.assertEqual(
        put.unsafe_buffer_pointer() == x.ctypes.data,
        jax.device_put(x, sharding).unsafe_buffer_pointer() == x.ctypes.data,
    )

  def test_sizes_that_do_not_divide(self):
    mesh = jax.sharding.Mesh(jax.devices()[:2], "x")
    with self.assertRaisesRegex(ValueError, "evenly divide"):
      jax_private.put(
          np.zeros(3),
          jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")),
      )


class CompletenessTest(absltest.TestCase):

  def test_every_function_has_a_test(self):
    tests = pathlib.Path(__file__).read_text()
    for name, _ in inspect.getmembers(jax_private, inspect.isfunction):
      self.assertIn(f"jax_private.{name}", tests)


class JobTest(absltest.TestCase):

  def test_processes_of_a_job_tell_each_other(self):
    # jax.distributed starts before anything else does.
    program = """
import socket
import jax
from jax_tpu_embedding.sparsecore.lib.core import jax_private
with socket.socket() as listener:
  listener.bind(("localhost", 0))
  port = listener.getsockname()[1]
jax.distributed.initialize(f"localhost:{port}", 1, 0)
print(jax_private.place_in_job())
print(jax_private.coordinator_of_job() == f"localhost:{port}")
jax_private.tell_job("a/b", "told")
print(jax_private.ask_job("a/b", 5))
try:
  jax_private.ask_job("a/c", 0.1)
except TimeoutError as error:
  print(error)
jax_private.forget_in_job("a/b")
try:
  jax_private.ask_job("a/b", 0.1)
except TimeoutError as error:
  print(error)
"""
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    self.assertEqual(
        printed,
        "(0, 1)\nTrue\ntold\nNobody told 'a/c'.\nNobody told 'a/b'.\n",
    )


if __name__ == "__main__":
  absltest.main()
