# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_seal as rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_seal
import numpy as np

_INTACT = [
    (1.0, 0.0, 0.0, 0.0, 0.0),
    (1.0, 2047.0, 2047.0**2, 3.0, 9.0),
]
_BROKEN = [
    ("sum", (2.0, 0.0, 0.0, 0.0, 0.0)),
    ("mean", (1.0, 1.5, 2.5, 3.0, 9.0)),
    ("mean_of_equal_h", (1.0, 3.0, 9.0, 1.5, 2.5)),
    ("nothing", (0.0, 0.0, 0.0, 0.0, 0.0)),
    ("no_number", (1.0, np.nan, np.nan, 0.0, 0.0)),
    ("no_second_number", (1.0, 0.0, 0.0, np.nan, np.nan)),
]


@jax.jit
def _check(seal, num_minibatches, gains):
  return check_seal.check_seal_p.bind(
      seal, num_minibatches, gains, message="Not a seal."
  )


def _operands(seal):
  return jnp.float32(seal), jnp.int32(3), jnp.float32([0.5, 2.0])


def _run(seal):
  return _check(*_operands(seal))


class CheckSealTest(parameterized.TestCase):

  @parameterized.parameters(*[(seal,) for seal in _INTACT])
  def test_an_intact_seal_changes_nothing(self, seal):
    num_minibatches, gains = _run(seal)
    self.assertEqual(num_minibatches, 3)
    np.testing.assert_array_equal(gains, np.float32([0.5, 2.0]))

  @parameterized.named_parameters(*_BROKEN)
  def test_a_broken_seal_raises_the_message_and_the_numbers(self, seal):
    with self.assertRaisesRegex(
        (jax.errors.JaxRuntimeError, ValueError), r"Not a seal\. \(The seal is "
    ):
      jax.block_until_ready(_run(seal))

  @parameterized.parameters(*[(seal,) for seal in _INTACT])
  def test_an_intact_seal_changes_nothing_where_none_can_raise(self, seal):
    num_minibatches, gains = rules.nan_if_broken(*_operands(seal))
    self.assertEqual(num_minibatches, 3)
    np.testing.assert_array_equal(gains, np.float32([0.5, 2.0]))

  @parameterized.named_parameters(*_BROKEN)
  def test_a_broken_seal_gives_nan_where_none_can_raise(self, seal):
    _, gains = rules.nan_if_broken(*_operands(seal))
    self.assertTrue(np.isnan(gains).all())

  def test_mapped_it_runs_once_for_each(self):
    seal, num_minibatches, gains = _operands(_INTACT[1])
    gains = jnp.stack([gains, 2 * gains])
    mapped = jax.vmap(_check, (None, None, 0))
    _, actual = mapped(seal, num_minibatches, gains)
    np.testing.assert_array_equal(actual, gains)
    with self.assertRaisesRegex(
        (jax.errors.JaxRuntimeError, ValueError), "Not a seal"
    ):
      jax.block_until_ready(mapped(2 * seal, num_minibatches, gains))

  def test_another_shape_raises(self):
    with self.assertRaisesRegex(ValueError, r"seal must have shape \(5,\)"):
      _run((1.0, 0.0))


if __name__ == "__main__":
  absltest.main()
