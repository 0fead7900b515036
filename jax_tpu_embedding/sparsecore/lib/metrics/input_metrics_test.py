# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import pathlib
import re
import socket
import threading
import time
from unittest import mock
import urllib.error
import urllib.request

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.metrics import input_metrics
from jax_tpu_embedding.sparsecore.lib.metrics import prometheus
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

_PAGE = pathlib.Path(__file__).parents[4] / "docs/how_to/profile.md"


def _pipeline(num_batches, **options):
  table = embedding_spec.TableSpec(
      name="items",
      vocabulary_size=100,
      embedding_dim=8,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5),
  )
  specs = {
      "item": embedding_spec.FeatureSpec(
          name="item",
          table_spec=table,
          input_shape=(16, 2),
          output_shape=(16, 8),
          out_of_range_ids="drop",
      )
  }
  embedding.prepare_feature_specs_for_training(specs, 1, 1)
  return input_pipeline.InputPipeline(
      [np.arange(32).reshape(16, 2) * (i + 4) for i in range(num_batches)],
      specs,
      ids=lambda item: {"item": item},
      mesh=jax.sharding.Mesh(jax.devices()[:1], ("x",)),
      sharding_axis="x",
      **options,
  )


class InputMetricsTest(parameterized.TestCase):

  def test_numbers_of_two_batches_at_a_time(self):
    got = []
    every = input_metrics.Every(2, lambda *args: got.append(args), "x/")
    with _pipeline(5, on_batch=every, count_every=1) as batches:
      self.assertLen(list(batches), 5)
    self.assertEqual([number for number, _ in got], [1, 3])
    for number, scalars in got:
      # In batch i the ids are multiples of i + 4, and 100 is none of the table.
      num_out = [
          int((np.arange(32) * (i + 4) >= 100).sum())
          for i in (number - 1, number)
      ]
      self.assertEqual(scalars["x/feature/item/num_ids"], 64)
      self.assertEqual(
          scalars["x/feature/item/dropped_by_policy"], sum(num_out)
      )
      self.assertEqual(scalars["x/stack/items/entries"], 64 - sum(num_out))
      self.assertEqual(
          scalars["x/stack/items/max_ids_per_partition"], 32 - min(num_out)
      )
      self.assertEqual(scalars["x/stack/items/num_minibatches"], 1)
      self.assertEqual(
          {f"{name.split('/')[1]}/{name.split('/')[-1]}" for name in scalars},
          # There is one pass.
          set(input_metrics.NUMBERS) - {"stack/minibatch_alignment_per_sc"},
      )

  def test_counts_one_batch_of_so_many(self):
    with _pipeline(5, count_every=2) as batches:
      counted = [bool(batch.stats.entries) for batch in batches]
    self.assertEqual(counted, [True, False, True, False, True])

  def test_timings_are_of_every_batch(self):
    got = []
    with _pipeline(3, on_batch=lambda *args: got.append(args)) as batches:
      list(batches)
    self.assertEqual([number for number, _, _ in got], [0, 1, 2])
    for _, stats, timings in got:
      self.assertEmpty(stats.entries)
      self.assertGreater(timings.preprocess, 0)
      self.assertGreater(timings.send, 0)

  def test_an_error_of_on_batch_is_raised(self):
    def fails(*unused):
      raise OSError("the disk is full")

    with _pipeline(3, on_batch=fails) as batches:
      with self.assertRaisesRegex(OSError, "disk is full"):
        next(batches)

  def test_a_program_that_waits_for_its_input_is_told(self):
    with self.assertLogs(level="WARNING") as logs:
      with _pipeline(1001) as batches:
        list(batches)  # takes no time itself
    self.assertRegex(
        logs.output[0], r"waited \d+% of the time for batches 0 to 999"
    )

  @parameterized.parameters(0, -1, 1.5)
  def test_a_number_that_makes_no_sense_is_refused(self, number):
    with self.assertRaisesRegex(ValueError, "num_batches must be a positive"):
      input_metrics.Every(number, print)

  def test_threads_may_share_it(self):
    written = []
    every = input_metrics.Every(
        20, lambda step, numbers: written.append(numbers)
    )
    stats = embedding.SparseDenseMatmulInputStats({}, {}, entries={"t": 1})
    timings = input_pipeline.Timings(0.0, 0.0, 0.0, 0.0, 0.0)

    def is_counted(number):  # is asked between reading a sum and writing it
      time.sleep(0.001)
      return number == "entries"

    def add():
      for number in range(5):
        every(number, stats, timings)

    with mock.patch.object(input_metrics, "is_counted", is_counted):
      threads = [threading.Thread(target=add) for _ in range(4)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
    self.assertEqual(
        [numbers["embedding/stack/t/entries"] for numbers in written], [20]
    )

  def test_the_page_names_all_numbers(self):
    rows = re.findall(r"^\| `(\w+/\w+)` \| (.*) \|$", _PAGE.read_text(), re.M)
    self.assertEqual(dict(rows), input_metrics.NUMBERS)


class PrometheusTest(parameterized.TestCase):

  def test_serves_what_it_was_given(self):
    with prometheus.Exporter(0, host="127.0.0.1") as exporter:
      url = f"http://127.0.0.1:{exporter.port}/metrics"
      every = input_metrics.Every(2, exporter)
      with _pipeline(4, on_batch=every, count_every=1) as batches:
        list(batches)
      with urllib.request.urlopen(url) as response:
        text = response.read().decode()
        self.assertIn("version=0.0.4", response.headers["Content-Type"])
      with urllib.request.urlopen(f"{url}?x=1") as response:
        self.assertEqual(response.read().decode(), text)
      with self.assertRaises(urllib.error.HTTPError):
        urllib.request.urlopen(url.replace("metrics", "x"))
    self.assertIn(
        'embedding_feature_num_ids_total{feature="item"} 128.0\n', text
    )
    self.assertRegex(text, r"\nembedding_input_starved_ms [0-9.e-]+\n")
    metrics = set()
    for line in text.splitlines():
      if line.startswith("#"):
        kind, name, rest = re.fullmatch(
            "# (HELP|TYPE) ([a-z_]+) (.+)", line
        ).groups()
        if kind == "HELP":
          metrics.add(name)
        else:
          self.assertEqual(
              rest, "counter" if name.endswith("_total") else "gauge"
          )
      else:
        name, value = re.fullmatch(
            r'([a-z_]+)(?:\{(?:stack|feature)="(?:[^"\\]|\\.)*"\})? (\S+)', line
        ).groups()
        self.assertIn(name, metrics)  # its HELP came before
        float(value)
    self.assertLen(metrics, len(input_metrics.NUMBERS) - 1)

  def test_names_of_all_kinds_are_quoted(self):
    text = prometheus.text({'embedding/stack/a"b\\c/d\n/entries': 3.0})
    self.assertTrue(
        text.endswith(
            'embedding_stack_entries_total{stack="a\\"b\\\\c/d\\n"} 3.0\n'
        ),
        text,
    )

  @parameterized.parameters(
      (
          "haystack/stack/items/entries",
          'haystack_stack_entries_total{stack="items"}',
      ),
      ("stack/items/entries", 'stack_entries_total{stack="items"}'),
      ("stack/feature/f/num_ids", 'stack_feature_num_ids_total{feature="f"}'),
      (
          "x/feature/stack/f/num_ids",
          'x_feature_num_ids_total{feature="stack/f"}',
      ),
      ("x/stack/a/stack/b/entries", 'x_stack_entries_total{stack="a/stack/b"}'),
      ("my_input/input/source_ms", "my_input_input_source_ms"),
      ("input/source_ms", "input_source_ms"),
      # Prefixes without a slash.
      ("my_stack/items/entries", 'my__stack_entries_total{stack="items"}'),
      ("my_input/source_ms", "my__input_source_ms"),
  )
  def test_prefixes_may_end_with_a_kind(self, name, line):
    self.assertEndsWith(prometheus.text({name: 3.0}), f"\n{line} 3.0\n")

  def test_other_numbers_are_refused(self):
    numbers = {"input/source_ms": 1.0, "loss": 1.0}
    with prometheus.Exporter(0, host="127.0.0.1") as exporter:
      for take in (prometheus.text, lambda numbers: exporter(0, numbers)):
        with self.assertRaisesRegex(ValueError, "'loss' is no number of input"):
          take(numbers)
      self.assertEqual(exporter.text(), "")  # which would fail from then on

  def test_numbers_of_numpy_are_numbers(self):
    text = prometheus.text({"input/source_ms": np.float64(3.0)})
    self.assertEndsWith(text, "\ninput_source_ms 3.0\n")

  def test_no_name_begins_with_a_digit(self):
    text = prometheus.text({"2nd/input/source_ms": 3.0})
    self.assertEndsWith(text, "\n_2nd_input_source_ms 3.0\n")

  def test_may_listen_at_addresses_of_the_later_kind(self):
    try:
      with socket.socket(socket.AF_INET6) as any_port:
        any_port.bind(("::1", 0))
    except OSError:
      self.skipTest("This machine has no IPv6.")
    with prometheus.Exporter(0, host="::1") as exporter:
      url = f"http://[::1]:{exporter.port}/metrics"
      with urllib.request.urlopen(url) as response:
        self.assertEqual(response.read(), b"")


if __name__ == "__main__":
  absltest.main()
