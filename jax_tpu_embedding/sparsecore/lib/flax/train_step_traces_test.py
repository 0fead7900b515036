# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Train steps are traced once, and compiled once."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.testing import every_form
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec


class TrainStepTracesTest(parameterized.TestCase):

  @parameterized.named_parameters(every_form.FORMS.items())
  def test_one_device_that_nobody_chose(self, form):
    trained = form(every_form.make_specs(embedding_spec.AdagradOptimizerSpec()))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event)
        if event == "/jax/core/compile/backend_compile_duration"
        else None
    )
    trained.step()
    compiled.clear()
    for _ in range(3):
      trained.step()
    self.assertEqual(trained.traces, 1)
    # To JAX a Ref is committed to its device, and so are results of a program
    # that takes one, which dense parameters of the first step were not. So the
    # one trace is compiled once more, unless they are put there.
    with_refs = not isinstance(trained, every_form.LinenParameters) and (
        not hasattr(getattr(trained.model, "embed", None), "update_seal")
    )
    self.assertLen(compiled, int(with_refs))


if __name__ == "__main__":
  absltest.main()
