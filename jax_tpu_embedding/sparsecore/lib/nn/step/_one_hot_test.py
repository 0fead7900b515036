# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Replicated tables against the same tables split over devices."""

from __future__ import annotations

import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.step import _one_hot
from jax_tpu_embedding.sparsecore.lib.nn.testing import every_optimizer
from jax_tpu_embedding.sparsecore.lib.nn.testing import replicated_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec
_SGD = embedding_spec.SGDOptimizerSpec
_ADAGRAD = embedding_spec.AdagradOptimizerSpec


def _steps_by_square(grad, row, slot, rate):
  slot = slot + grad * grad
  return row - rate * grad / (1 + slot), slot


_OPTIMIZERS = dict(
    **{name: spec(0.1) for name, spec in every_optimizer.SPECS.items()},
    of_the_user=embedding_spec.CustomOptimizerSpec(
        0.1,
        custom_computation_fn=_steps_by_square,
        slot_variable_initializers_tuple=(jax.nn.initializers.ones,),
    ),
    with_options=_ADAGRAD(
        0.1,
        max_gradient_norm=0.5,
        l2_weight_decay=0.1,
        decoupled_weight_decay=0.1,
        skip_non_finite_gradients=True,
    ),
)


def _bits(tree):
  return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


class PlacementTest(parameterized.TestCase):

  @parameterized.product(
      num_devices=[1, 2, 4], num_sc=[1, 2], combiner=["sum", "mean", "sqrtn"]
  )
  def test_step_is_that_of_split_tables(self, num_devices, num_sc, combiner):
    split, replicated = (
        replicated_model.Model(
            replicated_model.specs(placement, combiner=combiner),
            num_devices,
            num_sc,
        )
        for placement in ("sparsecore", "tensorcore")
    )
    ids = replicated_model.batch()
    weights = dict(
        ids, a=np.random.default_rng(1).random((replicated_model.BATCH, 3), "f")
    )
    weights |= {"b": None, "c": None}
    replicated_model.assert_close(
        self,
        split.tables(split.variables),
        replicated.tables(replicated.variables),
        rtol=0,
        atol=0,
    )
    results = []
    for model in (split, replicated):
      inputs, stats = model.preprocess(ids, weights)
      self.assertEqual(stats.id_drop_counters["small"], 7)
      activations, new = model.step(inputs, model.variables)
      results.append((activations, model.tables(new)))
    replicated_model.assert_close(self, *results, **replicated_model.CLOSE)

  @parameterized.product(name=list(_OPTIMIZERS), num_devices=[1, 4])
  def test_every_optimizer_steps_as_with_split_tables(self, name, num_devices):
    results = []
    for placement in ("sparsecore", "tensorcore"):
      model = replicated_model.Model(
          replicated_model.specs(placement, optimizer=_OPTIMIZERS[name]),
          num_devices,
      )
      inputs, _ = model.preprocess(replicated_model.batch())
      _, new = model.step(inputs, model.variables)
      results.append(model.tables(new))
      before, after = model.tables(model.variables), results[-1]
      # Rows that no sample names keep all bits, in slots too.
      self.assertEqual(
          _bits([x[20:] for x in jax.tree.leaves(before["small"])]),
          _bits([x[20:] for x in jax.tree.leaves(after["small"])]),
      )
    replicated_model.assert_close(self, *results, rtol=2e-6, atol=2e-6)

  def test_new_rows_stay_within_limits(self):
    results = []
    for placement in ("sparsecore", "tensorcore"):
      model = replicated_model.Model(replicated_model.specs(placement), 1)
      inputs, _ = model.preprocess(replicated_model.batch())
      _, new = model.step(
          inputs,
          model.variables,
          embedding_var_limits={"small": (-0.1, 0.2), "large": (None, None)},
      )
      results.append(model.tables(new))
      named = results[-1]["small"].table[:20]
      self.assertEqual(named.min(), np.float32(-0.1))
      self.assertEqual(named.max(), np.float32(0.2))
    replicated_model.assert_close(self, *results, **replicated_model.CLOSE)

  def test_rows_whose_gradient_is_not_finite_are_skipped(self):
    results = []
    for placement in ("sparsecore", "tensorcore"):
      optimizer = _SGD(0.5, skip_non_finite_gradients=True)
      model = replicated_model.Model(
          replicated_model.specs(placement, optimizer=optimizer), 1
      )
      ids = replicated_model.batch()
      ids["a"][:] = np.arange(3)
      ids["a"][5] = [3, 3, 4]
      gradients = jax.tree.map(
          lambda spec: np.ones(spec.output_shape, "f"), model.specs
      )
      gradients["a"][5, 2] = np.nan
      inputs, _ = model.preprocess(ids)
      new = embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, model.variables, model.specs
      )
      before, after = model.tables(model.variables), model.tables(new)
      changed = (before["small"].table != after["small"].table).any(axis=1)
      # "b" names row 7. Rows 3 and 4 have the gradient that is none.
      self.assertEqual(np.flatnonzero(changed).tolist(), [0, 1, 2, 7])
      results.append(after)
    replicated_model.assert_close(self, *results, **replicated_model.CLOSE)

  @parameterized.parameters(jnp.bfloat16, jnp.float16)
  def test_16_bits_are_rounded_by_the_same_numbers(self, dtype):
    # Sums of one term, so that what is rounded has the same bits.
    ids = replicated_model.batch()
    ids["a"][:] = np.arange(replicated_model.BATCH)[:, None] % 20
    ids["a"][20:] = np.arange(20, 32)[:, None] % replicated_model.ROWS
    ids["b"][:] = -1
    results = []
    for placement in ("sparsecore", "tensorcore"):
      model = replicated_model.Model(
          replicated_model.specs(placement, dtype=dtype, optimizer=_SGD(0.1)), 2
      )
      inputs, _ = model.preprocess(ids)
      _, new = model.step(inputs, model.variables, rounding_seed=3)
      results.append(model.tables(new)["small"])
    self.assertEqual(results[0].table.dtype, dtype)
    different = np.sum(results[0].table != results[1].table)
    self.assertLess(different, results[0].table.size * 0.01)

  @parameterized.parameters(1, 2, 4)
  def test_repeats_have_equal_bits_on_all_devices(self, num_devices):
    model = replicated_model.Model(
        replicated_model.specs("tensorcore"), num_devices
    )
    inputs, _ = model.preprocess(replicated_model.batch())
    first = model.step(inputs, model.variables)
    self.assertEqual(_bits(first), _bits(model.step(inputs, model.variables)))
    table = first[1]["small"].table
    self.assertLen(table.addressable_shards, num_devices)
    self.assertEqual(table.addressable_shards[0].data.shape, table.shape)
    for shard in table.addressable_shards:
      np.testing.assert_array_equal(shard.data, table)

  def test_types_say_that_tables_are_replicated(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 4)
    inputs, _ = model.preprocess(replicated_model.batch())
    replicated_model.assert_close(
        self,
        model.step(inputs, model.variables),
        model.step(inputs, model.variables, check_vma=True),
        rtol=0,
        atol=0,
    )

  def test_there_is_no_sort_and_no_exchange_in_the_program(self):
    found = {}
    for placement in ("sparsecore", "tensorcore"):
      specs = replicated_model.specs(placement)
      model = replicated_model.Model({"a": specs["a"], "b": specs["b"]}, 4)
      topology = layout.Topology(
          local_device_count=1, global_device_count=4, num_sc_per_device=1
      )

      def step(ids, variables, specs=model.specs, topology=topology):
        inputs = embedding.convert_ids(ids, None, specs, topology)
        activations = embedding.tpu_sparse_dense_matmul(
            inputs, variables, specs
        )
        return activations, embedding.tpu_sparse_dense_matmul_grad(
            activations, inputs, variables, specs
        )

      ids = {name: replicated_model.batch()[name] for name in "ab"}
      lowered = model.over_mesh(step, tables_out=True).lower(
          ids, model.variables
      )
      found[placement] = [
          word
          # The native call that says what is wrong with ids may be there.
          for word in ("sort(", "all-to-all", "all-gather", "scatter(", "jte_")
          if word
          in re.sub(
              "jte_(convert_ids|check_batch)_cpu",
              "",
              lowered.compile().as_text(),
          )
      ]
    # Of the sum over devices, which is an all-reduce elsewhere: compile_for_tpu_
    # test.py.
    self.assertEqual(found["tensorcore"], ["all-to-all"])
    self.assertIn("jte_", found["sparsecore"])


class SparseGradientsTest(parameterized.TestCase):

  def _gradients(self, model, inputs, *, check_vma=False):
    """Gradients of rows, one step with them, and the step at once."""

    def step(inputs, variables):
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, variables, model.specs
      )
      gradients = jax.tree.map(lambda x: jnp.sin(3 * x), activations)
      by_row = embedding.sparse_gradients(gradients, inputs, model.specs)
      twice = embedding.add_sparse_gradients(by_row, by_row)
      apply = lambda by_row: embedding.apply_sparse_gradients(
          by_row, variables, model.specs
      )
      return (by_row, twice), (
          apply(by_row),
          apply(twice),
          embedding.tpu_sparse_dense_matmul_grad(
              gradients, inputs, variables, model.specs
          ),
      )

    of_tables = model.partition()
    return jax.jit(
        jax.shard_map(
            step,
            mesh=model.mesh,
            in_specs=(P("x"), of_tables),
            out_specs=(P("x"), (of_tables,) * 3),
            check_vma=check_vma,
        )
    )(inputs, model.variables)

  @parameterized.parameters((1, "ab"), (4, "abc"))
  def test_are_those_of_the_step_at_once(self, num_devices, features):
    specs = {
        n: f
        for n, f in replicated_model.specs("tensorcore").items()
        if n in features
    }
    model = replicated_model.Model(specs, num_devices)
    ids = replicated_model.batch()
    ids["a"][0, 0] = 23  # The last row of the third of four devices.
    inputs, _ = model.preprocess({name: ids[name] for name in features})
    (by_row, twice), (new, new_of_twice, at_once) = self._gradients(
        model, inputs, check_vma=num_devices == 4
    )
    self.assertEqual(_bits(new), _bits(at_once))
    rows, values = by_row["small"]
    # Every device has an equal part of the rows, in order.
    size = -(-32 // num_devices)
    self.assertEqual(rows.shape, (size * num_devices,))
    named = set(ids["a"].flat) | {7}
    for device, of_device in enumerate(np.split(rows, num_devices)):
      expected = [r for r in sorted(named) if r // size == device]
      self.assertEqual(of_device[: len(expected)].tolist(), expected)
      np.testing.assert_array_equal(of_device[len(expected) :], 2**31 - 1)
    np.testing.assert_array_equal(values[rows == 2**31 - 1], 0)
    self.assertTrue(np.all(np.asarray(values)[rows < 2**31 - 1, 0] != 0))
    # Sums, such as norms, do not depend on the devices.
    alone = replicated_model.Model(
        dict(replicated_model.specs("tensorcore")), 1
    )
    (expected, _), _ = self._gradients(alone, alone.preprocess(ids)[0])
    np.testing.assert_allclose(
        jnp.sum(values**2), jnp.sum(expected["small"].values ** 2), rtol=1e-5
    )
    # Gradients that are added are those of twice the loss.
    self.assertEqual(
        sorted(np.asarray(twice["small"].rows)),
        sorted([*np.asarray(rows), *[2**31 - 1] * rows.size]),
    )
    self.assertNotEqual(_bits(new_of_twice), _bits(new))

  def test_rows_may_come_twice_from_any_device_and_with_gradient_zero(self):
    specs = replicated_model.specs("tensorcore", optimizer=_SGD(1.0))
    del specs["c"]
    model = replicated_model.Model(specs, 2)
    rows = jnp.array([5, 2**31 - 1, 5, 9], jnp.int32)
    values = jnp.array([1.0, 8, 2, 0])[:, None] * jnp.ones(8)
    gradients = {"small": embedding.SparseGradient(rows, values)}

    def apply(gradients, variables):
      return embedding.apply_sparse_gradients(gradients, variables, specs)

    new = jax.shard_map(
        apply,
        mesh=model.mesh,
        in_specs=(P("x"), model.partition()),
        out_specs=model.partition(),
        check_vma=False,
    )(gradients, model.variables)
    change = np.asarray(model.variables["small"].table - new["small"].table)
    self.assertEqual(np.flatnonzero(change[:, 0]).tolist(), [5])
    np.testing.assert_allclose(change[5], np.full(8, 3.0), rtol=1e-6)

  def test_rows_with_gradient_zero_are_stepped(self):
    specs = replicated_model.specs(
        "tensorcore", optimizer=_SGD(0.5, decoupled_weight_decay=0.5)
    )
    del specs["c"]
    model = replicated_model.Model(specs, 1)
    gradients = {
        "small": embedding.SparseGradient(
            jnp.array([3], jnp.int32), jnp.zeros((1, 8))
        )
    }
    new = embedding.apply_sparse_gradients(gradients, model.variables, specs)
    changed = (model.variables["small"].table != new["small"].table).any(axis=1)
    self.assertEqual(np.flatnonzero(changed).tolist(), [3])

  def test_axes_that_may_split_the_batch(self):
    specs = replicated_model.specs("tensorcore")
    del specs["c"]
    model = replicated_model.Model(specs, 4)
    devices = np.reshape(jax.devices(), (2, 2))
    mesh = jax.sharding.Mesh(devices, ("x", "y"))
    gradients = {
        "small": embedding.SparseGradient(
            jnp.arange(4, dtype=jnp.int32), jnp.ones((4, 8))
        )
    }

    def apply(gradients, variables):
      return embedding.apply_sparse_gradients(gradients, variables, specs)

    over_both = jax.shard_map(
        apply,
        mesh=mesh,
        in_specs=(P(("x", "y")), P()),
        out_specs=P(),
        check_vma=False,
    )
    variables = jax.tree.map(np.asarray, model.variables)
    with self.assertRaisesRegex(
        NotImplementedError, r"All tables .*any of the mesh axes \['x', 'y'\]"
    ):
      over_both(gradients, variables)
    with mesh_axis.rows_are_split_over(("x", "y")):
      new = over_both(gradients, variables)
    changed = (model.variables["small"].table != new["small"].table).any(axis=1)
    self.assertEqual(np.flatnonzero(changed).tolist(), [0, 1, 2, 3])


class ProductTest(parameterized.TestCase):

  def _samples(self, ids, gains=None):
    ids = np.asarray(ids, np.int32)
    gains = np.ones(ids.shape, "f") if gains is None else np.asarray(gains, "f")
    return _buffers.SampleIds(
        ids=jnp.asarray(ids),
        gains=jnp.asarray(gains),
        has_failed=jnp.zeros(1, bool),
    )

  def _as_entries(self, samples):
    """The same, entries of samples from the last one to the first."""
    num_samples, valency = samples.ids.shape
    sample = np.repeat(np.arange(num_samples, dtype=np.int32), valency)
    return _buffers.SampleIds(
        ids=samples.ids.reshape(-1, 1)[::-1],
        gains=samples.gains.reshape(-1, 1)[::-1],
        has_failed=samples.has_failed,
        sample=jnp.asarray(sample)[::-1],
    )

  def _stack(self, **options):
    model = replicated_model.Model(
        replicated_model.specs("tensorcore", **options), 1
    )
    return embedding.get_stacked_table_specs(model.specs)["small"]

  def test_large_batches_are_cut_into_chunks(self):
    rng = np.random.default_rng(0)
    samples = self._samples(rng.integers(40, size=(50, 2)))
    table = rng.random((40, 8), "f")
    gradient = rng.random((50, 8), "f")
    look_up = lambda: _one_hot.lookup(
        self._stack(), samples, jnp.asarray(table), 50
    )
    whole = look_up()
    sums, named = _one_hot.row_gradients(samples, gradient, 40, ())
    with mock.patch.object(_one_hot, "_MAX_COUNTS", 40 * 7):
      cut = look_up()
      cut_sums, cut_named = _one_hot.row_gradients(samples, gradient, 40, ())
      text = jax.jit(look_up).lower().as_text()
    self.assertIn("while", text)
    np.testing.assert_allclose(whole, cut, **replicated_model.CLOSE)
    np.testing.assert_allclose(sums, cut_sums, rtol=1e-5)
    np.testing.assert_array_equal(named, cut_named)
    np.testing.assert_allclose(
        whole, table[samples.ids].sum(1), **replicated_model.CLOSE
    )

  @parameterized.parameters(False, True)
  def test_what_is_not_finite_stays_where_it_is(self, are_entries):
    table = np.ones((5, 8), "f")
    table[1, 2] = np.nan
    table[2, 3] = table[4, 3] = np.inf
    table[3, 3] = -np.inf
    ids = [[0, 0], [1, 0], [2, 0], [2, 4], [2, 3], [3, 0], [2, 0], [2, 0]]
    gains = np.ones((8, 2))
    gains[6] = -2, 1
    gains[7] = 0, 1
    samples = self._samples(ids, gains)
    if are_entries:
      samples = self._as_entries(samples)
    out = _one_hot.lookup(self._stack(), samples, jnp.asarray(table), 8)
    with np.errstate(invalid="ignore"):
      expected = (table[np.array(ids)] * gains[:, :, None]).sum(axis=1)
    self.assertEqual(
        [str(x) for x in expected[:, 3]],
        ["2.0", "2.0", "inf", "inf", "nan", "-inf", "-inf", "nan"],
    )
    np.testing.assert_array_equal(out, expected)
    gradient = np.ones((8, 8), "f")
    gradient[1, 5] = np.inf
    gradient[6, 6] = -np.inf
    sums, _ = _one_hot.row_gradients(samples, gradient, 5, ())
    expected = np.zeros((5, 8))
    with np.errstate(invalid="ignore"):
      np.add.at(expected, np.array(ids), gains[:, :, None] * gradient[:, None])
    self.assertEqual(expected[:2, 5].tolist(), [np.inf, np.inf])
    self.assertEqual(expected[[0, 2], 6].tolist(), [-np.inf, np.inf])
    np.testing.assert_array_equal(sums, expected)

  def test_entries_are_those_of_samples(self):
    rng = np.random.default_rng(0)
    samples = self._samples(
        rng.integers(40, size=(50, 3)), rng.random((50, 3), "f")
    )
    entries = self._as_entries(samples)
    table, gradient = rng.random((40, 8), "f"), rng.random((50, 8), "f")
    expected = (table[samples.ids] * samples.gains[:, :, None]).sum(axis=1)
    gradients, named = _one_hot.row_gradients(samples, gradient, 40, ())
    for most in (2**24, 40 * 7):
      with mock.patch.object(_one_hot, "_MAX_COUNTS", most):
        found = _one_hot.lookup(self._stack(), entries, jnp.asarray(table), 50)
        np.testing.assert_allclose(found, expected, **replicated_model.CLOSE)
        sums, is_named = _one_hot.row_gradients(entries, gradient, 40, ())
        np.testing.assert_allclose(sums, gradients, rtol=1e-5)
        np.testing.assert_array_equal(is_named, named)

  def test_row_with_gains_of_zero_is_named(self):
    samples = self._samples([[0], [2]], [[0], [1]])
    sums, named = _one_hot.row_gradients(samples, np.ones((2, 8), "f"), 4, ())
    self.assertEqual(named.tolist(), [True, False, True, False])
    self.assertEqual(np.asarray(sums)[:, 0].tolist(), [0, 0, 1, 0])

  def test_ids_of_no_row_are_nan(self):
    samples = self._samples([[0], [4], [2**31 - 1], [-1]])
    table = jnp.ones((4, 8))
    for each in (samples, self._as_entries(samples)):
      out = _one_hot.lookup(self._stack(), each, table, 4)
      self.assertEqual(
          np.isnan(out).all(1).tolist(), [False, True, False, True]
      )
      _, named = _one_hot.row_gradients(each, jnp.ones((4, 8)), 4, ())
      self.assertEqual(named.tolist(), [True, False, False, False])

  def test_rows_are_rounded_as_the_spec_says(self):
    stack = self._stack(
        quantization_config=embedding_spec.QuantizationConfig(
            min_value=0, max_value=1, num_buckets=3
        )
    )
    table = np.full((4, 8), 0.4, "f")
    out = _one_hot.lookup(stack, self._samples([[1, 2]]), table, 1)
    np.testing.assert_array_equal(out, np.full((1, 8), 1.0))

  def test_tables_of_8_bit_codes(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 1)
    inputs, _ = model.preprocess(replicated_model.batch())
    exact = embedding.tpu_sparse_dense_matmul(
        inputs, model.variables, model.specs
    )
    rounded = embedding.tpu_sparse_dense_matmul(
        inputs, embedding.int8_variables(model.variables), model.specs
    )
    self.assertFalse(np.array_equal(exact["a"], rounded["a"]))
    np.testing.assert_allclose(exact["a"], rounded["a"], atol=0.02)

  def test_gpus_add_the_gains_of_entries_in_one_order(self):
    rng = np.random.default_rng(0)
    samples = _buffers.SampleIds(
        ids=rng.integers(-1, 8, (90, 1)).astype(np.int32),  # of 7 rows
        gains=rng.normal(size=(90, 1)).astype(np.float32),
        has_failed=np.zeros(1, bool),
        sample=rng.integers(0, 10, 90).astype(np.int32),
    )

    def counts(platform):
      with mock.patch.object(_one_hot, "_MAX_COUNTS", 4 * 7):
        parts = _one_hot._parts(samples, 10, 7)
      of_part = {
          "cpu": _one_hot._Part._sums_of_gains,
          "cuda": _one_hot._Part._sums_of_sorted_gains,
      }[platform]
      return np.stack([of_part(parts.at(i)) for i in range(3)])

    np.testing.assert_allclose(counts("cuda"), counts("cpu"), atol=1e-5)
    # What a CPU does shows that the pattern finds such a scatter.
    for platform, adds in (("cpu", True), ("cuda", False), ("rocm", False)):
      lowered = jax.jit(lambda: _one_hot._parts(samples, 10, 7).at(0).counts())
      text = lowered.trace().lower(lowering_platforms=(platform,)).as_text()
      bodies = re.findall(
          r'(?s)"stablehlo.scatter".*?\n(.*?)stablehlo.return', text
      )
      sums = [x for x in bodies if re.search("stablehlo.add.*tensor<f32>", x)]
      self.assertLen(sums, int(adds), f"{platform}: {text}")


class ErrorsTest(parameterized.TestCase):

  def test_inputs_of_unknown_origin(self):
    specs = replicated_model.specs("tensorcore")
    del specs["c"]
    model = replicated_model.Model(specs, 1)
    ids = {name: replicated_model.batch()[name] for name in specs}
    inputs, _ = model.preprocess(ids)
    expected = embedding.tpu_sparse_dense_matmul(
        inputs, model.variables, model.specs
    )
    inputs = inputs.replace(settings=None)
    with self.assertRaisesRegex(ValueError, "Pass global_device_count"):
      embedding.tpu_sparse_dense_matmul(inputs, model.variables, model.specs)
    with self.assertRaisesRegex(
        ValueError, "All tables have placement 'tensorcore'.*num_sc_per_device"
    ):
      embedding.tpu_sparse_dense_matmul(
          inputs, model.variables, model.specs, global_device_count=1
      )
    found = embedding.tpu_sparse_dense_matmul(
        inputs,
        model.variables,
        model.specs,
        global_device_count=1,
        num_sc_per_device=1,
    )
    replicated_model.assert_close(self, expected, found, rtol=0, atol=0)

  def test_leading_dimension_of_devices(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 2)
    with self.assertRaisesRegex(
        NotImplementedError, "Table 'small'.*no leading dimension"
    ):
      embedding.init_embedding_variables(
          jax.random.key(0),
          embedding.get_table_specs(model.specs),
          jax.sharding.NamedSharding(model.mesh, P("x", None, None)),
          1,
      )

  def test_split_table_in_place_of_a_replicated_one(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 4)
    inputs, _ = model.preprocess(replicated_model.batch())
    lookup = jax.shard_map(
        lambda inputs, variables: embedding.tpu_sparse_dense_matmul(
            inputs, variables, model.specs
        ),
        mesh=model.mesh,
        in_specs=(P("x"), P("x", None)),
        out_specs=P("x"),
        check_vma=False,
    )
    with self.assertRaisesRegex(ValueError, "Stack 'small'.*Replicate it: P()"):
      lookup(inputs, model.variables)

  def test_inputs_of_all_devices(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 2)
    inputs, _ = model.preprocess(replicated_model.batch())
    lookup = jax.shard_map(
        lambda variables: embedding.tpu_sparse_dense_matmul(
            inputs.replace(
                sparse_dense_matmul_input=jax.tree.map(
                    lambda x: x[: x.size // 2], inputs.sparse_dense_matmul_input
                )
            ),
            variables,
            model.specs,
        ),
        mesh=model.mesh,
        in_specs=(model.partition(),),
        out_specs=P("x"),
        check_vma=False,
    )
    with self.assertRaisesRegex(
        ValueError, "'small': the inputs have 64 samples, expected 32 for one"
    ):
      lookup(model.variables)

  def test_inputs_of_the_other_placement(self):
    models = [
        replicated_model.Model(replicated_model.specs(placement), 1)
        for placement in ("sparsecore", "tensorcore")
    ]
    inputs, _ = models[0].preprocess(replicated_model.batch())
    with self.assertRaisesRegex(
        ValueError, "'small': its placement is 'tensorcore'.*in buffers"
    ):
      embedding.tpu_sparse_dense_matmul(
          inputs, models[1].variables, models[1].specs
      )

  def test_optimizer_with_a_primitive_of_its_own(self):
    class OfTheUser(embedding_spec.SGDOptimizerSpec):

      def get_optimizer_primitive(self):
        return jax.extend.core.Primitive("mine")

    model = replicated_model.Model(
        replicated_model.specs("tensorcore", optimizer=OfTheUser(0.1)), 1
    )
    inputs, _ = model.preprocess(replicated_model.batch())
    with self.assertRaisesRegex(
        NotImplementedError, "'small'.*OfTheUser a primitive 'mine' of its own"
    ):
      model.step(inputs, model.variables)


if __name__ == "__main__":
  absltest.main()
