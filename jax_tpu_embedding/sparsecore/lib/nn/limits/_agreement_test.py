# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits of several processes."""

import itertools
import threading

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.core.testing import host_process
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.limits import _agreement
from jax_tpu_embedding.sparsecore.lib.nn.testing import zipf_batches
import numpy as np


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


class AgreementTest(parameterized.TestCase):

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
        zipf_batches.specs(2, 2),
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
        features = zipf_batches.batch(100 * i + step, mean_valency * burst)
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
        zipf_batches.specs(2, 2),
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
    limits.preprocess(zipf_batches.batch(0))
    before = limits.limits["t"]
    peer_reduces(1, 16, 1, 0, 0, 0, 0, 0)
    limits.preprocess(zipf_batches.batch(0))
    self.assertGreater(
        limits.limits["t"].max_ids_per_partition, before.max_ids_per_partition
    )
    self.assertEqual(
        limits.limits["t"].max_ids_per_partition, _growth.GrowthRule().rung(16)
    )
    for _ in range(16):
      peer.result()
    peer.kill()
    with self.assertRaisesRegex(RuntimeError, str(ports[1])):
      limits.preprocess(zipf_batches.batch(0))

  @parameterized.parameters(False, True)
  def test_the_shortest_source_ends_all(self, enable_minibatching):
    first, second = self.run_two(
        (7, 9), enable_minibatching=enable_minibatching
    )
    self.assertLen(first, 7)
    self.assertEqual(first, second)

  @parameterized.parameters(False, True)
  def test_parts_of_other_sizes_are_an_error_on_all(self, enable_minibatching):
    together = _Together(2)

    def process(i):
      limits = self.one_of_two(
          together, enable_minibatching=enable_minibatching
      )
      limits.preprocess(zipf_batches.batch(i))
      with self.assertRaisesRegex(
          ValueError,
          "Batch 1: processes have parts of other sizes, .* of a batch of"
          f" {('the declared size', {'f': 64})[i]}",
      ):
        limits.preprocess(zipf_batches.batch(i, size=(64, 32)[i]))
      inputs, _ = limits.preprocess(zipf_batches.batch(i, size=32))
      self.assertEqual(inputs.settings.batches, (("f", 64),))

    self.run_threads(process, together)

  def test_processes_with_other_limits_are_told_to_restart(self):
    first, second = _Together(2), _Together(2)

    def process(i):
      limits = self.one_of_two(first, start=("first batch", "specs")[i])
      with self.assertRaisesRegex(ValueError, "or other limits.*restart()"):
        limits.preprocess(zipf_batches.batch(i))
      limits.restart(second)
      limits.preprocess(zipf_batches.batch(i))

    self.run_threads(process, first)

  @parameterized.parameters(
      ((0, "a"), (0, "a"), 0),
      ((0, "a"), (1, "a"), 1),
      ((0, "a"), (0, "b"), _agreement.DIFFERS),
      ((0, "a"), (1, "b"), 1 | _agreement.DIFFERS),
      ((1, "a"), None, 1 | _agreement.HAS_ENDED),
  )
  def test_what_differs_is_told_with_the_flags(self, first, second, expected):
    together = _Together(2)

    def process(i):
      agreement = _agreement.Agreement(together)
      of_batch = (first, second)[i]
      if of_batch is None:
        agreement.union(_agreement.HAS_ENDED)
      else:
        self.assertEqual(agreement.union_of_batch(*of_batch), expected)

    self.run_threads(process, together)
    self.assertEqual(together.keys, [-1, -1])

  @parameterized.product(growth=(1.01, 1.1), enable_minibatching=(False, True))
  def test_rungs_may_be_close(self, growth, enable_minibatching):
    # Some 6,000 cells: more than rung 64 is.
    first, second = self.run_two(
        (2, 2), 200.0, growth=growth, enable_minibatching=enable_minibatching
    )
    self.assertEqual(first, second)
    self.assertGreater(
        first[-1][0]["t"].coo_cells_per_sc, _growth.GrowthRule(growth).rung(64)
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
      highest = _agreement.Agreement(together).highest(values[i])
      self.assertEqual(highest, [*map(max, *values)])

    self.run_threads(process, together)

  def test_keys_come_again(self):
    together = _Together(2)

    def process(i):
      limits = self.one_of_two(together, enable_minibatching=True)
      # pylint: disable-next=protected-access
      limits._agreement._num_reductions = 2**30 - 8
      for seed in range(3):
        limits.preprocess(zipf_batches.batch(seed + i))

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
          zipf_batches.specs(2, 2),
          2,
          2,
          num_sc_per_device=2,
          enable_minibatching=enable_minibatching,
      )
      # They end elsewhere: this number of batches, and of reductions.
      for seed in range(1 + 3 * i):
        features = np.random.default_rng(seed).integers(
            4096, size=(2 * zipf_batches.BATCH, 4 + 10 * seed)
        )
        alone.preprocess({"f": features})
      limits = self.one_of_two(
          _Together(1),
          start=alone.limits,
          enable_minibatching=enable_minibatching,
      )
      limits.preprocess(zipf_batches.batch(i))
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
      limits.preprocess(zipf_batches.batch(i))

    self.run_threads(process, together)
    (first, now), (second, also_now) = seen
    self.assertNotEqual(first, second)
    self.assertEqual(now, first.union(second))
    self.assertEqual(now, also_now)


if __name__ == "__main__":
  absltest.main()
