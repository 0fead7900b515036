# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import json
import os
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.limits import _history
from jax_tpu_embedding.sparsecore.lib.nn.step import _compile_check
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
from jax_tpu_embedding.sparsecore.lib.nn.testing import zipf_batches
from matplotlib import figure
import numpy as np


def _drift(num_batches, burst=True):
  """Ids per sample rise by a half, and now and then there are twice as many."""
  rng = np.random.default_rng(1)
  for i in range(num_batches):
    mean = 8.0 * (1 + 0.5 * i / num_batches)
    yield zipf_batches.batch(
        i, mean * (2 if burst and rng.random() < 0.005 else 1)
    )


def _adaptive(specs=None, **options):
  return embedding.AdaptiveLimits(
      specs or zipf_batches.specs(), 1, 1, num_sc_per_device=4, **options
  )


def _num_entries(inputs):
  return int(np.isfinite(inputs.lhs_gains["t"]).sum())


def _of_distinct_ids(seed, valency):
  rows = np.random.default_rng(seed).permutation(zipf_batches.VOCABULARY)
  shape = zipf_batches.BATCH, valency
  return {"f": rows[: np.prod(shape)].reshape(shape)}


class _Client:
  """An FDO client in memory."""

  def __init__(self):
    self.recorded, self.published = [], []

  def record(self, stats):
    self.recorded.append(stats)

  def publish(self):
    self.published.append(self.recorded[-1])

  def load(self):
    if not self.published:
      raise FileNotFoundError("none")
    return self.published[-1]


class AdaptiveLimitsTest(parameterized.TestCase):

  @parameterized.parameters((True, 10), (False, 6))
  def test_drift_takes_few_programs_and_loses_nothing(
      self, burst, most_programs
  ):
    limits = _adaptive()
    shapes, largest = set(), 0
    for features in _drift(600, burst):
      inputs, stats = limits.preprocess(features)
      self.assertEqual(stats.id_drop_counters["t"], 0)
      shapes.add((inputs.settings, inputs.lhs_gains["t"].shape))
      largest = max(largest, stats.required_buffer_size_per_sc["t"].max())
    self.assertLessEqual(len(shapes), most_programs)
    # Rungs are a quarter apart, and there is a quarter of headroom.
    self.assertLessEqual(
        limits.limits["t"].coo_cells_per_sc, largest * 1.25 * 1.25 + 8
    )

  def test_stationary_data_take_few_programs(self):
    limits = _adaptive()
    total = 0
    for seed in range(1200):
      _, stats = limits.preprocess(zipf_batches.batch(seed))
      total += int(stats.required_buffer_size_per_sc["t"].max())
    batches = {growth.batch_number for growth in limits.growths}
    self.assertLessEqual(len(batches), 3)
    self.assertIn(0, batches)
    self.assertLess(max(batches), 1000)
    self.assertLessEqual(
        limits.limits["t"].coo_cells_per_sc, 1.5 * total / 1200
    )

  def test_batches_are_as_preprocessed_with_these_limits(self):
    limits = _adaptive()
    for seed, mean in enumerate((2.0, 8.0, 3.0)):
      features = zipf_batches.batch(seed, mean)
      inputs, _ = limits.preprocess(features)
      expected, _ = embedding.preprocess_sparse_dense_matmul_input(
          features,
          None,
          zipf_batches.specs(),
          1,
          1,
          num_sc_per_device=4,
          limits=limits.limits,
      )
      self.assertEqual(inputs.settings, expected.settings)
      jax.tree.map(np.testing.assert_array_equal, inputs, expected)

  def test_jit_traces_once_per_limits(self):
    limits = _adaptive()
    num_traces = 0

    @jax.jit
    def program(inputs):
      nonlocal num_traces
      num_traces += 1
      return jax.tree.map(lambda x: x + 1, inputs)

    seen = set()
    for features in (
        *_drift(40),
        zipf_batches.batch(0, 30.0),
        zipf_batches.batch(1),
    ):
      inputs, _ = limits.preprocess(features)
      seen.add(limits.limits)
      program(inputs)
    self.assertGreater(len(seen), 1)
    self.assertEqual(num_traces, len(seen))

  def test_specs_have_the_limits(self):
    specs = zipf_batches.specs()
    limits = _adaptive(specs)
    limits.preprocess(zipf_batches.batch(0))
    self.assertEqual(embedding.Limits.of(specs, 1, 4), limits.limits)

  @parameterized.parameters(False, True)
  def test_batches_may_be_converted_out_of_order(self, reverse):
    expected, limits = _adaptive(), _adaptive()
    batches = [zipf_batches.batch(i, 2.0 + i) for i in range(8)]
    converted = [None] * 8
    for i in reversed(range(8)) if reverse else range(8):
      converted[i] = limits.convert(batches[i], batch_number=i)
    for features, c in zip(batches, converted):
      got, want = limits.settle(c)[0], expected.preprocess(features)[0]
      self.assertEqual(got.settings, want.settings)
      jax.tree.map(np.testing.assert_array_equal, got, want)

  def test_threads_may_share_it(self):
    limits = _adaptive()
    counts = {}

    def work(start):
      for i in range(start, 40, 4):
        inputs, _ = limits.preprocess(zipf_batches.batch(i, 2.0 + i))
        counts[i] = _num_entries(inputs)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    one = _adaptive()
    for i in range(40):
      self.assertEqual(
          counts[i],
          _num_entries(one.preprocess(zipf_batches.batch(i, 2.0 + i))[0]),
      )

  def test_pad_makes_earlier_batches_like_later_ones(self):
    limits = _adaptive()
    first, _ = limits.preprocess(zipf_batches.batch(0, 2.0))
    limits.preprocess(zipf_batches.batch(1, 9.0))
    again, _ = limits.preprocess(zipf_batches.batch(0, 2.0))
    padded = limits.pad(first)
    self.assertNotEqual(first.settings, again.settings)
    self.assertEqual(padded.settings, again.settings)
    jax.tree.map(np.testing.assert_array_equal, padded, again)

  def test_restart_has_the_same_limits_and_grows_alike(self):
    first, second = _adaptive(), _adaptive()
    for seed in range(10):
      first.preprocess(zipf_batches.batch(seed, 2.0 + seed))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    self.assertEqual(second.limits, first.limits)
    for seed in range(10, 20):
      features = zipf_batches.batch(seed, 2.0 + seed)
      got, want = second.preprocess(features)[0], first.preprocess(features)[0]
      self.assertEqual(got.settings, want.settings)
      jax.tree.map(np.testing.assert_array_equal, got, want)
    self.assertEqual(second.state_dict(), first.state_dict())

  def test_a_state_is_read_without_being_loaded(self):
    limits, other = _adaptive(), _adaptive()
    other.preprocess(zipf_batches.batch(0))
    before = limits.state_dict()
    snapshot = limits.snapshot_of(other.state_dict())
    self.assertEqual(limits.state_dict(), before)
    limits.load_snapshot(snapshot)
    self.assertEqual(limits.state_dict(), other.state_dict())

  def test_starts_with_the_limits_of_the_specs(self):
    limits = _adaptive(
        zipf_batches.specs(
            max_ids_per_partition=512, max_unique_ids_per_partition=512
        ),
        start="specs",
    )
    limits.preprocess(zipf_batches.batch(0))
    self.assertEmpty(limits.growths)
    self.assertEqual(limits.limits["t"].max_ids_per_partition, 512)

  def test_starts_with_a_value(self):
    start = _adaptive()
    start.preprocess(zipf_batches.batch(0))
    limits = _adaptive(start=start.limits)
    limits.preprocess(zipf_batches.batch(0))
    self.assertEmpty(limits.growths)
    self.assertEqual(limits.limits, start.limits)

  @parameterized.parameters(
      {"max_ids_per_partition": 16},
      {"max_unique_ids_per_partition": 16},
      {"max_ids_per_partition": 16, "max_unique_ids_per_partition": 16},
  )
  def test_what_exceeds_a_ceiling_takes_several_passes(self, **ceiling):
    limits = _adaptive(ceiling=ceiling, enable_minibatching=True)
    unsplit = _adaptive()
    for seed in range(3):
      features = _of_distinct_ids(seed, valency=4)
      inputs, _ = limits.preprocess(features)
      self.assertGreater(inputs.num_minibatches[0], 1)
      self.assertEqual(
          _num_entries(inputs), _num_entries(unsplit.preprocess(features)[0])
      )
    for number, most in ceiling.items():
      self.assertLessEqual(getattr(limits.limits["t"], number), most)

  def test_the_first_batch_is_not_aligned_in_passes_that_it_does_not_take(self):
    limits, of_passes = _adaptive(), _adaptive(enable_minibatching=True)
    for seed in range(3):
      limits.preprocess(zipf_batches.batch(seed))
      inputs, _ = of_passes.preprocess(zipf_batches.batch(seed))
      self.assertEqual(inputs.num_minibatches[0], 1)
    self.assertEqual(of_passes.limits.stacks, limits.limits.stacks)
    self.assertEqual(
        of_passes.state_dict()["largest"], limits.state_dict()["largest"]
    )

  @parameterized.parameters(8, 20, 100)
  def test_the_highest_rung_that_can_be_had_is_found(self, most):
    asked = []

    def can_have(name, limits):
      self.assertEqual(name, "t")
      asked.append(limits.max_unique_ids_per_partition)
      return asked[-1] <= most

    limits = _adaptive(ceiling=can_have, enable_minibatching=True)
    unsplit = _adaptive()
    for seed in range(4):
      features = _of_distinct_ids(seed, valency=8)
      inputs, stats = limits.preprocess(features)
      self.assertEqual(stats.id_drop_counters["t"], 0)
      self.assertEqual(
          _num_entries(inputs), _num_entries(unsplit.preprocess(features)[0])
      )
    found = limits.limits["t"].max_unique_ids_per_partition
    self.assertLessEqual(found, most)
    rule = _growth.GrowthRule()
    if most < 50:  # below what batches need
      self.assertEqual(
          found, max(r for r in map(rule.rung, range(1, 12)) if r <= most)
      )
      self.assertGreater(inputs.num_minibatches[0], 1)
    self.assertLessEqual(len(asked), 6)

  @parameterized.parameters("published", "state of other devices")
  def test_limits_of_earlier_runs_are_below_the_ceiling(self, how):
    def can_have(name, limits):
      self.assertEqual(name, "t")
      return limits.max_unique_ids_per_partition <= 20

    client = _Client()
    first = _adaptive(fdo_client=client)
    first.preprocess(zipf_batches.batch(0, 50.0))
    self.assertGreater(first.limits["t"].max_unique_ids_per_partition, 100)
    options = dict(ceiling=can_have, enable_minibatching=True)
    if how == "published":
      again = _adaptive(fdo_client=client, **options)
    else:
      again = embedding.AdaptiveLimits(
          zipf_batches.specs(1, 2), 1, 1, num_sc_per_device=2, **options
      )
      state = first.state_dict() | {"enable_minibatching": True}
      again.load_state_dict(state)
    # The highest rung that can be had; of the rest, what batches needed.
    self.assertEqual(again.limits["t"].max_unique_ids_per_partition, 16)
    self.assertGreater(again.limits["t"].max_ids_per_partition, 100)
    self.assertEqual(
        again.limits,
        embedding.Limits.of(
            again.feature_specs,
            1,
            again.num_sc_per_device,
            enable_minibatching=True,
        ),
    )

  def test_what_cannot_be_had_at_all_is_an_error(self):
    limits = _adaptive(
        ceiling=lambda name, limits: False, enable_minibatching=True
    )
    with self.assertRaisesRegex(ValueError, "'t': not even 8 distinct rows"):
      limits.preprocess(zipf_batches.batch(0))

  def test_without_passes_what_does_not_compile_is_an_error(self):
    limits = _adaptive(
        ceiling=lambda name, limits: limits.max_unique_ids_per_partition < 20
    )
    features = {
        "f": np.arange(zipf_batches.BATCH * 8).reshape(zipf_batches.BATCH, 8)
    }
    with self.assertRaisesRegex(
        ValueError,
        "'t': [0-9]+ distinct rows per partition do not compile.*"
        "enable_minibatching=True",
    ):
      limits.preprocess(features)

  @parameterized.parameters(
      ("TPU v5p", 1, [512]),  # 4 SparseCores, as these specs have
      ("TPU v6e", 1, []),  # 2
      ("TPU v5e", 1, []),  # none
      ("TPU v5p", 2, []),  # a program for more devices than are there
      ("cpu", 1, []),
  )
  def test_the_compiler_of_tpus_is_asked(self, kind, num_devices, expected):
    asked = []

    def compile_check(specs, mesh, axis, *, enable_minibatching):
      self.assertEqual(mesh.shape[axis], 1)
      self.assertIs(enable_minibatching, True)
      del specs

      def compiles(name, limits):
        self.assertEqual(name, "t")
        asked.append(limits.max_unique_ids_per_partition)
        return True

      return compiles

    device = mock.Mock(device_kind=kind, platform=kind.split()[0].lower())
    with (
        mock.patch.object(jax, "devices", return_value=[device]),
        mock.patch.object(_compile_check, "compile_check", compile_check),
    ):
      specs = zipf_batches.specs(num_devices)
      limits = embedding.AdaptiveLimits(
          specs,
          num_devices,
          num_devices,
          num_sc_per_device=4,
          enable_minibatching=True,
          growth=2.0,
          headroom=1.0,
      )
      # 64 rows from each SparseCore to each, then 256, then 512.
      for valency in (16, 64, 128):
        n = zipf_batches.BATCH * num_devices * valency
        limits.preprocess({"f": np.arange(n).reshape(-1, valency) % 4096})
    self.assertEqual(asked, expected)

  def test_preprocessing_that_grows_asks_no_device(self):
    specs = zipf_batches.specs(1, 1)
    features = {
        "f": np.arange(zipf_batches.BATCH * 8).reshape(zipf_batches.BATCH, 8)
    }
    with mock.patch.object(jax, "devices", side_effect=NotImplementedError):
      inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
          features, None, specs, 1, 1, num_sc_per_device=1
      )
    limits = inputs.settings.limits_of("t")
    self.assertGreaterEqual(limits.max_unique_ids_per_partition, 512)

  def test_what_no_number_of_passes_has_room_for_is_an_error(self):
    limits = _adaptive(
        ceiling={"max_ids_per_partition": 8}, enable_minibatching=True
    )
    with self.assertRaisesRegex(ValueError, "Stack 't'"):
      limits.preprocess({"f": np.zeros((zipf_batches.BATCH, 4), np.int32)})

  @parameterized.parameters((1, 1), (1, 2), (2, 4))
  def test_a_restart_on_other_devices_rarely_grows(self, devices, num_sc):
    limits = _adaptive()
    features = [
        {
            "f": np.random.default_rng(i).integers(
                zipf_batches.VOCABULARY, size=(64, 8)
            )
        }
        for i in range(30)
    ]
    for batch in features:
      limits.preprocess(batch)
    specs = embedding_spec.FeatureSpec(
        name="f",
        table_spec=two_table_model.table(
            vocabulary_size=zipf_batches.VOCABULARY
        ),
        input_shape=(64, 8),
        output_shape=(64, 6),
    )
    specs = {"f": specs}
    embedding.prepare_feature_specs_for_training(specs, devices, num_sc)
    other = embedding.AdaptiveLimits(
        specs, devices, devices, num_sc_per_device=num_sc
    )
    with self.assertLogs(level="INFO") as logs:
      other.load_state_dict(json.loads(json.dumps(limits.state_dict())))
    self.assertRegex(
        logs.output[0], f"1 devices with 4.* for {devices} with {num_sc}"
    )
    for batch in features:
      _, stats = other.preprocess(batch)
      self.assertEqual(stats.id_drop_counters["t"], 0)
    self.assertEmpty(other.growths)
    needs = other.state_dict()["largest"]["t"]
    self.assertLess(
        other.limits["t"].coo_cells_per_sc, 3 * needs["coo_cells_per_sc"]
    )

  def test_shrunk_limits_are_for_nearly_all_batches(self):
    limits = _adaptive()
    for seed in range(100):
      limits.preprocess(zipf_batches.batch(seed, 8.0 if seed else 40.0))
    shrunk = limits.shrunk(quantile=0.98)
    self.assertTrue(limits.limits.covers(shrunk))
    self.assertLess(
        2 * shrunk["t"].coo_cells_per_sc, limits.limits["t"].coo_cells_per_sc
    )
    self.assertEqual(limits.shrunk(1.0), limits.limits)
    self.assertNotIn("start=limits.shrunk()", limits.describe())
    large = _adaptive(start=limits.limits)
    large.preprocess(zipf_batches.batch(1))
    self.assertIn("start=limits.shrunk() would save", large.describe())
    again = _adaptive(start=shrunk)
    for seed in range(1, 100):
      again.preprocess(zipf_batches.batch(seed))
    self.assertEmpty(again.growths)

  def test_a_state_has_no_batches_that_limits_could_shrink_to(self):
    limits = _adaptive()
    limits.preprocess(zipf_batches.batch(0))
    again = _adaptive()
    again.load_state_dict(limits.state_dict())
    with self.assertRaisesRegex(ValueError, "There was no batch yet"):
      again.shrunk()
    self.assertIn("largest need", again.describe())
    self.assertNotIn("start=limits.shrunk()", again.describe())
    again.preprocess(zipf_batches.batch(0))
    self.assertEqual(again.shrunk(1.0), limits.shrunk(1.0))

  def test_a_batch_that_makes_limits_grow_counts_once(self):
    limits = _adaptive()
    limits.preprocess(zipf_batches.batch(0, 50.0))
    for seed in range(1, 4):
      limits.preprocess(zipf_batches.batch(seed))
    # Three batches of four, or of five if the first one counted twice.
    self.assertLess(
        2 * limits.shrunk(0.75)["t"].coo_cells_per_sc,
        limits.limits["t"].coo_cells_per_sc,
    )

  def test_shares_that_make_no_sense_are_refused(self):
    with self.assertRaisesRegex(ValueError, "There was no batch yet"):
      _adaptive().shrunk()
    for quantile in (0, 1.1):
      with self.assertRaisesRegex(ValueError, r"must be in \(0, 1\], got"):
        _adaptive().shrunk(quantile)

  def test_plot_is_a_picture(self):
    limits = _adaptive()
    for seed in range(220):
      limits.preprocess(zipf_batches.batch(seed, 2.0 + seed / 20))
    path = self.create_tempdir().full_path + "/limits.png"
    limits.plot(path)
    with open(path, "rb") as file:
      self.assertEqual(file.read(4), b"\x89PNG")

  def test_a_picture_of_a_resumed_run_begins_where_it_does(self):
    first = _adaptive()
    for seed in range(7):
      first.preprocess(zipf_batches.batch(seed))
    limits = _adaptive()
    limits.load_state_dict(first.state_dict())
    limits.preprocess(zipf_batches.batch(0))
    for grows in (False, True):
      if grows:
        limits.preprocess(zipf_batches.batch(0, 50.0))
      with mock.patch.object(figure.Figure, "savefig", autospec=True) as save:
        limits.plot("unused")
      need, limit, *_ = save.call_args.args[0].axes[0].lines
      self.assertEqual([*need.get_xdata()], [7, 8 + grows])
      self.assertEqual([*limit.get_xdata()], [7 + grows, 8 + grows])

  def test_memory_does_not_grow_with_batches(self):
    with mock.patch.object(_history, "_FIRST_BLOCK", 1):
      history = _history.LimitHistory(_growth.GrowthRule())
    for i in range(1000):
      needs = _limits.Limits((("t", _limits.StackLimits(i + 1, 1, 8)),))
      with mock.patch.object(_history, "_MAX_BLOCKS", 4):
        history.add(needs, i)
    blocks = history._blocks["t", "max_ids_per_partition"]  # pylint: disable=protected-access
    self.assertLessEqual(len(blocks), 4)
    self.assertEqual(sum(block.size for block in blocks), 1000)
    self.assertEqual(sum(block.total for block in blocks), 1000 * 1001 // 2)
    self.assertEqual((blocks[0].least, blocks[-1].most), (1, 1000))

  @parameterized.parameters("first batch", "specs")
  def test_a_client_has_what_was_published_however_limits_start(self, start):
    client = _Client()
    client.load = mock.Mock(side_effect=client.load)
    _adaptive(fdo_client=client, start=start)
    client.load.assert_called_once_with()

  def test_an_fdo_client_keeps_limits_between_runs(self):
    client = _Client()
    limits = _adaptive(fdo_client=client)
    for seed in range(5):
      limits.preprocess(zipf_batches.batch(seed))
    self.assertLen(client.recorded, 5)
    num_grown = len({growth.batch_number for growth in limits.growths})
    self.assertLen(client.published, num_grown)
    again = _adaptive(fdo_client=client)
    self.assertEqual(
        again.limits, embedding.Limits.of(again.feature_specs, 1, 4)
    )
    again.preprocess(zipf_batches.batch(0))
    self.assertEmpty(again.growths)
    # Limits that were asked for are not those of files.
    asked = _adaptive(fdo_client=client, start="specs").limits
    self.assertEqual(asked["t"].max_ids_per_partition, 256)

  def test_statistics_of_other_models_are_left_alone(self):
    client = _Client()
    limits = _adaptive(fdo_client=client)
    limits.preprocess(zipf_batches.batch(0))
    client.published[-1] = client.published[-1].replace(
        max_ids_per_partition={"other": np.array([3])},
        max_unique_ids_per_partition={"other": np.array([3])},
        required_buffer_size_per_sc={"other": np.array([8])},
    )
    with self.assertLogs(level="WARNING") as logs:
      again = _adaptive(fdo_client=client)
    self.assertIn("are of the stacks ['other']", logs.output[0])
    again.preprocess(zipf_batches.batch(0))
    self.assertNotEmpty(again.growths)

  @parameterized.parameters((2, 4, 4, 16), (1, 1, 4, 1))
  def test_statistics_of_other_devices_are_left_alone(
      self, num_devices, num_sc, size, expected
  ):
    class StrictClient(_Client):  # as those of files

      def load(self):
        self.recorded.append(super().load())
        return self.recorded[-1]

      def record(self, stats):
        assert not self.recorded or (
            stats.max_ids_per_partition["t"].size
            == self.recorded[0].max_ids_per_partition["t"].size
        )
        super().record(stats)

    client = StrictClient()
    first = _adaptive(fdo_client=client)
    first.preprocess(zipf_batches.batch(0, 50.0))
    specs = zipf_batches.specs(num_devices, num_sc)
    published = list(client.published)
    with self.assertLogs(level="WARNING") as logs:
      limits = embedding.AdaptiveLimits(
          specs,
          num_devices,
          num_devices,
          num_sc_per_device=num_sc,
          fdo_client=client,
      )
    self.assertRegex(
        logs.output[0],
        f"StrictClient .* stack 't' has {size} values of max_ids_per_partition,"
        f" expected {expected} on {num_devices} .* directory of its own",
    )
    ids = np.arange(zipf_batches.BATCH * num_devices).reshape(-1, 1)
    limits.preprocess({"f": ids})
    # Of these ids, and not of the many before.
    self.assertLess(limits.limits["t"].coo_cells_per_sc, 200)
    self.assertEqual(client.published, published)

  @parameterized.parameters(2**26, 2**27, 2**40)
  def test_batches_may_have_any_number(self, number):
    for enable_minibatching in (False, True):
      limits = _adaptive(enable_minibatching=enable_minibatching)
      limits.preprocess(zipf_batches.batch(0), batch_number=number)
      self.assertEqual(limits.growths[0].batch_number, number)

  def test_growth_is_reported(self):
    reported = []
    limits = _adaptive(on_growth=reported.append)
    limits.preprocess(zipf_batches.batch(0))
    self.assertEqual(tuple(reported[0]), limits.growths)
    self.assertEqual(limits.growths[0].batch_number, 0)
    self.assertEqual(limits.growths[0].old, 1)
    with self.assertLogs(level="INFO") as logs:
      _adaptive().preprocess(zipf_batches.batch(0))
    self.assertRegex(
        logs.output[0], "batch 0, stack 't': max_ids_per_partition 1 -> "
    )

  def test_describe_compares_limits_with_needs(self):
    limits = _adaptive()
    self.assertNotIn("need", limits.describe())
    limits.preprocess(zipf_batches.batch(0))
    need = limits.growths[0].need
    limit = limits.limits["t"].max_ids_per_partition
    self.assertIn(
        f"max_ids_per_partition: {limit}, largest need {need}",
        limits.describe(),
    )

  @parameterized.parameters(
      (dict(start="x"), "start must be 'first batch', 'specs' or Limits"),
      (dict(start=embedding.Limits(())), r"stacks \[\], and the specs"),
      (dict(ceiling="most"), "ceiling must be 'compile', .* got 'most'"),
      (dict(growth=0.5), "growth must be"),
  )
  def test_arguments_that_make_no_sense_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _adaptive(**options)

  @parameterized.parameters(
      (dict(growth="2"), "growth must be a number, got '2'"),
      (dict(on_growth=None), "on_growth must be a function .* got None"),
      (dict(fdo_client=3), "fdo_client must be .* got 3, which has no load"),
  )
  def test_arguments_of_a_wrong_kind_are_refused(self, options, message):
    with self.assertRaisesRegex(TypeError, message):
      _adaptive(**options)

  def test_a_number_of_a_batch_is_an_integer(self):
    limits = _adaptive()
    batch = zipf_batches.batch(0, 5.0)
    limits.preprocess(batch, batch_number=np.int64(3))
    with self.assertRaisesRegex(TypeError, "must be an integer, got '4'"):
      limits.preprocess(batch, batch_number="4")
    self.assertEqual(limits.state_dict()["num_batches"], 4)

  def test_a_forked_process_makes_its_own(self):
    limits = _adaptive()
    batch = zipf_batches.batch(0, 5.0)
    converted = limits.convert(batch)
    limits._process = os.getpid() + 1  # pylint: disable=protected-access
    for call in (
        lambda: limits.preprocess(batch),
        lambda: limits.settle(converted),
        lambda: limits.settle_until_end(converted),
    ):
      with self.assertRaisesRegex(RuntimeError, "forked .* state_dict"):
        call()

  def test_a_process_has_no_more_devices_than_all(self):
    with self.assertRaisesRegex(
        ValueError, "global_device_count must be .* got 1 < 2"
    ):
      embedding.AdaptiveLimits(
          zipf_batches.specs(1, 1), 2, 1, num_sc_per_device=1
      )

  def test_several_processes_must_be_able_to_agree(self):
    with self.assertRaisesRegex(
        ValueError, "1 of 2 devices.*get_all_reduce_interface"
    ):
      embedding.AdaptiveLimits(
          zipf_batches.specs(2, 1), 1, 2, num_sc_per_device=1
      )


if __name__ == "__main__":
  absltest.main()
