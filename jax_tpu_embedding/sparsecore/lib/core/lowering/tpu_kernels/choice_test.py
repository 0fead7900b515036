# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which way lowers an operation. Rules here only say which one was chosen."""

from __future__ import annotations

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import step_operations
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores

jax.config.update("jax_num_cpu_devices", 4)


def _chosen(kind, dtype=jnp.float32, refused_by=(), way=None, **params):
  """The ways that were tried for an operation, in order.

  Args:
    kind: of the devices, or None where they are not known.
    dtype: of the table.
    refused_by: ways that do not take the step.
    way: of `lower_by`.
    **params: of the operation.
  """
  tried = []

  def rule(name, error):
    def lower(unused_ctx, x, **unused_params):
      tried.append(name)
      if name in refused_by:
        raise error("A step has sort.")
      return [x]

    return lower

  rules = dict(
      calls=rule("calls", step_operations.StepNotTaken),
      kernels=rule("kernels", subcores.NotTaken),
      plain=rule("plain", NotImplementedError),
  )
  primitive = core.Primitive("chosen")
  primitive.def_abstract_eval(lambda x, **_: x)
  mlir.register_lowering(primitive, choice.lowering_rule("lookup", rules))

  def function(x):
    if way is None:
      return primitive.bind(x, **params)
    with choice.lower_by(way):
      return primitive.bind(x, **params)

  device = None if kind is None else mock.Mock(device_kind=kind)
  with mock.patch.object(choice.checks, "tpu_of", return_value=device):
    with choice.recorded() as choices:
      jax.jit(function).lower(jnp.zeros(8, dtype))
  ((operation, way, _),) = choices
  assert (operation, way) == ("lookup", tried[-1]), choices
  return tried


class ChoiceTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(kind="TPU v5"), ["calls"]),
      (dict(kind=None, dtype=jnp.bfloat16), ["calls"]),
      (dict(kind="TPU v5", dtype=jnp.bfloat16), ["kernels"]),
      (dict(kind="TPU7x", dtype=jnp.float16), ["kernels"]),
      (dict(kind="TPU v6e", refused_by=["calls"]), ["calls", "kernels"]),
      (dict(kind="TPU v5 lite", dtype=jnp.bfloat16), ["plain"]),
      (dict(kind="TPU v5", way="kernels"), ["kernels"]),
      (dict(kind="TPU v5", dtype=jnp.bfloat16, way="plain"), ["plain"]),
      (dict(kind="TPU v5 lite", way="plain"), ["plain"]),
      (dict(kind="TPU v5", int8_columns=8), ["kernels"]),
      (dict(kind="TPU v5 lite", int8_columns=8), ["plain"]),
      (dict(kind=None, int8_columns=8), ["plain"]),
  )
  def test_chosen(self, case, expected):
    self.assertEqual(_chosen(**case), expected)

  def test_last_way_warns(self):
    with self.assertWarnsRegex(
        UserWarning, "lookup: neither .* kernels .* A step has sort.* copy"
    ):
      tried = _chosen("TPU v5", refused_by=["calls", "kernels"])
    self.assertEqual(tried, ["calls", "kernels", "plain"])

  def test_environment_says_the_way_where_the_program_does_not(self):
    with mock.patch.dict(os.environ, {choice.ENVIRONMENT_VARIABLE: "plain"}):
      self.assertEqual(_chosen("TPU v5"), ["plain"])
      self.assertEqual(_chosen("TPU v5", way="kernels"), ["kernels"])

  def test_what_is_asked_for_is_not_replaced(self):
    with self.assertRaisesRegex(subcores.NotTaken, "A step has sort"):
      _chosen("TPU v5", refused_by=["kernels"], way="kernels")

  @parameterized.parameters("calls", "kernels")
  def test_chips_without_sparsecores_have_one_way(self, way):
    with self.assertRaisesRegex(
        NotImplementedError, f"'{way}', and 'TPU v5 lite' has no SparseCores"
    ):
      _chosen("TPU v5 lite", way=way)

  def test_calls_do_not_know_codes(self):
    with self.assertRaisesRegex(NotImplementedError, "'calls', .* int8 rows"):
      _chosen("TPU v5", way="calls", int8_columns=8)

  def test_there_are_three_ways(self):
    with self.assertRaisesRegex(
        ValueError, "lower_by: .*'fast'.*calls, kernels, plain"
    ):
      choice.lower_by("fast")
    with mock.patch.dict(os.environ, {choice.ENVIRONMENT_VARIABLE: "fast"}):
      with self.assertRaisesRegex(
          ValueError, "JAX_TPU_EMBEDDING_TPU: .*'fast'"
      ):
        _chosen("TPU v5")


if __name__ == "__main__":
  absltest.main()
