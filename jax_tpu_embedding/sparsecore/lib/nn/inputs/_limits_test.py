# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from concurrent import futures
import dataclasses
import math
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _to_buffers
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=100
)
hypothesis.settings.load_profile("ci")

_ROWS = 1 << 20
_NUM_SCS = 4


def _limits_of(ids, unique, cells):
  return _limits.Limits((("s", _limits.StackLimits(ids, unique, cells)),))


def _needs(ids, unique):
  # Of four partitions, each rounded up to 8.
  unique = min(ids, unique)
  return _limits_of(ids, unique, _NUM_SCS * (-(-ids // 8) * 8))


def _grow(rule, limits, needs, largest):
  return rule.grown(
      limits,
      rule.wanted(limits, needs, largest),
      _growth.Bounds({"s": _ROWS}, _NUM_SCS),
  )


class GrowthRuleTest(parameterized.TestCase):

  @parameterized.parameters(
      (1, 4),
      (16, 28),
      (100, 130),
      (144, 180),
      (1000, 1250),
  )
  def test_small_needs_have_more_headroom(self, need, expected):
    # Three times the root of the need, and a quarter from 144 on.
    self.assertAlmostEqual(_growth.GrowthRule().with_headroom(need), expected)
    rule = _growth.GrowthRule(headroom=1.0)
    self.assertEqual(rule.with_headroom(need), need)

  @hypothesis.given(st.floats(1.01, 4.0), st.floats(1, 1e7, allow_nan=False))
  def test_the_rung_above_is_the_lowest(self, growth, need):
    rule = _growth.GrowthRule(growth=growth)
    k = rule.rung_above(need)
    self.assertGreaterEqual(rule.rung(k), need)
    if k > 1:
      self.assertLess(rule.rung(k - 1), need)

  def test_rungs_may_be_as_close_as_can_be(self):
    rule = _growth.GrowthRule(growth=1 + 1e-9)
    self.assertEqual(rule.rung(rule.rung_above(1000)), 1000)
    self.assertEqual(rule.rung(rule.rung_above(1001)), 1008)

  @hypothesis.given(
      st.lists(
          st.tuples(st.integers(1, 10**5), st.integers(1, 10**5)), min_size=1
      )
  )
  def test_limits_only_grow_cover_every_batch_and_seldom_change(self, batches):
    rule = _growth.GrowthRule()
    limits = _limits_of(1, 1, 8)
    largest = None
    programs = []  # the limits that each was compiled for
    for batch in batches:
      needs = _needs(*batch)
      largest = needs.union(largest or needs)
      if limits.covers(needs):
        continue
      new = _grow(rule, limits, needs, largest)
      self.assertTrue(new.covers(limits))
      self.assertTrue(new.covers(needs))
      self.assertNotEqual(new, limits)
      limits = new
      programs.append(limits["s"])
    if programs:
      bound = 1 + sum(
          math.ceil(math.log(last / first, 1.25))
          for first, last in zip(
              dataclasses.astuple(programs[0]),
              dataclasses.astuple(programs[-1]),
          )
      )
      self.assertLessEqual(len(programs), bound)

  def test_what_is_near_grows_with_what_has_to(self):
    limits = _limits_of(100, 100, 1000)
    needs = _limits_of(101, 50, 950)
    new = _grow(_growth.GrowthRule(), limits, needs, needs)["s"]
    self.assertGreaterEqual(new.max_ids_per_partition, 125)  # headroom
    self.assertEqual(new.max_unique_ids_per_partition, 100)
    # No more than the partitions can fill.
    self.assertEqual(new.coo_cells_per_sc, 1000)
    self.assertGreater(
        _grow(_growth.GrowthRule(headroom=4.0), limits, needs, needs)[
            "s"
        ].coo_cells_per_sc,
        1000,
    )

  def test_partitions_have_no_more_distinct_rows_than_a_sparsecore(self):
    needs = _limits_of(1000, 90, 4000)
    rule = _growth.GrowthRule()
    limits = _limits_of(1, 1, 8)
    new = rule.grown(
        limits,
        rule.wanted(limits, needs, needs),
        _growth.Bounds({"s": 100}, _NUM_SCS),
    )
    self.assertEqual(new["s"].max_unique_ids_per_partition, 100)

  @parameterized.parameters(
      (dict(growth=1.0), "growth must be a number above 1, got 1.0"),
      (dict(headroom=0.9), "headroom must be a number of at least 1, got 0.9"),
      (dict(near=math.nan), "near must be a number of at least 1, got nan"),
  )
  def test_numbers_that_make_no_sense_are_refused(self, options, message):
    _growth.GrowthRule()
    with self.assertRaisesRegex(ValueError, message):
      _growth.GrowthRule(**options)

  def test_what_is_no_number_is_refused(self):
    with self.assertRaisesRegex(TypeError, "growth must be a number, got '2'"):
      _growth.GrowthRule(growth="2")


def _preprocess(model, limits, num_devices, ids=None, **options):
  return embedding.preprocess_sparse_dense_matmul_input(
      ids or model.ids,
      None,
      model.specs,
      num_devices,
      num_devices,
      num_sc_per_device=model.num_sc // num_devices,
      limits=limits,
      enable_minibatching=limits.enable_minibatching,
      **options,
  )[0]


class PadTest(parameterized.TestCase):

  @parameterized.product(
      num_devices=(1, 2),
      has_leading_dimension=(False, True),
      enable_minibatching=(False, True),
      on_devices=(False, True),
  )
  def test_is_what_preprocessing_with_the_larger_limits_gives(
      self, num_devices, has_leading_dimension, enable_minibatching, on_devices
  ):
    model = two_table_model.TwoTableModel(4)
    names = embedding.get_stacked_table_specs(model.specs)
    small, large = (
        _limits.Limits(
            tuple((name, limits) for name in names), enable_minibatching
        )
        for limits in (
            _limits.StackLimits(40, 30, 96),
            _limits.StackLimits(64, 40, 136),
        )
    )
    options = dict(has_leading_dimension=has_leading_dimension)
    inputs = _preprocess(model, small, num_devices, **options)
    if on_devices:
      inputs = jax.device_put(inputs)
    padded = _limits.pad(inputs, large)
    expected = _preprocess(model, large, num_devices, **options)
    self.assertEqual(jax.tree.structure(padded), jax.tree.structure(expected))
    for got, want in zip(jax.tree.leaves(padded), jax.tree.leaves(expected)):
      self.assertEqual(np.asarray(got).tobytes(), want.tobytes())
      self.assertEqual(got.shape, want.shape)

  def test_limits_never_shrink(self):
    model = two_table_model.TwoTableModel(4)
    small = _limits.Limits(
        tuple(
            (name, _limits.StackLimits(1, 1, 8))
            for name in embedding.get_stacked_table_specs(model.specs)
        )
    )
    with self.assertRaisesRegex(ValueError, "more than .*only grow"):
      _limits.pad(model.inputs, small)
    with self.assertRaisesRegex(ValueError, "settings are None"):
      _limits.pad(model.inputs.replace(settings=None), small)
    other = _limits.Limits((("other", _limits.StackLimits(1, 1, 8)),))
    with self.assertRaisesRegex(ValueError, r"limits are of \['other'\]"):
      _limits.pad(model.inputs, other)
    with self.assertRaisesRegex(
        ValueError, "have enable_minibatching=False, and the limits True"
    ):
      _limits.pad(
          model.inputs, dataclasses.replace(small, enable_minibatching=True)
      )


class PreprocessTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    table = two_table_model.table(
        max_ids_per_partition=4, max_unique_ids_per_partition=4
    )
    self.specs = {"f": two_table_model.feature("f", table)}

  def preprocess(self, num_sc=1, **options):
    embedding.prepare_feature_specs_for_training(self.specs, 1, num_sc)
    self.before = self.stack()
    ids = np.arange(24 * 3).reshape(24, 3) % 40
    return embedding.preprocess_sparse_dense_matmul_input(
        {"f": ids}, None, self.specs, 1, 1, num_sc_per_device=num_sc, **options
    )

  def stack(self):
    return self.specs["f"].table_spec.stacked_table_spec

  @parameterized.product(
      allow_id_dropping=(False, True), options=({}, dict(limits="grow"))
  )
  def test_limits_that_cost_nothing_lose_nothing(
      self, allow_id_dropping, options
  ):
    inputs, stats = self.preprocess(
        allow_id_dropping=allow_id_dropping, **options
    )
    self.assertEqual(stats.id_drop_counters["t"], 0)
    self.assertEqual(np.isfinite(inputs.lhs_gains["t"]).sum(), 72)
    self.assertGreaterEqual(self.stack().max_ids_per_partition, 72)
    self.assertEqual(
        inputs.settings.limits_of("t").max_ids_per_partition,
        self.stack().max_ids_per_partition,
    )

  def test_batches_within_the_limits_leave_them(self):
    self.specs["f"].table_spec.max_ids_per_partition = 72
    self.specs["f"].table_spec.max_unique_ids_per_partition = 40
    self.preprocess()
    self.assertIs(self.stack(), self.before)

  @parameterized.parameters((1, "specs"), (2, "specs"), (2, None))
  def test_limits_of_specs_hold_elsewhere(self, num_sc, limits):
    with self.assertRaisesRegex(
        ValueError, "max_ids_per_partition is 4. Raise it"
    ):
      self.preprocess(num_sc, limits=limits)
    _, stats = self.preprocess(num_sc, limits=limits, allow_id_dropping=True)
    self.assertGreater(stats.id_drop_counters["t"], 0)
    self.assertIs(self.stack(), self.before)

  def test_limits_of_emulated_sparsecores_grow_on_request(self):
    _, stats = self.preprocess(4, limits="grow")
    self.assertEqual(stats.id_drop_counters["t"], 0)
    self.assertGreater(self.stack().max_ids_per_partition, 4)

  def test_a_batch_has_limits_of_one_time(self):
    # Another thread raises the limits between the conversion of a batch and
    # what is said of it.
    embedding.prepare_feature_specs_for_training(self.specs, 1, 1)
    limits = [
        _limits.Limits((("t", _limits.StackLimits(n, 40, n)),))
        for n in (72, 80)
    ]
    limits[0].set_on(self.specs, 1)
    convert, num_calls = _to_buffers.converter, 0

    def converts_and_raises(*args, **kwargs):
      nonlocal num_calls
      num_calls += 1
      converted = convert.preprocess_sparse_dense_matmul_input(*args, **kwargs)
      if num_calls == 1:
        limits[1].set_on(self.specs, 1)
      return converted

    with mock.patch.object(_to_buffers, "converter", wraps=convert) as patched:
      patched.preprocess_sparse_dense_matmul_input = converts_and_raises
      inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
          {"f": np.arange(72).reshape(24, 3) % 40},
          None,
          self.specs,
          1,
          1,
          num_sc_per_device=1,
      )
    self.assertEqual(num_calls, 2)
    self.assertEqual(inputs.settings.limits_of("t").max_ids_per_partition, 80)
    self.assertEqual(inputs.lhs_gains["t"].size, 80)

  def test_threads_raise_the_limits_of_two_tables_alike(self):
    tables = [two_table_model.table(name) for name in ("t0", "t1")]
    specs = {
        table.name: two_table_model.feature(table.name, table)
        for table in tables
    }
    embedding.auto_stack_tables(
        specs, 1, 1, stack_to_max_ids_per_partition=lambda *_: 4
    )
    (stack,) = embedding.get_stacked_table_specs(specs)

    def preprocess(n):
      ids = np.arange(24 * 3).reshape(24, 3) % (n + 1)
      inputs, stats = embedding.preprocess_sparse_dense_matmul_input(
          dict.fromkeys(specs, ids), None, specs, 1, 1, num_sc_per_device=1
      )
      settings = inputs.settings.limits_of(stack)
      needs = _limits.needs_of(stats)[stack]
      self.assertEqual(stats.id_drop_counters[stack], 0)
      self.assertGreaterEqual(
          settings.max_ids_per_partition, needs.max_ids_per_partition
      )
      self.assertGreaterEqual(inputs.lhs_gains[stack].size, 8)

    with futures.ThreadPoolExecutor(4) as pool:
      list(pool.map(preprocess, range(40)))
    self.assertIs(tables[0].stacked_table_spec, tables[1].stacked_table_spec)

  def test_copies_with_limits_change_nothing(self):
    self.specs["f"].table_spec.max_ids_per_partition = 72
    embedding.prepare_feature_specs_for_training(self.specs, 1, 1)
    before = self.stack(), _limits.num_changes()
    limits = _limits.Limits((("t", _limits.StackLimits(80, 40, 80)),))
    embedding.preprocess_sparse_dense_matmul_input(
        {"f": np.zeros((24, 3), np.int32)},
        None,
        self.specs,
        1,
        1,
        num_sc_per_device=1,
        limits=limits,
    )
    self.assertEqual((self.stack(), _limits.num_changes()), before)

  def test_wrong_ids_stay_an_error(self):
    embedding.prepare_feature_specs_for_training(self.specs, 1, 1)
    before = self.stack()
    with self.assertRaisesRegex(ValueError, "has id 40"):
      embedding.preprocess_sparse_dense_matmul_input(
          {"f": np.full((24, 3), 40)},
          None,
          self.specs,
          1,
          1,
          num_sc_per_device=1,
      )
    self.assertIs(self.stack(), before)

  @parameterized.parameters(
      (dict(limits="none"), "'specs', 'grow' or None, got 'none'"),
      (
          dict(limits="grow", enable_minibatching=True),
          "limits='grow' is for one pass",
      ),
      (
          dict(limits=_limits_of(1, 1, 8)),
          r"no stack 't' of feature 'f', but \['s'\]",
      ),
      (
          dict(
              limits=dataclasses.replace(
                  _limits_of(1, 1, 8), enable_minibatching=True
              )
          ),
          "enable_minibatching=True, and the call has False",
      ),
  )
  def test_limits_that_make_no_sense_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.preprocess(**options)


if __name__ == "__main__":
  absltest.main()
