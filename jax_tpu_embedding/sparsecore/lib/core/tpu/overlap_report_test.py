# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.tpu import overlap_report

_HEAD = """HloModule step, is_scheduled=true

%product (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  ROOT %y = f32[8,8]{1,0} convolution(%a, %a), dim_labels=bf_io->bf
}

%sum (a: f32[8,8]) -> f32[8,8] {
  %b = f32[8,8]{1,0} parameter(0)
  ROOT %z = f32[8,8]{1,0} add(%b, %b)
}

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
"""


def _start(name, spelling="call"):
  return (
      f"  %{name} = ((f32[8,8]), f32[8,8], u32[]) {spelling}-start(%x),"
      ' async_execution_thread="sparsecore", to_apply=%called\n'
  )


def _done(name, spelling="call"):
  return f"  %{name}.done = f32[8,8] {spelling}-done(%{name})\n"


def _fusion(name, computation, cycles):
  return (
      f"  %{name} = f32[8,8] fusion(%x), kind=kOutput, calls=%{computation},"
      f' backend_config={{"estimated_cycles":"{cycles}"}}\n'
  )


class OverlapReportTest(parameterized.TestCase):

  @parameterized.parameters("call", "async", "custom-call")
  def test_products_between_start_and_end_are_beside_a_call(self, spelling):
    report = overlap_report.overlap_in(
        _HEAD
        + _fusion("before", "product", 1)
        + _start("one", spelling)
        + _fusion("first", "product", 10)
        + _start("two", spelling)
        + _fusion("second", "product", 100)
        + _done("one", spelling)
        + _fusion("third", "product", 1000)
        + _done("two", spelling)
        + _fusion("after", "product", 10000)
        + "}\n"
    )
    self.assertEqual(
        [(call.name, call.matmul_cycles) for call in report.calls],
        [("one", 110), ("two", 1100)],
    )
    self.assertEqual(report.overlapped_matmul_cycles, 1110)
    self.assertEqual(report.matmul_cycles, 11111)
    self.assertEmpty(report.exposed_calls)

  def test_call_without_a_product_beside_it_is_exposed(self):
    report = overlap_report.overlap_in(
        _HEAD
        + _start("lookup")
        + _fusion("little", "sum", 5)
        + _done("lookup")
        + _fusion("dense", "product", 10)
        + "}\n"
    )
    self.assertEqual([c.name for c in report.exposed_calls], ["lookup"])
    self.assertEqual(report.overlapped_matmul_cycles, 0)
    self.assertRegex(str(report), "10 estimated cycles, 0 .*\nlookup: exposed")

  def test_call_runs_from_the_update_that_has_its_operands(self):
    update = "  %u = f32[8,8] call-update(%lookup)\n"
    report = overlap_report.overlap_in(
        _HEAD
        + _start("lookup")
        + _fusion("early", "product", 10)
        + update
        + _fusion("beside", "product", 100)
        + "  %d = f32[8,8] call-done(%u)\n}\n"
    )
    self.assertEqual(report.calls[0].matmul_cycles, 100)

  def test_other_threads_are_no_calls_of_sparse_cores(self):
    report = overlap_report.overlap_in(
        _HEAD + _start("copy").replace("sparsecore", "other") + "}\n"
    )
    self.assertEmpty(report.calls)

  def test_programs_that_say_nothing(self):
    with self.assertRaisesRegex(ValueError, "not scheduled"):
      overlap_report.overlap_in("HloModule step\n" + _HEAD)
    with self.assertRaisesRegex(ValueError, r"\['lookup'\] start and do not"):
      overlap_report.overlap_in(_HEAD + _start("lookup") + "}\n")


if __name__ == "__main__":
  absltest.main()
