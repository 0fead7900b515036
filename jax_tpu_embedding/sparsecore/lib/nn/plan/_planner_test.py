# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import collections
import copy
import dataclasses
import math
import re

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _planner
import numpy as np

# Two devices with four SparseCores each.
_TOPOLOGY = dict(global_device_count=2, num_sc_per_device=4)

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, max_examples=100
)
hypothesis.settings.load_profile("deterministic")


def _table(name, vocabulary_size=33, embedding_dim=8, **fields):
  fields.setdefault("optimizer", embedding_spec.SGDOptimizerSpec())
  return embedding_spec.TableSpec(
      name=name,
      vocabulary_size=vocabulary_size,
      embedding_dim=embedding_dim,
      **fields,
  )


def _feature(name, table, *batch):
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=(batch[0], 1),
      output_shape=(*batch, table.embedding_dim),
  )


def _three_features():
  """Tables a: 33 x 6, b: 100 x 8, c: 20 x 5."""
  return {
      "fa": _feature("fa", _table("a", 33, 6), 16),
      "fb": _feature("fb", _table("b", 100, 8), 16),
      "fc": _feature("fc", _table("c", 20, 5), 32),
  }


def _names(plan):
  return list(plan.stacks)


class PlanAutoStackTest(parameterized.TestCase):

  def test_places_tables_and_features(self):
    plan = _planner.plan_auto_stack(_three_features(), **_TOPOLOGY)
    self.assertEqual(
        plan.stacks["a_b_c"],
        embedding_spec.StackedTableSpec(
            stack_name="a_b_c",
            stack_vocab_size=256,
            stack_embedding_dim=8,
            optimizer=embedding_spec.SGDOptimizerSpec(),
            combiner="sum",
            total_sample_count=64,
        ),
    )
    self.assertEqual(
        plan.settings["b"],
        embedding_spec.TableSettingInStack(
            stack_name="a_b_c",
            padded_vocab_size=128,
            padded_embedding_dim=8,
            row_offset_in_shard=8,
            shard_rotation=4,
        ),
    )
    self.assertEqual(
        plan.transformations,
        {
            "fa": embedding_spec.FeatureIdTransformation(0, 0, 0),
            "fb": embedding_spec.FeatureIdTransformation(16, 64, 4),
            "fc": embedding_spec.FeatureIdTransformation(32, 192, 0),
        },
    )

  def test_changes_nothing(self):
    features = _three_features()
    before = copy.deepcopy(features)
    _planner.plan_auto_stack(features, **_TOPOLOGY)
    self.assertEqual(repr(features), repr(before))

  @parameterized.named_parameters(
      ("dict_is_sorted_by_key", {"z": "a", "m": "c", "b": "b"}, "b_c_a"),
      ("list_keeps_its_order", ["c", "a", "b"], "c_a_b"),
      (
          "ordered_dict_keeps_its_order",
          collections.OrderedDict(z="a", m="c", b="b"),
          "a_c_b",
      ),
  )
  def test_order_is_that_of_the_tree(self, names, stack_name):
    specs = jax.tree.map(lambda n: _feature(f"f{n}", _table(n), 16), names)
    self.assertEqual(
        _names(_planner.plan_auto_stack(specs, **_TOPOLOGY)), [stack_name]
    )

  @parameterized.parameters(
      (embedding_spec.RowwiseAdagradOptimizerSpec(), ["a_c", "b"]),
      (embedding_spec.SGDOptimizerSpec(), ["a_b_c"]),
  )
  def test_tables_over_whose_columns_a_mean_is_have_one_width(
      self, optimizer, expected
  ):
    features = [
        _feature(f"f{name}", _table(name, 33, dim, optimizer=optimizer), 16)
        for name, dim in (("a", 6), ("b", 8), ("c", 6))
    ]
    plan = _planner.plan_auto_stack(features, **_TOPOLOGY)
    self.assertEqual(_names(plan), expected)
    stack = lambda *names: _planner.plan_stack_tables(
        features, names, **_TOPOLOGY
    )
    stack("a", "c")
    if len(expected) == 1:
      stack("a", "b")
    else:
      with self.assertRaisesRegex(
          ValueError,
          r"Tables a and b have different optimizers: Rowwise\w+\(.*\) over 6"
          r" columns and Rowwise\w+\(.*\) over 8 columns",
      ):
        stack("a", "b")

  def test_equal_optimizers_share_a_stack(self):
    optimizers = (0.5, jnp.float32(0.5), 0.25)
    specs = [
        _feature(
            f"f{i}",
            _table(
                f"t{i}", optimizer=embedding_spec.SGDOptimizerSpec(optimizer)
            ),
            16,
        )
        for i, optimizer in enumerate(optimizers)
    ]
    self.assertEqual(
        _names(_planner.plan_auto_stack(specs, **_TOPOLOGY)), ["t0_t1", "t2"]
    )

  def test_positions_of_a_sequence_are_samples(self):
    specs = [_feature("f", _table("t"), 16, 5), _feature("g", _table("u"), 16)]
    plan = _planner.plan_auto_stack(specs, **_TOPOLOGY)
    self.assertEqual(plan.stacks["t_u"].total_sample_count, 16 * 5 + 16)
    self.assertEqual(plan.transformations["g"].row_offset, 16 * 5)

  def test_any_positive_topology_is_accepted(self):
    plan = _planner.plan_auto_stack(
        _three_features(), global_device_count=3, num_sc_per_device=5
    )
    # 15 shards, so a multiple of 120 rows for every table.
    self.assertEqual(plan.stacks["a_b_c"].stack_vocab_size, 360)
    self.assertEqual(plan.settings["c"].shard_rotation, 10)

  @parameterized.parameters(
      (2.0, TypeError, r"global_device_count must be an integer, got 2\.0"),
      (True, TypeError, "global_device_count must be an integer, got True"),
      (2**64, ValueError, f"global_device_count must fit 64 bits, got {2**64}"),
  )
  def test_numbers_are_integers_of_64_bits(self, number, error, message):
    with self.assertRaisesRegex(error, message):
      _planner.plan_auto_stack(
          _three_features(), global_device_count=number, num_sc_per_device=4
      )

  def test_limits_are_asked_for_each_stack(self):
    asked = []

    def limit(name, samples):
      asked.append((name, samples))
      return 2 * samples

    plan = _planner.plan_auto_stack(
        _three_features() | {"fd": _feature("fd", _table("d", 10, 99), 8)},
        **_TOPOLOGY,
        limits=_planner.StackLimits(max_ids_per_partition=limit),
    )
    self.assertEqual(asked, [("a_b_c", 64), ("d", 8)])
    self.assertEqual(plan.stacks["a_b_c"].max_ids_per_partition, 128)
    self.assertEqual(plan.stacks["a_b_c"].max_unique_ids_per_partition, 256)
    # A stack of one table has the limits of its table.
    self.assertEqual(plan.stacks["d"].max_ids_per_partition, 256)

  @parameterized.parameters(64, 64.0, np.int64(64), (np.array(64),))
  def test_limit_may_be_any_integer(self, limit):
    plan = _planner.plan_auto_stack(
        _three_features(),
        **_TOPOLOGY,
        limits=_planner.StackLimits(
            max_unique_ids_per_partition=lambda name, samples: limit
        ),
    )
    chosen = plan.stacks["a_b_c"].max_unique_ids_per_partition
    self.assertEqual((chosen, type(chosen)), (64, int))

  @parameterized.parameters(
      0, -8, 1.5, math.nan, math.inf, None, "64", True, 2**31, 8j, ([8, 8],)
  )
  def test_limit_must_be_a_positive_integer(self, limit):
    with self.assertRaisesRegex(
        ValueError,
        r"'a_b_c': max_ids_per_partition must be an integer in \[1, 2147483647"
        rf"\], .* says {re.escape(repr(limit))}",
    ):
      _planner.plan_auto_stack(
          _three_features(),
          **_TOPOLOGY,
          limits=_planner.StackLimits(
              max_ids_per_partition=lambda name, samples: limit
          ),
      )

  def test_ignored_limits_of_tables_are_a_warning(self):
    specs = [
        _feature("f", _table("t", max_ids_per_partition=32), 16),
        _feature("g", _table("u"), 16),
    ]
    plan = _planner.plan_auto_stack(specs, **_TOPOLOGY)
    self.assertRegex(
        "".join(plan.warnings),
        "'t_u' has max_ids_per_partition 256, .* ignores the"
        " max_ids_per_partition 32 of table 't'. Stack with"
        " stack_to_max_ids_per_partition=lambda name, batch: 32, or.*'tables'",
    )
    self.assertEmpty(
        _planner.plan_auto_stack(_three_features(), **_TOPOLOGY).warnings
    )

  def test_stacks_take_the_limits_of_their_tables_on_request(self):
    specs = [
        _feature(
            "f",
            _table(
                "t", max_ids_per_partition=32, max_unique_ids_per_partition=9
            ),
            16,
        ),
        _feature("g", _table("u", max_ids_per_partition=50), 16),
    ]
    plan = _planner.plan_auto_stack(
        specs,
        **_TOPOLOGY,
        limits=_planner.StackLimits(
            max_ids_per_partition="tables",
            max_unique_ids_per_partition="tables",
        ),
    )
    (stack,) = plan.stacks.values()
    self.assertEqual(stack.max_ids_per_partition, 32 + 50)
    self.assertEqual(stack.max_unique_ids_per_partition, 9 + 256)
    self.assertEmpty(plan.warnings)

  def test_warning_of_a_large_stack_is_short(self):
    specs = [
        _feature(f"f{i}", _table(f"t{i}", max_ids_per_partition=32), 16)
        for i in range(100)
    ]
    (warning,) = _planner.plan_auto_stack(specs, **_TOPOLOGY).warnings
    self.assertIn("of table 't5' and 94 other limits of its tables.", warning)

  def test_many_optimizers_are_not_compared_with_each_other(self):
    comparisons = 0

    class Counted(embedding_spec.SGDOptimizerSpec):

      def __eq__(self, other):
        nonlocal comparisons
        comparisons += 1
        # Soon enough for the test to end.
        assert comparisons <= len(specs)
        return super().__eq__(other)

      __hash__ = embedding_spec.SGDOptimizerSpec.__hash__

    specs = []
    for i in range(20_000):
      specs.append(_feature(f"f{i}", _table(f"t{i}", optimizer=Counted(i)), 8))
    plan = _planner.plan_auto_stack(specs, **_TOPOLOGY)
    self.assertLen(plan.stacks, len(specs))

  def test_names_can_be_long(self):
    specs = [
        _feature(f"f{i}", _table(f"table_number_{i:02}"), 16) for i in range(6)
    ]
    self.assertEqual(
        _names(_planner.plan_auto_stack(specs, **_TOPOLOGY)),
        ["table_number_00_table_number_01_table_number_02_ta...6601590eb10c"],
    )
    (name,) = _names(
        _planner.plan_auto_stack(
            specs, **_TOPOLOGY, use_short_stack_names=False
        )
    )
    self.assertLen(name, 6 * 15 + 5)


class PlanRequestTest(parameterized.TestCase):
  """What the specs must satisfy, for every strategy."""

  def test_equal_specs_of_one_name_are_one_table(self):
    specs = [_feature("f", _table("t"), 16), _feature("g", _table("t"), 16)]
    plan = _planner.plan_stack_alone(specs, **_TOPOLOGY)
    self.assertEqual(plan.stacks["t"].total_sample_count, 32)

  def test_initializers_made_twice_are_no_conflict(self):
    specs = [
        _feature(
            name, _table("t", initializer=jax.nn.initializers.normal(1.0)), 16
        )
        for name in "fg"
    ]
    self.assertIn("t", _planner.plan_stack_alone(specs, **_TOPOLOGY).stacks)

  def test_different_specs_of_one_name_raise(self):
    specs = [
        _feature("f", _table("t", vocabulary_size=10), 16),
        _feature("g", _table("t", vocabulary_size=20), 16),
    ]
    with self.assertRaisesRegex(
        ValueError, "'t' has two specs with different vocabulary_size: 10 and"
    ):
      _planner.plan_stack_alone(specs, **_TOPOLOGY)

  def test_specs_of_one_name_in_different_states_raise(self):
    stacked = [_feature("f", _table("t"), 16), _feature("h", _table("u"), 16)]
    plan = _planner.plan_stack_tables(stacked, ["t", "u"], **_TOPOLOGY)
    stacked[0].table_spec.setting_in_stack = plan.settings["t"]
    stacked[0].table_spec.stacked_table_spec = plan.stacks["t_u"]
    with self.assertRaisesRegex(
        ValueError,
        "'t' has two specs, .* one is in stack 't_u' and the other in no stack",
    ):
      _planner.plan_stack_alone(
          [stacked[0], _feature("g", _table("t"), 16)], **_TOPOLOGY
      )

  def test_too_many_samples_raise(self):
    specs = [_feature("f", _table("t"), 2**27)]
    with self.assertRaisesRegex(
        ValueError, "'t' would have 67108864 samples per device"
    ):
      _planner.plan_stack_alone(specs, **_TOPOLOGY)

  def test_unknown_sizes_raise(self):
    specs = [_feature("f", _table("t"), None)]
    with self.assertRaisesRegex(
        ValueError, r"'f': output_shape is \(None, 8\), and a plan needs all"
    ):
      _planner.plan_stack_alone(specs, **_TOPOLOGY)

  def test_features_of_one_name_raise(self):
    specs = [_feature("f", _table("t"), 16), _feature("f", _table("u"), 16)]
    with self.assertRaisesRegex(ValueError, "f is already defined"):
      _planner.plan_stack_alone(specs, **_TOPOLOGY)

  @parameterized.parameters(
      (dict(global_device_count=0), "global_device_count must be positive"),
      (dict(num_sc_per_device=-1), "num_sc_per_device must be positive"),
  )
  def test_invalid_topology_raises(self, change, message):
    with self.assertRaisesRegex(ValueError, message):
      _planner.plan_stack_alone(_three_features(), **{**_TOPOLOGY, **change})

  def test_rows_beyond_int32_raise(self):
    specs = [_feature("f", _table("t", 2**31 - 1), 16)]
    with self.assertRaisesRegex(ValueError, "'t' would have 2147483648 rows"):
      _planner.plan_stack_alone(specs, **_TOPOLOGY)


class PlanStackTablesTest(absltest.TestCase):

  def test_covers_the_named_tables_only(self):
    plan = _planner.plan_stack_tables(
        _three_features(), ["c", "a"], **_TOPOLOGY, rotation=3
    )
    self.assertEqual(_names(plan), ["c_a"])
    self.assertEqual(list(plan.settings), ["c", "a"])
    self.assertEqual(plan.settings["a"].shard_rotation, 3)

  def test_unknown_table_raises_key_error(self):
    with self.assertRaisesRegex(KeyError, "no feature has a table called z"):
      _planner.plan_stack_tables(_three_features(), ["a", "z"], **_TOPOLOGY)

  def test_name_of_another_table_raises(self):
    with self.assertRaisesRegex(ValueError, "name c cannot be used"):
      _planner.plan_stack_tables(
          _three_features(), ["a", "b"], **_TOPOLOGY, stack_name="c"
      )

  def test_no_table_raises(self):
    with self.assertRaisesRegex(ValueError, "has no tables"):
      _planner.plan_stack_tables(_three_features(), [], **_TOPOLOGY)

  def test_quantization_is_compared_and_carried(self):
    config = embedding_spec.QuantizationConfig(
        min_value=-1.0, max_value=1.0, num_buckets=256
    )
    specs = [
        _feature("f", _table("t", quantization_config=config), 16),
        _feature("g", _table("u"), 16),
    ]
    with self.assertRaisesRegex(
        ValueError, r"quantization configs: 256 buckets in \[-1, 1\] and none"
    ):
      _planner.plan_stack_tables(specs, ["t", "u"], **_TOPOLOGY)
    plan = _planner.plan_stack_tables(specs, ["t"], **_TOPOLOGY)
    self.assertEqual(plan.stacks["t"].quantization_config, config)

  def test_types_are_compared_and_carried(self):
    specs = [
        _feature("f", _table("t", dtype="bfloat16"), 16),
        _feature("g", _table("u"), 16),
    ]
    with self.assertRaisesRegex(
        ValueError, r"optimizers: SGD\w+\(.*\) of bfloat16 and SGD\w+\(.*\)"
    ):
      _planner.plan_stack_tables(specs, ["t", "u"], **_TOPOLOGY)
    plan = _planner.plan_stack_tables(specs, ["t"], **_TOPOLOGY)
    self.assertEqual(plan.stacks["t"].dtype, "bfloat16")


class PlanStackAloneTest(absltest.TestCase):

  def test_takes_limits_and_buffers_of_the_table(self):
    t0 = _table(
        "t0",
        33,
        6,
        max_ids_per_partition=33,
        suggested_coo_buffer_size_per_device=640,
    )
    specs = {
        "x": _feature("fb", t0, 16),
        "y": _feature("fa", t0, 32),
        "z": _feature("fc", _table("t1", 10, 12), 16),
    }
    plan = _planner.plan_stack_alone(specs, **_TOPOLOGY)
    stack = plan.stacks["t0"]
    self.assertEqual(
        (
            stack.stack_vocab_size,
            stack.stack_embedding_dim,
            stack.total_sample_count,
            stack.max_ids_per_partition,
            stack.max_unique_ids_per_partition,
            stack.suggested_coo_buffer_size_per_device,
        ),
        (64, 8, 48, 33, 256, 640),
    )
    self.assertEqual(plan.transformations["fa"].row_offset, 0)
    self.assertEqual(plan.transformations["fb"].row_offset, 32)
    self.assertEqual(plan.stacks["t1"].stack_embedding_dim, 16)


class PlacementTest(parameterized.TestCase):

  def _features(self, name="b"):
    features = _three_features()
    table = _table(name, 100, 8, placement="tensorcore")
    features["fb"].table_spec = table
    features["again"] = _feature("again", table, 16)
    return features

  @parameterized.parameters(_planner.plan_auto_stack, _planner.plan_stack_alone)
  def test_replicated_tables_are_alone_and_one_shard(self, make_plan):
    plan = make_plan(self._features(), **_TOPOLOGY)
    self.assertIn("b", plan.stacks)
    self.assertEqual(plan.stacks["b"].placement, "tensorcore")
    self.assertTrue(plan.stacks["b"].is_replicated)
    # Whatever the topology, rows are padded to a multiple of 8, in order.
    self.assertEqual(
        plan.settings["b"],
        embedding_spec.TableSettingInStack(
            stack_name="b", padded_vocab_size=104, padded_embedding_dim=8
        ),
    )
    self.assertEqual(plan.settings["b"].num_shards, 1)
    self.assertEqual(plan.settings["a"].num_shards, 8)
    self.assertEqual(plan.transformations["again"].row_offset, 0)
    self.assertEqual(plan.transformations["fb"].row_offset, 16)
    others = _planner.plan_auto_stack(self._features(), **_TOPOLOGY)
    self.assertEqual(sorted(others.stacks), ["a_c", "b"])

  def test_placements_are_not_mixed(self):
    for names, beside in ((["a", "b"], r"\['a'\]"), (["b"], "^((?!and).)*$")):
      with self.assertRaisesRegex(
          ValueError, r"Tables \['b'\] have placement 'tensorcore'.*"
      ) as raised:
        _planner.plan_stack_tables(self._features(), names, **_TOPOLOGY)
      self.assertRegex(str(raised.exception).split(". ")[0], beside)

  def test_names_are_not_taken_twice(self):
    features = self._features("a_c")
    with self.assertRaisesRegex(ValueError, "two stacks 'a_c'.*'tensorcore'"):
      _planner.plan_auto_stack(features, **_TOPOLOGY)
    with self.assertRaisesRegex(ValueError, "'a_c' has the name of a table"):
      _planner.plan_stack_tables(features, ["a", "c"], **_TOPOLOGY)
    features = self._features()
    features["again"].name = "fa"
    with self.assertRaisesRegex(ValueError, "two features 'fa'.*'tensorcore'"):
      _planner.plan_stack_alone(features, **_TOPOLOGY)

  def test_specs_of_one_name_and_two_placements_raise(self):
    features = self._features()
    table = copy.copy(features["fb"].table_spec)
    table.placement = "sparsecore"
    features["again"].table_spec = table
    with self.assertRaisesRegex(
        ValueError, "'b' has two specs with different placement"
    ):
      _planner.plan_stack_alone(features, **_TOPOLOGY)


class StackNameTest(parameterized.TestCase):

  @parameterized.parameters(
      (["a", "b"], "a_b"),
      (["x" * 50], "x" * 50),
      (["x" * 51], "x" * 50 + "...3ecd502af72c"),
  )
  def test_long_names_end_in_a_hash(self, names, expected):
    self.assertEqual(_planner.stack_name_of(names), expected)

  def test_lengths_can_be_chosen(self):
    self.assertEqual(_planner.stack_name_of(["abc"], True, 2, 4), "ab...ba78")
    self.assertEqual(_planner.stack_name_of(["abc"], False, 2), "abc")


@st.composite
def _specs(draw):
  """Any mix of tables of three widths and two optimizers."""
  rates = st.sampled_from((0.1, 0.2))
  tables = [
      _table(
          f"t{i}",
          draw(st.integers(1, 300)),
          draw(st.integers(1, 24)),
          optimizer=embedding_spec.SGDOptimizerSpec(draw(rates)),
      )
      for i in range(draw(st.integers(1, 12)))
  ]
  return [
      _feature(f"f{i}", table, 8 * draw(st.integers(1, 20)))
      for i, table in enumerate(tables)
  ]


class PlanPropertiesTest(absltest.TestCase):

  @hypothesis.given(
      _specs(),
      st.integers(1, 5),
      st.integers(1, 5),
      st.none() | st.integers(-7, 7),
      st.integers(0, 5000),
  )
  def test_tables_fill_their_stacks_without_overlap(
      self, specs, devices, num_sc_per_device, rotation, limit
  ):
    plan = _planner.plan_auto_stack(
        specs,
        global_device_count=devices,
        num_sc_per_device=num_sc_per_device,
        rotation=rotation,
        limits=_planner.StackLimits(activation_mem_bytes_limit=limit),
    )
    num_shards = devices * num_sc_per_device
    self.assertLen(plan.settings, len(specs))
    for stack in plan.stacks.values():
      members = [
          s for s in plan.settings.values() if s.stack_name == stack.stack_name
      ]
      end = 0
      for setting in sorted(members, key=lambda s: s.row_offset_in_shard):
        self.assertEqual(setting.row_offset_in_shard, end)
        self.assertEqual(setting.padded_vocab_size % (8 * num_shards), 0)
        self.assertEqual(
            setting.padded_embedding_dim, stack.stack_embedding_dim
        )
        self.assertBetween(setting.shard_rotation, 0, num_shards - 1)
        end += setting.padded_vocab_size // num_shards
      self.assertEqual(end * num_shards, stack.stack_vocab_size)

  @hypothesis.given(_specs())
  def test_samples_of_a_stack_follow_each_other(self, specs):
    plan = _planner.plan_auto_stack(specs, **_TOPOLOGY)
    end = collections.Counter()
    for feature in specs:
      name = plan.settings[feature.table_spec.name].stack_name
      transformation = plan.transformations[feature.name]
      self.assertEqual(transformation.row_offset, end[name])
      end[name] += feature.output_shape[0]
    for name, stack in plan.stacks.items():
      self.assertEqual(stack.total_sample_count, end[name])

  @hypothesis.given(_specs())
  def test_plans_are_deterministic(self, specs):
    self.assertEqual(
        dataclasses.astuple(_planner.plan_auto_stack(specs, **_TOPOLOGY)),
        dataclasses.astuple(_planner.plan_auto_stack(specs, **_TOPOLOGY)),
    )


if __name__ == "__main__":
  absltest.main()
