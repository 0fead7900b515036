# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.core import recent_values
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.testing import huge_pages
from jax_tpu_embedding.sparsecore.lib.nn.values import _compile_once
from jax_tpu_embedding.sparsecore.lib.nn.values import _host_fill
from jax_tpu_embedding.sparsecore.lib.nn.values import _initializers
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)

P = jax.sharding.PartitionSpec


def sharding(*spec, num_devices=1, axis_type=jax.sharding.AxisType.Auto):
  mesh = jax.sharding.Mesh(
      jax.devices()[:num_devices], ("x",), axis_types=(axis_type,)
  )
  return jax.sharding.NamedSharding(mesh, P(*spec))


def table(name, vocabulary_size, embedding_dim, initializer, **kwargs):
  return embedding_spec.TableSpec(
      name=name,
      vocabulary_size=vocabulary_size,
      embedding_dim=embedding_dim,
      initializer=initializer,
      **(dict(optimizer=embedding_spec.SGDOptimizerSpec()) | kwargs),
  )


def prepared(*tables, devices=1, num_sc=2, stack=False):
  specs = [
      embedding_spec.FeatureSpec(
          name=f"f_{table.name}",
          table_spec=table,
          input_shape=(8, 1),
          output_shape=(8, table.embedding_dim),
      )
      for table in tables
  ]
  if stack:
    embedding.auto_stack_tables(specs, devices, num_sc)
  embedding.prepare_feature_specs_for_training(specs, devices, num_sc)
  return list(tables)


def init(tables, devices=1, num_sc=2, **kwargs):
  return embedding.init_embedding_variables(
      jax.random.key(3),
      tables,
      sharding("x", None, num_devices=devices, **kwargs),
      num_sc,
      bypass_mesh_check=True,
  )


def logical_tables(tables, variables, num_shards):
  """[table of each spec]: f32[vocabulary_size, embedding_dim]."""
  stacks = {name: variable.table for name, variable in variables.items()}
  logical = table_stacking.unshard_and_unstack_tables(
      tables, stacks, num_shards
  )
  return [np.asarray(table) for table in logical]


class InitEmbeddingVariablesTest(parameterized.TestCase):

  def test_initializers_get_the_declared_shape_and_a_key_of_the_name(self):
    shapes = []

    def integers(key, shape):
      """Integers, whose bits do not depend on how the program is compiled."""
      return jax.random.bits(key, shape, jnp.uint16).astype(jnp.float32)

    def initializer(key, shape):
      shapes.append(shape)
      return integers(key, shape)

    tables = prepared(
        table("a", 30, 8, initializer), table("b", 16, 4, initializer)
    )
    got = logical_tables(tables, init(tables), 2)
    self.assertEqual(shapes, [(30, 8), (16, 4)])
    for values, name in zip(got, "ab"):
      key = _initializers.key_of(jax.random.key(3), name, 0)
      np.testing.assert_array_equal(values, integers(key, values.shape))

  def test_members_of_a_stack_are_independent(self):
    normal = jax.nn.initializers.normal(1.0)
    tables = prepared(
        table("a", 400, 8, normal), table("b", 400, 8, normal), stack=True
    )
    a, b = logical_tables(tables, init(tables), 2)
    correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
    self.assertLess(abs(correlation), 0.1)

  @parameterized.parameters(
      # Devices, SparseCores per device, stacked, type of the mesh.
      (1, 5, True, "Auto"),
      (2, 4, False, "Explicit"),
      (3, 5, True, "Auto"),
      (3, 5, False, "Auto"),
      (8, 2, True, "Explicit"),
  )
  def test_values_do_not_depend_on_the_topology(
      self, devices, num_sc, stack, axis_type
  ):
    axis_type = getattr(jax.sharding.AxisType, axis_type)

    def make(devices, num_sc, stack, **kwargs):
      tables = prepared(
          table("a", 33, 6, jax.nn.initializers.normal()),
          # Looks at the shape: depends on it being the declared one.
          table("b", 100, 8, jax.nn.initializers.lecun_normal()),
          devices=devices,
          num_sc=num_sc,
          stack=stack,
      )
      variables = init(tables, devices, num_sc, **kwargs)
      return variables, logical_tables(tables, variables, devices * num_sc)

    _, expected = make(1, 2, False)
    variables, got = make(devices, num_sc, stack, axis_type=axis_type)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    for variable in jax.tree.leaves(variables):
      self.assertEqual(
          variable.sharding,
          sharding("x", None, num_devices=devices, axis_type=axis_type),
      )
    # Padding is zero.
    self.assertEqual(
        sum(np.count_nonzero(v.table) for v in variables.values()),
        sum(np.count_nonzero(values) for values in expected),
    )

  def test_rows_over_one_of_two_axes_are_whole_tables(self):
    tables = prepared(
        table("a", 33, 6, jax.nn.initializers.ones), devices=2, num_sc=2
    )
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y")
    )
    by_x = jax.sharding.NamedSharding(mesh, P("x", None))
    got = embedding.init_embedding_variables(
        jax.random.key(0), tables, by_x, 2, bypass_mesh_check=True
    )
    (values,) = logical_tables(tables, got, 4)
    np.testing.assert_array_equal(values, np.ones((33, 6)))

  def test_members_of_a_stack_lie_side_by_side_in_each_shard(self):
    constant = jax.nn.initializers.constant
    tables = prepared(
        table("b", 64, 8, constant(2.0)),
        table("a", 100, 8, constant(1.0)),
        num_sc=4,
        stack=True,
    )
    got = init(tables, num_sc=4)
    # 64 rows are 16 to a shard; 100 are 128 with padding, 32 to a shard, of
    # which 25 are not padding.
    self.assertEqual(list(got), ["b_a"])
    np.testing.assert_array_equal(
        got["b_a"].table[:, 0], ([2.0] * 16 + [1.0] * 25 + [0.0] * 7) * 4
    )

  def test_rows_of_tables_that_are_not_given_are_zero(self):
    ones = jax.nn.initializers.ones
    tables = prepared(
        table("a", 16, 8, ones), table("b", 16, 8, ones), stack=True
    )
    got = init(tables[1:])
    np.testing.assert_array_equal(
        got["a_b"].table[:, 0], ([0.0] * 8 + [1.0] * 8) * 2
    )

  @parameterized.product(num_sc=(1, 2, 3), devices=(1, 4))
  def test_whole_tables_land_where_lookups_read(self, num_sc, devices):
    values = {
        "a": np.arange(33 * 6, dtype=np.float32).reshape(33, 6),
        "b": -np.arange(20 * 8, dtype=np.float32).reshape(20, 8),
    }
    tables = prepared(
        table("a", 33, 6, lambda: values["a"]),
        # What is more than the table is left out.
        table("b", 20, 8, lambda: jnp.pad(values["b"], ((0, 5), (0, 1)))),
        table("c", 20, 8, jax.nn.initializers.zeros),
        num_sc=num_sc,
        devices=devices,
        stack=True,
    )
    got = init(tables, devices, num_sc)
    a, b, _ = logical_tables(tables, got, devices * num_sc)
    np.testing.assert_array_equal(a, values["a"])
    np.testing.assert_array_equal(b, values["b"])
    total = sum(np.abs(v).sum() for v in values.values())
    self.assertEqual(np.abs(got["a_b_c"].table).sum(), total)  # padding is zero

  def test_slots_have_their_initial_value_in_padding_too(self):
    tables = prepared(
        table(
            "a",
            13,
            6,
            jax.nn.initializers.ones,
            optimizer=embedding_spec.AdagradOptimizerSpec(
                initial_accumulator_value=0.25
            ),
        )
    )
    got = init(tables)
    self.assertEqual(got["a"].slot._fields, ("accumulator",))
    np.testing.assert_array_equal(
        got["a"].slot.accumulator, np.full((16, 8), 0.25)
    )
    self.assertEqual(np.sum(got["a"].table), 13 * 6)

  def test_slots_with_random_values_are_independent_of_the_table(self):
    # Looks at the shape: depends on it being the declared one.
    normal = jax.nn.initializers.lecun_normal()

    class RandomSlots(embedding_spec.SGDOptimizerSpec):

      def slot_variables_initializers(self):
        return (normal, normal)

    by_devices = {}
    for devices in (1, 2):
      tables = prepared(
          table("a", 33, 8, normal, optimizer=RandomSlots()), devices=devices
      )
      variables = init(tables, devices)["a"]
      by_devices[devices] = [
          logical_tables(
              tables, {"a": variables._replace(table=values)}, 2 * devices
          )
          for values in jax.tree.leaves(variables)
      ]
    np.testing.assert_array_equal(by_devices[1], by_devices[2])
    variable, first, second = by_devices[1]
    self.assertTrue(np.all(variable[0] != first[0]))
    self.assertTrue(np.all(first[0] != second[0]))

  def test_meshes_set_by_the_user_do_not_matter(self):
    tables = prepared(
        table("a", 33, 6, jax.nn.initializers.normal()), devices=2
    )
    expected = init(tables, 2)["a"].table
    explicit = jax.sharding.AxisType.Explicit
    mesh = sharding("x", num_devices=2, axis_type=explicit).mesh
    with jax.set_mesh(mesh):
      for kwargs in ({}, {"axis_type": explicit}):
        got = init(tables, 2, **kwargs)["a"].table
        np.testing.assert_array_equal(got, expected)

  @parameterized.parameters("disable_jit", "enable_x64")
  def test_values_do_not_depend_on_settings_of_jax(self, setting):
    whole = np.arange(160.0).reshape(20, 8)
    initializers = [
        lambda: whole,
        lambda: jnp.asarray(whole, jnp.float32),
        lambda key, shape: jnp.ones(shape),
    ]
    if setting == "disable_jit":  # random numbers of 64 bits are others
      initializers.append(jax.nn.initializers.normal())
      initializers.append(jax.nn.initializers.orthogonal())
    tables = lambda: prepared(
        *(
            table(f"t{i}", 20, 8, initializer)
            for i, initializer in enumerate(initializers)
        ),
        stack=True,
    )
    expected = init(tables())
    with getattr(jax, setting)(True):
      actual = init(tables())
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-5),
        actual,
        expected,
    )
    self.assertEqual(
        jax.tree.map(jnp.result_type, actual),
        jax.tree.map(jnp.result_type, expected),
    )

  def test_can_be_traced(self):
    tables = prepared(
        table("a", 13, 8, jax.nn.initializers.normal()),
        table("b", 13, 8, lambda: np.ones((13, 8))),
        stack=True,
    )
    expected = init(tables)["a_b"].table
    rng = jax.random.key(3)
    with_that_key = lambda: embedding.init_embedding_variables(
        rng, tables, sharding("x", None), 2, bypass_mesh_check=True
    )
    for traced in (lambda: init(tables), with_that_key):
      self.assertEqual(jax.eval_shape(traced)["a_b"].table.shape, (32, 8))
      np.testing.assert_array_equal(jax.jit(traced)()["a_b"].table, expected)

  def test_can_be_mapped(self):
    tables = prepared(table("a", 13, 8, jax.nn.initializers.normal()))

    def make(key):
      return embedding.init_embedding_variables(
          key, tables, sharding("x", None), 2, bypass_mesh_check=True
      )["a"].table

    keys = jax.random.split(jax.random.key(3), 2)
    np.testing.assert_array_equal(
        jax.vmap(make)(keys), [make(key) for key in keys]
    )

  def test_keys_of_implementations_of_one_shape(self):
    tables = prepared(table("a", 13, 8, jax.nn.initializers.normal()))
    for implementation in ("rbg", "unsafe_rbg"):
      variables = embedding.init_embedding_variables(
          jax.random.key(3, impl=implementation),
          tables,
          sharding("x", None),
          2,
          bypass_mesh_check=True,
      )
      self.assertTrue(np.any(variables["a"].table))

  def test_a_leading_dimension_of_devices(self):
    tables = prepared(
        table("a", 33, 6, jax.nn.initializers.normal()), devices=2
    )
    arguments = (jax.random.key(3), tables)
    got = embedding.init_embedding_variables(
        *arguments, sharding("x", None, None, num_devices=2), 2, True
    )
    expected = init(tables, 2)["a"].table
    np.testing.assert_array_equal(got["a"].table, expected.reshape(2, -1, 8))
    self.assertEqual(got["a"].table.sharding.spec, P("x", None, None))


class HugePagesTest(parameterized.TestCase):

  @parameterized.product(
      # In blocks; by NumPy, as it is small; by XLA.
      case=((False, 80), (False, 40), (True, 40)),
      devices=(1, 2),
  )
  def test_tables_and_slots_are_in_huge_pages(self, case, devices):
    draws_from_another_key, mib = case

    def initialize(key, shape):
      if draws_from_another_key:
        key = jax.random.fold_in(key, 1)
      return jax.random.uniform(key, shape)

    (spec,) = prepared(
        table(
            "a",
            mib * 2**20 // (4 * 64),
            64,
            initialize,
            optimizer=embedding_spec.AdagradOptimizerSpec(),
        ),
        devices=devices,
    )
    for values in jax.tree.leaves(init([spec], devices)):
      huge_pages.assert_are_under(self, values)


class CompilationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(
        mock.patch.object(
            _compile_once, "_COMPILED", recent_values.RecentValues(64)
        )
    )

  @parameterized.product(stack=(False, True), devices=(1, 2))
  def test_more_tables_of_one_kind_are_no_more_programs(self, stack, devices):
    compile_program = jax.stages.Lowered.compile

    def count_programs(num_tables, vocabulary_size):
      tables = prepared(
          *(
              # Each table has an initializer of its own.
              table(
                  f"t{i}",
                  vocabulary_size,
                  6,
                  jax.nn.initializers.normal(),
                  **adagrad,
              )
              for i in range(num_tables)
          ),
          devices=devices,
          stack=stack,
      )
      with (
          mock.patch.object(
              jax.stages.Lowered,
              "compile",
              autospec=True,
              side_effect=compile_program,
          ) as compilation,
          mock.patch.object(_host_fill, "_MAX_BYTES", 0),
      ):
        init(tables, devices)
      return compilation.call_count

    adagrad = dict(optimizer=embedding_spec.AdagradOptimizerSpec())
    # Random numbers, the stack, and what writes them and slots into one.
    self.assertEqual(count_programs(3, 33), 4)
    # Random numbers of larger tables are made by the same programs.
    self.assertEqual(count_programs(5, 65), 3)
    # Made anew, and dropped, the same tables are no programs at all.
    self.assertEqual(count_programs(3, 33), 0)

  def test_initializers_that_differ_in_each_call_do_so_for_each_table(self):
    generator = np.random.default_rng(0)
    normal = lambda key, shape: generator.normal(size=shape)
    tables = prepared(table("a", 16, 8, normal), table("b", 16, 8, normal))
    a, b = logical_tables(tables, init(tables), 2)
    self.assertTrue(np.all(a != b))

  def test_one_whole_table_beside_its_stack_is_in_memory_at_a_time(self):
    alive = []

    def ones():
      alive.append(sum(x.shape == (64, 40) for x in jax.live_arrays()))
      return np.ones((64, 40))

    tables = prepared(
        *(table(name, 64, 40, ones) for name in "abc"), stack=True
    )
    init(tables)
    self.assertEqual(alive, [0, 0, 0])


class ErrorsTest(parameterized.TestCase):

  def test_devices_in_another_order_are_an_error_unless_it_is_meant(self):
    tables = prepared(table("a", 16, 8, jax.nn.initializers.ones))
    # Some of the devices will do.
    two_devices = sharding("x", None, num_devices=2)
    arguments = (jax.random.key(0), tables, two_devices, 1)
    embedding.init_embedding_variables(*arguments)
    with mock.patch.object(jax, "devices", return_value=jax.devices()[::-1]):
      with self.assertRaisesRegex(
          ValueError, "default device order from jax.devices()"
      ):
        embedding.init_embedding_variables(*arguments)
      embedding.init_embedding_variables(*arguments, bypass_mesh_check=True)

  def test_what_cannot_fit_is_an_error_before_anything_is_allocated(self):
    calls = []

    def initializer(key, shape):
      calls.append(shape)
      return jnp.ones(shape)

    adagrad = embedding_spec.AdagradOptimizerSpec(learning_rate=0.1)
    tables = prepared(
        table("small", 64, 8, initializer),
        table("large", 2**20, 128, initializer, optimizer=adagrad),
        devices=2,
    )
    # 2^20 rows x 128 columns x 4 bytes, and as much for the slot.
    message = (
        r"need 512 MiB on each of 2 devices, and {} are free on {}\."
        r" Largest, per device: large 512 MiB \(256 MiB of it slots\),"
        r" small 1\.0 KiB \(0 B of it slots\)\."
    )
    free_bytes = "free_bytes"
    with mock.patch.object(free_memory, free_bytes, return_value=1023 * 2**20):
      with self.assertRaisesRegex(
          MemoryError, message.format("1023 MiB", "this host, which they share")
      ):
        init(tables, devices=2)
    self.assertEmpty(calls)
    with mock.patch.object(free_memory, free_bytes, return_value=None):
      jax.eval_shape(lambda: init(tables, devices=2))

  def test_a_replicated_table_is_whole_on_each_device(self):
    tables = prepared(
        table("t", 1024, 8, jax.nn.initializers.ones, placement="tensorcore"),
        devices=2,
    )
    # 32 KiB on each, and the block that they are copied from is 128 KiB, which
    # XLA of JAX 0.12 has twice. Devices of CPUs share the memory.
    with mock.patch.object(free_memory, "free_bytes", return_value=319 * 2**10):
      with self.assertRaisesRegex(MemoryError, "t 32.0 KiB") as raised:
        init(tables, devices=2)
    kib = int(re.search(r"need (\d+) KiB on each", str(raised.exception))[1])
    self.assertIn(kib, (32 + 128, 32 + 256))
    enough = (2 * kib + 1) * 2**10
    with mock.patch.object(free_memory, "free_bytes", return_value=enough):
      stack = init(tables, devices=2)["t"]
    self.assertEqual(stack.table.shape, (1024, 8))
    for shard in stack.table.addressable_shards:
      self.assertEqual(shard.data.shape, (1024, 8))

  def test_what_is_in_memory_while_variables_are_made_has_to_fit(self):
    ones = jax.nn.initializers.ones
    adagrad = embedding_spec.AdagradOptimizerSpec(learning_rate=0.1)
    tables = prepared(
        table("first", 256, 8, ones, optimizer=adagrad),
        table("last", 32, 8, ones),
        devices=2,
    )
    # On each device 4 KiB of the first table and of its slot, and those of the
    # slot once more, from which they are copied, and a few bytes that XLA counts.
    with mock.patch.object(free_memory, "free_bytes", return_value=24640):
      init(tables, devices=2)
    with (
        mock.patch.object(free_memory, "free_bytes", return_value=24575),
        mock.patch.object(_host_fill.HostFill, "run") as run,
    ):
      with self.assertRaisesRegex(
          MemoryError,
          r"need 12\.0 KiB on each of 2 devices, 3\.5 KiB of it while they are"
          r" made, and 24\.0 KiB are free",
      ):
        init(tables, devices=2)
    run.assert_not_called()

  def test_a_variable_is_there_before_memory_is_taken_for_the_next(self):
    adagrad = embedding_spec.AdagradOptimizerSpec(learning_rate=0.1)
    tables = prepared(
        table("a", 16, 8, jax.nn.initializers.ones, optimizer=adagrad)
    )
    calls = []
    run, wait = _host_fill.HostFill.run, jax.block_until_ready
    with (
        mock.patch.object(
            _host_fill.HostFill,
            "run",
            lambda *args: calls.append("run") or run(*args),
        ),
        mock.patch.object(
            jax,
            "block_until_ready",
            lambda array: calls.append("wait") or wait(array),
        ),
    ):
      init(tables)
    self.assertEqual(calls, ["run", "wait"] * 2)

  @parameterized.named_parameters(
      (
          "small_whole_table",
          lambda: jnp.ones((16, 7)),
          r"'a'.*at least \(16, 8\), got \(16, 7\)",
      ),
      (
          "whole_table_of_one_dimension",
          lambda: np.ones(128),
          r"'a'.*at least \(16, 8\), got \(128,\)",
      ),
      (
          "numbers_that_float32_does_not_have",
          lambda: np.full((16, 8), 1e300),
          "'a'.*a number of float64 that float32 cannot hold",
      ),
      (
          "complex_numbers",
          lambda: np.full((16, 8), 2 + 3j),
          "'a'.*must return real numbers, got complex128",
      ),
      (
          "complex_numbers_of_a_shape",
          lambda key, shape: jnp.full(shape, 2 + 3j),
          "'a'.*must return real numbers, got complex64",
      ),
      (
          "another_shape",
          lambda key, shape: jnp.ones(shape[::-1]),
          r"'a'.*called for the shape \(16, 8\), and returned \(8, 16\)",
      ),
      (
          "one_parameter",
          lambda key: jnp.ones((16, 8)),
          r"'a'.*has the parameters \(key\).*initializer\(key, shape\)",
      ),
  )
  def test_initializers_that_do_not_make_the_table(self, initializer, message):
    with self.assertRaisesRegex(ValueError, message):
      init(prepared(table("a", 16, 8, initializer)))

  @parameterized.named_parameters(
      ("returns_an_initializer", jax.nn.initializers.normal, TypeError),
      ("fails", lambda key, shape: 1 // 0, ZeroDivisionError),
      (
          "reads_a_value",
          lambda key, shape: float(jax.random.normal(key)),
          jax.errors.ConcretizationTypeError,
      ),
  )
  def test_errors_of_an_initializer_say_whose_it_is(self, initializer, error):
    with self.assertRaises(error) as raised:
      init(prepared(table("a", 16, 8, initializer)))
    self.assertRegex(
        "".join(raised.exception.__notes__), "initializer of table 'a'.* traced"
    )

  @parameterized.named_parameters(
      ("number", 0),
      ("nothing", None),
      ("array", np.zeros(3)),
      ("generator", np.random.default_rng(0)),
  )
  def test_what_is_no_key(self, rng):
    tables = prepared(table("a", 16, 8, jax.nn.initializers.ones))
    with self.assertRaisesRegex(TypeError, r"one key, such as jax.random.key"):
      embedding.init_embedding_variables(rng, tables, sharding("x", None), 2)

  def test_several_keys(self):
    tables = prepared(table("a", 16, 8, jax.nn.initializers.ones))
    with self.assertRaisesRegex(TypeError, "one key, such as jax.random.key"):
      embedding.init_embedding_variables(
          jax.random.split(jax.random.key(0)), tables, sharding("x", None), 2
      )

  @parameterized.parameters((P(),), (P("x"),), (P(None, "x"),), (P("x", "x"),))
  def test_other_shardings(self, spec):
    tables = prepared(table("a", 16, 8, jax.nn.initializers.ones))
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    fake = mock.create_autospec(jax.sharding.NamedSharding, instance=True)
    fake.spec, fake.mesh = spec, mesh
    with self.assertRaisesRegex(
        ValueError, "PartitionSpec of the global sharding either needs"
    ):
      embedding.init_embedding_variables(
          jax.random.key(0), tables, fake, 2, bypass_mesh_check=True
      )

  def test_unprepared_tables_that_need_padding(self):
    # 100 rows are not 8 equal shards.
    with self.assertRaisesRegex(ValueError, "'a' .* Prepare its spec"):
      init([table("a", 100, 8, jax.nn.initializers.ones)], num_sc=8)

  def test_tables_prepared_for_another_topology(self):
    tables = prepared(table("a", 100, 8, jax.nn.initializers.ones))
    with self.assertRaisesRegex(ValueError, "prepared for 2 SparseCores"):
      init(tables, num_sc=4)


if __name__ == "__main__":
  absltest.main()
