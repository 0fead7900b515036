# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.values import _host_fill
from jax_tpu_embedding.sparsecore.lib.nn.values import _initializers
from jax_tpu_embedding.sparsecore.lib.nn.values import _random_blocks
from jax_tpu_embedding.sparsecore.lib.nn.values import _table_blocks
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_INIT = jax.nn.initializers
_RANDOM = dict(
    default=_tables.default_initializer,
    normal=_INIT.normal(0.02),
    truncated_normal=_INIT.truncated_normal(0.3),
    uniform=_INIT.uniform(0.05),
    fan_in=_INIT.variance_scaling(1.0, "fan_in", "truncated_normal"),
    fan_out=_INIT.variance_scaling(1.0, "fan_out", "normal"),
    fan_avg=_INIT.variance_scaling(2.0, "fan_avg", "uniform"),
    he=_INIT.he_normal(),
    own=lambda key, shape: jax.random.uniform(
        key, shape, minval=-0.1, maxval=0.2
    ),
)
_CONSTANT = dict(zeros=_INIT.zeros, ones=_INIT.ones, half=_INIT.constant(0.5))
_OTHER = dict(
    split=lambda key, shape: jax.random.normal(jax.random.split(key)[0], shape),
    folded=lambda key, shape: jax.random.normal(
        jax.random.fold_in(key, 1), shape
    ),
    by_column=lambda key, shape: jnp.zeros(shape)
    + jax.random.normal(key, shape[1:]),
    by_row=lambda key, shape: jnp.zeros(shape) + jnp.arange(shape[0])[:, None],
    orthogonal=_INIT.orthogonal(),
    half_bits=lambda key, shape: jax.random.normal(
        key, shape, jnp.bfloat16
    ).astype(jnp.float32),
    sorted=lambda key, shape: jnp.sort(jax.random.normal(key, shape), 0),
)


def _rows(initializer, key, shape, first, n):
  traced = _random_blocks.trace(initializer, key, shape)
  recipe, scalars = traced.recipe, list(traced.scalars)
  rows = jax.jit(
      lambda key, scalars, first, width: recipe.rows(
          scalars,
          (n, shape[1]),
          lambda: _random_blocks.draw(
              key, first + jnp.arange(n, dtype=jnp.uint32), width, shape[1]
          ),
      )
  )
  return rows(
      jax.random.key_data(key), scalars, np.uint32(first), np.uint32(shape[1])
  )


class RandomBlocksTest(parameterized.TestCase):

  @parameterized.parameters(*_RANDOM, *_CONSTANT)
  def test_rows_have_the_bits_of_the_whole_table(self, name):
    # With 3 to 5 columns, JAX 0.12 draws other last bits than for an array with
    # the same numbers in one row.
    shape = (37, 9)
    initializer = (_RANDOM | _CONSTANT)[name]
    key = jax.random.key(7)
    got = _rows(initializer, key, shape, 20, 8)
    expected = initializer(key, shape)[20:28]
    np.testing.assert_array_equal(got, expected)
    self.assertEqual(got.dtype, jnp.float32)

  @parameterized.parameters(*_OTHER)
  def test_what_rows_do_not_suffice_for_is_left_alone(self, name):
    key = jax.random.key(7)
    traced = _random_blocks.trace(_OTHER[name], key, (16, 8))
    self.assertIsNone(traced.recipe)
    np.testing.assert_array_equal(
        traced(key, (16, 8)), _OTHER[name](key, (16, 8))
    )
    self.assertEqual(traced(key, (24, 8)).shape, (24, 8))

  def test_other_generators_are_left_alone(self):
    normal = _RANDOM["normal"]
    key = jax.random.key(7, impl="rbg")
    trace = lambda *args: _random_blocks.trace(normal, *args).recipe
    self.assertIsNone(trace(key, (16, 8)))
    key = jax.random.key(7)
    self.assertIsNotNone(trace(key, (16, 8)))
    self.assertIsNone(trace(key, (2, 2**16)))
    with jax.threefry_partitionable(False):
      self.assertIsNone(trace(key, (16, 8)))

  @parameterized.parameters(*_RANDOM)
  def test_tables_of_all_sizes_have_one_recipe(self, name):
    key = jax.random.key(7)
    recipes = {
        _random_blocks.trace(_RANDOM[name], key, shape).recipe
        for shape in ((100, 16), (37, 16), (1000, 4))
    }
    self.assertLen(recipes, 1)

  @parameterized.parameters(
      (0, 1), (2**31 - 4, 1), (2**31 - 4, 128), (2**20, 2**16 - 1), (3, 65535)
  )
  def test_positions_have_64_bits(self, first, width):
    rows = np.arange(first, first + 3, dtype=np.uint32)
    upper, lower = _random_blocks._positions(  # pylint: disable=protected-access
        jnp.asarray(rows), jnp.uint32(width), 4
    )
    got = (np.asarray(upper).astype(object) << 32) + np.asarray(lower)
    expected = rows.astype(object)[:, None] * width + np.arange(4)
    self.assertEqual(got.tolist(), expected.tolist())

  @parameterized.parameters(
      (0, 1, 1),
      (2**25 - 20, 128, 128),  # elements on both sides of 2^32
      (7, 9, 16),
  )
  def test_cpus_draw_what_other_devices_do(self, first, width, num_columns):
    operands = (
        jnp.array([7, 8], jnp.uint32),
        first + jnp.arange(40, dtype=jnp.uint32),
        jnp.uint32(width),
    )
    np.testing.assert_array_equal(
        _random_blocks.draw(*operands, num_columns),
        _random_blocks._draw_in_xla(*operands, num_columns),  # pylint: disable=protected-access
    )
    program = jax.jit(_random_blocks.draw, static_argnums=3).trace(
        *operands, num_columns
    )
    for platform in ("cpu", "tpu", "cuda"):
      text = program.lower(lowering_platforms=(platform,)).as_text()
      self.assertEqual("jte_random_bits_cpu" in text, platform == "cpu")

  def test_rows_beyond_4_billion_elements(self):
    # 2^33 elements: too many to make, so JAX's own counters are asked.
    key = jax.random.key(7)
    shape = (2**26, 128)
    first = 2**25 + 5
    got = _rows(_RANDOM["uniform"], key, shape, first, 2)
    counts = np.arange(first * 128, (first + 2) * 128, dtype=np.uint64)
    pairs = np.concatenate([counts >> 32, counts & 0xFFFFFFFF])
    bits = jax.extend.random.threefry_2x32(
        jax.random.key_data(key), pairs.astype(np.uint32)
    )
    bits = np.asarray(bits[:256] ^ bits[256:])
    floats = ((bits >> 9) | 0x3F800000).view(np.float32) - 1
    np.testing.assert_array_equal(
        got, (floats * np.float32(0.05)).reshape(2, 128)
    )


def _specs(stacked, initializer, num_devices, num_sc):
  specs = {}
  for i, (rows, width) in enumerate(((50, 12), (7, 16), (333, 16), (64, 9))):
    table = embedding_spec.TableSpec(
        name=f"t{i}",
        vocabulary_size=rows,
        embedding_dim=width,
        initializer=initializer,
        optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.5),
    )
    specs[f"t{i}"] = embedding_spec.FeatureSpec(
        name=f"t{i}",
        table_spec=table,
        input_shape=(32, 1),
        output_shape=(32, width),
    )
  if stacked:
    embedding.auto_stack_tables(specs, num_devices, num_sc)
  else:
    embedding.prepare_feature_specs_for_training(specs, num_devices, num_sc)
  return specs


def _init(specs, num_devices, num_sc, **options):
  mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
  return embedding.init_embedding_variables(
      jax.random.key(3),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
      num_sc,
      **options,
  )


class TablesTest(parameterized.TestCase):

  @parameterized.product(
      case=(
          ("truncated_normal", (1, 1), False),
          ("normal", (1, 4), True),
          ("normal", (4, 2), False),
          ("fan_in", (4, 2), True),
          ("uniform", (2, 1), True),
          ("half", (4, 1), True),
      ),
      by_programs=(False, True),
  )
  def test_tables_have_the_bits_of_a_plain_call(self, case, by_programs):
    name, topology, stacked = case
    initializer = (_RANDOM | _CONSTANT)[name]
    specs = _specs(stacked, initializer, *topology)
    # Of several blocks, of which the last overlaps.
    with mock.patch.object(_table_blocks, "_MAX_ELEMENTS", 512):
      if by_programs:
        with mock.patch.object(_host_fill, "_MAX_BYTES", 0):
          variables = _init(specs, *topology)
      else:
        variables = _init(specs, *topology)
    tables = table_stacking.unshard_and_unstack_tables(
        embedding.get_table_specs(specs),
        {name: np.asarray(x.table) for name, x in variables.items()},
        topology[0] * topology[1],
    )
    for spec in specs.values():
      table = spec.table_spec
      key = _initializers.key_of(jax.random.key(3), table.name, 0)
      np.testing.assert_array_equal(
          tables[table.name],
          initializer(key, (table.vocabulary_size, table.embedding_dim)),
      )
    # Padding is zero: nothing is written but the tables.
    total = sum(np.count_nonzero(np.asarray(x)) for x in tables.values())
    self.assertEqual(
        total,
        sum(
            np.count_nonzero(np.asarray(of_stack.table))
            for of_stack in variables.values()
        ),
    )

  def test_sizes_of_tables_add_few_programs(self):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, fun_name="", **__: compiled.append(fun_name)
        if event == "/jax/core/compile/backend_compile_duration"
        else None
    )
    specs = {}
    for i in range(20):
      table = embedding_spec.TableSpec(
          name=f"t{i}",
          vocabulary_size=100 + 17 * i,
          embedding_dim=8,
          optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5),
      )
      specs[f"t{i}"] = embedding_spec.FeatureSpec(
          name=f"t{i}",
          table_spec=table,
          input_shape=(8, 1),
          output_shape=(8, 8),
      )
    embedding.prepare_feature_specs_for_training(specs, 1, 1)
    _init(specs, 1, 1)
    # Two sizes of blocks, and the key of a table.
    self.assertLessEqual(len(compiled), 3, compiled)

  def test_initializers_of_jax_are_traced_for_any_number_of_rows(self):
    for name, initializer in (_RANDOM | _CONSTANT).items():
      key = jax.random.key(0)
      any_rows = _random_blocks.trace(initializer, key, (1000, 8))
      with mock.patch.object(
          _random_blocks, "_is_of_shape_alone", return_value=False
      ):
        traced = _random_blocks.trace(initializer, key, (1000, 8))
      self.assertEqual(any_rows.recipe, traced.recipe, name)
      self.assertEqual(any_rows.scalars, traced.scalars, name)
      # The scale of the others depends on the number of rows.
      if name in ("default", "normal", "truncated_normal", "uniform", "half"):
        self.assertIsNone(any_rows.jaxpr, name)

  def test_tables_of_one_initializer_share_what_is_traced(self):
    for make in (
        lambda: _RANDOM["default"],
        lambda: _RANDOM["normal"],
        lambda: _INIT.normal(0.25),
        lambda: _INIT.truncated_normal(0.5, lower=-1.0),
        lambda: _INIT.constant(2.0),
    ):
      traced = [
          _random_blocks.trace(make(), jax.random.key(i), (rows, 8))
          for i, rows in enumerate((10, 20))
      ]
      self.assertIs(traced[0].recipe, traced[1].recipe)

  @parameterized.parameters(
      (_INIT.normal(0.5), _INIT.normal(0.6)),
      (_INIT.normal(0.0), _INIT.normal(-0.0)),
      (_INIT.uniform(0.5), _INIT.normal(0.5)),
      (_INIT.normal(0.5), _INIT.normal(0.5, jnp.float16)),
  )
  def test_initializers_that_differ_share_nothing(self, *initializers):
    recipes = []
    for initializer in initializers:
      traced = _random_blocks.trace(initializer, jax.random.key(0), (10, 8))
      recipes.append((traced.recipe, [x.tobytes() for x in traced.scalars]))
    self.assertNotEqual(*recipes)

  def test_a_block_takes_little_memory(self):
    traced = _random_blocks.trace(
        _RANDOM["truncated_normal"], jax.random.key(0), (10**6, 128)
    )
    rows = _table_blocks._MAX_ELEMENTS // (4 * 128)  # pylint: disable=protected-access
    block = _table_blocks.BlockShape((4, rows, 128), np.dtype(np.float32), None)
    make = _table_blocks._make_block(traced.recipe, block)  # pylint: disable=protected-access
    memory = (
        make.lower(jax.random.key(0), traced.scalars, np.zeros(4, np.uint32))
        .compile()
        .memory_analysis()
    )
    self.assertLessEqual(
        memory.temp_size_in_bytes + memory.output_size_in_bytes, 2**26
    )

  def test_blocks_of_a_later_table_stay_within_it(self):
    for rows in (1, 7, 8, 9, 63, 64, 65, 1000):
      for most in (1, 64, 256):
        size = _table_blocks._block_rows(rows, most, may_exceed=False)  # pylint: disable=protected-access
        self.assertLessEqual(size, min(rows, most))
        self.assertLessEqual(rows, size * 8 if rows < most else rows)
        first = _table_blocks._block_rows(rows, most, may_exceed=True)  # pylint: disable=protected-access
        self.assertLessEqual(first, most)
        if rows <= most:
          self.assertGreaterEqual(first, rows)


if __name__ == "__main__":
  absltest.main()
