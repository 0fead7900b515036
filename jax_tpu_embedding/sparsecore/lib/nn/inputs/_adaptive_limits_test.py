# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import itertools
import json
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.core.testing import host_process
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limit_history
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.step import _compile_check
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_BATCH = 64
_VOCABULARY = 4096


def _specs(global_device_count=1, num_sc=4, **table_options):
  table = two_table_model.table(vocabulary_size=_VOCABULARY, **table_options)
  specs = {
      "f": embedding_spec.FeatureSpec(
          name="f",
          table_spec=table,
          input_shape=(_BATCH * global_device_count, None),
          output_shape=(_BATCH * global_device_count, 6),
      )
  }
  embedding.prepare_feature_specs_for_training(
      specs, global_device_count, num_sc
  )
  return specs


def _batch(seed, mean_valency=8.0):
  """Ragged ids of Zipf's law, of which there are Poisson many per sample."""
  rng = np.random.default_rng(seed)
  splits = np.concatenate(
      [[0], np.cumsum(rng.poisson(mean_valency, _BATCH))]
  ).astype(np.int32)
  return {"f": (rng.zipf(1.2, splits[-1]) % _VOCABULARY, splits)}


def _drift(num_batches, burst=True):
  """Ids per sample rise by a half, and now and then there are twice as many."""
  rng = np.random.default_rng(1)
  for i in range(num_batches):
    mean = 8.0 * (1 + 0.5 * i / num_batches)
    yield _batch(i, mean * (2 if burst and rng.random() < 0.005 else 1))


def _adaptive(specs=None, **options):
  return embedding.AdaptiveLimits(
      specs or _specs(), 1, 1, num_sc_per_device=4, **options
  )


def _num_entries(inputs):
  return int(np.isfinite(inputs.lhs_gains["t"]).sum())


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
      _, stats = limits.preprocess(_batch(seed))
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
      features = _batch(seed, mean)
      inputs, _ = limits.preprocess(features)
      expected, _ = embedding.preprocess_sparse_dense_matmul_input(
          features,
          None,
          _specs(),
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
    for features in (*_drift(40), _batch(0, 30.0), _batch(1)):
      inputs, _ = limits.preprocess(features)
      seen.add(limits.limits)
      program(inputs)
    self.assertGreater(len(seen), 1)
    self.assertEqual(num_traces, len(seen))

  def test_specs_have_the_limits(self):
    specs = _specs()
    limits = _adaptive(specs)
    limits.preprocess(_batch(0))
    self.assertEqual(embedding.Limits.of(specs, 1, 4), limits.limits)

  @parameterized.parameters(False, True)
  def test_batches_may_be_converted_out_of_order(self, reverse):
    expected, limits = _adaptive(), _adaptive()
    batches = [_batch(i, 2.0 + i) for i in range(8)]
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
        inputs, _ = limits.preprocess(_batch(i, 2.0 + i))
        counts[i] = _num_entries(inputs)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    one = _adaptive()
    for i in range(40):
      self.assertEqual(
          counts[i], _num_entries(one.preprocess(_batch(i, 2.0 + i))[0])
      )

  def test_pad_makes_earlier_batches_like_later_ones(self):
    limits = _adaptive()
    first, _ = limits.preprocess(_batch(0, 2.0))
    limits.preprocess(_batch(1, 9.0))
    again, _ = limits.preprocess(_batch(0, 2.0))
    padded = limits.pad(first)
    self.assertNotEqual(first.settings, again.settings)
    self.assertEqual(padded.settings, again.settings)
    jax.tree.map(np.testing.assert_array_equal, padded, again)

  def test_restart_has_the_same_limits_and_grows_alike(self):
    first, second = _adaptive(), _adaptive()
    for seed in range(10):
      first.preprocess(_batch(seed, 2.0 + seed))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    self.assertEqual(second.limits, first.limits)
    for seed in range(10, 20):
      features = _batch(seed, 2.0 + seed)
      got, want = second.preprocess(features)[0], first.preprocess(features)[0]
      self.assertEqual(got.settings, want.settings)
      jax.tree.map(np.testing.assert_array_equal, got, want)
    self.assertEqual(second.state_dict(), first.state_dict())

  def test_states_of_other_models_are_refused(self):
    state = _adaptive().state_dict()
    limits = _adaptive()
    limits.load_state_dict(state)
    for change, message in (
        ({"version": 9}, "version 9, expected 1"),
        ({"limits": {"x": {}}}, r"stacks \['x'\], and the specs have \['t'\]"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        limits.load_state_dict(state | change)

  def test_a_state_that_is_refused_says_what_to_do(self):
    limits = _adaptive(enable_minibatching=True)
    with self.assertRaisesRegex(
        ValueError, "do not load them, and they set themselves anew"
    ):
      limits.load_state_dict(_adaptive().state_dict())

  def test_a_state_is_read_without_being_loaded(self):
    limits, other = _adaptive(), _adaptive()
    other.preprocess(_batch(0))
    before = limits.state_dict()
    snapshot = limits.snapshot_of(other.state_dict())
    self.assertEqual(limits.state_dict(), before)
    limits.load_snapshot(snapshot)
    self.assertEqual(limits.state_dict(), other.state_dict())

  def test_starts_with_the_limits_of_the_specs(self):
    limits = _adaptive(
        _specs(max_ids_per_partition=512, max_unique_ids_per_partition=512),
        start="specs",
    )
    limits.preprocess(_batch(0))
    self.assertEmpty(limits.growths)
    self.assertEqual(limits.limits["t"].max_ids_per_partition, 512)

  def test_starts_with_a_value(self):
    start = _adaptive()
    start.preprocess(_batch(0))
    limits = _adaptive(start=start.limits)
    limits.preprocess(_batch(0))
    self.assertEmpty(limits.growths)
    self.assertEqual(limits.limits, start.limits)

  def test_what_exceeds_a_ceiling_takes_several_passes(self):
    ceiling = {"max_ids_per_partition": 16, "max_unique_ids_per_partition": 16}
    limits = _adaptive(ceiling=ceiling, enable_minibatching=True)
    unsplit = _adaptive()
    for seed in range(3):
      ids = np.random.default_rng(seed).permutation(_VOCABULARY)[: _BATCH * 4]
      features = {"f": ids.reshape(_BATCH, 4)}
      inputs, _ = limits.preprocess(features)
      self.assertGreater(inputs.num_minibatches[0], 1)
      self.assertEqual(
          _num_entries(inputs), _num_entries(unsplit.preprocess(features)[0])
      )
    self.assertLessEqual(limits.limits["t"].max_ids_per_partition, 16)

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
      ids = np.random.default_rng(seed).permutation(_VOCABULARY)[: _BATCH * 8]
      features = {"f": ids.reshape(_BATCH, 8)}
      inputs, stats = limits.preprocess(features)
      self.assertEqual(stats.id_drop_counters["t"], 0)
      self.assertEqual(
          _num_entries(inputs), _num_entries(unsplit.preprocess(features)[0])
      )
    found = limits.limits["t"].max_unique_ids_per_partition
    self.assertLessEqual(found, most)
    rule = _limits.GrowthRule()
    if most < 50:  # below what batches need
      self.assertEqual(
          found, max(r for r in map(rule.rung, range(1, 12)) if r <= most)
      )
      self.assertGreater(inputs.num_minibatches[0], 1)
    self.assertLessEqual(len(asked), 6)

  def test_what_cannot_be_had_at_all_is_an_error(self):
    limits = _adaptive(
        ceiling=lambda name, limits: False, enable_minibatching=True
    )
    with self.assertRaisesRegex(ValueError, "'t': not even 8 distinct rows"):
      limits.preprocess(_batch(0))

  def test_without_passes_what_does_not_compile_is_an_error(self):
    limits = _adaptive(
        ceiling=lambda name, limits: limits.max_unique_ids_per_partition < 20
    )
    features = {"f": np.arange(_BATCH * 8).reshape(_BATCH, 8)}
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
      specs = _specs(num_devices)
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
        n = _BATCH * num_devices * valency
        limits.preprocess({"f": np.arange(n).reshape(-1, valency) % 4096})
    self.assertEqual(asked, expected)

  def test_preprocessing_that_grows_asks_no_device(self):
    specs = _specs(1, 1)
    features = {"f": np.arange(_BATCH * 8).reshape(_BATCH, 8)}
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
      limits.preprocess({"f": np.zeros((_BATCH, 4), np.int32)})

  @parameterized.parameters((1, 1), (1, 2), (2, 4))
  def test_a_restart_on_other_devices_rarely_grows(self, devices, num_sc):
    limits = _adaptive()
    features = [
        {"f": np.random.default_rng(i).integers(_VOCABULARY, size=(64, 8))}
        for i in range(30)
    ]
    for batch in features:
      limits.preprocess(batch)
    specs = embedding_spec.FeatureSpec(
        name="f",
        table_spec=two_table_model.table(vocabulary_size=_VOCABULARY),
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
      limits.preprocess(_batch(seed, 8.0 if seed else 40.0))
    shrunk = limits.shrunk(quantile=0.98)
    self.assertTrue(limits.limits.covers(shrunk))
    self.assertLess(
        2 * shrunk["t"].coo_cells_per_sc, limits.limits["t"].coo_cells_per_sc
    )
    self.assertEqual(limits.shrunk(1.0), limits.limits)
    self.assertNotIn("start=limits.shrunk()", limits.describe())
    large = _adaptive(start=limits.limits)
    large.preprocess(_batch(1))
    self.assertIn("start=limits.shrunk() would save", large.describe())
    again = _adaptive(start=shrunk)
    for seed in range(1, 100):
      again.preprocess(_batch(seed))
    self.assertEmpty(again.growths)

  def test_shares_that_make_no_sense_are_refused(self):
    with self.assertRaisesRegex(ValueError, "There was no batch yet"):
      _adaptive().shrunk()
    for quantile in (0, 1.1):
      with self.assertRaisesRegex(ValueError, r"must be in \(0, 1\], got"):
        _adaptive().shrunk(quantile)

  def test_plot_is_a_picture(self):
    limits = _adaptive()
    for seed in range(220):
      limits.preprocess(_batch(seed, 2.0 + seed / 20))
    path = self.create_tempdir().full_path + "/limits.png"
    limits.plot(path)
    with open(path, "rb") as file:
      self.assertEqual(file.read(4), b"\x89PNG")

  def test_memory_does_not_grow_with_batches(self):
    with mock.patch.object(_limit_history, "_FIRST_BLOCK", 1):
      history = _limit_history.LimitHistory(_limits.GrowthRule())
    for i in range(1000):
      needs = _limits.Limits((("t", _limits.StackLimits(i + 1, 1, 8)),))
      with mock.patch.object(_limit_history, "_MAX_BLOCKS", 4):
        history.add(needs)
    blocks = history._blocks["t", "max_ids_per_partition"]  # pylint: disable=protected-access
    self.assertLessEqual(len(blocks), 4)
    self.assertEqual(sum(block.size for block in blocks), 1000)
    self.assertEqual(sum(block.total for block in blocks), 1000 * 1001 // 2)
    self.assertEqual((blocks[0].least, blocks[-1].most), (1, 1000))

  def test_an_fdo_client_keeps_limits_between_runs(self):
    client = _Client()
    limits = _adaptive(fdo_client=client)
    for seed in range(5):
      limits.preprocess(_batch(seed))
    self.assertLen(client.recorded, 5)
    num_grown = len({growth.batch_number for growth in limits.growths})
    self.assertLen(client.published, num_grown)
    again = _adaptive(fdo_client=client)
    self.assertEqual(
        again.limits, embedding.Limits.of(again.feature_specs, 1, 4)
    )
    again.preprocess(_batch(0))
    self.assertEmpty(again.growths)
    # Limits that were asked for are not those of files.
    asked = _adaptive(fdo_client=client, start="specs").limits
    self.assertEqual(asked["t"].max_ids_per_partition, 256)

  def test_statistics_of_other_models_are_left_alone(self):
    client = _Client()
    limits = _adaptive(fdo_client=client)
    limits.preprocess(_batch(0))
    client.published[-1] = client.published[-1].replace(
        max_ids_per_partition={"other": np.array([3])},
        max_unique_ids_per_partition={"other": np.array([3])},
        required_buffer_size_per_sc={"other": np.array([8])},
    )
    with self.assertLogs(level="WARNING") as logs:
      again = _adaptive(fdo_client=client)
    self.assertIn("are of the stacks ['other']", logs.output[0])
    again.preprocess(_batch(0))
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
    first.preprocess(_batch(0, 50.0))
    specs = _specs(num_devices, num_sc)
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
    ids = np.arange(_BATCH * num_devices).reshape(-1, 1)
    limits.preprocess({"f": ids})
    # Of these ids, and not of the many before.
    self.assertLess(limits.limits["t"].coo_cells_per_sc, 200)
    self.assertEqual(client.published, published)

  @parameterized.parameters(2**26, 2**27, 2**40)
  def test_batches_may_have_any_number(self, number):
    for enable_minibatching in (False, True):
      limits = _adaptive(enable_minibatching=enable_minibatching)
      limits.preprocess(_batch(0), batch_number=number)
      self.assertEqual(limits.growths[0].batch_number, number)

  def test_growth_is_reported(self):
    reported = []
    limits = _adaptive(on_growth=reported.append)
    limits.preprocess(_batch(0))
    self.assertEqual(tuple(reported[0]), limits.growths)
    self.assertEqual(limits.growths[0].batch_number, 0)
    self.assertEqual(limits.growths[0].old, 1)
    with self.assertLogs(level="INFO") as logs:
      _adaptive().preprocess(_batch(0))
    self.assertRegex(
        logs.output[0], "batch 0, stack 't': max_ids_per_partition 1 -> "
    )

  def test_describe_compares_limits_with_needs(self):
    limits = _adaptive()
    self.assertNotIn("need", limits.describe())
    limits.preprocess(_batch(0))
    need = limits.growths[0].need
    limit = limits.limits["t"].max_ids_per_partition
    self.assertIn(
        f"max_ids_per_partition: {limit}, largest need {need}",
        limits.describe(),
    )

  @parameterized.parameters(
      (dict(start="x"), "start must be 'first batch', 'specs' or Limits"),
      (dict(start=embedding.Limits(())), r"stacks \[\], and the specs"),
      (dict(ceiling={"max_ids_per_partition": 8}), "needs enable_minibatch"),
      (
          dict(ceiling={"x": 8}, enable_minibatching=True),
          "ceiling has 'x'; the choices are",
      ),
      (dict(ceiling="most"), "ceiling must be 'compile', .* got 'most'"),
      (dict(growth=0.5), "growth must be"),
  )
  def test_arguments_that_make_no_sense_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _adaptive(**options)

  def test_several_processes_must_be_able_to_agree(self):
    with self.assertRaisesRegex(
        ValueError, "1 of 2 devices.*get_all_reduce_interface"
    ):
      embedding.AdaptiveLimits(_specs(2, 1), 1, 2, num_sc_per_device=1)


class _Together(converter.AllReduceInterface):
  """Reductions between threads that stand for processes."""

  def __init__(self, n):
    super().__init__()
    self.barrier = threading.Barrier(n, timeout=60)
    self.keys = []
    self._lock = threading.Lock()
    self._values = {}

  def bitwise_or(self, key, value):
    assert -(2**31) <= key < 2**31 and 0 <= value < 2**64, (key, value)
    with self._lock:
      first = len(self.keys) % self.barrier.parties == 0
      assert first or self.keys[-1] == key, (self.keys[-1], key)
      self.keys.append(key)
      self._values[key] = value | (0 if first else self._values[key])
    self.barrier.wait()
    result = self._values[key]
    self.barrier.wait()  # The key may come again.
    return result

  def any_of(self, key, value):
    assert key >= 0, key  # Only the converter asks this.
    return bool(self.bitwise_or(key, int(value)))


class ProcessesTest(parameterized.TestCase):

  def run_threads(self, process, together):
    """Calls process(0) and process(1), which stand for processes."""
    errors = []

    def run(i):
      try:
        process(i)
      except Exception as e:  # pylint: disable=broad-except
        errors.append(e)
        together.barrier.abort()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEmpty(errors)

  def one_of_two(self, together, **options):
    return embedding.AdaptiveLimits(
        _specs(2, 2),
        1,
        2,
        num_sc_per_device=2,
        all_reduce_interface=together,
        **options,
    )

  def run_two(self, lengths, mean_valency=6.0, first_number=0, **options):
    """The limits after each batch, of two processes with so many batches."""
    together = _Together(2)
    seen = [[], []]

    def process(i):
      limits = self.one_of_two(together, **options)
      for step in range(lengths[i]):
        burst = 3 if i == 1 and step == 5 else 1
        features = _batch(100 * i + step, mean_valency * burst)
        result = limits.settle_until_end(
            limits.convert(features, batch_number=first_number + step)
        )
        if result is None:
          return
        inputs, stats = result
        self.assertEqual(stats.id_drop_counters["t"], 0)
        seen[i].append((limits.limits, inputs.lhs_gains["t"].shape))
      limits.settle_until_end(None)

    self.run_threads(process, together)
    return seen

  def test_limits_are_equal_after_every_batch(self):
    first, second = self.run_two((10, 10))
    self.assertLen(first, 10)
    self.assertEqual(first, second)
    self.assertGreater(
        first[5][0]["t"].coo_cells_per_sc, first[4][0]["t"].coo_cells_per_sc
    )

  def test_another_process_agrees_until_it_is_killed(self):
    # It has no batches of its own, but asks for rung 16 of the first number in
    # batch 1, and then goes without a word.
    ports = local_ports.free(2)
    peer = host_process.HostProcess(1, ports)
    self.addCleanup(peer.kill)
    all_reduce = embedding.get_all_reduce_interface(
        [f"localhost:{ports[1]}"],
        ports[0],
        0,
        2,
        timeouts=minibatching_node.Timeouts(
            call_seconds=60, reduction_seconds=60, reconnect_seconds=0.5
        ),
    )
    peer.wait_until_up()
    limits = embedding.AdaptiveLimits(
        _specs(2, 2),
        1,
        2,
        num_sc_per_device=2,
        all_reduce_interface=all_reduce,
    )
    key = itertools.count(1)

    def peer_reduces(*values):
      """Starts the peer's part of so many reductions."""
      for value in values:
        peer.start("bitwise_or", -next(key), value)

    # Whether a batch fits; the union of the rungs of three numbers, of this
    # process up to 31; which of them have each of five bits; whether it fits.
    peer_reduces(1, 16, 0, 0, 0, 0, 0, 0)
    limits.preprocess(_batch(0))
    before = limits.limits["t"]
    peer_reduces(1, 16, 1, 0, 0, 0, 0, 0)
    limits.preprocess(_batch(0))
    self.assertGreater(
        limits.limits["t"].max_ids_per_partition, before.max_ids_per_partition
    )
    self.assertEqual(
        limits.limits["t"].max_ids_per_partition, _limits.GrowthRule().rung(16)
    )
    for _ in range(16):
      peer.result()
    peer.kill()
    with self.assertRaisesRegex(RuntimeError, str(ports[1])):
      limits.preprocess(_batch(0))

  @parameterized.parameters(False, True)
  def test_the_shortest_source_ends_all(self, enable_minibatching):
    first, second = self.run_two(
        (7, 9), enable_minibatching=enable_minibatching
    )
    self.assertLen(first, 7)
    self.assertEqual(first, second)

  @parameterized.product(growth=(1.01, 1.1), enable_minibatching=(False, True))
  def test_rungs_may_be_close(self, growth, enable_minibatching):
    # Some 6,000 cells: more than rung 64 is.
    first, second = self.run_two(
        (2, 2), 200.0, growth=growth, enable_minibatching=enable_minibatching
    )
    self.assertEqual(first, second)
    self.assertGreater(
        first[-1][0]["t"].coo_cells_per_sc, _limits.GrowthRule(growth).rung(64)
    )

  @parameterized.parameters(2**26, 2**40)
  def test_batches_may_have_any_number(self, number):
    first, second = self.run_two(
        (2, 2), first_number=number, enable_minibatching=True
    )
    self.assertLen(first, 2)
    self.assertEqual(first, second)

  @parameterized.parameters(0, 1, 64, 150)
  def test_the_highest_of_all_is_found(self, num_values):
    together = _Together(2)
    values = [
        [int(2**x) for x in np.random.default_rng(i).random(num_values) * 40]
        for i in range(2)
    ]

    def process(i):
      limits = self.one_of_two(together)
      # pylint: disable-next=protected-access
      self.assertEqual(limits._highest(values[i]), [*map(max, *values)])

    self.run_threads(process, together)

  def test_keys_come_again(self):
    together = _Together(2)

    def process(i):
      limits = self.one_of_two(together, enable_minibatching=True)
      # pylint: disable-next=protected-access
      limits._num_reductions = 2**30 - 8
      for seed in range(3):
        limits.preprocess(_batch(seed + i))

    self.run_threads(process, together)
    self.assertIn(-1, together.keys)
    self.assertLess(min(together.keys), -(2**30) + 8)
    self.assertGreater(len(together.keys), 16)

  @parameterized.parameters(False, True)
  def test_restarted_limits_are_the_largest_of_all(self, enable_minibatching):
    together = _Together(2)
    seen = [None, None]

    def process(i):
      alone = embedding.AdaptiveLimits(
          _specs(2, 2),
          2,
          2,
          num_sc_per_device=2,
          enable_minibatching=enable_minibatching,
      )
      # They end elsewhere: this number of batches, and of reductions.
      for seed in range(1 + 3 * i):
        features = np.random.default_rng(seed).integers(
            4096, size=(2 * _BATCH, 4 + 10 * seed)
        )
        alone.preprocess({"f": features})
      limits = self.one_of_two(
          _Together(1),
          start=alone.limits,
          enable_minibatching=enable_minibatching,
      )
      limits.preprocess(_batch(i))
      before = limits.limits
      limits.restart(together)
      seen[i] = before, limits.limits
      self.assertEqual(
          embedding.Limits.of(
              limits.feature_specs,
              2,
              2,
              enable_minibatching=enable_minibatching,
          ),
          limits.limits,
      )
      limits.preprocess(_batch(i))

    self.run_threads(process, together)
    (first, now), (second, also_now) = seen
    self.assertNotEqual(first, second)
    self.assertEqual(now, first.union(second))
    self.assertEqual(now, also_now)


if __name__ == "__main__":
  absltest.main()
