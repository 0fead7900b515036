# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Gradients of rows over devices: the same bits as the update in one go."""

import functools
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.testing import compiled_text
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 8)

_BATCH = 32
_AXIS = jax.sharding.PartitionSpec("x")
_NO_ROW = 2**31 - 1


class _Model:
  """Three features over two stacked tables, on several devices.

  Gradients and weights are integers, so that their sums are exact in any order.
  """

  def __init__(
      self,
      num_devices,
      num_sc,
      *,
      enable_minibatching=False,
      optimizer=None,
      dtype="float32",
      limit=512,
      rows=70,
      batch=_BATCH,
  ):
    self.enable_minibatching = enable_minibatching
    self.num_devices, self.num_sc = num_devices, num_sc
    make = functools.partial(
        two_table_model.table,
        optimizer=optimizer or embedding_spec.AdagradOptimizerSpec(0.5),
        embedding_dim=8,
        dtype=dtype,
    )
    items = make("items", rows)
    feature = functools.partial(two_table_model.feature, batch=batch)
    self.specs = {
        "user": feature("user", make("users", 40)),
        "item": feature("item", items, valency=1),
        "last": feature("last", items, valency=4),
    }
    limits = lambda name, batch_size: limit
    embedding.auto_stack_tables(self.specs, num_devices, num_sc, limits, limits)
    self.mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))

  @functools.cached_property
  def variables(self):
    return embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(self.specs),
        jax.sharding.NamedSharding(
            self.mesh, jax.sharding.PartitionSpec("x", None)
        ),
        self.num_sc,
        bypass_mesh_check=True,
    )

  @property
  def num_rows(self):
    return self.specs["user"].table_spec.stacked_table_spec.stack_vocab_size

  @property
  def shapes(self):
    """Of variables, for tables that need not be made."""
    table = jax.ShapeDtypeStruct((self.num_rows, 8), jnp.float32)
    return {"items_users": (table, table)}

  def batch(self, *seeds):
    """Inputs and activation gradients, the samples of all seeds together."""
    ids, weights, gradients = {}, {}, {}
    rngs = [np.random.default_rng(seed) for seed in seeds]
    for name, spec in self.specs.items():
      num_rows = spec.table_spec.vocabulary_size
      samples, valency = spec.input_shape
      shape = (samples // len(seeds), valency)
      draw = lambda low, high, *shape: np.concatenate(
          [rng.integers(low, high, shape, dtype="i4") for rng in rngs]
      )
      ids[name] = draw(0, num_rows, *shape)
      weights[name] = np.float32(draw(-3, 3, *shape))
      gradients[name] = np.float32(draw(-3, 3, shape[0], 8))
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids,
        weights,
        self.specs,
        self.num_devices,
        self.num_devices,
        num_sc_per_device=self.num_sc,
        enable_minibatching=self.enable_minibatching,
    )
    return inputs, gradients

  def limit_rows(self, max_unique_ids_per_partition):
    """Sets a limit that preprocessing did not know."""
    for spec in self.specs.values():
      table = spec.table_spec
      table.stacked_table_spec = table.stacked_table_spec.replace(
          max_unique_ids_per_partition=max_unique_ids_per_partition
      )

  def run(self, function, *args, donate=(), compile_only=False):
    """`function` of each device's part of `args`."""
    jitted = jax.jit(
        jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=_AXIS,
            out_specs=_AXIS,
            check_vma=False,
        ),
        donate_argnums=donate,
    )
    if compile_only:
      return jitted.lower(*args).compile()
    return jitted(*args)

  def gradients(self, inputs, activation_gradients):
    return embedding.sparse_gradients(
        activation_gradients,
        inputs,
        self.specs,
        global_device_count=self.mesh.size,
        enable_minibatching=self.enable_minibatching,
    )

  def apply(self, gradients, variables, **kwargs):
    return embedding.apply_sparse_gradients(
        gradients,
        variables,
        self.specs,
        enable_minibatching=self.enable_minibatching,
        **kwargs,
    )

  def update(self, inputs, activation_gradients, variables, **kwargs):
    return embedding.tpu_sparse_dense_matmul_grad(
        activation_gradients,
        inputs,
        variables,
        self.specs,
        enable_minibatching=self.enable_minibatching,
        **kwargs,
    )


def _assert_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


class SparseGradientsOnDevicesTest(parameterized.TestCase):

  @parameterized.parameters(
      (8, 1, False),
      (4, 2, False),
      (1, 4, True),
      (2, 1, True),
  )
  def test_gives_the_bits_of_the_update(
      self, num_devices, num_sc, enable_minibatching
  ):
    # With minibatching: too few for one.
    limit = 128 // (num_devices * num_sc) ** 2 if enable_minibatching else 512
    model = _Model(
        num_devices,
        num_sc,
        limit=limit,
        enable_minibatching=enable_minibatching,
    )
    inputs, _ = model.batch(0)
    if enable_minibatching:
      self.assertGreater(np.max(inputs.num_minibatches), 1)
    # Numbers whose sums depend on the order.
    gradients = {
        name: np.random.default_rng(1)
        .normal(size=spec.output_shape)
        .astype(np.float32)
        for name, spec in model.specs.items()
    }
    expected = model.run(model.update, inputs, gradients, model.variables)

    def step(inputs, gradients, variables):
      return model.apply(model.gradients(inputs, gradients), variables)

    _assert_equal(model.run(step, inputs, gradients, model.variables), expected)

  def test_more_rows_than_one_device_names_of_another(self):
    # Optimizers of users exchange messages, of a size that the limit gives.
    optimizer = embedding_spec.CustomOptimizerSpec(
        0.5, lambda gradient, row, rate: row - rate * gradient
    )
    model = _Model(4, 1, optimizer=optimizer, limit=32, rows=200)
    batch = model.batch(0)

    def both(inputs, gradients, variables):
      rows = model.gradients(inputs, gradients)
      new = model.apply(rows, variables)
      return rows, new, model.update(inputs, gradients, variables)

    rows, in_two_calls, in_one = model.run(both, *batch, model.variables)
    is_row = np.reshape(rows["items_users"].rows, (4, -1)) != _NO_ROW
    self.assertGreater(is_row.sum(axis=1).max(), 32)
    _assert_equal(in_two_calls, in_one)

  def test_rows_are_distinct_and_on_their_device(self):
    model = _Model(4, 2)
    inputs, activation_gradients = model.batch(0)
    (gradient,) = model.run(
        model.gradients, inputs, activation_gradients
    ).values()
    of_devices = np.reshape(gradient.rows, (model.num_devices, -1))
    rows_per_device = model.num_rows // model.num_devices
    for device, rows in enumerate(of_devices):
      is_row = rows != _NO_ROW
      self.assertTrue(is_row.any() and not is_row.all())
      np.testing.assert_array_equal(rows, np.sort(rows))
      rows = rows[is_row]
      self.assertLen(np.unique(rows), rows.size)
      np.testing.assert_array_equal(rows // rows_per_device, device)
    is_row = np.ravel(gradient.rows) != _NO_ROW
    np.testing.assert_array_equal(gradient.values[~is_row], 0)

  def test_micro_batches_are_one_large_batch(self):
    large = _Model(4, 2, batch=3 * _BATCH)
    expected = large.run(large.update, *large.batch(0, 1, 2), large.variables)

    model = _Model(4, 2)
    batches = [model.batch(seed) for seed in range(3)]

    def one_by_one(batches, variables):
      gradients = [model.gradients(*batch) for batch in batches]
      return model.apply(embedding.add_sparse_gradients(*gradients), variables)

    _assert_equal(model.run(one_by_one, batches, model.variables), expected)

    def by_scan(batches, variables):
      batches = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), batches)
      _, gradients = jax.lax.scan(
          lambda carry, batch: (carry, model.gradients(*batch)), (), batches
      )
      return model.apply(embedding.add_sparse_gradients(gradients), variables)

    batches = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *batches)
    _assert_equal(model.run(by_scan, batches, model.variables), expected)

  @parameterized.parameters(
      (("data",), True), (("data", "model"), False), (("model", "data"), False)
  )
  def test_rows_split_over_some_axes_of_a_mesh(self, axes, check_vma):
    model = _Model(2 ** len(axes), 1)

    def both(inputs, gradients, variables):
      with mesh_axis.rows_are_split_over(axes):
        rows = model.gradients(inputs, gradients)
        return (
            model.apply(rows, variables),
            model.update(inputs, gradients, variables),
        )

    spec = jax.sharding.PartitionSpec(axes)
    in_two_calls, in_one = jax.jit(
        jax.shard_map(
            both,
            mesh=jax.make_mesh(
                (2, 2),
                ("data", "model"),
                axis_types=(jax.sharding.AxisType.Auto,) * 2,
                devices=jax.devices()[:4],
            ),
            in_specs=spec,
            out_specs=spec,
            check_vma=check_vma,
        )
    )(*model.batch(0), jax.tree.map(np.asarray, model.variables))
    _assert_equal(in_two_calls, in_one)

  def test_norm_is_that_of_the_tables(self):
    model = _Model(2, 1)
    batch = model.batch(0)
    dense = {"kernel": jnp.full(3, 5.0)}
    gradients = model.run(model.gradients, *batch)
    total = np.zeros((model.num_rows, 8))
    rows = np.asarray(gradients["items_users"].rows)
    total[rows[rows != _NO_ROW]] = gradients["items_users"].values[
        rows != _NO_ROW
    ]
    norm = np.sqrt(np.sum(total**2) + 3 * 5.0**2)

    values = {name: each.values for name, each in gradients.items()}
    (dense, values), _ = optax.clip_by_global_norm(1.0).update(
        (dense, values), optax.EmptyState()
    )
    clipped = {
        name: each._replace(values=values[name])
        for name, each in gradients.items()
    }
    new = model.run(model.apply, clipped, model.variables)["items_users"]
    np.testing.assert_allclose(dense["kernel"], 5 / norm, rtol=1e-6)
    total /= norm
    accumulator = 0.1 + total**2
    np.testing.assert_allclose(
        new.slot.accumulator, accumulator, rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(
        new.table,
        model.variables["items_users"].table
        - 0.5 * total / np.sqrt(accumulator),
        rtol=1e-5,
        atol=1e-6,
    )

  def test_rows_of_other_devices_find_their_way(self):
    model = _Model(4, 2)
    gradients = model.run(model.gradients, *model.batch(0))
    expected = model.run(model.apply, gradients, model.variables)
    order = np.random.default_rng(0).permutation(
        gradients["items_users"].rows.size
    )
    shuffled = jax.tree.map(lambda x: np.asarray(x)[order], gradients)
    _assert_equal(model.run(model.apply, shuffled, model.variables), expected)

  def test_tables_of_two_bytes_are_rounded_alike(self):
    model = _Model(2, 2, dtype="bfloat16")
    batch = model.batch(0)
    expected = model.run(
        functools.partial(model.update, rounding_seed=3),
        *batch,
        model.variables,
    )

    def step(inputs, gradients, variables):
      return model.apply(
          model.gradients(inputs, gradients), variables, rounding_seed=3
      )

    new = model.run(step, *batch, model.variables)
    self.assertEqual(new["items_users"].table.dtype, jnp.bfloat16)
    _assert_equal(new, expected)

  @parameterized.parameters((1, 1), (4, 1))
  def test_donated_tables_are_not_copied(self, *topology):
    model = _Model(*topology, rows=2**20)

    def step(inputs, variables):
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, variables, model.specs
      )
      gradients = model.gradients(inputs, activations)
      return activations, model.apply(gradients, variables)

    compiled = model.run(
        step,
        model.batch(0)[0],
        model.shapes,
        donate=1,
        compile_only=True,
    )
    rows = model.num_rows // model.num_devices
    self.assertEmpty(
        compiled_text.copies(compiled.as_text(), rf"f32\[{rows},8\]")
    )
    memory = compiled.memory_analysis()
    self.assertEqual(memory.alias_size_in_bytes, 2 * rows * 8 * 4)
    self.assertLess(memory.temp_size_in_bytes, rows * 8 * 4 // 8)

  def test_what_is_sent_does_not_depend_on_the_tables(self):
    def sent(rows):
      model = _Model(4, 1, rows=rows)
      inputs, gradients = model.batch(0)
      step = lambda *batch: model.apply(model.gradients(*batch[:2]), batch[2])
      text = model.run(
          step, inputs, gradients, model.shapes, compile_only=True
      ).as_text()
      return sorted(re.findall(r"= (.*?) (all-to-all|all-gather)\(", text))

    small, large = sent(2**14), sent(2**18)
    # Requests and rows.
    self.assertEqual([name for _, name in small].count("all-to-all"), 2)
    self.assertEqual(small, large)

  def test_buffers_of_other_devices_raise(self):
    model = _Model(1, 2)
    inputs, gradients = model.batch(0)
    with self.assertRaisesRegex(
        ValueError, r"made for 1 device\(s\), and the program has 2 along"
    ):
      jax.jit(
          jax.shard_map(
              model.gradients,
              mesh=jax.sharding.Mesh(jax.devices()[:2], ("x",)),
              in_specs=jax.sharding.PartitionSpec(),
              out_specs=_AXIS,
              check_vma=False,
          )
      )(inputs, gradients)

  def test_rows_over_the_limit_show(self):
    model = _Model(2, 1)
    inputs, gradients = model.batch(0)
    # So that the limits of the specs, which are wrong below, are used.
    batch = inputs.replace(settings=None), gradients
    (expected,) = model.run(model.gradients, *batch).values()
    expected_rows = set(np.asarray(expected.rows)) - {_NO_ROW}
    for limit in (8, 1):
      model.limit_rows(limit)
      (gradient,) = model.run(model.gradients, *batch).values()
      rows = np.asarray(gradient.rows)
      is_row = rows != _NO_ROW
      # Of each device's rows there are some, although some are missing.
      self.assertTrue(is_row.reshape(2, -1).any(axis=1).all())
      self.assertLess(set(rows[is_row]), expected_rows)
      self.assertTrue(np.isnan(gradient.values[is_row]).all())
      np.testing.assert_array_equal(gradient.values[~is_row], 0)
      # The step keeps them visible.
      ((table, _),) = model.run(
          model.apply, {"items_users": gradient}, model.variables
      ).values()
      np.testing.assert_array_equal(
          np.flatnonzero(np.isnan(table).all(axis=1)), np.unique(rows[is_row])
      )

  def test_rows_over_the_limit_of_one_device_show(self):
    # Device 0 names 16 rows of device 1, there is room for 8; device 1 names
    # the first of its own 4 rows only.
    table = two_table_model.table(vocabulary_size=64, embedding_dim=8)
    specs = {"f": two_table_model.feature("f", table, valency=1, batch=32)}
    embedding.prepare_feature_specs_for_training(specs, 2, 1)
    ids = np.concatenate([2 * np.arange(16) + 1, 2 * (np.arange(16) % 4) + 1])
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"f": ids[:, None]}, None, specs, 2, 2, num_sc_per_device=1
    )
    table.stacked_table_spec = table.stacked_table_spec.replace(
        max_unique_ids_per_partition=8
    )
    gradients = jax.jit(
        jax.shard_map(
            lambda *args: embedding.sparse_gradients(
                *args, specs, global_device_count=2
            ),
            mesh=jax.sharding.Mesh(jax.devices()[:2], ("x",)),
            in_specs=_AXIS,
            out_specs=_AXIS,
            check_vma=False,
        )
    )({"f": np.ones((32, 8), np.float32)}, inputs.replace(settings=None))
    rows = np.asarray(gradients["t"].rows)
    first = table.stacked_table_spec.stack_vocab_size // 2
    np.testing.assert_array_equal(
        rows[rows != _NO_ROW], np.arange(first, first + 8)
    )
    self.assertTrue(np.isnan(gradients["t"].values[rows != _NO_ROW]).all())


if __name__ == "__main__":
  absltest.main()
