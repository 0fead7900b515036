# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import itertools

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.common import device_sums
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)


def _product(parameters, samples):
  return parameters["w"] * samples["x"]


@jax.jit
def _gradient(parameters, samples):
  def loss(parameters):
    return jnp.sum(device_sums.apply(_product, parameters, samples))

  return jax.grad(loss)(parameters)["w"]


class DeviceSumsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._mesh = jax.sharding.Mesh(jax.devices(), ("device",))
    self.enter_context(jax.set_mesh(self._mesh))

  def _divided(self, values) -> jax.Array:
    sharding = jax.sharding.NamedSharding(
        self._mesh, jax.sharding.PartitionSpec("device")
    )
    return jax.device_put(np.float32(values), sharding)

  def test_gradients_are_added_in_the_order_of_the_devices(self):
    # In float32, 1e8 + 1 is 1e8: every order of these has its own sum.
    for terms in itertools.permutations(np.float32([1e8, 1, -1e8, 3])):
      # Two samples of each device; it adds its own as it likes.
      samples = self._divided([x for term in terms for x in (term, 0)])
      gradient = _gradient({"w": jnp.float32(2)}, {"x": samples})
      self.assertEqual(gradient, functools.reduce(np.add, terms), terms)
      self.assertTrue(gradient.sharding.is_fully_replicated)

  def test_no_exchange_adds(self):
    # The devices of one process happen to add in this order, too; Gloo's do
    # not.
    samples = {"x": self._divided(range(8))}
    program = _gradient.lower({"w": jnp.float32(2)}, samples).compile()
    self.assertIn(" all-gather", program.as_text())
    self.assertNotIn(" all-reduce", program.as_text())

  def test_results_are_in_the_order_of_the_samples(self):
    result = jax.jit(functools.partial(device_sums.apply, _product))(
        {"w": jnp.float32(2)}, {"x": self._divided(range(8))}
    )
    self.assertEqual(result.tolist(), [0, 2, 4, 6, 8, 10, 12, 14])

  def test_a_mean_is_that_of_one_device(self):
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    mean = jax.jit(device_sums.mean)(self._divided(values))
    with jax.set_mesh(jax.sharding.Mesh(jax.devices()[:1], ("device",))):
      of_one = jax.jit(device_sums.mean)(values)
    self.assertEqual(float(mean), float(of_one))


if __name__ == "__main__":
  absltest.main()
