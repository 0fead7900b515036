# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Train steps are traced once, and compiled once."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import every_form
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import optax

from flax import nnx

_WITH_REFS = ("linen_ref", "nnx_ref")


def _specs():
  return every_form.make_specs(embedding_spec.AdagradOptimizerSpec())


def _num_compilations(step):
  """How many programs three steps compile."""
  events = []

  def listen(event, *_, **__):
    events.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  for _ in range(3):
    step()
  jax.monitoring.unregister_event_duration_listener(listen)
  return events.count("/jax/core/compile/backend_compile_duration")


def _place(trained, mesh=None):
  """The lines of docs/how_to/layers.md."""
  if isinstance(trained, every_form.LinenRefs):
    trained.params = embed.on_every_device(trained.params, mesh)
  else:
    everything = (trained.model, trained.optimizer)
    dense = nnx.state(everything, nnx_embed.is_non_embedding_variables)
    nnx.update(everything, embed.on_every_device(dense, mesh))


class TrainStepTracesTest(parameterized.TestCase):

  @parameterized.parameters(*every_form.FORMS)
  def test_one_device_that_nobody_chose(self, name):
    trained = every_form.FORMS[name](_specs())
    if name in _WITH_REFS:
      _place(trained)
    self.assertEqual(_num_compilations(trained.step), 1)
    self.assertEqual(trained.traces, 1)

  @parameterized.parameters(*_WITH_REFS, "nnx_param")
  def test_one_device_of_a_mesh(self, name):
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    trained = every_form.FORMS[name](_specs(), mesh=mesh, sharding_axis="x")
    _place(trained, mesh)
    self.assertEqual(_num_compilations(trained.step), 1)
    self.assertEqual(trained.traces, 1)

  def test_any_optimizer_of_nnx(self):
    trained = every_form.FORMS["nnx_ref"](_specs())
    trained.optimizer = nnx.Optimizer(
        trained.model, optax.sgd(0.1), wrt=nnx.Param
    )
    _place(trained)
    self.assertEqual(_num_compilations(trained.step), 1)

  # `Ref.committed` is always true in JAX, and the results of a program with a
  # committed argument are committed. Dense parameters that nobody placed are
  # not, so the first step is compiled for other arguments than the second, and
  # nothing that a layer does changes the parameters of other layers. When this
  # fails, JAX has changed, and on_every_device is not needed on one device.
  def test_a_step_with_a_ref_of_plain_jax_is_compiled_twice(self):
    class Plain:
      dense, ref = jnp.zeros(3), jax.new_ref(jnp.zeros(3))

      def step(self):
        self.dense = _plain_step(self.dense, self.ref)

    self.assertEqual(_num_compilations(Plain().step), 2)

  @parameterized.parameters(*_WITH_REFS)
  def test_parameters_that_nobody_placed_cost_a_compilation(self, name):
    trained = every_form.FORMS[name](_specs())
    self.assertEqual(_num_compilations(trained.step), 2)
    self.assertEqual(trained.traces, 1)


@jax.jit
def _plain_step(dense, ref):
  ref[...] += dense
  return dense + 1


if __name__ == "__main__":
  absltest.main()
