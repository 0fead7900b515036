# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

# Most names of scopes are tested without a program that has them.
# pylint: disable=protected-access

import functools

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.metrics import profile_summary
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
import numpy as np

_TABLES = ("ads", "users/age", "users/id")
_NUM_RUNS = 3
_ONE_DEVICE = layout.Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=1
)


def _specs(names=_TABLES):
  specs = {}
  for name in names:
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=104,
        embedding_dim=8,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5),
    )
    specs[name] = embedding_spec.FeatureSpec(
        name=name, table_spec=table, input_shape=(16, 2), output_shape=(16, 8)
    )
  return specs


def _trace(directory, run):
  """Records _NUM_RUNS of `run`, which gets their numbers."""
  options = jax.profiler.ProfileOptions()
  options.host_tracer_level = 3
  with jax.profiler.trace(directory, profiler_options=options):
    for i in range(_NUM_RUNS):
      with jax.profiler.TraceAnnotation(profile_summary.PREPROCESS, batch=i):
        jax.block_until_ready(run(i))


@functools.cache
def _program(names=_TABLES):
  """A compiled step over the stacks, with raw ids, and its arguments."""
  specs = _specs(names)
  embedding.prepare_feature_specs_for_training(specs, 1, 1)
  tables = {name: (np.ones((104, 8), np.float32), ()) for name in names}
  ids = {name: np.arange(32).reshape(16, 2) for name in names}

  def step(tables, ids):
    inputs = embedding.convert_ids(ids, None, specs, _ONE_DEVICE)
    activations = embedding.tpu_sparse_dense_matmul(inputs, tables, specs)
    return embedding.tpu_sparse_dense_matmul_grad(
        activations, inputs, tables, specs
    )

  return jax.jit(step).lower(tables, ids).compile(), (tables, ids)


def _scopes(*paths, names=()):
  """The kind and the stack of instructions with these names."""
  text = "\n".join(
      f'  %op.{i} = f32[] add(%a, %b), metadata={{op_name="{path}"}}'
      for i, path in enumerate(paths)
  )
  found = profile_summary._scopes(text, set(names))
  return [found.get(f"op.{i}") for i in range(len(paths))]


class ScopesTest(parameterized.TestCase):

  @parameterized.parameters(
      ("jit(f)/convert/items/convert_ids", "convert"),
      ("jit(f)/jvp(convert/items)/convert_ids", "convert"),
      ("jit(f)/convert/Embed_0/convert/items/convert_ids", "convert"),
      ("jit(f)/tpu_sparse_dense_matmul/lookup/items/csr", "lookup"),
      ("jit(f)/jvp(tpu_sparse_dense_matmul)/lookup/items/csr", "lookup"),
      ("jit(f)/update/tpu_sparse_dense_matmul/lookup/items/csr", "lookup"),
      ("jit(f)/lookup_ids/lookup_ids/items/csr", "lookup"),
      ("jit(f)/tpu_sparse_dense_matmul_grad/update/items/sgd", "update"),
      ("jit(f)/apply_sparse_gradients/update/items/sgd", "update"),
      (
          "jit(stale)/pipelined/lookup/shard_map/tpu_sparse_dense_matmul"
          "/jit(jte_one_reader)/lookup/items/all_to_all",
          "lookup",
      ),
      (
          "jit(stale)/pipelined/update/tpu_sparse_dense_matmul_grad/update"
          "/items/jit(_where)/select_n",
          "update",
      ),
      (
          "jit(f)/transpose(jvp(tpu_sparse_dense_matmul_grad))/update/items/x",
          "update",
      ),
  )
  def test_are_those_of_stacks(self, path, kind):
    self.assertEqual(_scopes(path), [(kind, "items")])

  @parameterized.parameters(
      "jit(stale)/pipelined/lookup/jit(_in1d)/eq",
      "jit(stale)/pipelined/update/jit(_where)/select_n",
      "jit(f)/Model/update/dense_0/dot_general",
      "jit(f)/jvp(Model)/lookup/dense_0/dot_general",
      "jit(f)/Model/convert/dense_0/dot_general",
      "jit(f)/tpu_sparse_dense_matmul/lookup_of_stacks",
  )
  def test_are_not_those_of_models_and_pipelines(self, path):
    self.assertEqual(_scopes(path, names=["dense_0"]), [None])

  def test_names_of_stacks_may_have_slashes(self):
    scope = "jit(f)/tpu_sparse_dense_matmul/lookup"
    paths = [
        f"{scope}/users/id/cond/branch_0_fun/add",
        f"{scope}/users/age/csr",
        f"{scope}/users/csr",
        f"{scope}/all_stacks/all_to_all",
    ]
    self.assertEqual(
        _scopes(*paths, names=["users", "users/id", "users/age", "items"]),
        [
            ("lookup", name)
            for name in ("users/id", "users/age", "users", "all_stacks")
        ],
    )

  def test_conversions_without_the_call_are_of_stacks_that_have_others(self):
    found = _scopes(
        "jit(f)/tpu_sparse_dense_matmul/lookup/days/dot_general",
        "jit(f)/convert/days/jit(clip)/max",
    )
    self.assertEqual(found, [("lookup", "days"), ("convert", "days")])


class ProfileSummaryTest(parameterized.TestCase):

  def _trace(self, *names):
    compiled, arguments = _program(*names)
    directory = self.create_tempdir().full_path
    _trace(directory, lambda _: compiled(*arguments))
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

  def test_times_of_stacks_that_share_calls_are_together(self):
    names = tuple(f"t{i}" for i in range(64))
    summary = profile_summary.summarize(self._trace(names), _program(names)[0])
    self.assertEqual(set(summary.stacks), {*names, "small_stacks"})
    times = summary.stacks["small_stacks"]
    self.assertGreater(times.lookup_ms, 0)
    self.assertGreater(times.update_ms, 0)

  def test_names_are_those_of_arguments_and_results(self):
    compiled, _ = _program()
    self.assertContainsSubset(_TABLES, profile_summary._keys(compiled))

  @parameterized.parameters("exact", "stale")
  def test_times_of_a_pipelined_step(self, mode):
    specs = _specs()

    class update(nn.Module):  # pylint: disable=invalid-name

      @nn.compact
      def __call__(self, ids):
        activations = embed.SparseCoreEmbed(specs, tables="ref")(ids)
        return sum(nn.Dense(1)(x).sum() for x in activations.values())

    model = update()
    tables = embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0)
    )
    batch = {
        name: np.arange(32, dtype=np.int32).reshape(16, 2) for name in specs
    }
    dense = model.init(jax.random.key(1), batch)["params"]

    def train_step(dense, tables, batch):
      loss = lambda dense: model.apply(
          {"params": dense, "embedding": tables}, batch
      )
      return jax.value_and_grad(loss)(dense)

    step = pipelining.pipelined(train_step, batch_argnums=2, mode=mode)
    flight = step.start(dense, tables, batch)
    # The first step of a stale pipeline has no update to make.
    flight, _ = step(flight, dense, tables, batch)
    compiled = step.lower(flight, dense, tables, batch).compile()
    directory = self.create_tempdir().full_path

    def run(_):
      nonlocal flight
      flight, results = step(flight, dense, tables, batch)
      return results

    _trace(directory, run)
    summary = profile_summary.summarize(directory, compiled)
    self.assertEqual(tuple(summary.stacks), _TABLES)
    for times in summary.stacks.values():
      self.assertGreater(times.convert_ms, 0)
      self.assertGreater(times.lookup_ms, 0)
      self.assertGreater(times.update_ms, 0)

  def test_a_trace_of_something_else_is_refused(self):
    with self.assertRaisesRegex(FileNotFoundError, "No trace in"):
      profile_summary.summarize(self.create_tempdir(), _program()[0])
    directory = self.create_tempdir().full_path
    with jax.profiler.trace(directory):
      pass
    with self.assertRaisesRegex(ValueError, "no run of jit_step.*host_tracer"):
      profile_summary.summarize(directory, _program()[0])

  def test_intervals(self):
    union = profile_summary._union([(5, 6), (0, 2), (1, 3), (3, 4)])
    self.assertEqual(union, [(0, 4), (5, 6)])
    overlap = profile_summary._overlap((2, 5.5), union)
    self.assertEqual(overlap, 2.5)


if __name__ == "__main__":
  absltest.main()
