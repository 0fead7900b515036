# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Train steps under jax_debug_nans, which looks at all results of programs."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.testing import every_form
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

# Samples 0, 2, 4, ... have two ids; of 2 all weights are zero, of 4 one is.
_NUM_IDS = np.where(np.arange(every_form.BATCH) % 2, 0, 2)
_ROW_SPLITS = np.concatenate([[0], np.cumsum(_NUM_IDS)]).astype(np.int32)
_VALUES = np.arange(_ROW_SPLITS[-1], dtype=np.int32)
_WEIGHTS = np.ones(_VALUES.size, np.float32)
_WEIGHTS[[2, 3, 4]] = 0


def _with_ids(values):
  return mock.patch.dict(every_form.IDS, f=(values, _ROW_SPLITS))


class DebugNansTest(parameterized.TestCase):

  @parameterized.product(
      name=[*every_form.FORMS],
      optimizer=(
          embedding_spec.AdagradOptimizerSpec(0.1),
          embedding_spec.AdamOptimizerSpec(0.1),
      ),
      combiner=("mean", "sqrtn"),
  )
  def test_ordinary_steps_pass(self, name, optimizer, combiner):
    specs = every_form.make_specs(optimizer, combiner=combiner)
    with jax.debug_nans(True), _with_ids(_VALUES):
      trained = every_form.FORMS[name](specs)
      before = trained.table
      for _ in range(2):
        trained.step(weights={"f": _WEIGHTS})
      trained.look_up()
      changed = np.any(trained.table != before, axis=1)
    named = np.isin(np.arange(every_form.VOCAB), _VALUES[_WEIGHTS > 0])
    np.testing.assert_array_equal(changed, named)

  # Not a step: JAX looks for the operation by running the program once more,
  # and the Refs that the first run was given are gone.
  @parameterized.parameters(*every_form.FORMS)
  def test_a_wrong_batch_is_found_where_it_is_read(self, name):
    specs = every_form.make_specs(embedding_spec.AdagradOptimizerSpec(0.1))
    with _with_ids(_VALUES):
      trained = every_form.FORMS[name](specs)
    with jax.debug_nans(True), _with_ids(_VALUES + 1):  # the last is no row
      with self.assertRaisesRegex(FloatingPointError, "invalid value .nan."):
        trained.look_up()


if __name__ == "__main__":
  absltest.main()
