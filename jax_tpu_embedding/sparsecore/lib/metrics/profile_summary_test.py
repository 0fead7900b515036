# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.metrics import profile_summary
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

_TABLES = ("ads", "users")
_NUM_RUNS = 3
_ONE_DEVICE = layout.Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=1
)


@functools.cache
def _program():
  """A compiled step over two stacks, with raw ids, and its arguments."""
  specs = {}
  for name in _TABLES:
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=104,
        embedding_dim=8,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5),
    )
    specs[name] = embedding_spec.FeatureSpec(
        name=name, table_spec=table, input_shape=(16, 2), output_shape=(16, 8)
    )
  embedding.prepare_feature_specs_for_training(specs, 1, 1)
  tables = {name: (np.ones((104, 8), np.float32), ()) for name in _TABLES}
  ids = {name: np.arange(32).reshape(16, 2) for name in _TABLES}

  def step(tables, ids):
    inputs = embedding.convert_ids(ids, None, specs, _ONE_DEVICE)
    activations = embedding.tpu_sparse_dense_matmul(inputs, tables, specs)
    return embedding.tpu_sparse_dense_matmul_grad(
        activations, inputs, tables, specs
    )

  return jax.jit(step).lower(tables, ids).compile(), (tables, ids)


class ProfileSummaryTest(absltest.TestCase):

  def _trace(self):
    compiled, arguments = _program()
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 3
    directory = self.create_tempdir().full_path
    with jax.profiler.trace(directory, profiler_options=options):
      for i in range(_NUM_RUNS):
        with jax.profiler.TraceAnnotation(profile_summary.PREPROCESS, batch=i):
          jax.block_until_ready(compiled(*arguments))
    return directory

  def test_every_stack_has_a_scope_in_the_program(self):
    text = _program()[0].as_text()
    for name in _TABLES:
      for kind in ("convert", "lookup", "update"):
        self.assertIn(f"/{kind}/{name}/", text)

  def test_times_are_of_every_stack(self):
    compiled, _ = _program()
    summary = profile_summary.summarize(self._trace(), compiled)
    self.assertEqual(summary.num_runs, _NUM_RUNS)
    self.assertEqual(tuple(summary.stacks), _TABLES)
    for times in summary.stacks.values():
      self.assertGreater(times.convert_ms, 0)
      self.assertGreater(times.lookup_ms, 0)
      self.assertGreater(times.update_ms, 0)
    # Each annotation has a run inside of it.
    self.assertGreater(summary.overlapped_ms, 0)
    self.assertLess(summary.overlapped_ms, summary.preprocess_ms)
    total = sum(
        times.convert_ms + times.lookup_ms + times.update_ms
        for times in summary.stacks.values()
    )
    self.assertLessEqual(total * _NUM_RUNS, summary.preprocess_ms)
    self.assertRegex(str(summary), r"3 runs[^\n]*\n[^\n]*\nads +\d")

  def test_a_trace_of_something_else_is_refused(self):
    with self.assertRaisesRegex(FileNotFoundError, "No trace in"):
      profile_summary.summarize(self.create_tempdir(), _program()[0])
    directory = self.create_tempdir().full_path
    with jax.profiler.trace(directory):
      pass
    with self.assertRaisesRegex(ValueError, "no run of jit_step.*host_tracer"):
      profile_summary.summarize(directory, _program()[0])

  def test_intervals(self):
    union = profile_summary._union([(5, 6), (0, 2), (1, 3), (3, 4)])  # pylint: disable=protected-access
    self.assertEqual(union, [(0, 4), (5, 6)])
    overlap = profile_summary._overlap((2, 5.5), union)  # pylint: disable=protected-access
    self.assertEqual(overlap, 2.5)


if __name__ == "__main__":
  absltest.main()
