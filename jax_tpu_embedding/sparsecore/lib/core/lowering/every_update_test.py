# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every update rule in every setting, lowered in every way.

The results are what the formula says in float64, and those of four devices are
those of one. Native calls have the same bits, those of GPUs too. New rows of
UPDATE_RULES need a formula and a case.
"""

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
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


def _popular_rows(num_scs, counts, batch_size_per_sc):
  """Buffers whose first rows have many terms, and these.

  Args:
    num_scs: S.
    counts: of each row, the number of its terms from each source.
    batch_size_per_sc: samples name a row as often as it takes.

  Returns:
    The buffers, and the samples of each row by source, i32[n] each. All gains
    are 1: products are exact, whatever XLA fuses them with.
  """
  rng = np.random.default_rng(0)
  size = 8 * len(counts) + max(map(sum, zip(*counts, strict=True)))
  size += -size % 8
  ids, samples = np.zeros((2, num_scs, size), np.int32)
  row_pointers = np.zeros((num_scs, max(num_scs, 8)), np.int32)
  samples_of = [[None] * num_scs for _ in counts]
  for source in range(num_scs):
    end = 0
    for target in range(num_scs):
      begin = end + -end % 8
      end = begin
      for row in range(target, len(counts), num_scs):
        begin, end = end, end + counts[row][source]
        ids[source, begin:end] = row // num_scs
        samples[source, begin:end] = np.sort(
            rng.integers(batch_size_per_sc, size=end - begin)
        )
        samples_of[row][source] = samples[source, begin:end].copy()
      row_pointers[source, target] = end
    row_pointers[source, num_scs:] = end
  buffers = random_coo.RandomCoo(
      row_pointers=row_pointers.reshape(-1),
      embedding_ids=ids.reshape(-1),
      sample_ids=samples.reshape(-1),
      gains=np.ones(ids.size, np.float32),
      num_minibatches=np.int32(1),
      weights=None,
      touched=None,
  )
  return buffers, samples_of


def _sum_in_order(samples_of_row, gradient):
  """The sum of a row's terms in the order that docs/reference promises."""

  def from_left_to_right(terms):
    return np.add.accumulate(np.stack(terms), axis=0, dtype=np.float32)[-1]

  sources = []
  for samples, of_source in zip(samples_of_row, gradient, strict=True):
    terms = of_source[samples]
    blocks = [
        from_left_to_right(terms[first : first + 512])
        for first in range(0, len(terms), 512)
    ]
    if blocks:
      sources.append(from_left_to_right(blocks))
  return from_left_to_right(sources)


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

  @parameterized.parameters(
      # Rows of one and several blocks; of more blocks than a block has terms.
      dict(num_scs=4, counts=[(512, 3, 0, 514), (1, 512 * 512 + 700, 8, 9)]),
      dict(num_scs=1, counts=[(5,), (512,), (514,), (512 * 512 + 700,)]),
  )
  def test_popular_rows_are_summed_in_one_order(self, num_scs, counts):
    batch_size_per_sc, dim = 96, 16
    coo, samples_of = _popular_rows(num_scs, counts, batch_size_per_sc)
    rng = np.random.default_rng(1)
    gradient = np.float32(rng.normal(size=(num_scs, batch_size_per_sc, dim)))
    expected = np.zeros((num_scs, 8, dim), np.float32)
    for row, samples in enumerate(samples_of):
      total = _sum_in_order(samples, gradient)
      expected[row % num_scs, row // num_scs] -= total
      # In another order, the bits are others.
      if max(counts[row]) > 513:
        terms = [x[s] for x, s in zip(gradient, samples, strict=True)]
        at_once = np.add.accumulate(np.concatenate(terms), axis=0)
        self.assertTrue(np.any(at_once[-1] != total))
    for name, lowering in _LOWERINGS.items():
      if num_scs % lowering.num_devices:
        continue
      with self.subTest(name):
        (table,) = lowering.compiled(
            lambda *operands: lowering.bind(
                "update_sgd", *operands, **update_programs.LIMITS
            )
        )(
            *lowering.coo_operands(coo, num_scs),
            np.zeros((num_scs * 8, dim), np.float32),
            gradient.reshape(-1, dim),
            np.float32(1),
        )
        np.testing.assert_array_equal(
            np.asarray(table), expected.reshape(-1, dim)
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
