# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Ids of replicated tables, by sample: on the host and in programs."""

from __future__ import annotations

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import replicated_model
import numpy as np
import pyarrow as pa
import scipy.sparse

jax.config.update("jax_num_cpu_devices", 4)


@dataclasses.dataclass
class _SparseTensor:
  indices: np.ndarray
  values: np.ndarray
  dense_shape: np.ndarray


class ConversionTest(parameterized.TestCase):

  @parameterized.product(
      combiner=["sum", "mean", "sqrtn"],
      strategy=["SPLIT_THEN_STACK", "STACK_THEN_SPLIT"],
      num_sc=[1, 2],
  )
  def test_in_programs_is_that_of_the_host(self, combiner, strategy, num_sc):
    model = replicated_model.Model(
        replicated_model.specs("tensorcore", combiner=combiner), 1, num_sc
    )
    ids = replicated_model.batch()
    weights = jax.tree.map(lambda x: np.cos(x, dtype=np.float32), ids)
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=num_sc
    )
    inputs, _ = model.preprocess(
        ids, weights, feature_stacking_strategy=strategy
    )
    on_host = embedding.tpu_sparse_dense_matmul(
        inputs, model.variables, model.specs
    )
    converted = embedding.convert_ids(
        ids, weights, model.specs, topology, feature_stacking_strategy=strategy
    )
    in_program = embedding.tpu_sparse_dense_matmul(
        converted, model.variables, model.specs
    )
    replicated_model.assert_close(
        self, on_host, in_program, **replicated_model.CLOSE
    )
    replicated_model.assert_close(
        self,
        on_host,
        embedding.lookup_ids(
            ids,
            weights,
            model.variables,
            model.specs,
            topology,
            feature_stacking_strategy=strategy,
        ),
        **replicated_model.CLOSE,
    )

  def test_every_form_of_ids_gives_the_same(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 2)
    ids = replicated_model.batch()
    expected, _ = model.step(model.preprocess(ids)[0], model.variables)
    lists = dict(ids, a=np.empty(replicated_model.BATCH, object))
    lists["a"][:] = [list(row) for row in ids["a"]]
    splits = np.arange(0, 3 * replicated_model.BATCH + 1, 3)
    ragged = dict(ids, a=(ids["a"].reshape(-1), splits))
    column = dict(lists, a=lists["a"][:, None], b=pa.array(ids["b"][:, 0]))
    for form in (lists, ragged, column):
      inputs, _ = model.preprocess(form)
      # Three ids of a sample are rounded up to a power of two.
      self.assertEqual(
          inputs.samples["small"].ids.shape, (2 * replicated_model.BATCH, 4)
      )
      found, _ = model.step(inputs, model.variables)
      replicated_model.assert_close(self, expected, found, rtol=0, atol=0)

  @parameterized.parameters(
      ("sum", "SPLIT_THEN_STACK", 2, False),
      ("sqrtn", "STACK_THEN_SPLIT", 2, False),
      ("mean", "SPLIT_THEN_STACK", 2, True),
      ("sqrtn", "SPLIT_THEN_STACK", 1, True),
  )
  def test_ragged_ids_in_programs(
      self, combiner, strategy, num_sc, has_weights
  ):
    # Any number of ids, one sample with many; beside an array; with policies.
    splits = np.r_[0, 0, 1, 25, np.arange(26, 54), 70].astype(np.int32)
    rng = np.random.default_rng(0)
    values = rng.integers(-3, 27, 80, dtype=np.int32)
    # Not in the table, and dropped: the last row has no id.
    values[values > 24] = 40
    values[splits[3] : splits[4]] = values[0]  # many times the same
    ids = dict(replicated_model.batch(), b=(values, splits))
    weights = None
    if has_weights:
      weights = {
          "a": 1.5 + np.cos(ids["a"], dtype=np.float32),
          "b": 1.5 + np.cos(np.arange(80), dtype=np.float32),
          "c": None,
      }
      weights["b"][[3, 17]] = np.nan
    results = []
    for placement in ("sparsecore", "tensorcore"):
      optimizer = embedding_spec.SGDOptimizerSpec(
          0.1, decoupled_weight_decay=0.1
      )
      specs = replicated_model.specs(
          placement, combiner=combiner, optimizer=optimizer
      )
      specs["b"].non_finite_weights = "drop"
      model = replicated_model.Model(specs, 1, num_sc)
      topology = layout.Topology(
          local_device_count=1, global_device_count=1, num_sc_per_device=num_sc
      )

      def step(ids, weights, variables, specs=model.specs, topology=topology):
        options = dict(feature_stacking_strategy=strategy)
        inputs = embedding.convert_ids(ids, weights, specs, topology, **options)
        found = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
        gradients = jax.tree.map(lambda x: jnp.sin(3 * x), found)
        at_once = embedding.lookup_ids(
            ids, weights, variables, specs, topology, **options
        )
        return (found, at_once), embedding.tpu_sparse_dense_matmul_grad(
            gradients, inputs, variables, specs
        )

      out, new = jax.jit(step)(ids, weights, model.variables)
      results.append((out, model.tables(new)))
    replicated_model.assert_close(self, *results, rtol=1e-5, atol=2e-6)

  def test_ragged_ids_of_each_device(self):
    # Every device has a pair of values and row splits.
    values = np.arange(2 * 40, dtype=np.int32) % replicated_model.ROWS
    splits = np.r_[np.arange(16), 33, np.arange(0, 32, 2), 40].astype(np.int32)
    ids = dict(replicated_model.batch(), b=(values, splits))
    results = []
    for placement in ("sparsecore", "tensorcore"):
      model = replicated_model.Model(replicated_model.specs(placement), 2)
      topology = layout.Topology(
          local_device_count=1, global_device_count=2, num_sc_per_device=1
      )

      def step(ids, variables, specs=model.specs, topology=topology):
        inputs = embedding.convert_ids(ids, None, specs, topology)
        found = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
        return found, embedding.tpu_sparse_dense_matmul_grad(
            found, inputs, variables, specs
        )

      for check_vma in (False, True):
        out, new = model.over_mesh(step, tables_out=True, check_vma=check_vma)(
            ids, model.variables
        )
        results.append((out, model.tables(new)))
    for result in results[1:]:
      replicated_model.assert_close(
          self, results[0], result, rtol=1e-5, atol=2e-6
      )

  @parameterized.parameters("tensor", "scipy", "ragged")
  def test_sparse_ids_with_weights(self, form):
    rng = np.random.default_rng(0)
    place = np.stack(
        np.nonzero(
            rng.random((replicated_model.BATCH, replicated_model.ROWS)) < 0.1
        ),
        axis=1,
    )
    gains = rng.random(len(place), "f")
    splits = np.r_[
        0, np.bincount(place[:, 0], minlength=replicated_model.BATCH).cumsum()
    ]
    shape = np.array([replicated_model.BATCH, replicated_model.ROWS])
    of_a, of_weights = dict(
        tensor=(
            _SparseTensor(place, place[:, 1], shape),
            _SparseTensor(place, gains, shape),
        ),
        scipy=(
            scipy.sparse.csr_array((gains, place[:, 1], splits), shape),
            None,
        ),
        ragged=((place[:, 1], splits), (gains, splits)),
    )[form]
    results = []
    for placement in ("sparsecore", "tensorcore"):
      model = replicated_model.Model(
          replicated_model.specs(placement, combiner="mean"), 2
      )
      inputs, _ = model.preprocess(
          dict(replicated_model.batch(), a=of_a),
          dict(a=of_weights, b=None, c=None),
      )
      activations, new = model.step(inputs, model.variables)
      results.append((activations, model.tables(new)))
    replicated_model.assert_close(self, *results, rtol=1e-5, atol=2e-6)
    most = np.bincount(place[:, 0]).max()
    self.assertLess(most, inputs.samples["small"].ids.shape[1] + 1)
    self.assertLess(inputs.samples["small"].ids.shape[1], 2 * most)

  def test_every_process_has_one_width(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 2)
    ids = {
        name: x[: replicated_model.BATCH // 2]
        for name, x in replicated_model.batch().items()
    }
    rows = np.empty(replicated_model.BATCH // 2, object)
    rows[:] = [list(row) for row in ids["a"]]
    rows[0] = rows[0][:1]
    found = [
        embedding.preprocess_sparse_dense_matmul_input(
            form, None, model.specs, 1, 2, num_sc_per_device=1, limits="specs"
        )[0].samples["small"]
        for form in (ids, dict(ids, a=rows))
    ]
    # Of "a" and "b", half of the batch of each.
    self.assertEqual(found[0].ids.shape, (replicated_model.BATCH, 3))
    np.testing.assert_array_equal(found[0].ids[1:], found[1].ids[1:])

  def test_shapes_are_known_before(self):
    for leading in (False, True):
      model = replicated_model.Model(replicated_model.specs("tensorcore"), 2)
      inputs, _ = model.preprocess(
          replicated_model.batch(), has_leading_dimension=leading
      )
      shapes = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
          model.specs,
          2,
          2,
          num_sc_per_device=1,
          has_leading_dimension=leading,
      )
      self.assertEqual(shapes.settings, inputs.settings)
      samples = shapes.samples["small"]
      found = inputs.samples["small"]
      self.assertEqual(
          [(x.shape, x.dtype) for x in jax.tree.leaves(samples)],
          [(x.shape, x.dtype) for x in jax.tree.leaves(found)],
      )

  def test_other_batch_than_declared(self):
    ids = jax.tree.map(lambda x: x[:8], replicated_model.batch())
    results = []
    for placement in ("sparsecore", "tensorcore"):
      model = replicated_model.Model(replicated_model.specs(placement), 2)
      activations, new = model.step(model.preprocess(ids)[0], model.variables)
      self.assertEqual(activations["a"].shape, (8, 6))
      results.append((activations, model.tables(new)))
    replicated_model.assert_close(self, *results, **replicated_model.CLOSE)

  def test_samples_without_ids_are_zero(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 1)
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=1
    )
    ids = jax.tree.map(lambda x: x[:, :0], replicated_model.batch())
    activations = embedding.lookup_ids(
        ids, None, model.variables, model.specs, topology
    )
    for of_feature in jax.tree.leaves(activations):
      self.assertEqual(of_feature.shape[0], replicated_model.BATCH)
      self.assertFalse(np.any(of_feature))

  def test_what_policies_dropped_is_counted(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 1)
    inputs, stats = model.preprocess(replicated_model.batch())
    stats = embedding.count_batch(
        replicated_model.batch(), model.specs, None, inputs, stats
    )
    self.assertEqual(stats.num_ids["b"], replicated_model.BATCH)
    self.assertEqual(stats.dropped_by_policy["b"], 7)
    self.assertEqual(stats.dropped_by_limit, {"large": 0, "small": 0})
    # Limits are of stacks with buffers.
    self.assertEqual(list(stats.max_ids_per_partition), ["large"])
    self.assertEqual([name for name, _ in inputs.settings.limits], ["large"])

  @parameterized.parameters(1, 2)
  def test_no_other_table_is_needed(self, num_devices):
    both = replicated_model.Model(
        replicated_model.specs("tensorcore"), num_devices
    )
    alone = replicated_model.specs("tensorcore")
    del alone["c"]
    alone = replicated_model.Model(alone, num_devices)
    ids = replicated_model.batch()
    expected, new = both.step(both.preprocess(ids)[0], both.variables)
    del ids["c"], expected["c"]
    inputs, stats = alone.preprocess(ids)
    self.assertEqual(stats.id_drop_counters, {"small": 7})
    found, found_new = alone.step(inputs, alone.variables)
    replicated_model.assert_close(self, expected, found, rtol=0, atol=0)
    replicated_model.assert_close(
        self, new["small"], found_new["small"], rtol=0, atol=0
    )

  @parameterized.parameters("abc", "ab")
  def test_adaptive_limits_leave_replicated_tables_alone(self, features):
    specs = {
        n: f
        for n, f in replicated_model.specs("tensorcore").items()
        if n in features
    }
    batch = {name: replicated_model.batch()[name] for name in features}
    model = replicated_model.Model(specs, 1)
    limits = embedding.AdaptiveLimits(
        model.specs,
        local_device_count=1,
        global_device_count=1,
        num_sc_per_device=1,
        ceiling=None,
    )
    inputs, _ = limits.preprocess(batch, None)
    expected, _ = model.step(model.preprocess(batch)[0], model.variables)
    found, _ = model.step(inputs, model.variables)
    replicated_model.assert_close(self, expected, found, rtol=0, atol=0)


class ErrorsTest(parameterized.TestCase):

  def test_ids_out_of_range(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 1)
    ids = replicated_model.batch()
    ids["a"][3, 1] = replicated_model.ROWS
    with self.assertRaisesRegex(
        ValueError, f"Feature 'a': sample 3 has id {replicated_model.ROWS}"
    ):
      model.preprocess(ids)
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=1
    )
    convert = jax.jit(
        lambda ids: embedding.convert_ids(ids, None, model.specs, topology)
    )
    convert(replicated_model.batch())
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError),
        f"Feature 'a': sample 3 has id {replicated_model.ROWS} at",
    ):
      jax.block_until_ready(convert(ids))

  def test_samples_that_sparsecores_cannot_share(self):
    model = replicated_model.Model(replicated_model.specs("tensorcore"), 1, 2)
    ids = dict(replicated_model.batch(), a=replicated_model.batch()["a"][:31])
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=2
    )
    with self.assertRaisesRegex(
        ValueError, "Feature 'a': ids must have a number of samples .* got 31"
    ):
      embedding.convert_ids(ids, None, model.specs, topology)
    with self.assertRaisesRegex(ValueError, "Feature 'a': the 31 samples of"):
      model.preprocess(ids)

  @parameterized.parameters(
      (
          (replicated_model.BATCH, 2),
          "Table 'small'.*'a', 'b'.* has 3 ids, .* room for 2 in",
      ),
      (
          (replicated_model.BATCH, None),
          "Feature 'a': its table 'small'.* does not say",
      ),
      (
          (replicated_model.BATCH,),
          "Feature 'a': its table 'small'.* does not say",
      ),
  )
  def test_several_processes_know_how_many_ids_samples_have(
      self, input_shape, message
  ):
    specs = replicated_model.specs("tensorcore")
    specs["a"].input_shape = input_shape
    model = replicated_model.Model(specs, 2)
    ids = {
        name: x[: replicated_model.BATCH // 2]
        for name, x in replicated_model.batch().items()
    }
    ids["a"] = ids["a"].reshape(-1), np.arange(
        0, 3 * replicated_model.BATCH // 2 + 1, 3
    )
    with self.assertRaisesRegex(ValueError, message):
      embedding.preprocess_sparse_dense_matmul_input(
          ids, None, model.specs, 1, 2, num_sc_per_device=1, limits="specs"
      )


if __name__ == "__main__":
  absltest.main()
