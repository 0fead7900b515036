# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The acceptance run gets to its end on emulated kernels."""

from unittest import mock

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
import numpy as np

from benchmarks.gpu import accept
from benchmarks.gpu import case_programs
from benchmarks.gpu import cases
from benchmarks.gpu import platforms


class AcceptTest(absltest.TestCase):

  def test_all_steps_but_the_long_one_find_what_is_wanted(self):
    steps = [step for step in accept.STEPS if step != "bits"]
    report = accept.run(platforms.platform("emulated"), steps)
    self.assertEqual(list(report), steps)
    for step, findings in report.items():
      with self.subTest(step):
        self.assertNotEmpty(findings)
        self.assertEmpty([x for x in findings if x.is_met is False])

  def test_other_bits_are_found_and_end_the_run(self):
    where = platforms.platform("emulated")
    results = [[np.zeros(2, np.float32)], [np.float32([0, -0.0])]]
    with mock.patch.object(accept, "_lookup_and_update", side_effect=results):
      with self.assertRaisesRegex(AssertionError, "one source.*differ: 1"):
        accept.run(where, ["smoke"])

  def test_other_sums_of_many_terms_are_found(self):
    right = case_programs.update_program

    def update(where, optimizer, donate=True):
      program = right(where, optimizer, donate)
      if where.lowering.platform == "cpu":
        return program
      # As if one of the gradients had been added in another order.
      return lambda coo, tables, gradient: program(
          coo, tables, gradient.at[0].multiply(1 + 2**-22)
      )

    with mock.patch.object(case_programs, "update_program", update):
      report = accept.run(platforms.platform("emulated"), ["repeats"])
    self.assertEqual([x.is_met for x in report["repeats"]], [False, False])

  def test_other_buffers_of_ids_are_found(self):
    right = case_programs.convert_program

    def convert(lowering, case):
      program = right(lowering, case)
      if lowering.platform == "cpu":
        return program
      return lambda ids: program(ids ^ 1)

    with mock.patch.object(case_programs, "convert_program", convert):
      report = accept.run(platforms.platform("emulated"), ["convert"])
    are_same = {
        x.name: x.is_met for x in report["convert"] if x.is_met is not None
    }
    self.assertEqual(
        are_same,
        {
            "small: convert_ids: bytes that differ": False,
            "small: one program for all: bytes that differ": True,
            "small, one row: convert_ids: bytes that differ": False,
            "small, one row: one program for all: bytes that differ": True,
        },
    )

  def test_a_step_that_fails_is_a_finding(self):
    with mock.patch.dict(accept.STEPS, {"small": lambda _: 1 / 0}):
      report = accept.run(platforms.platform("emulated"), ["small", "about"])
    (finding,) = report["small"]
    self.assertIn("ZeroDivisionError", finding.value)
    self.assertFalse(finding.is_met)
    self.assertNotEmpty(report["about"])

  def test_a_machine_without_a_gpu_is_named(self):
    with self.assertRaisesRegex(
        RuntimeError, "--platform=cuda: JAX sees no GPU.*--platform=emulated"
    ):
      platforms.platform("cuda")

  def test_unknown_steps_raise(self):
    with self.assertRaisesRegex(ValueError, r"no steps \['fast'\].*'speed'"):
      accept.run(platforms.platform("emulated"), ["fast"])


class CasesTest(absltest.TestCase):

  def test_batches_are_as_the_converter_writes_them(self):
    case = cases.Case(name="", num_rows=5, batch_size=3, valency=4, dim=2)
    batch = cases.make_batch(case, seed=0)
    pointers, rows, samples, gains, _ = batch.coo
    n = batch.num_entries
    self.assertEqual(pointers[0], n)
    self.assertEqual(gains.sum(), 12)  # every id is there
    keys = rows[:n] * 3 + samples[:n]
    self.assertTrue(np.all(np.diff(keys) > 0))
    converted = case_programs.convert_program(
        every_lowering.LOWERINGS["cpu"], case
    )(batch.ids)
    np.testing.assert_array_equal(converted[0], pointers)
    for actual, expected in zip(converted[1:4], batch.coo[1:4], strict=True):
      np.testing.assert_array_equal(actual[:n], expected[:n])
    self.assertEqual(batch.conversion_bytes(), 4 * 12 + 12 * 16)
    self.assertEqual(batch.num_distinct, np.unique(rows[:n]).size)
    self.assertEqual(batch.lookup_bytes(case), 8 * (n + 3) + 12 * n)
    self.assertEqual(
        batch.update_bytes(case, num_slots=1, num_row_slots=1),
        batch.num_distinct * (16 + 16 + 8) + 24 + 12 * n,
    )


if __name__ == "__main__":
  absltest.main()
