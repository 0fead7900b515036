# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every update rule in every setting, lowered in every way.

The results are what the formula says in float64, and those of four devices are
those of one. Native calls have the same bits, those of GPUs too. New rows of UPDATE_RULES need a formula and a case.
"""

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
# A program has all rules, since JAX and XLA take longer for many small ones; and
# it runs few times.
jax.config.update("jax_disable_most_optimizations", True)

_CASES = update_cases.CASES
_LOWERINGS = every_lowering.LOWERINGS
# One device first.
_IMPLEMENTATIONS = {
    "reference": ("reference", "reference_messages"),
    "native": (
        "cpu",
        "cpu_shared_memory",
        "cpu_messages",
        "cpu_batches",
        "gpu",
        "gpu_messages",
    ),
}

_Setting = functools.partial(update_programs.Setting, num_sc=8)
_Rounded = functools.partial(_Setting, stochastic_rounding=True)
# Types and layouts, and over these, what may be done to any row.
_SETTINGS = {
    "float32": _Setting(),
    "float32_minibatched": _Setting(
        num_minibatches=3,
        row_options=row_options.ROW_OPTIONS,
        min_value=-0.5,
        max_value=0.25,
    ),
    "bfloat16": _Rounded(dtype="bfloat16", row_options=("l2_weight_decay",)),
    "bfloat16_minibatched": _Rounded(
        dtype="bfloat16", num_minibatches=3, min_value=-0.5
    ),
    "float16": _Rounded(
        dtype="float16",
        row_options=("skip_non_finite_gradients", "decoupled_weight_decay"),
        max_value=0.25,
    ),
    "float16_minibatched": _Rounded(dtype="float16", num_minibatches=3),
    "to_nearest": _Setting(dtype="bfloat16", min_value=-0.5, max_value=0.25),
    "one_dimension": _Setting(
        dim=None, num_minibatches=3, row_options=row_options.ROW_OPTIONS
    ),
}


def _rounds():
  """Lists of cases, of the same rules and static parameters in the same order.

  Together they have all cases.
  """
  cases = {}
  for name, case in _CASES.items():
    key = (case.rule.name, *case.static_params.items())
    cases.setdefault(key, []).append(name)
  return [
      [names[number % len(names)] for names in cases.values()]
      for number in range(max(map(len, cases.values())))
  ]


def _updates(setting, names):
  """An update for each case, of one batch."""
  updates = [
      update_programs.random_update(_CASES[name], setting) for name in names
  ]
  return _with_gradient(updates, updates[0].operands.gradient)


def _with_gradient(updates, gradient):
  return [
      given._replace(operands=given.operands._replace(gradient=gradient))
      for given in updates
  ]


def _without_entries(updates):
  """What to expect of buffers without entries."""
  coo = updates[0].coo
  nothing = dataclasses.replace(
      coo,
      weights=np.zeros_like(coo.weights),
      touched=np.zeros_like(coo.touched),
  )
  return [given._replace(coo=nothing) for given in updates]


def _program(lowering, setting):
  """COO operands and the updates of a round -> their tables and slots."""
  cases = [_CASES[name] for name in _rounds()[0]]

  @lowering.compiled
  def step(coo, gradient, all_operands):
    return [
        lowering.bind(
            f"update_{case.rule.name}",
            *update_programs.in_order(
                operands._replace(coo=coo, gradient=gradient)
            ),
            **case.static_params,
            **setting.params(),
        )
        for case, operands in zip(cases, all_operands, strict=True)
    ]

  def program(coo, updates):
    gradient = updates[0].operands.gradient
    rest = [given.operands._replace(coo=(), gradient=None) for given in updates]
    return jax.tree.map(np.asarray, step(coo, gradient, rest))

  return program


class EveryUpdateTest(parameterized.TestCase):

  def test_every_rule_has_a_formula_and_a_case(self):
    rules = list(update_rules.UPDATE_RULES)
    self.assertSameElements(update_cases.FORMULAS, rules)
    self.assertSameElements({c.rule.name for c in _CASES.values()}, rules)

  def test_every_lowering_runs(self):
    self.assertSameElements(sum(_IMPLEMENTATIONS.values(), ()), _LOWERINGS)

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS), setting=list(_SETTINGS)
  )
  def test_steps_referenced_rows_once(self, implementation, setting):
    setting = _SETTINGS[setting]
    rounds = [(names, _updates(setting, names)) for names in _rounds()]
    names, updates = rounds[0]
    random_coo = updates[0].coo
    self.assertBetween(np.mean(random_coo.touched), 0.1, 0.9)
    zero = np.zeros_like(updates[0].operands.gradient)
    non_finite, _ = update_programs.without_finite_gradients(updates[0])
    left_out = [
        update_programs.without_finite_gradients(given)[1] for given in updates
    ]
    on_one_device = []
    for name in _IMPLEMENTATIONS[implementation]:
      lowering = _LOWERINGS[name]
      program = _program(lowering, setting)
      coo = lowering.coo_operands(random_coo, setting.num_sc)
      empty = (np.zeros_like(coo[0]), *coo[1:])

      def assert_is_formula(coo, names, updates, gradient=None):
        """`updates` are what to expect, also of another gradient."""
        given = updates
        if gradient is not None:
          given = _with_gradient(updates, gradient)
        results = program(coo, given)
        for case, given, actual in zip(names, updates, results, strict=True):
          with self.subTest(f"{name}, {case}"):
            update_programs.assert_rows_are_stepped_once(
                _CASES[case], setting, given, tuple(actual)
            )
        return results

      results = [assert_is_formula(coo, *of_round) for of_round in rounds]
      assert_is_formula(coo, names, _with_gradient(updates, zero))
      assert_is_formula(empty, names, _without_entries(updates))
      if "skip_non_finite_gradients" in setting.row_options:
        assert_is_formula(coo, names, left_out, non_finite)
      on_one_device = on_one_device or results
      self.assert_are_those_of_one_device(
          implementation, results, on_one_device
      )

  def assert_are_those_of_one_device(self, implementation, results, expected):
    for actual, expected in zip(
        jax.tree.leaves(results), jax.tree.leaves(expected), strict=True
    ):
      if implementation == "native":
        np.testing.assert_array_equal(actual, expected)
      else:
        # XLA may fuse a product with a sum in one program and not in another.
        # Random bits of another place would change half of the elements.
        self.assertLess(np.mean(actual != expected), 0.05)


if __name__ == "__main__":
  absltest.main()
