# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a compiled training step does with tables: nothing of their size."""

import re

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import click_model
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)

ROWS, DIM, BATCH = 1 << 16, 8, 16


def compile_step(num_devices, tables, donate_argnums):
  table = embedding_spec.TableSpec(
      name="big",
      vocabulary_size=ROWS,
      embedding_dim=DIM,
      initializer=jax.nn.initializers.zeros,
      optimizer=click_model.adagrad(),
  )
  specs = {
      "f": embedding_spec.FeatureSpec(
          name="f",
          table_spec=table,
          input_shape=(BATCH, 2),
          output_shape=(BATCH, DIM),
      )
  }
  model = click_model.Model(
      specs, click_model.make_mesh(num_devices), tables=tables
  )
  optimizer = embed.PartitionedOptimizer(model, optax.adam(0.1))
  batch = click_model.Batch(
      {"f": np.zeros((BATCH, 2), np.int32)}, np.zeros((BATCH, 1), np.float32)
  )
  train_step = nnx.jit(click_model.train_step, donate_argnums=donate_argnums)
  return train_step.lower(model, optimizer, batch).compile().compiled


def copies_of(program, rows):
  """Lines of a program that make something of a table's shape anew."""
  return re.findall(
      rf".* = f32\[{rows},{DIM}\]\S* (?:copy|add|select|fusion|broadcast)\(.*",
      program.as_text(),
  )


class CompiledTest(parameterized.TestCase):

  @parameterized.product(
      num_devices=[1, 4],
      # Refs are updated in place as they are.
      form=[("param", (0, 1)), ("ref", 1)],
  )
  def test_a_step_copies_no_table(self, num_devices, form):
    program = compile_step(num_devices, *form)
    rows = ROWS // num_devices
    self.assertEmpty(copies_of(program, rows))
    memory = program.memory_analysis()
    table_bytes = rows * DIM * 4
    self.assertLess(memory.temp_size_in_bytes, table_bytes / 8)
    # Table and slot come out where they came in.
    self.assertGreaterEqual(memory.alias_size_in_bytes, 2 * table_bytes)

  def test_without_donation_there_are_copies_to_be_found(self):
    program = compile_step(1, "param", ())
    self.assertLen(copies_of(program, ROWS), 2)


if __name__ == "__main__":
  absltest.main()
