# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import collections
import json

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.testing import input_forms
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np
import pyarrow as pa
import scipy.sparse

_VOCABULARY = 40
_NUM_SC = 4
_ID_POLICIES = ("error", "drop", "clamp", "modulo")
_WEIGHT_POLICIES = ("error", "drop", "clamp", "keep")
_FEATURE_COUNTS = (
    "num_ids",
    "dropped_by_policy",
    "clamped",
    "wrapped",
    "bad_weights",
)
_FORMS = input_forms.FORMS | input_forms.DENSE_FORMS


def _specs(id_policies, weight_policies, limit=4, topology=(1, _NUM_SC)):
  """A feature per policy, all of one stack."""
  specs = {}
  for i, (ids, weights) in enumerate(zip(id_policies, weight_policies)):
    table = two_table_model.table(f"t{i}", _VOCABULARY)
    specs[f"f{i}"] = embedding_spec.FeatureSpec(
        name=f"f{i}",
        table_spec=table,
        input_shape=(16, None),
        output_shape=(16, 6),
        out_of_range_ids=ids,
        non_finite_weights=weights,
    )
  embedding.auto_stack_tables(
      specs,
      *topology,
      stack_to_max_ids_per_partition=lambda *_: limit,
      stack_to_max_unique_ids_per_partition=lambda *_: limit,
  )
  return specs


def _samples(rng, spec, valency, has_weights):
  """Ids and weights of each sample; wrong ones where the policy takes them."""
  ids, weights = [], []
  for _ in range(16):
    n = valency or int(rng.integers(5))
    low, high = (0, 40) if spec.out_of_range_ids == "error" else (-9, 70)
    ids.append(rng.integers(low, high, n).astype(np.int32))
    w = rng.random(n).astype(np.float32)
    if spec.non_finite_weights != "error":
      w[rng.random(n) < 0.2] = rng.choice([np.nan, np.inf, -np.inf])
    weights.append(w)
  return ids, weights if has_weights else None


def _expected(ids, weights, spec):
  """The counts of a feature, one id at a time, and what is left of it."""
  counts, kept = collections.Counter(num_ids=0), []
  for s, sample in enumerate(ids):
    for j, i in enumerate(sample):
      counts["num_ids"] += 1
      if not 0 <= i < _VOCABULARY:
        if spec.out_of_range_ids == "drop":
          counts["dropped_by_policy"] += 1
          continue
        clamps = spec.out_of_range_ids == "clamp"
        counts["clamped" if clamps else "wrapped"] += 1
        i = min(max(i, 0), _VOCABULARY - 1) if clamps else i % _VOCABULARY
      if weights is not None and not np.isfinite(weights[s][j]):
        counts["bad_weights"] += 1
        if spec.non_finite_weights == "drop":
          counts["dropped_by_policy"] += 1
          continue
      kept.append((s, i))
  return counts, kept


def _expected_of_stack(kept_of_features, specs):
  """Entries and distinct rows, of samples that are split over SparseCores."""
  entries, rows = set(), set()
  for spec, kept in zip(specs.values(), kept_of_features):
    for s, i in kept:
      entries.add((spec.name, s, i))
      sc = s // (16 // _NUM_SC)
      rows.add((spec.table_spec.name, sc, i))
  return len(entries), len(rows)


class CountsTest(parameterized.TestCase):

  # 1,000 requests, with the forms and the policies all in turn.
  @parameterized.product(form=tuple(_FORMS), minibatching=(False, True))
  def test_counts_are_those_of_a_plain_loop(self, form, minibatching):
    rng = np.random.default_rng(sorted(_FORMS).index(form))
    num_dropped, most_minibatches = 0, 1
    for request in range(36):
      id_policies = rng.choice(_ID_POLICIES, 2)
      weight_policies = rng.choice(_WEIGHT_POLICIES, 2)
      specs = _specs(id_policies, weight_policies, int(rng.integers(3, 12)))
      features, weights, kept, expected = {}, {}, [], {}
      for name, spec in specs.items():
        valency = 3 if form in input_forms.DENSE_FORMS else 0
        ids, w = _samples(rng, spec, valency, has_weights=request % 3 > 0)
        if form in ("csr", "coo"):  # their columns are not negative
          ids = [np.abs(row) for row in ids]
        features[name], weights[name] = _FORMS[form](ids, w)
        if w is None and form in ("csr", "coo"):
          w = [np.ones(len(row)) for row in ids]
        expected[name], of_feature = _expected(ids, w, spec)
        kept.append(of_feature)
      inputs, stats = embedding.preprocess_sparse_dense_matmul_input(
          features,
          weights,
          specs,
          1,
          1,
          num_sc_per_device=_NUM_SC,
          enable_minibatching=minibatching,
          allow_id_dropping=True,
      )
      counts = embedding.count_batch(features, specs, weights, inputs, stats)
      for name in specs:
        self.assertEqual(
            {k: getattr(counts, k)[name] for k in _FEATURE_COUNTS},
            dict.fromkeys(_FEATURE_COUNTS, 0) | expected[name],
        )
      ((name, num_minibatches),) = counts.num_minibatches.items()
      self.assertEqual(num_minibatches, inputs.num_minibatches[0])
      dropped = sum(c["dropped_by_policy"] for c in expected.values())
      self.assertEqual(
          counts.dropped_by_limit[name],
          stats.id_drop_counters[name] - dropped,
      )
      num_dropped += counts.dropped_by_limit[name]
      most_minibatches = max(most_minibatches, num_minibatches)
      if not counts.dropped_by_limit[name]:
        self.assertEqual(
            (counts.entries[name], counts.distinct_rows[name]),
            _expected_of_stack(kept, specs),
        )
      else:
        self.assertLess(counts.entries[name], len(kept[0]) + len(kept[1]))

    if not minibatching:  # several passes have room for nearly all
      self.assertGreater(num_dropped, 0)
    self.assertEqual(most_minibatches > 1, minibatching)

  def test_distinct_rows_where_the_next_partition_begins_with_the_last_row(
      self,
  ):
    # Eight samples of a SparseCore fill all cells of each of four partitions.
    table = two_table_model.table(max_ids_per_partition=8)
    specs = {"f": two_table_model.feature("f", table, 4, batch=32)}
    embedding.prepare_feature_specs_for_training(specs, 1, _NUM_SC)
    ids = {"f": np.tile(np.arange(4), (32, 1))}
    inputs, stats = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, specs, 1, 1, num_sc_per_device=_NUM_SC
    )
    self.assertTrue((inputs.lhs_embedding_ids["t"] == 0).all())
    counts = embedding.count_batch(ids, specs, None, inputs, stats)
    self.assertEqual(counts.entries, {"t": 128})
    self.assertEqual(counts.distinct_rows, {"t": 16})

  @parameterized.product(policy=_ID_POLICIES[1:], ragged=(False, True))
  def test_counts_inside_jit(self, policy, ragged):
    specs = _specs([policy], ["drop"])
    rng = np.random.default_rng(0)
    ids, weights = _samples(rng, specs["f0"], 3, True)
    expected, _ = _expected(ids, weights, specs["f0"])
    form = input_forms.splits if ragged else input_forms.dense
    features, features_weights = form(ids, weights)

    @jax.jit
    def count(features, weights):
      return embedding.count_ids({"f0": features}, specs, {"f0": weights})

    counts = count(features, features_weights)["f0"]
    self.assertEqual(
        {name: int(value) for name, value in vars(counts).items() if value},
        dict(expected),
    )

  # Batches of 16 samples, as declared, and of others, some of which have as
  # many splits as pairs of 16 samples could have.
  @parameterized.product(num_pairs=(1, 2, 4), batch=(16, 4, 12, 20, 32))
  def test_values_behind_the_last_split_are_no_ids(self, num_pairs, batch):
    specs = _specs(["drop"], ["drop"], topology=(num_pairs, 1))
    size = batch // num_pairs
    splits = np.tile(np.arange(size + 1), num_pairs)
    values = np.full((num_pairs, 40), 99)  # as padding that is in no table
    values[:, :size] = 3
    values[0, 0] = 99
    weights = np.full(values.size, np.nan)
    counts = jax.jit(
        lambda *ids: embedding.count_ids({"f0": ids}, specs, {"f0": weights})
    )(values.reshape(-1), splits)["f0"]
    self.assertEqual(int(counts.num_ids), batch)
    self.assertEqual(int(counts.bad_weights), batch - 1)
    self.assertEqual(int(counts.dropped_by_policy), batch)

  @parameterized.parameters(7, 11, 19, 31)
  def test_a_batch_of_any_size_on_one_device_is_counted(self, batch):
    specs = _specs(["drop"], ["drop"], topology=(1, 1))
    values = np.full(32, 3)
    counts = jax.jit(lambda *ids: embedding.count_ids({"f0": ids}, specs))(
        values, np.arange(batch + 1)
    )["f0"]
    self.assertEqual(int(counts.num_ids), batch)

  @parameterized.parameters("array", "pair", "rows", "sparse", "weights")
  def test_masked_arrays_are_refused(self, form):
    specs = _specs(["drop"], ["drop"])
    ids = np.arange(16)
    masked = np.ma.masked_less(ids, 2)
    rows = np.empty(16, object)
    rows[:] = list(masked[:, None])
    features = {
        "array": masked,
        "pair": (masked, np.arange(17)),
        "rows": rows,
        "sparse": input_forms.sparse_tensor(None, masked, 16),
        "weights": ids,
    }[form]
    weights = {"f0": masked} if form == "weights" else None
    with self.assertRaisesRegex(
        ValueError, "Feature 'f0': its .* are a masked"
    ):
      embedding.count_ids({"f0": features}, specs, weights)
    if form != "weights":
      with self.assertRaisesRegex(
          ValueError, "Feature 'f0': its ids are a mas"
      ):
        embedding.sample_ids({"f0": features}, specs, 8)

  @parameterized.parameters(
      ([0, 2, 5], ValueError),
      ([0, 3, 2], ValueError),
      ([-1, 1, 2], ValueError),
      ([0, 2**63 - 1, -2, 2], ValueError),
      (np.zeros(0, np.int64), ValueError),
      ([0.0, 1.0, 2.0], TypeError),
  )
  def test_row_splits_that_are_none_are_refused(self, row_splits, kind):
    specs = _specs(("drop", "drop"), ("error", "error"))
    ids = {name: (np.array([1, 2]), np.array([0, 1, 2])) for name in specs}
    embedding.count_ids(ids, specs)
    name = next(iter(specs))
    ids[name] = np.array([1, 2]), np.array(row_splits)
    for call in (
        lambda: embedding.count_ids(ids, specs),
        lambda: embedding.sample_ids(ids, specs, 10),
    ):
      with self.assertRaisesRegex(
          kind, f"Feature '{specs[name].name}': .*row_splits must be"
      ):
        call()

  def test_forms_of_one_row_per_sample_are_counted(self):
    specs = _specs(["drop"], ["drop"])
    ids = np.arange(30, 46)  # six of them are not in the table
    rows = np.empty((16, 1), object)
    rows[:, 0] = [[i] for i in ids]
    matrix = scipy.sparse.csr_array(
        (np.ones(16), ids, np.arange(17)), shape=(16, 99)
    )
    matrix.indices = np.append(matrix.indices, [98]).astype(np.int32)
    matrix.data = np.append(matrix.data, [np.nan])
    chunks = pa.chunked_array([pa.array(ids[:3]), pa.array(ids[3:])])
    for features in (ids, rows, matrix, pa.array(ids), chunks):
      counts = embedding.count_ids({"f0": features}, specs)["f0"]
      self.assertEqual((counts.num_ids, counts.dropped_by_policy), (16, 6))
      self.assertEqual(counts.bad_weights, 0)

  def test_small_types_are_counted(self):
    specs = _specs(["drop"], ["error"])
    ids = np.array([[1], [-1], [100]], np.int8)
    for array in (ids, jax.numpy.asarray(ids)):
      counts = embedding.count_ids({"f0": array}, specs)
      self.assertEqual(int(counts["f0"].dropped_by_policy), 2)

  def test_scalars_have_all_numbers(self):
    specs = _specs(["drop"], ["error"])
    ids = {"f0": np.arange(-8, 8)[:, None]}
    inputs, stats = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, specs, 1, 1, num_sc_per_device=_NUM_SC
    )
    plain = stats.to_scalars()
    self.assertEqual(plain["embedding/stack/t0/id_drop_counters"], 8)
    stats = embedding.count_batch(ids, specs, None, inputs, stats)
    scalars = json.loads(json.dumps(stats.to_scalars("x/")))
    self.assertLen(scalars, len(plain) + 5 + 4)
    self.assertEqual(scalars["x/feature/f0/dropped_by_policy"], 8)
    self.assertEqual(scalars["x/stack/t0/entries"], 8)


if __name__ == "__main__":
  absltest.main()
