# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A training step moves rows, and never copies a table."""

import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)

ROWS, DIM, BATCH = 1 << 16, 8, 16
IDS = {"f": np.arange(BATCH * 2, dtype=np.int32).reshape(BATCH, 2)}


def make_features(rate=0.1):
  table = embedding_spec.TableSpec(
      name="big",
      vocabulary_size=ROWS,
      embedding_dim=DIM,
      optimizer=embedding_spec.AdagradOptimizerSpec(rate),
  )
  return {
      "f": embedding_spec.FeatureSpec(
          name="f",
          table_spec=table,
          input_shape=(BATCH, 2),
          output_shape=(BATCH, DIM),
      )
  }


def make_mesh(num_devices, explicit):
  kind = jax.sharding.AxisType
  return jax.make_mesh(
      (num_devices,),
      ("x",),
      (kind.Explicit if explicit else kind.Auto,),
      devices=jax.devices()[:num_devices],
  )


def step_with_refs(specs):
  """A jitted step with its state, the first arguments."""
  layer = embed.SparseCoreEmbed(specs, tables="ref")
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0)
  )
  params = layer.init(jax.random.key(1), IDS)["params"]

  @jax.jit
  def step(params, tables, ids, number):
    def loss(params):
      variables = {"params": params, "embedding": tables}
      return (layer.apply(variables, ids, step=number)["f"] ** 2).sum()

    return jax.grad(loss)(params)

  return step, (params, tables)


def step_with_parameters(specs, **options):
  layer = embed.SparseCoreEmbed(specs, tables="param", **options)
  params = layer.init(jax.random.key(1), IDS)["params"]
  optimizer = embed_optimizer.create_optimizer_for_sc_model(
      params, optax.sgd(0.1)
  )

  def step(params, state, ids, number):
    def loss(params):
      return (layer.apply({"params": params}, ids, step=number)["f"] ** 2).sum()

    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return embed_optimizer.apply_updates_for_sc_model(params, updates), state

  return jax.jit(step, donate_argnums=(0, 1)), (params, optimizer.init(params))


class InPlaceTest(parameterized.TestCase):

  @parameterized.product(
      make_step=[step_with_refs, step_with_parameters],
      num_devices=[1, 4],
      explicit=[False, True],
  )
  def test_a_step_copies_no_table(self, make_step, num_devices, explicit):
    with jax.set_mesh(make_mesh(num_devices, explicit)):
      step, state = make_step(make_features())
      compiled = step.lower(*state, IDS, 0).compile()
    self.assert_no_copies(compiled, num_devices)

  @parameterized.parameters(1, 4)
  def test_steps_in_a_scan_copy_no_table(self, num_devices):
    with jax.set_mesh(make_mesh(num_devices, explicit=False)):
      step, (params, state) = step_with_parameters(make_features())

      def train(params, ids):
        def turn(params, ids):
          return step(params, state, ids, 0)[0], None

        return jax.lax.scan(turn, params, ids)[0]

      stacked = jax.tree.map(lambda x: np.stack([x] * 3), IDS)
      lowered = jax.jit(train, donate_argnums=0).lower(params, stacked)
    self.assert_no_copies(lowered.compile(), num_devices)

  @parameterized.parameters(1, 4)
  def test_frozen_tables_are_not_copied(self, num_devices):
    with jax.set_mesh(make_mesh(num_devices, explicit=False)):
      step, state = step_with_parameters(make_features(), frozen=("big",))
      compiled = step.lower(*state, IDS, 0).compile()
    self.assert_no_copies(compiled, num_devices)

  @parameterized.parameters(1, 4)
  def test_tables_that_the_loss_does_not_use_are_not_copied(self, num_devices):
    with jax.set_mesh(make_mesh(num_devices, explicit=False)):
      _, (params, _) = step_with_parameters(make_features())

      def step(params, x):
        unused, _ = jax.grad(lambda p, x: x * x, argnums=(0, 1))(params, x)
        return embed_optimizer.apply_updates_for_sc_model(params, unused)

      lowered = jax.jit(step, donate_argnums=0).lower(params, 1.0)
    self.assert_no_copies(lowered.compile(), num_devices)

  @parameterized.parameters(step_with_refs, step_with_parameters)
  def test_a_step_of_many_tables_has_the_messages_of_one(self, make_step):
    counts = {}
    for num_tables in (1, 4, 12):
      # Of other widths, so that each is a stack.
      features = make_features()
      for k in range(1, num_tables):
        features[f"f{k}"] = embedding_spec.FeatureSpec(
            name=f"f{k}",
            table_spec=embedding_spec.TableSpec(
                name=f"t{k}",
                vocabulary_size=64,
                embedding_dim=8 * (k + 1),
                optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
            ),
            input_shape=(BATCH, 2),
            output_shape=(BATCH, 8 * (k + 1)),
        )
      ids = dict.fromkeys(features, IDS["f"] % 64)
      with mock.patch.dict(IDS, ids), jax.set_mesh(make_mesh(4, False)):
        step, state = make_step(features)
        text = step.lower(*state, ids, 0).compile().as_text()
      counts[num_tables] = len(re.findall(r" all-gather(?:-start)?\(", text))
    # Two of the lookup and two of the update; see docs/design/exchange.md.
    self.assertEqual(counts, dict.fromkeys(counts, 4))

  def assert_no_copies(self, compiled, num_devices):
    rows = ROWS // num_devices
    self.assertEmpty(
        re.findall(
            rf"f32\[{rows},{DIM}\]\S* (?:copy|select|fusion)\(.*",
            compiled.as_text(),
        )
    )
    memory = compiled.memory_analysis()
    table_bytes = rows * DIM * 4
    self.assertLess(memory.temp_size_in_bytes, table_bytes / 8)
    # The table and its accumulator.
    self.assertGreaterEqual(memory.alias_size_in_bytes, 2 * table_bytes)

  def test_a_table_that_is_not_donated_is_copied(self):
    # So that the test above would see a copy.
    step, state = step_with_parameters(make_features())
    compiled = jax.jit(step.__wrapped__).lower(*state, IDS, 0).compile()
    self.assertLess(compiled.memory_analysis().alias_size_in_bytes, 1024)
    self.assertRegex(compiled.as_text(), rf"f32\[{ROWS // 4},{DIM}\]\S* copy\(")

  @parameterized.parameters(step_with_refs, step_with_parameters)
  def test_a_schedule_compiles_once(self, make_step):
    traces = []

    def rate(step):
      traces.append(step)
      return 0.1 / (1 + step)

    step, state = make_step(make_features(rate))
    for number in range(3):
      result = step(*state, IDS, number)
      state = result if make_step is step_with_parameters else state
    self.assertLen(traces, 1)


if __name__ == "__main__":
  absltest.main()
