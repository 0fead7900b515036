# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Calls over a mesh and outside of jit: programs that are equal are shared."""

import gc
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.testing import every_form
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: _COMPILED.append(event)
    if event == "/jax/core/compile/backend_compile_duration"
    else None
)


def _make(form, optimizer, **table_fields):
  specs = every_form.make_specs(optimizer, **table_fields)
  mesh = jax.sharding.Mesh(jax.devices(), ("x",))
  return form(specs, mesh=mesh, sharding_axis="x"), specs


def _train(trained):
  """A step outside of jit."""
  trained.jitted = trained._step  # pylint: disable=protected-access
  trained.step()


class EagerCallsTest(parameterized.TestCase):

  @parameterized.named_parameters(every_form.FORMS.items())
  def test_later_calls_compile_nothing(self, form):
    trained, _ = _make(form, embedding_spec.AdagradOptimizerSpec())
    for _ in range(2):  # the first step puts dense parameters on the mesh
      trained.look_up()
      _train(trained)
    _COMPILED.clear()
    trained.look_up()
    _train(trained)
    self.assertEmpty(_COMPILED)

  def test_equal_specs_that_were_made_anew_share_programs(self):
    form = every_form.FORMS["linen_ref"]
    optimizer = embedding_spec.SGDOptimizerSpec(0.5)
    first, _ = _make(form, optimizer)
    second, _ = _make(form, optimizer)
    for trained in (first, second):
      _COMPILED.clear()
      before = trained.table
      _train(trained)
    self.assertEmpty(_COMPILED)
    self.assertFalse(np.array_equal(before, second.table))
    np.testing.assert_array_equal(second.table, first.table)

  @parameterized.named_parameters(
      ("learning_rate", dict(learning_rate=0.5), {}),
      ("row_option", dict(learning_rate=0.25, l2_weight_decay=0.1), {}),
      ("combiner", dict(learning_rate=0.25), dict(combiner="mean")),
      (
          "quantization",
          dict(learning_rate=0.25),
          dict(
              quantization_config=embedding_spec.QuantizationConfig(
                  min_value=-1, max_value=1, num_buckets=3
              )
          ),
      ),
  )  # pyformat: disable
  def test_different_specs_do_not(self, optimizer, table_fields):
    """One step of each, against the same specs in jit."""
    form = every_form.FORMS["linen_ref"]
    baseline, _ = _make(form, embedding_spec.SGDOptimizerSpec(0.25))
    _train(baseline)
    optimizer = embedding_spec.SGDOptimizerSpec(**optimizer)
    eager, _ = _make(form, optimizer, **table_fields)
    expected, _ = _make(form, optimizer, **table_fields)
    _train(eager)
    expected.step()
    np.testing.assert_allclose(eager.table, expected.table, rtol=1e-6)

  def test_changed_plans_of_the_same_specs_are_told_apart(self):
    trained, specs = _make(
        every_form.FORMS["linen_ref"], embedding_spec.SGDOptimizerSpec(0.5)
    )
    expected = trained.look_up()
    embedding.update_preprocessing_parameters(
        specs,
        embedding.SparseDenseMatmulInputStats(
            max_ids_per_partition={"t": np.array([[8]])},
            max_unique_ids_per_partition={"t": np.array([[8]])},
            required_buffer_size_per_sc={"t": np.array([64])},
        ),
        num_sc_per_device=4,
    )
    _COMPILED.clear()
    np.testing.assert_array_equal(trained.look_up(), expected)
    self.assertNotEmpty(_COMPILED)

  @parameterized.named_parameters(
      ("function_of_nothing", True), ("numpy_array", False)
  )
  def test_a_learning_rate_that_changes_is_read_in_each_call(self, is_function):
    value = np.array(0.0, np.float32)
    rate = (lambda: float(value)) if is_function else value
    trained, _ = _make(
        every_form.FORMS["linen_ref"], embedding_spec.SGDOptimizerSpec(rate)
    )
    initial = trained.table
    _train(trained)
    np.testing.assert_array_equal(trained.table, initial)
    value[...] = 1.0
    _train(trained)
    self.assertFalse(np.array_equal(trained.table, initial))

  def test_tables_can_be_looked_up_whatever_the_learning_rate(self):
    trained, _ = _make(
        every_form.FORMS["linen_ref"],
        embedding_spec.SGDOptimizerSpec(max),  # has no signature
    )
    self.assertTrue(np.isfinite(trained.look_up()).all())
    with self.assertRaisesRegex(ValueError, "max.* has no signature"):
      _train(trained)

  def test_programs_do_not_keep_a_whole_table_that_was_given(self):
    class Whole:

      def __call__(self):
        return np.ones((every_form.VOCAB, every_form.DIM), np.float32)

    initializer = Whole()
    trained, specs = _make(
        every_form.FORMS["linen_ref"],
        embedding_spec.SGDOptimizerSpec(0.5),
        initializer=initializer,
    )
    _train(trained)
    is_alive = weakref.ref(initializer)
    del trained, specs, initializer
    gc.collect()
    self.assertIsNone(is_alive())


if __name__ == "__main__":
  absltest.main()
