# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_seal
from jax_tpu_embedding.sparsecore.lib.core.primitives import stacking
import numpy as np

P = jax.sharding.PartitionSpec


def _stack(a, b):
  """A primitive of two operands, 4 by 8 each."""
  return stacking.stack_gradients_p.bind(
      a, b, stacked_batch_size=8, stacked_feature_dim=8
  )


def _unstack(x):
  """One of two results."""
  return stacking.unstack_activations_p.bind(
      x, per_feature_batch_sizes=(4, 4), per_feature_dims=(8, 8)
  )


class VaryingResultsTest(parameterized.TestCase):
  """Under shard_map with check_vma, one device is as good as many."""

  @parameterized.parameters(
      (P("x"), P(), {"x"}),
      (P(), P("x"), {"x"}),
      (P("x"), P(("x", "y")), {"x", "y"}),
      (P(), P(), set()),
  )
  def test_results_vary_where_an_operand_does(self, of_a, of_b, expected):
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y")
    )
    varies_over = []

    def on_device(a, b):
      stack = _stack(a, b)
      results = _unstack(stack)
      types = map(jax.typeof, (stack, *results))
      varies_over.extend(map(jax_private.varies_over, types))
      return stack

    program = lambda out_specs: jax.jit(
        jax.shard_map(
            on_device, mesh=mesh, in_specs=(of_a, of_b), out_specs=out_specs
        )
    )
    operands = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
    actual = program(P(("x", "y")))(*operands)
    np.testing.assert_array_equal(actual, np.concatenate(operands))
    self.assertEqual(varies_over, 3 * [expected])
    if expected:
      # Or a sum over the mesh would take parts for copies.
      with self.assertRaisesRegex(ValueError, "out_specs"):
        program(P())(*operands)


class RefusalTest(absltest.TestCase):

  def test_parameters_may_have_any_name(self):
    # One of them is "message", as is an argument of what refuses.
    def check(guards):
      (x,) = check_seal.check_seal_p.bind(guards, 1.0, message="broken")
      return x

    with self.assertRaisesRegex(NotImplementedError, "no gradient"):
      jax.grad(check)(np.ones(5))


if __name__ == "__main__":
  absltest.main()
