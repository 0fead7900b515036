# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The order and the number of samples, and their ratios."""

from absl.testing import absltest

from benchmarks import turns


class TurnsTest(absltest.TestCase):

  def test_every_other_round_is_backwards(self):
    order = []

    def timed(name, seconds):
      def run(calls):
        order.append((name, calls))
        return {"cpu": seconds, "wall": seconds}

      return run

    timings = turns.take({"a": timed("a", 0.004), "b": timed("b", 1.0)}, 2)

    # Twice to warm up and to see how many calls take 10 ms: 3 and 1.
    self.assertEqual(order[:4], [("a", 2), ("a", 2), ("b", 2), ("b", 2)])
    self.assertEqual(order[4:], [("a", 3), ("b", 1), ("b", 1), ("a", 3)])
    self.assertEqual(timings["a"].wall, [0.004, 0.004])
    self.assertEqual(timings["b"].cpu, [1.0, 1.0])

  def test_times_per_call(self):
    calls = []
    seconds = turns.time_calls(lambda: calls.append(0), 7)
    self.assertLen(calls, 7)
    self.assertGreater(seconds["wall"], 0)

  def test_ratios_are_of_neighbours(self):
    # The machine slows down tenfold; the ratio is 2 all the time.
    self.assertEqual(
        turns.quartiles_of_ratio([2, 20, 200, 2000], [1, 10, 100, 1000]),
        (2, 2, 2),
    )


if __name__ == "__main__":
  absltest.main()
