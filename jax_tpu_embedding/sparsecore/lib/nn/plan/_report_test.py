# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import pathlib
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.plan import _report
from jax_tpu_embedding.sparsecore.lib.nn.plan import _report_picture
from jax_tpu_embedding.sparsecore.lib.nn.plan import _report_stacks
from matplotlib.backends import backend_agg
import numpy as np

_GOLDEN = pathlib.Path(__file__).parent / "testdata" / "stacking_plan.txt"
# Two devices with four SparseCores each.
_TOPOLOGY = dict(global_device_count=2, num_sc_per_device=4)


def _feature(name, table, batch):
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=(batch, 1),
      output_shape=(batch, table.embedding_dim),
  )


def _table(name, rows, columns, **kwargs):
  kwargs.setdefault("optimizer", embedding_spec.SGDOptimizerSpec())
  return embedding_spec.TableSpec(
      name=name, vocabulary_size=rows, embedding_dim=columns, **kwargs
  )


def _features():
  """Two stacks: a and b with Adagrad, c alone with SGD."""
  adagrad = embedding_spec.AdagradOptimizerSpec()
  a = _table("a", 33, 6, optimizer=adagrad)
  c = _table(
      "c", 20, 12, max_ids_per_partition=64, max_unique_ids_per_partition=32
  )
  features = {
      "fa": _feature("fa", a, 16),
      "fa2": _feature("fa2", a, 32),
      "fb": _feature("fb", _table("b", 100, 8, optimizer=adagrad), 16),
      "fc": _feature("fc", c, 64),
  }
  _plan.auto_stack_tables(features, **_TOPOLOGY)
  _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
  return features


def _plan_of_tables(num_tables, **kwargs):
  """Tables that are alike, of 10 to 10000 rows."""
  features = [
      _feature(f"f{i}", _table(f"table_{i:02}", 10 ** (1 + i % 4), 8), 16)
      for i in range(num_tables)
  ]
  _plan.auto_stack_tables(features, **_TOPOLOGY, **kwargs)
  return _report.get_plan(features, **_TOPOLOGY)


class GetPlanTest(absltest.TestCase):

  def test_holds_what_the_specs_hold(self):
    plan = _report.get_plan(_features(), **_TOPOLOGY)
    stack, alone = plan.stacks
    self.assertEqual(
        stack.tables,
        (
            _report_stacks.TableInPlan(
                name="a",
                vocabulary_size=33,
                embedding_dim=6,
                padded_vocabulary_size=64,
                padded_embedding_dim=8,
                row_offset_in_shard=0,
                shard_rotation=0,
                feature_names=("fa", "fa2"),
            ),
            _report_stacks.TableInPlan(
                name="b",
                vocabulary_size=100,
                embedding_dim=8,
                padded_vocabulary_size=128,
                padded_embedding_dim=8,
                row_offset_in_shard=8,
                shard_rotation=4,
                feature_names=("fb",),
            ),
        ),
    )
    self.assertEqual((stack.name, stack.num_slots), ("a_b", 1))
    # Table and accumulator of 64 + 128 rows of 8 floats.
    self.assertEqual(stack.num_bytes, 2 * 192 * 8 * 4)
    self.assertEqual(
        stack.num_padding_bytes, 2 * (192 * 8 - 33 * 6 - 100 * 8) * 4
    )
    # 64 samples are 8 for each of 8 SparseCores, of 8 floats.
    self.assertEqual(stack.num_samples, 64)
    self.assertEqual(stack.activation_bytes_per_sc, 8 * 8 * 4)
    self.assertEqual(
        (alone.max_ids_per_partition, alone.max_unique_ids_per_partition),
        (64, 32),
    )
    # As many cells as the limits allow: 4 SparseCores of 8 partitions.
    self.assertEqual(alone.coo_buffer_size_per_device, 64 * 4 * 8)
    self.assertStartsWith(
        alone.why_apart,
        "No other stack is alike. The closest, 'a_b', has 8 columns instead of"
        " 16, optimizer AdagradOptimizerSpec(",
    )

  def test_bytes_are_those_of_the_types_and_of_slots_of_rows(self):
    table = _table(
        "a",
        33,
        6,
        dtype="bfloat16",
        optimizer=embedding_spec.RowwiseAdagradOptimizerSpec(),
    )
    features = [_feature("fa", table, 32)]
    _plan.auto_stack_tables(features, **_TOPOLOGY)
    (stack,) = _report.get_plan(features, **_TOPOLOGY).stacks
    self.assertEqual((stack.num_slots, stack.num_row_slots), (1, 1))
    self.assertEqual(stack.num_table_bytes, 33 * 6 * 2)
    self.assertEqual(stack.num_slot_bytes, 33 * 4)
    self.assertEqual(stack.num_bytes, 64 * (8 * 2 + 4))
    self.assertEqual(
        stack.num_padding_bytes, 64 * (8 * 2 + 4) - 33 * (6 * 2 + 4)
    )

  def test_is_frozen_and_equal_to_itself(self):
    plan = _report.get_plan(_features(), **_TOPOLOGY)
    self.assertEqual(plan, _report.get_plan(_features(), **_TOPOLOGY))
    with self.assertRaises(dataclasses.FrozenInstanceError):
      plan.stacks = ()

  def test_tables_are_in_the_order_of_rows(self):
    features = [_feature(f"f{n}", _table(n, 10, 8), 16) for n in "ab"]
    _plan.stack_tables(features, ["b", "a"], **_TOPOLOGY)
    (stack,) = _report.get_plan(features, **_TOPOLOGY).stacks
    self.assertEqual([table.name for table in stack.tables], ["b", "a"])

  def test_reasons_are_those_of_the_limit_of_activations(self):
    features = [_feature(f"f{n}", _table(n, 10, 8), 16) for n in "ab"]
    # 2 samples of 32 bytes per SparseCore and table.
    _plan.auto_stack_tables(
        features, **_TOPOLOGY, activation_mem_bytes_limit=100
    )
    for stack in _report.get_plan(features, **_TOPOLOGY).stacks:
      self.assertRegex(stack.why_apart, "would take 128 .* limit of 100")

  def test_unprepared_specs_raise(self):
    with self.assertRaisesRegex(
        ValueError, "prepare_feature_specs_for_training was not called"
    ):
      _report.get_plan([_feature("f", _table("t", 10, 8), 16)], **_TOPOLOGY)

  def test_another_topology_raises(self):
    with self.assertRaisesRegex(ValueError, "was prepared for 8 SparseCores"):
      _report.get_plan(_features(), 4, 4)


class DescribeTest(parameterized.TestCase):

  def test_says_what_is_replicated_and_what_might_be(self):
    features = [
        _feature(f"f{table.name}", table, 16)
        for table in (
            _table("large", 4096, 8),
            _table("small", 4095, 8),
            _table("whole", 100, 8, placement="tensorcore"),
        )
    ]
    _plan.prepare_feature_specs_for_training(features, **_TOPOLOGY)
    plan = _report.get_plan(features, **_TOPOLOGY)
    self.assertEqual(plan.small_tables, ("small",))
    stack = next(s for s in plan.stacks if s.name == "whole")
    # 104 x 8 of float32 on each device.
    devices = _TOPOLOGY["global_device_count"]
    self.assertEqual(stack.num_bytes, devices * 104 * 8 * 4)
    self.assertEqual(stack.num_padding_bytes, devices * 4 * 8 * 4)
    text = plan.describe()
    self.assertRegex(text, r"whole +1 +104 x 8 +0 +3.2 KiB +- +128 B")
    self.assertIn(
        "whole: Its placement is 'tensorcore': each device has all of it.", text
    )
    self.assertEndsWith(
        text,
        "Below 4096 rows, placement='tensorcore' may be faster:\n  small",
    )
    self.assertNotIn("whole: 0 cells", text)

  def test_is_the_golden_text(self):
    text = _report.get_plan(_features(), **_TOPOLOGY).describe()
    self.assertEqual(text + "\n", _GOLDEN.read_text())


class PlotTest(parameterized.TestCase):

  @parameterized.parameters(".png", ".svg")
  def test_writes_a_file(self, suffix):
    path = pathlib.Path(self.create_tempdir().full_path) / f"plan{suffix}"
    _report.get_plan(_features(), **_TOPOLOGY).plot(path)
    beginning = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    self.assertStartsWith(path.read_bytes(), beginning)

  def test_draws_blocks_and_values_to_scale(self):
    figure = _report.figure(_report.get_plan(_features(), **_TOPOLOGY))
    shards, sizes = figure.axes
    self.assertEqual(
        [label.get_text() for label in shards.get_yticklabels()], ["a_b", "c"]
    )
    # Padding and values of a, b and c. Stack a_b has 24 rows in a shard.
    boxes = [
        (patch.get_x() * 24, patch.get_width() * 24)
        for patch in shards.patches[:4]
    ]
    self.assertSequenceAlmostEqual(boxes[0], (0, 8))
    self.assertSequenceAlmostEqual(boxes[1], (0, 33 / 8))
    self.assertSequenceAlmostEqual(boxes[2], (8, 16))
    self.assertSequenceAlmostEqual(boxes[3], (8, 100 / 8))
    self.assertLen(shards.patches, 6)
    self.assertAlmostEqual(
        shards.patches[1].get_height() / shards.patches[0].get_height(), 6 / 8
    )
    # Tables, slots and padding of each stack.
    ends = [patch.get_x() + patch.get_width() for patch in sizes.patches]
    self.assertLen(ends, 6)
    self.assertSequenceAlmostEqual(
        ends[4:], [2 * 192 * 8 * 4 / 2, 64 * 16 * 4 / 2]
    )
    self.assertContainsSubset(
        ["6.0 KiB", "2.0 KiB"], [text.get_text() for text in sizes.texts]
    )

  @parameterized.parameters(1, 3, 26, 100)
  def test_labels_do_not_overlap(self, num_tables):
    for limit in (None, 0):
      figure = _report.figure(
          _plan_of_tables(num_tables, activation_mem_bytes_limit=limit)
      )
      # Without it, each text makes an image of the figure to be measured in.
      renderer = backend_agg.FigureCanvasAgg(figure).get_renderer()
      x0, y0, x1, y1 = np.transpose(
          [
              text.get_window_extent(renderer).extents
              for axes in figure.axes
              for text in (*axes.texts, *axes.get_yticklabels())
          ]
      )
      width, height = figure.canvas.get_width_height()
      self.assertBetween(x0.min(), 0, width)
      self.assertBetween(x1.max(), 0, width)
      self.assertBetween(y1.max(), 0, height)
      overlaps = (
          (x0 < x1[:, None])
          & (x0[:, None] < x1)
          & (y0 < y1[:, None])
          & (y0[:, None] < y1)
      )
      np.testing.assert_array_equal(overlaps, np.eye(len(x0), dtype=bool))

  def test_long_names_are_shortened(self):
    self.assertEqual(_report_picture.shorten("user", 4), "user")
    self.assertEqual(_report_picture.shorten("users", 4), "use…")

  def test_without_matplotlib_the_error_names_the_extra(self):
    plan = _report.get_plan(_features(), **_TOPOLOGY)
    with mock.patch.dict(sys.modules, {"matplotlib.figure": None}):
      with self.assertRaisesRegex(ImportError, r"jax_tpu_embedding\[plots\]"):
        plan.plot("plan.png")


if __name__ == "__main__":
  absltest.main()
