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

_VOCABULARY = 40
_NUM_SC = 4
_ID_POLICIES = ("error", "drop", "clamp", "modulo")
_WEIGHT_POLICIES = ("error", "drop", "clamp", "keep")
_FORMS = input_forms.FORMS | input_forms.DENSE_FORMS


def _specs(id_policies, weight_policies, minibatching):
  """A feature per policy, all of one stack."""
  limit = 16 if minibatching else 4
  specs = {}
  for i, (ids, weights) in enumerate(zip(id_policies, weight_policies)):
    table = two_table_model.table(
        f"t{i}",
        _VOCABULARY,
        max_ids_per_partition=limit,
        max_unique_ids_per_partition=limit - 1,
    )
    specs[f"f{i}"] = embedding_spec.FeatureSpec(
        name=f"f{i}",
        table_spec=table,
        input_shape=(16, None),
        output_shape=(16, 6),
        out_of_range_ids=ids,
        non_finite_weights=weights,
    )
  embedding.auto_stack_tables(specs, 1, _NUM_SC)
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
  counts, kept = collections.Counter(ids=0), []
  for s, sample in enumerate(ids):
    for j, i in enumerate(sample):
      counts["ids"] += 1
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
    for request in range(36):
      id_policies = rng.choice(_ID_POLICIES, 2)
      weight_policies = rng.choice(_WEIGHT_POLICIES, 2)
      specs = _specs(id_policies, weight_policies, minibatching)
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
      counts = embedding.count_batch(
          features, specs, weights, inputs, stats.id_drop_counters
      )
      for name in specs:
        self.assertEqual(
            {k: v for k, v in vars(counts.features[name]).items() if v},
            {k: v for k, v in expected[name].items() if v},
        )
      ((name, of_stack),) = counts.stacks.items()
      self.assertEqual(of_stack.num_minibatches, inputs.num_minibatches[0])
      dropped = sum(c["dropped_by_policy"] for c in expected.values())
      self.assertEqual(
          of_stack.dropped_by_limit, stats.id_drop_counters[name] - dropped
      )
      if not of_stack.dropped_by_limit:
        self.assertEqual(
            (of_stack.entries, of_stack.distinct_rows),
            _expected_of_stack(kept, specs),
        )
      else:
        self.assertLess(of_stack.entries, len(kept[0]) + len(kept[1]))

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
    counts = embedding.count_batch(
        ids, specs, None, inputs, stats.id_drop_counters
    ).stacks["t"]
    self.assertEqual((counts.entries, counts.distinct_rows), (128, 16))

  @parameterized.product(policy=_ID_POLICIES[1:], ragged=(False, True))
  def test_counts_inside_jit(self, policy, ragged):
    specs = _specs([policy], ["drop"], False)
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

  def test_small_types_are_counted(self):
    specs = _specs(["drop"], ["error"], False)
    ids = np.array([[1], [-1], [100]], np.int8)
    for array in (ids, jax.numpy.asarray(ids)):
      counts = embedding.count_ids({"f0": array}, specs)
      self.assertEqual(int(counts["f0"].dropped_by_policy), 2)

  def test_scalars_have_all_numbers(self):
    specs = _specs(["drop"], ["error"], False)
    ids = {"f0": np.arange(-8, 8)[:, None]}
    inputs, stats = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, specs, 1, 1, num_sc_per_device=_NUM_SC
    )
    plain = stats.to_scalars()
    self.assertEqual(plain["embedding/stack/t0/dropped_ids"], 8)
    stats = stats.replace(
        counts=embedding.count_batch(
            ids, specs, None, inputs, stats.id_drop_counters
        )
    )
    scalars = json.loads(json.dumps(stats.to_scalars("x/")))
    self.assertLen(scalars, len(plain) + 5 + 4)
    self.assertEqual(scalars["x/feature/f0/dropped_by_policy"], 8)
    self.assertEqual(scalars["x/stack/t0/entries"], 8)


if __name__ == "__main__":
  absltest.main()
