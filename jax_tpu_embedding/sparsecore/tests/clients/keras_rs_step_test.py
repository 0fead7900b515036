# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A step made with the calls of keras-rs, on the meshes that it uses."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import layout
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.tests.clients import keras_rs_calls
from jax_tpu_embedding.sparsecore.tests.clients import plain_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec
_TOLERANCE = dict(rtol=1e-5, atol=1e-5)


class StepTest(parameterized.TestCase):

  @parameterized.parameters(
      ("sgd", (1,), 1),
      ("adagrad", (4,), 2),
      ("adam", (4, 1), 1),
      ("adam", (1, 1), 4),
      ("ftrl", (1,), 2),
      ("ftrl", (4,), 1),
  )
  def test_fused_step_is_algebra(self, optimizer, mesh_shape, num_sc):
    spec, rule, first_slots = {
        "sgd": (embedding_spec.SGDOptimizerSpec(0.5), plain_model.sgd, ()),
        "adagrad": (
            embedding_spec.AdagradOptimizerSpec(0.5, 0.1),
            plain_model.adagrad,
            (0.1,),
        ),
        "adam": (
            embedding_spec.AdamOptimizerSpec(0.5, epsilon=1e-7),
            plain_model.adam,
            (0.0, 0.0),
        ),
        "ftrl": (
            embedding_spec.FTRLOptimizerSpec(0.5),
            plain_model.ftrl,
            (0.1, 0.0),
        ),
    }[optimizer]
    num_devices = mesh_shape[0]
    specs = keras_rs_calls.make_specs(spec, num_devices, num_sc)
    ids = keras_rs_calls.random_ids(specs)
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:num_devices]).reshape(mesh_shape),
        ("model", "data")[: len(mesh_shape)],
    )
    sharding = jax.sharding.NamedSharding(mesh, P(("model",)))
    tiled = layout.Format(
        layout.Layout(major_to_minor=(0, 1), tiling=((8,),)), sharding
    )
    put = functools.partial(jax.device_put, device=tiled)
    variables, tables = keras_rs_calls.random_variables(
        specs, num_devices * num_sc, put
    )
    inputs, _ = keras_rs_calls.preprocess(specs, ids, num_devices, num_sc)
    buffers = (
        inputs.lhs_row_pointers,
        inputs.lhs_embedding_ids,
        inputs.lhs_sample_ids,
        inputs.lhs_gains,
    )
    gradients = {
        name: np.random.default_rng(5)
        .normal(size=spec.output_shape)
        .astype(np.float32)
        for name, spec in specs.items()
    }

    def loss(variables, step):
      activations = keras_rs_calls.lookup_that_updates(specs, mesh)(
          buffers, variables, step
      )
      products = jax.tree.map(jnp.vdot, activations, gradients)
      return sum(jax.tree.leaves(products)), activations

    first_step = np.float32(3)
    (new, step), activations = jax.jit(
        jax.grad(loss, argnums=(0, 1), has_aux=True)
    )(variables, first_step)

    self.assertEqual(step, 4)
    self.assertEqual(jax.tree.structure(new), jax.tree.structure(variables))
    new_tables = table_stacking.unshard_and_unstack_tables(
        embedding.get_table_specs(specs),
        {name: stack.table for name, stack in new.items()},
        num_devices * num_sc,
    )
    for table_name, table in tables.items():
      plain = plain_model.Table(
          table.astype(np.float64),
          rule,
          0.5,
          [np.full(table.shape, first) for first in first_slots],
      )
      gradient = touched = 0
      for name, spec in specs.items():
        if spec.table_spec.name == table_name:
          gains = plain_model.gains(ids[name], None, "mean", len(table))
          np.testing.assert_allclose(
              activations[name], gains @ table, **_TOLERANCE
          )
          gradient += gains.T @ gradients[name]
          touched += gains.any(axis=0)
      plain.update(gradient, touched > 0, step=3)
      np.testing.assert_allclose(
          new_tables[table_name], plain.values, rtol=1e-4, atol=1e-5
      )

  @parameterized.parameters(1, 4)
  def test_the_step_may_be_none(self, num_devices):
    specs = keras_rs_calls.make_specs(
        embedding_spec.SGDOptimizerSpec(0.5), num_devices, 1
    )
    inputs, _ = keras_rs_calls.preprocess(
        specs, keras_rs_calls.random_ids(specs), num_devices, 1
    )
    variables, _ = keras_rs_calls.random_variables(
        specs, num_devices, jnp.asarray
    )
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("model",))
    update = keras_rs_calls.update(specs, mesh)
    gradients = {
        name: np.ones(spec.output_shape, "f4") for name, spec in specs.items()
    }
    without, with_step = (
        update(gradients, inputs, variables, step)
        for step in (None, np.float32(3))
    )
    jax.tree.map(np.testing.assert_array_equal, without, with_step)


if __name__ == "__main__":
  absltest.main()
