# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The kernels on the emulation engine, against NumPy and the steps themselves."""

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import low_precision
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import gather_rows
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import step_rows
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import sum_runs
import numpy as np

# A kernel runs few times.
jax.config.update("jax_disable_most_optimizations", True)

_ROWS = 300


def _on(chip, function):
  """`function` with kernels for a chip, compiled for this CPU."""
  return jax.jit(pallas.emulate(function, chip=chip))


def _table(dim, dtype, seed=0):
  values = np.random.default_rng(seed).normal(size=(_ROWS, dim))
  return jnp.asarray(values, dtype)


class GatherRowsTest(absltest.TestCase):

  def test_rows_have_the_bits_of_the_table(self):
    table = _table(24, jnp.float32)
    gather = _on("v6e", functools.partial(gather_rows.gather_rows, buffers=2))
    rows = np.random.default_rng(0).integers(-1, _ROWS, 700).astype(np.int32)
    result = np.asarray(gather(table, rows))
    self.assertEqual(result.shape, (700, 24))
    np.testing.assert_array_equal(
        result[rows >= 0], np.asarray(table)[rows[rows >= 0]]
    )


class SumRunsTest(parameterized.TestCase):

  # The second has registers that are not full.
  @parameterized.parameters(("v6e", 16, jnp.bfloat16), ("7x", 24, jnp.float32))
  def test_sums(self, chip, dim, dtype):
    rng = np.random.default_rng(0)
    num_entries, num_runs = 5000, 50
    table = _table(dim, dtype)
    index = rng.integers(0, _ROWS, num_entries).astype(np.int32)
    gain = rng.normal(size=num_entries).astype(np.float32)
    ascending = np.sort(rng.integers(0, num_runs, num_entries))
    over_workers = np.sort(
        np.where(np.arange(num_entries) < 4000, 7, ascending)
    )
    entry = np.arange(num_entries)
    sums = _on(
        chip,
        functools.partial(
            sum_runs.sum_runs, num_runs=num_runs, of_each_row=jnp.square
        ),
    )
    for run in (
        np.where(entry < 4500, ascending, -1),
        over_workers,
        np.full(num_entries, -1),
        np.where(entry < 1, 3, -1),
        np.full(num_entries, 5),
    ):
      run = run.astype(np.int32)
      is_entry = run >= 0
      of_entries = np.where(is_entry, gain, np.nan).astype(np.float32)
      actual = np.asarray(sums(table, index, of_entries, run))
      terms = np.float64(gain)[:, None] * np.float64(table)[index] ** 2
      expected = np.zeros((num_runs, dim))
      magnitude = np.zeros((num_runs, dim))
      np.add.at(expected, run[is_entry], terms[is_entry])
      np.add.at(magnitude, run[is_entry], np.abs(terms[is_entry]))
      self.assertLessEqual(
          np.max(np.abs(actual - expected) - 1e-6 * magnitude), 0
      )
    np.testing.assert_array_equal(
        actual, sums(table, index, gain, run), "on repeat"
    )


class Int8RowsTest(parameterized.TestCase):

  @parameterized.parameters(8, 30, 128)
  def test_codes_are_near_in_a_quarter_of_the_memory(self, dim):
    rows = np.array(_table(dim, jnp.float32))
    rows[3] = 5  # one number has no scale
    words = quantized_rows.encode(rows)
    self.assertLess(words.shape[1], dim / 4 + 10)
    self.assertEqual(words.shape[1] % 8, 0)
    scale = (rows.max(1) - rows.min(1)) / 255
    off = np.abs(quantized_rows.decode(words, dim) - rows).max(1)
    np.testing.assert_array_less(off, scale * 0.501 + 1e-9)

  @parameterized.parameters(("v6e", 32), ("7x", 64))
  def test_sums_are_those_of_decoded_rows(self, chip, dim):
    rng = np.random.default_rng(0)
    words = quantized_rows.encode(_table(dim, jnp.float32))
    index = rng.integers(0, _ROWS, 700).astype(np.int32)
    gain = rng.normal(size=700).astype(np.float32)
    run = np.sort(rng.integers(0, 50, 700)).astype(np.int32)
    sums = _on(
        chip,
        functools.partial(sum_runs.sum_runs, num_runs=50, int8_columns=dim),
    )(words, index, gain, run)
    rows = np.float64(quantized_rows.decode(words, dim))
    expected = np.zeros((50, dim))
    np.add.at(expected, run, gain[:, None] * rows[index])
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)

  def test_other_rows_are_refused(self):
    with self.assertRaisesRegex(
        ValueError, r"rows of 6 columns are uint8\[rows, 16\], got int8\[4, 6\]"
    ):
      quantized_rows.of_served_rows(jnp.zeros((4, 6), jnp.int8), 6)
    with self.assertRaisesRegex(
        subcores.NotTaken, "24 numbers of 8 bits .* multiple of 32 columns"
    ):
      _on(
          "v6e",
          functools.partial(sum_runs.sum_runs, num_runs=8, int8_columns=24),
      ).lower(
          jnp.zeros((9, 8), jnp.int32),
          *(np.zeros(8, t) for t in (np.int32, np.float32, np.int32)),
      )


class StepRowsTest(parameterized.TestCase):

  @parameterized.parameters(
      # Three windows of columns.
      ("v5p", "adagrad", 96, jnp.float32),
      # A step that needs the whole row, and has a slot of one number.
      ("v6e", "rowwise_adagrad", 16, jnp.float16),
      ("7x", "adam", 32, jnp.bfloat16),
  )
  def test_named_rows_are_stepped(self, chip, name, dim, dtype):
    rng = np.random.default_rng(0)
    rule = update_rules.UPDATE_RULES[name]
    step = rule.step
    if rule.static_params:
      step = functools.partial(step, embedding_dim=dim)
    numbers = tuple(map(jnp.float32, (0.1, 0.9, 0.99, 1e-6)))
    numbers = numbers[: len(rule.hyperparameters)]
    table = _table(dim, dtype)
    slots = tuple(
        rng.uniform(0.1, 1, rule.slot_shape(slot, table.shape)).astype("f4")
        for slot in rule.slots
    )
    rows = np.full(200, -1, np.int32)
    rows[:150] = named = rng.permutation(_ROWS)[:150]
    gradients = rng.normal(size=(200, dim)).astype(np.float32)
    is_rounded = dtype != jnp.float32

    def run(table, slots, rows, gradients, numbers, seed):
      rounding = step_rows.Rounding(seed, rows * 3) if is_rounded else None
      return step_rows.step_rows(
          step, table, slots, rows, gradients, numbers, rounding=rounding
      )

    seed = jnp.uint32(5)
    actual = _on(chip, run)(table, slots, rows, gradients, numbers, seed)
    new_row, new_slots = step(
        gradients[:150],
        table[named].astype(jnp.float32),
        tuple(x[named] for x in slots),
        numbers,
    )
    bits = None
    if is_rounded:
      bits = low_precision.random_bits(seed, jnp.asarray(named * 3), dim)
    new_row = low_precision.round_to(new_row, dtype, bits)
    untouched = np.ones(_ROWS, bool)
    untouched[named] = False
    for old, new, expected in zip(
        (table, *slots), actual, (new_row, *new_slots), strict=True
    ):
      self.assertEqual(new.dtype, old.dtype)
      np.testing.assert_array_equal(new[untouched], old[untouched])
      new, expected = (np.asarray(x, "f4") for x in (new[named], expected))
      if old.dtype == jnp.float32:
        np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-6)
      else:  # A number near the limit may go to the other side.
        self.assertGreater(np.mean(new == expected), 0.99)
        np.testing.assert_allclose(new, expected, rtol=1e-2, atol=1e-6)


class NotTakenTest(absltest.TestCase):

  def test_half_registers_of_16_bits_are_refused(self):
    with self.assertRaisesRegex(
        subcores.NotTaken, "Rows of 24 numbers of 16 bits .* multiple of 16 col"
    ):
      _on("v6e", functools.partial(sum_runs.sum_runs, num_runs=8)).lower(
          _table(24, jnp.bfloat16),
          *(np.zeros(8, t) for t in (np.int32, np.float32, np.int32)),
      )

  def test_rows_that_do_not_fit_are_refused(self):
    with self.assertRaisesRegex(subcores.NotTaken, "takes .* words of a subc"):
      _on("v6e", gather_rows.gather_rows).lower(
          jnp.zeros((8, 2**13)), np.zeros(8, np.int32)
      )


if __name__ == "__main__":
  absltest.main()
