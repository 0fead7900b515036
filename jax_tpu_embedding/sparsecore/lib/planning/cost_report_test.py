# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Estimates against the converter, by hand, and as text."""

import dataclasses
import json
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import jax
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.fdo import file_fdo_client
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.planning import _cost_picture
from jax_tpu_embedding.sparsecore.lib.planning import chips
from jax_tpu_embedding.sparsecore.lib.planning import cost_report
from jax_tpu_embedding.sparsecore.lib.planning import workload
from jax_tpu_embedding.sparsecore.lib.planning.testing import known_times
from jax_tpu_embedding.sparsecore.lib.planning.testing import models
import numpy as np

_TESTDATA = pathlib.Path(__file__).parent / "testdata"
_ROWWISE = embedding_spec.RowwiseAdagradOptimizerSpec(0.1)


def _fresh_needs(features, law, seed, num_devices, num_sc):
  """What the converter counts for a batch that the estimate did not see."""
  rng = np.random.default_rng(seed)
  batch = [
      law.draw(
          rng, x.table_spec.vocabulary_size, int(np.prod(x.input_shape))
      ).reshape(x.input_shape)
      for x in features
  ]
  _, stats = embedding.preprocess_sparse_dense_matmul_input(
      batch,
      None,
      features,
      num_devices,
      num_devices,
      num_sc_per_device=num_sc,
      allow_id_dropping=True,
      limits="specs",
  )
  return stats


class NeedsTest(parameterized.TestCase):

  @parameterized.parameters(workload.Zipf(1.05), workload.Uniform())
  def test_are_within_15_percent_of_fresh_batches(self, law):
    features = list(models.users_and_items(batch=16384, valency=8).values())
    embedding.auto_stack_tables(features, 4, 4)
    embedding.prepare_feature_specs_for_training(features, 4, 4)
    report = cost_report.estimate(features, "v5p:2x2x1", workload=law)
    for seed in range(100, 200):
      stats = _fresh_needs(features, law, seed, 4, 4)
      for stack in report.stacks:
        for predicted, found in (
            (stack.needs.max_ids_per_partition, stats.max_ids_per_partition),
            (
                stack.needs.max_unique_ids_per_partition,
                stats.max_unique_ids_per_partition,
            ),
            (
                stack.needs.coo_cells_per_sc,
                stats.required_buffer_size_per_sc,
            ),
        ):
          most = found[stack.name].max()
          self.assertAlmostEqual(predicted / most, 1, delta=0.15)

  def test_of_statistics_are_within_30_percent_on_a_drifted_day(self):
    features = list(models.users_and_items(batch=16384, valency=8).values())
    embedding.auto_stack_tables(features, 4, 4)
    embedding.prepare_feature_specs_for_training(features, 4, 4)
    stats = _fresh_needs(features, workload.Zipf(1.05), 1, 4, 4)
    report = cost_report.estimate(
        features, "v5p:2x2x1", workload=workload.FromStats(stats)
    )
    drifted = _fresh_needs(features, workload.Zipf(1.1), 2, 4, 4)
    for stack in report.stacks:
      for predicted, found in (
          (stack.needs.max_ids_per_partition, drifted.max_ids_per_partition),
          (
              stack.needs.max_unique_ids_per_partition,
              drifted.max_unique_ids_per_partition,
          ),
      ):
        most = found[stack.name].max()
        self.assertAlmostEqual(predicted / most, 1, delta=0.3)
    client = mock.Mock()
    client.load.return_value = stats
    again = cost_report.estimate(
        features, "v5p:2x2x1", workload=workload.FromStats(client)
    )
    self.assertEqual(again.stacks, report.stacks)
    with self.assertRaisesRegex(ValueError, "2 devices with 8 SparseCores"):
      cost_report.estimate(
          features, "v5p:2x1x1", workload=workload.FromStats(stats)
      )

  def test_of_statistics_of_several_batches_are_the_largest(self):
    features = list(models.users_and_items(batch=1024).values())
    embedding.auto_stack_tables(features, 4, 4)
    embedding.prepare_feature_specs_for_training(features, 4, 4)
    stats = [
        _fresh_needs(features, workload.Uniform(), seed, 4, 4)
        for seed in range(3)
    ]
    # To ask JAX for it would start a backend.
    self.enter_context(mock.patch.object(jax, "process_index", return_value=0))
    reports = []
    for retain_history in (True, False):
      client = file_fdo_client.NPZFileFDOClient(
          self.create_tempdir().full_path, retain_history=retain_history
      )
      for of_batch in stats:
        client.record(of_batch)
      client.publish()
      law = workload.FromStats(client)
      reports.append(cost_report.estimate(features, "v5p:2x2x1", workload=law))
    self.assertEqual(reports[0].stacks, reports[1].stacks)
    stack = reports[0].stacks[0]
    self.assertEqual(
        stack.needs.max_ids_per_partition,
        max(x.max_ids_per_partition[stack.name].max() for x in stats),
    )

  def test_of_given_batches_are_theirs(self):
    ids = np.arange(64).reshape(32, 2)
    features = models.feature(rows=64, batch=32, valency=2)
    report = cost_report.estimate(
        features, "v6e:2x1", workload=workload.FromBatches([ids])
    )
    (stack,) = report.stacks
    # 64 distinct rows, 16 of each of four SparseCores, which sends 4 to each.
    self.assertEqual(stack.num_ids, 32)
    self.assertEqual(stack.distinct_rows, 32)
    self.assertEqual(stack.owned_rows, 32)
    self.assertEqual(
        stack.needs, embedding.StackLimits(4, 4, coo_cells_per_sc=32)
    )
    self.assertEqual(stack.load, 1)
    ragged = (ids.reshape(-1), np.arange(0, 65, 2))
    of_ragged = cost_report.estimate(
        features, "v6e:2x1", workload=workload.FromBatches([ragged])
    )
    self.assertEqual(of_ragged.stacks, report.stacks)

  @parameterized.named_parameters(
      ("dense", np.zeros((16, 2), np.int64)),
      ("ragged", (np.zeros(32, np.int64), np.arange(0, 33, 2))),
  )
  def test_given_batches_are_as_large_as_those_of_the_specs(self, ids):
    features = models.feature(rows=64, batch=32, valency=2)
    with self.assertRaisesRegex(
        ValueError, "Feature 'f': a batch has 16 samples, and the specs have 32"
    ):
      cost_report.estimate(
          features, "v6e:2x1", workload=workload.FromBatches([ids])
      )

  def test_samples_may_have_any_length(self):
    features = {"f": models.feature(rows=64, batch=32, valency=None)}
    estimate = lambda **kwargs: cost_report.estimate(
        features, "v6e:2x1", **kwargs
    )
    (stack,) = estimate(ids_per_sample={"f": 3.0}).stacks
    self.assertAlmostEqual(stack.num_ids / (3.0 * 16), 1, delta=0.3)
    batch = {"f": (np.arange(64), np.arange(0, 65, 2))}
    # Batches are taken once, as those of a generator.
    (stack,) = estimate(workload=workload.FromBatches(iter([batch]))).stacks
    self.assertEqual(stack.num_ids, 32)
    with self.assertRaisesRegex(
        ValueError, r"'f': input_shape \(32, None\) .* Pass ids_per_sample="
    ):
      estimate()

  def test_ids_per_sample_are_means(self):
    report = cost_report.estimate(
        models.users_and_items(), "v6e:2x2", ids_per_sample={"users": 9.0}
    )
    by_name = {stack.name: stack for stack in report.stacks}
    users = by_name["users_table"].num_ids
    self.assertAlmostEqual(users / (9.0 * 1024), 1, delta=0.05)
    self.assertEqual(by_name["items_table"].num_ids, 4 * 1024)
    with self.assertRaisesRegex(ValueError, r"\['x'\], which are no features"):
      cost_report.estimate(
          models.users_and_items(), "v6e:2x2", ids_per_sample={"x": 1}
      )

  def test_popular_rows_of_zipf_have_their_share(self):
    ids = workload.Zipf(1.0).draw(np.random.default_rng(0), 1000, 200_000)
    counts = np.bincount(ids, minlength=1000)
    self.assertEqual(counts.size, 1000)
    expected = 200_000 / np.arange(1, 1001) / np.sum(1 / np.arange(1, 1001))
    np.testing.assert_allclose(counts[1:20], expected[1:20], rtol=0.1)
    self.assertAlmostEqual(counts[0] / expected[0], 1.1, delta=0.03)

  def test_everybody_asks_for_the_first_row_at_large_exponents(self):
    ids = workload.Zipf(3000.0).draw(np.random.default_rng(0), 1000, 1000)
    self.assertEqual(ids.max(), 0)

  def test_large_batches_are_drawn_for_some_devices(self):
    features = models.feature(batch=2**22, valency=8)
    report = cost_report.estimate(features, "v5p:4x4x4", batches=1)
    (stack,) = report.stacks
    self.assertEqual(stack.num_ids, 2**22 * 8 / 64)
    self.assertAlmostEqual(stack.owned_rows, 100_000 / 64)

  def test_limits_are_those_of_adaptive_limits(self):
    features = models.feature(batch=1024)
    law = workload.Zipf(1.05)
    with known_times.known():
      report = cost_report.estimate(features, "cpu:1", workload=law, batches=1)
    embedding.prepare_feature_specs_for_training(features, 1, 1)
    # No ceiling: it would ask for devices, which start a backend.
    limits = embedding.AdaptiveLimits(
        features, 1, 1, num_sc_per_device=1, ceiling=None
    )
    ids = law.draw(np.random.default_rng(0), 100_000, 4096).reshape(1024, 4)
    limits.preprocess(ids)
    self.assertEqual(report.limits, limits.limits)

  def test_the_cpu_is_what_the_process_may_use(self):
    bytes_of_host = mock.patch.object(
        free_memory, "bytes_of_host", return_value=3 * 2**30
    )
    with bytes_of_host, _with_cpus(3), known_times.known():
      report = cost_report.estimate(models.feature(), "cpu:2", batches=1)
    self.assertEqual(report.topology.chip.memory_bytes, 3 * 2**29)
    self.assertEqual(report.topology.chip.flops_per_second, 75e9)

  def test_specs_are_not_changed_and_backends_not_started(self):
    specs = models.users_and_items()
    for name in ("v5p:2x2x1", "v6e:4x4", "tpu7x:2x2x1"):
      cost_report.estimate(specs, name)
    self.assertFalse(specs["users"].table_spec.is_stacked())
    # Raises if there is a backend.
    jax.config.update("jax_num_cpu_devices", 1)


class ChipsTest(parameterized.TestCase):

  @parameterized.parameters(("v5p", "v5p"), ("v6e", "v6e"), ("tpu7x", "7x"))
  def test_numbers_of_tpus_are_those_of_jax(self, name, of_jax):
    """So planning.check, which asks JAX, says the same as a cost report."""
    known, chip = pallas.find_chip(of_jax), chips.CHIPS[name]
    facts, cores = known.facts, known.num_tensor_cores
    self.assertEqual(chip.memory_bytes, cores * facts.hbm_capacity_bytes)
    self.assertEqual(
        chip.memory_bytes_per_second, cores * facts.mem_bw_bytes_per_second
    )
    self.assertEqual(chip.flops_per_second, cores * facts.bf16_ops_per_second)


class CostsTest(parameterized.TestCase):

  def test_bytes_and_seconds_by_hand(self):
    # 64 rows of 128 columns, each of which every device asks for once.
    feature = models.feature(
        rows=64, dim=128, batch=64, valency=1, optimizer=models.ADAGRAD
    )
    ids = np.tile(np.arange(16), 4).reshape(64, 1)
    topology = chips.Topology(
        name="two",
        chip=chips.Chip(
            name="x",
            num_sc=1,
            memory_bytes=10**9,
            memory_bytes_per_second=1e6,
            network_bytes_per_second=1e9,
            flops_per_second=1e6,
            source="a test",
        ),
        num_devices=2,
    )
    report = cost_report.estimate(
        feature,
        topology,
        workload=workload.FromBatches([ids]),
        dense=cost_report.DenseCost(flops_per_sample=500, weight_bytes=7),
    )
    (stack,) = report.stacks
    row, activations = 512, 32 * 512
    self.assertEqual(stack.table_bytes, 32 * row)
    self.assertEqual(stack.slot_bytes, 32 * row)
    self.assertEqual(stack.padding_bytes, 0)
    self.assertEqual(stack.activation_bytes, activations)
    # 32 ids to two partitions of 16.
    self.assertEqual(stack.needs.coo_cells_per_sc, 32)
    cells = stack.limits.coo_cells_per_sc
    self.assertEqual(stack.buffer_bytes, 12 * cells + 4 * 8)
    self.assertEqual((stack.distinct_rows, stack.owned_rows), (16, 8))
    lookup = (16 * row + 12 * 32 + activations) / 1e6 / 0.5
    update = (2 * 8 * 2 * row + 2 * 16 * row + activations) / 1e6 / 0.5
    self.assertAlmostEqual(stack.lookup_seconds, lookup)
    self.assertAlmostEqual(stack.update_seconds, update)
    self.assertEqual((stack.lookup_bound, stack.update_bound), ("memory",) * 2)
    dense = 32 * 500 / 0.5e6
    self.assertAlmostEqual(report.dense_seconds, dense)
    self.assertAlmostEqual(
        report.step_seconds("off"), lookup + dense + update - dense / 3
    )
    self.assertAlmostEqual(
        report.step_seconds("exact"), dense + update + lookup - dense / 3
    )
    self.assertAlmostEqual(report.step_seconds("stale"), lookup + update)
    for copies, mode in enumerate(cost_report.MODES, start=1):
      self.assertEqual(
          report.bytes_per_device(mode),
          7
          + 64 * row
          + copies * stack.buffer_bytes
          + (1 + copies) * activations,
      )

  @parameterized.parameters("memory", "product", "network")
  def test_replicated_tables_by_hand(self, bound):
    # 8 rows of 16 columns on each of 4 devices, with 16 samples of 2 ids each.
    feature = models.feature(
        rows=8, dim=16, batch=64, valency=2, optimizer=models.ADAGRAD
    )
    feature.table_spec.placement = "tensorcore"
    ids = np.tile([[0, 1], [1, 3]], (32, 1))
    speeds = dict(memory=1e12, product=1e12, network=1e12) | {bound: 1e6}
    topology = chips.Topology(
        name="four",
        chip=chips.Chip(
            name="x",
            num_sc=2,
            memory_bytes=10**9,
            memory_bytes_per_second=speeds["memory"],
            network_bytes_per_second=speeds["network"],
            flops_per_second=1e15,
            float32_flops_per_second=speeds["product"],
            source="a test",
        ),
        num_devices=4,
    )
    report = cost_report.estimate(
        [feature, models.feature("split", batch=64)],
        topology,
        workload=workload.FromBatches([[ids, np.zeros((64, 4), int)]]),
    )
    of_split, stack = sorted(
        report.stacks, key=lambda stack: stack.table_bytes
    )[::-1]
    self.assertEqual(
        [name for name, _ in report.limits.stacks], [of_split.name]
    )
    table = 8 * 16 * 4
    self.assertEqual(
        (stack.table_bytes, stack.slot_bytes, stack.padding_bytes),
        (table, table, 0),
    )
    activations, buffers, gains = 16 * 16 * 4, 16 * 2 * 8, 2 * 16 * 8 * 4
    self.assertEqual(stack.activation_bytes, activations)
    self.assertEqual(stack.buffer_bytes, buffers)
    self.assertEqual((stack.num_ids, stack.distinct_rows), (32, 3))
    self.assertEqual(stack.owned_rows, 8)
    inputs = activations + buffers + gains
    product = 2 * 16 * 8 * 16 / speeds["product"]
    lookup = dict(memory=(table + inputs) / speeds["memory"], product=product)
    update = dict(
        memory=(6 * table + inputs) / speeds["memory"],
        product=product,
        network=2 * table * 3 / 4 / speeds["network"],
    )
    self.assertAlmostEqual(0.5 * stack.lookup_seconds / max(lookup.values()), 1)
    self.assertAlmostEqual(0.5 * stack.update_seconds / max(update.values()), 1)
    self.assertEqual(stack.update_bound, bound)
    if bound in lookup:
      self.assertEqual(stack.lookup_bound, bound)
    text = report.describe()
    self.assertRegex(text, r"\nf_table .* 0%.* - +- ")
    self.assertIn("Stacks without limits are of tables that every device", text)
    in_json = json.loads(report.to_json())["stacks"]
    self.assertEqual([x["limits"] is None for x in in_json].count(True), 1)

  def test_replicated_tables_alone_with_means_and_of_statistics(self):
    features = models.users_and_items(batch=1024, valency=4)
    features["items"].table_spec.placement = "tensorcore"
    report = cost_report.estimate(
        features, "v6e:2x2", ids_per_sample={"items": 2.5}
    )
    (items,) = (x for x in report.stacks if x.limits is None)
    self.assertAlmostEqual(items.num_ids / (2.5 * 256), 1, delta=0.1)
    # Up to 8 or 9 ids of a sample, where the mean is 2.5.
    self.assertIn(items.buffer_bytes, (256 * 8 * 8, 256 * 16 * 8))
    alone = cost_report.estimate({"items": features["items"]}, "v6e:2x2")
    self.assertEqual(alone.stacks[0].num_ids, 4 * 256)
    self.assertEqual(alone.limits.stacks, ())
    embedding.prepare_feature_specs_for_training(features, 4, 2)
    _, stats = embedding.preprocess_sparse_dense_matmul_input(
        {name: np.ones((1024, 4), int) for name in features},
        None,
        features,
        4,
        4,
        num_sc_per_device=2,
        limits="specs",
    )
    law = workload.FromStats(stats)
    (of_stats,) = (
        x
        for x in cost_report.estimate(features, "v6e:2x2", workload=law).stacks
        if x.limits is None
    )
    self.assertEqual(of_stats.distinct_rows, 1024)
    self.assertEqual(
        dataclasses.replace(of_stats, distinct_rows=0),
        dataclasses.replace(alone.stacks[0], distinct_rows=0),
    )
    features["items"].input_shape = (1024, None)
    with self.assertRaisesRegex(
        ValueError, "Table 'items_table' has placement .* no statistics"
    ):
      cost_report.estimate(features, "v6e:2x2", workload=law)

  def test_network_may_be_the_bound(self):
    slow = dataclasses.replace(chips.CHIPS["v6e"], network_bytes_per_second=1e6)
    topology = chips.Topology(name="slow", chip=slow, num_devices=4)
    (stack,) = cost_report.estimate(models.feature(), topology).stacks
    self.assertEqual(stack.lookup_bound, "network")
    sent = stack.distinct_rows * 64 * 3 / 4
    self.assertAlmostEqual(stack.lookup_seconds, sent / 1e6 / 0.5)

  def test_measured_lookups_calibrate(self):
    report = cost_report.estimate(models.users_and_items(), "v6e:2x2")
    measured = 2 * report.lookup_seconds
    calibrated = report.with_measured_lookup(measured)
    self.assertAlmostEqual(calibrated.lookup_seconds, measured)
    self.assertAlmostEqual(calibrated.efficiency, report.efficiency / 2)
    with self.assertRaisesRegex(
        ValueError, "seconds must be positive .*, got 0"
    ):
      report.with_measured_lookup(0)
    with self.assertRaisesRegex(ValueError, "positive and finite, got inf"):
      report.with_measured_lookup(np.inf)
    self.assertIn("Not calibrated: ", report.describe())
    self.assertRegex(
        calibrated.describe(),
        "^Calibrated: .* of 0.25, which follows from a measured lookup.\n",
    )
    of_json = lambda x: json.loads(x.to_json())["is_calibrated"]
    self.assertEqual((of_json(report), of_json(calibrated)), (False, True))

  def test_updates_have_an_efficiency_of_their_own(self):
    chip = dataclasses.replace(chips.CHIPS["v6e"], update_efficiency=0.8)
    topology = chips.Topology(name="x", chip=chip, num_devices=4)
    full = cost_report.estimate(
        models.users_and_items(), topology, sc_efficiency=1.0
    )
    report = cost_report.estimate(models.users_and_items(), topology)
    for x in (report, report.with_measured_lookup(2 * report.lookup_seconds)):
      self.assertRegex(
          x.describe(),
          rf"Update: .* \({full.update_seconds * 1e3:.3f} at 1.0",
      )
      self.assertAlmostEqual(x.update_efficiency / x.efficiency, 0.8 / 0.5)
    self.assertIn("of 0.50 (0.80 of updates), which nobody", report.describe())

  def test_dense_parameters_that_are_not_known_are_said(self):
    without = "; without dense parameters."
    for size in (0, 7):
      dense = cost_report.DenseCost(flops_per_sample=1, weight_bytes=size)
      text = cost_report.estimate(
          models.users_and_items(), "v6e:2x2", dense=dense
      ).describe()
      self.assertEqual(without in text, size == 0)

  @hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
  @hypothesis.given(
      rows=st.lists(st.integers(1, 10**6), min_size=1, max_size=3),
      dim=st.integers(1, 130),
      rowwise=st.booleans(),
  )
  def test_more_devices_never_have_more_of_the_tables(self, rows, dim, rowwise):
    features = [
        models.feature(
            f"f{i}",
            x,
            dim,
            batch=1024,
            valency=1,
            optimizer=_ROWWISE if rowwise else models.ADAGRAD,
        )
        for i, x in enumerate(rows)
    ]
    sizes = []
    for name in ("v6e:1", "v6e:2x1", "v6e:2x2", "v6e:4x4"):
      report = cost_report.estimate(features, name, batches=1)
      sizes.append(sum(x.bytes_at_rest for x in report.stacks))
    self.assertEqual(sizes, sorted(sizes, reverse=True))

  @parameterized.parameters(
      ("v6e", "chip and a size"),
      ("v6e:0x4", "has no devices"),
      ("v9:4", "no chip 'v9'. Known are cpu, h100, h200, tpu7x, v5p, v6e"),
  )
  def test_topologies(self, name, message):
    with self.assertRaisesRegex(ValueError, message):
      cost_report.estimate(models.users_and_items(), name)

  @parameterized.parameters(None, 4)
  def test_what_is_no_topology(self, topology):
    with self.assertRaisesRegex(
        TypeError, f"such as 'v6e:4x4', or a chips.Topology, got {topology}"
    ):
      cost_report.estimate(models.users_and_items(), topology)

  def test_arguments(self):
    estimate = lambda **kwargs: cost_report.estimate(
        models.users_and_items(), "v6e:2x2", **kwargs
    )
    with self.assertRaisesRegex(ValueError, "at most 1, got 1.5"):
      estimate(sc_efficiency=1.5)
    with self.assertRaisesRegex(TypeError, "DenseCost or a step .* got int"):
      estimate(dense=3)
    with self.assertRaisesRegex(ValueError, "has no batches"):
      estimate(workload=workload.FromBatches([]))
    with self.assertRaisesRegex(ValueError, "not negative, got -1"):
      estimate(workload=workload.Zipf(-1))
    with self.assertRaisesRegex(ValueError, "1 features, .* specs of 2"):
      estimate(workload=workload.FromBatches([np.zeros((4096, 4))]))
    with self.assertRaisesRegex(ValueError, "that of its dense part"):
      estimate().step_seconds("off")
    with self.assertRaisesRegex(ValueError, "must be one of .* got 'fast'"):
      estimate().step_seconds("fast")
    with self.assertRaisesRegex(ValueError, "no features"):
      cost_report.estimate([], "v6e:2x2")
    with self.assertRaisesRegex(
        TypeError, r"feature_specs\['a'\]\[1\] must be a FeatureSpec, got 3"
    ):
      cost_report.estimate({"a": [models.feature(), 3]}, "v6e:2x2")


def _with_cpus(n):
  return mock.patch.object(hardware, "num_schedulable_cpus", return_value=n)


class SuggestionsTest(parameterized.TestCase):

  def _of(self, specs, name="v6e:2x2", cores=10**6, **options):
    with _with_cpus(cores):
      return "\n".join(cost_report.estimate(specs, name, **options).suggestions)

  def test_none_for_a_model_without_faults(self):
    self.assertEqual(self._of(models.feature(optimizer=_ROWWISE)), "")

  @parameterized.named_parameters(
      (
          "width",
          models.feature(dim=20),
          "'f_table' .20.: 391 KiB of each device",
      ),
      (
          "rows",
          models.feature(rows=10),
          "f_table' .10.. They have 64 rows .* have 10",
      ),
      (
          "slots",
          models.feature(optimizer=models.ADAGRAD),
          "Slots are 50% of what tables take, .* saves 1.4 MiB",
      ),
      (
          "memory",
          models.feature(rows=10**9, dim=128, optimizer=models.SGD),
          "32.0 GiB, and 119 GiB are needed: 87.* too much. 15 devices",
      ),
      (
          "large batch",
          models.feature(rows=10**7, dim=2**17, batch=2**18, valency=1),
          "more devices do not help, a smaller batch does",
      ),
      (
          "ceiling",
          models.feature(rows=10**7, batch=2**16, valency=8),
          "distinct rows, and the compiler was seen to take 4096.*3 passes",
      ),
  )
  def test_of_the_specs(self, feature, message):
    self.assertRegex(self._of(feature, batches=1), message)

  def test_more_devices_do_not_help_replicated_tables(self):
    feature = models.feature(rows=10**8, dim=128)
    feature.table_spec.placement = "tensorcore"
    self.assertRegex(
        self._of(feature, batches=1),
        "'tensorcore' take 47.7 GiB of each device: more devices do not",
    )

  def test_few_rows_are_not_padded_where_every_device_has_them(self):
    feature = models.feature(rows=10, optimizer=_ROWWISE)
    feature.table_spec.placement = "tensorcore"
    self.assertEqual(self._of(feature, batches=1), "")

  def test_load(self):
    ids = np.zeros((4096, 4), np.int64)
    law = workload.FromBatches([ids])
    self.assertRegex(
        self._of(models.feature(), workload=law), "8.0 times .* gains 88%"
    )

  def test_host(self):
    self.assertRegex(
        self._of(models.feature(), cores=1), r"\d cores for each device"
    )

  def test_mode(self):
    # As much as lookups and updates take.
    report = cost_report.estimate(models.feature(), "v6e:2x2")
    seconds = report.lookup_seconds + report.update_seconds
    flops = seconds * 0.5 * 920e12 / 1024
    much = self._of(
        models.feature(),
        dense=cost_report.DenseCost(flops_per_sample=6 * flops),
    )
    self.assertIn("pipelined(mode='exact') takes", much)
    self.assertNotIn("stale", much)
    as_much = self._of(
        models.feature(), dense=cost_report.DenseCost(flops_per_sample=flops)
    )
    self.assertRegex(as_much, r"pipelined\(mode='stale'\) takes \d+% off that")


class FormsTest(parameterized.TestCase):

  def _report(self):
    return cost_report.estimate(
        models.users_and_items(dim=20),
        "v5p:2x2x1",
        dense=cost_report.DenseCost(flops_per_sample=1e7),
    )

  @parameterized.parameters(
      ("cost_report.txt", lambda report: report.describe()),
      ("cost_report.json", lambda report: report.to_json()),
  )
  def test_golden(self, name, form):
    with _with_cpus(1):
      found = form(self._report()) + "\n"
    self.assertEqual(found, (_TESTDATA / name).read_text())

  def test_picture(self):
    path = pathlib.Path(self.create_tempdir().full_path, "cost.png")
    self._report().plot(path)
    self.assertGreater(path.stat().st_size, 1000)
    calibrated = self._report().with_measured_lookup(1e-3)
    for report, end in (
        (self._report(), "update, not calibrated"),
        (calibrated, "update, calibrated"),
    ):
      title = _cost_picture.figure(report).axes[1].get_title(loc="left")
      self.assertEndsWith(title, end)
    with mock.patch.dict("sys.modules", {"matplotlib.figure": None}):
      with self.assertRaisesRegex(ImportError, r"embedding\[plots\].*describe"):
        self._report().plot(path)


if __name__ == "__main__":
  absltest.main()
