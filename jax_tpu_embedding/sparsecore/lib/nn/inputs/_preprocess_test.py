# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from typing import Any
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np
import pyarrow as pa
import scipy.sparse

_NUM_SC = 2
_BATCH = 8
_ROWS = [[3, 1], [], [5], [5, 5, 0], [2], [7, 4], [], [6]]
_VALUES = np.concatenate(_ROWS).astype(np.int32)
_SPLITS = np.cumsum([0] + [len(row) for row in _ROWS])
_SAMPLES = np.repeat(np.arange(_BATCH), np.diff(_SPLITS))


class SparseTensor(NamedTuple):
  """As tf.SparseTensorValue, which is a tree to JAX."""

  indices: Any
  values: Any
  dense_shape: Any


def object_array(rows):
  array = np.empty(len(rows), object)
  array[:] = [np.array(row, np.int32) for row in rows]
  return array


_INDICES = np.stack(
    [_SAMPLES, np.arange(_VALUES.size) - _SPLITS[_SAMPLES]], axis=1
)
_FORMS = dict(
    rows=object_array(_ROWS),
    values_and_row_splits=(_VALUES, _SPLITS),
    sparse_tensor=SparseTensor(_INDICES, _VALUES, np.array([_BATCH, 3])),
    scipy=scipy.sparse.csr_array(
        (np.ones(_VALUES.size), _VALUES, _SPLITS), shape=(_BATCH, 10)
    ),
    arrow=pa.array(_ROWS, pa.list_(pa.int32())),
)


def make_specs(max_ids=64, **policies):
  table = two_table_model.table(
      vocabulary_size=10,
      combiner="mean",
      max_ids_per_partition=max_ids,
      max_unique_ids_per_partition=max_ids,
  )
  feature = two_table_model.feature("f", table, batch=_BATCH)
  for name, policy in policies.items():
    setattr(feature, name, policy)
  specs = {"f": feature}
  embedding.prepare_feature_specs_for_training(specs, 1, _NUM_SC)
  return specs


def preprocess(ids, weights=None, specs=None, **keywords):
  return embedding.preprocess_sparse_dense_matmul_input(
      {"f": ids},
      None if weights is None else {"f": weights},
      specs or make_specs(),
      1,
      1,
      num_sc_per_device=_NUM_SC,
      **keywords,
  )


def assert_same(got, expected):
  jax.tree.map(np.testing.assert_array_equal, got, expected)


class InputFormsTest(parameterized.TestCase):

  @parameterized.named_parameters(_FORMS.items())
  def test_every_form_gives_the_same(self, ids):
    assert_same(preprocess(ids), preprocess(_FORMS["rows"]))

  def test_a_feature_may_have_no_weights_where_others_have(self):
    table = two_table_model.table(vocabulary_size=10, combiner="mean")
    specs = {
        name: two_table_model.feature(name, table, batch=_BATCH)
        for name in ("f", "g")
    }
    embedding.prepare_feature_specs_for_training(specs, 1, _NUM_SC)
    ids = np.ones((_BATCH, 1), np.int32)

    def convert(weights_of_g):
      return embedding.preprocess_sparse_dense_matmul_input(
          {"f": ids, "g": ids},
          {"f": np.full((_BATCH, 1), 0.5, np.float32), "g": weights_of_g},
          specs,
          1,
          1,
          num_sc_per_device=_NUM_SC,
      )

    assert_same(convert(None), convert(np.ones((_BATCH, 1), np.float32)))
    with self.assertRaisesRegex(ValueError, "features_weights.*'g'"):
      convert([None, None])

  def test_sparse_tensors_in_three_trees(self):
    got = embedding.preprocess_sparse_dense_matmul_input_from_sparse_tensor(
        {"f": _INDICES},
        {"f": _VALUES},
        {"f": np.array([_BATCH, 3])},
        make_specs(),
        1,
        1,
        num_sc_per_device=_NUM_SC,
        has_leading_dimension=True,
    )
    expected = preprocess(_FORMS["rows"], has_leading_dimension=True)
    assert_same(got, expected)

  def test_a_tree_that_differs_is_an_error_that_names_it(self):
    specs = make_specs()
    arguments = [{"f": _INDICES}, {"f": _VALUES}, {"f": np.array([_BATCH, 3])}]
    for i, name in enumerate(("indices", "values", "dense_shapes")):
      wrong = list(arguments)
      wrong[i] = {"g": wrong[i]["f"]}
      with self.assertRaisesRegex(
          ValueError, f"{name} and feature_specs do not match.*'g'"
      ):
        embedding.preprocess_sparse_dense_matmul_input_from_sparse_tensor(
            *wrong, specs, 1, 1, num_sc_per_device=_NUM_SC
        )

  def test_a_table_in_place_of_a_feature_is_an_error_that_names_it(self):
    specs = make_specs()
    limits = embedding.Limits.of(specs, 1, _NUM_SC)
    _, stats = preprocess(_FORMS["rows"], specs=specs)
    specs["g"] = specs["f"].table_spec
    both = {"f": _FORMS["rows"], "g": _FORMS["rows"]}
    for call in (
        lambda: preprocess(_FORMS["rows"], specs=specs),
        lambda: preprocess(_FORMS["rows"], specs=specs, limits=limits),
        lambda: embedding.AdaptiveLimits(specs, 1, 1),
        lambda: embedding.count_ids(both, specs),
        lambda: embedding.sample_ids(both, specs, 9),
        lambda: embedding.update_preprocessing_parameters(specs, stats, 1),
    ):
      with self.assertRaisesRegex(
          TypeError,
          r"feature_specs\['g'\] must be a FeatureSpec, got TableSpec",
      ):
        call()

  @parameterized.parameters("specs", "grow", None)
  def test_a_number_of_a_batch_is_an_integer(self, limits):
    specs = make_specs()
    call = lambda number: preprocess(
        _FORMS["rows"], specs=specs, limits=limits, batch_number=number
    )
    call(np.int64(3))
    with self.assertRaisesRegex(
        TypeError, "batch_number must be an integer .*got '1'"
    ):
      call("1")

  def test_batches_cannot_change_the_minibatches_they_share(self):
    ids = np.ones((_BATCH, 1), np.int32)
    inputs, _ = preprocess(ids)
    with self.assertRaisesRegex(ValueError, "read-only"):
      inputs.num_minibatches[0] = 2
    assert_same(preprocess(ids)[0].num_minibatches, [1])

  def test_ids_and_weights_of_positions_are_checked(self):
    table = two_table_model.table(vocabulary_size=10)
    feature = embedding_spec.FeatureSpec(
        name="f",
        table_spec=table,
        input_shape=(_BATCH, 2),
        output_shape=(_BATCH, 2, table.embedding_dim),
    )
    specs = {"f": feature}
    embedding.prepare_feature_specs_for_training(specs, 1, _NUM_SC)
    ids = np.ones((_BATCH, 2, 1), np.int32)
    preprocess(ids, specs=specs)
    with self.assertRaisesRegex(ValueError, "'f': its ids are a masked array"):
      preprocess(np.ma.masked_less(ids, 2), specs=specs)
    with self.assertRaisesRegex(
        ValueError, r"'f': ids have shape \(8, 2, 1\) and weights \(8, 2, 3\)"
    ):
      preprocess(ids, np.ones((_BATCH, 2, 3)), specs=specs)


class PoliciesTest(parameterized.TestCase):

  def test_the_default_is_an_error(self):
    ids = np.array([[1], [2], [10], [3], [4], [5], [6], [7]])
    with self.assertRaisesRegex(ValueError, "'f': sample 2 has id 10"):
      preprocess(ids)

  @parameterized.parameters(("drop", [[]]), ("clamp", [[9]]), ("modulo", [[0]]))
  def test_out_of_range_ids(self, policy, instead):
    got, stats = preprocess(
        object_array([[1], [10], [2]] + [[3]] * 5),
        specs=make_specs(out_of_range_ids=policy),
    )
    expected, _ = preprocess(object_array([[1]] + instead + [[2]] + [[3]] * 5))
    assert_same(got, expected)
    self.assertEqual(stats.id_drop_counters["t"], policy == "drop")

  @parameterized.parameters(("drop", [[]]), ("clamp", [[0.0]]))
  def test_non_finite_weights(self, policy, instead):
    weights = np.ones((_BATCH, 1), np.float32)
    weights[1] = np.nan
    got, stats = preprocess(
        np.ones((_BATCH, 1), np.int32),
        weights,
        make_specs(non_finite_weights=policy),
    )
    ids = object_array([[1], [1] * len(instead[0])] + [[1]] * 6)
    new_weights = np.empty(_BATCH, object)
    new_weights[:] = [
        np.array(w, np.float32) for w in [[1.0]] + instead + [[1.0]] * 6
    ]
    expected, _ = preprocess(ids, new_weights)
    assert_same(got, expected)
    self.assertEqual(stats.id_drop_counters["t"], policy == "drop")


class OptionsTest(parameterized.TestCase):

  def test_number_of_threads(self):
    expected = preprocess(_FORMS["rows"])
    for num_threads in (1, 3):
      got = preprocess(_FORMS["rows"], num_threads=num_threads)
      assert_same(got, expected)
    with self.assertRaisesRegex(ValueError, "num_threads must be positive.* 0"):
      preprocess(_FORMS["rows"], num_threads=0)

  def test_output_pool_serves_batch_after_batch(self):
    pool = embedding.OutputPool()
    expected = preprocess(_FORMS["rows"])
    for _ in range(4):
      assert_same(preprocess(_FORMS["rows"], output_pool=pool), expected)
    self.assertEqual(pool.num_allocated, 1)
    self.assertEqual(pool.num_reused, 3)


class MinibatchingTest(parameterized.TestCase):

  def lookup_and_update(self, ids, specs, enable_minibatching):
    inputs, stats = preprocess(
        ids, specs=specs, enable_minibatching=enable_minibatching
    )
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        two_table_model.one_device_sharding(),
        _NUM_SC,
    )
    keywords = dict(enable_minibatching=enable_minibatching)
    activations = embedding.tpu_sparse_dense_matmul(
        inputs, variables, specs, **keywords
    )
    updated = embedding.tpu_sparse_dense_matmul_grad(
        activations, inputs, variables, specs, **keywords
    )
    return inputs, stats, activations, updated

  @parameterized.parameters((64, False), (2, True))
  def test_gives_what_one_pass_would(self, max_ids, exceeds_limits):
    ids = np.arange(_BATCH * 3).reshape(_BATCH, 3) % 10
    inputs, stats, activations, updated = self.lookup_and_update(
        ids, make_specs(max_ids), enable_minibatching=True
    )
    self.assertEqual(inputs.num_minibatches[0] > 1, exceeds_limits)
    _, _, in_one, updated_in_one = self.lookup_and_update(
        ids, make_specs(), enable_minibatching=False
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        (activations, updated),
        (in_one, updated_in_one),
    )
    alignment = stats.minibatch_alignment_per_sc["t"]
    self.assertEqual(alignment.any(), exceeds_limits)

  def test_the_suggested_buffer_fits_the_minibatches(self):
    specs = make_specs(max_ids=2)
    ids = np.arange(_BATCH * 3).reshape(_BATCH, 3) % 10
    expected, stats = preprocess(ids, specs=specs, enable_minibatching=True)
    specs["f"].table_spec.stacked_table_spec = specs[
        "f"
    ].table_spec.stacked_table_spec.replace(
        suggested_coo_buffer_size_per_device=(
            stats.get_required_buffer_size_per_device("t", _NUM_SC)
        )
    )
    got, _ = preprocess(ids, specs=specs, enable_minibatching=True)
    size = got.lhs_gains["t"].size
    self.assertLess(size, expected.lhs_gains["t"].size)
    np.testing.assert_array_equal(
        got.lhs_gains["t"], expected.lhs_gains["t"][:size]
    )

  def test_several_processes_must_be_able_to_agree(self):
    specs = make_specs()
    with self.assertRaisesRegex(
        ValueError, "needs an all_reduce_interface.*1 of 2 devices"
    ):
      embedding.preprocess_sparse_dense_matmul_input(
          {"f": np.ones((4, 1), np.int32)},
          None,
          specs,
          1,
          2,
          num_sc_per_device=1,
          enable_minibatching=True,
      )


if __name__ == "__main__":
  absltest.main()
