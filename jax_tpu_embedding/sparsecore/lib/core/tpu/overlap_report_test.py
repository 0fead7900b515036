# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.tpu import _overlap_picture
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

  def test_times_are_sums_of_estimates(self):
    start = _start("lookup").replace(
        ", to_apply", ', metadata={op_name="jit(f)/grad/csr" id=1}, to_apply'
    )
    report = overlap_report.overlap_in(
        _HEAD
        + _fusion("a", "sum", 5)
        + start
        + _fusion("b", "product", 10)
        + _done("lookup")
        + "  %no_estimate = f32[8,8] copy(%x)\n"
        + _fusion("c", "product", 20)
        + "}\n"
    )
    self.assertEqual(
        [(x.name, x.start, x.cycles, x.is_matmul) for x in report.instructions],
        [("a", 0, 5, False), ("b", 5, 10, True), ("c", 15, 20, True)],
    )
    (call,) = report.calls
    self.assertEqual((call.start, call.end), (5, 15))
    self.assertEqual(call.operation, "csr")

  def test_picture_has_a_lane_for_calls_that_run_at_once(self):
    report = overlap_report.overlap_in(
        _HEAD
        + _start("exposed")
        + _done("exposed")
        + _start("one")
        + _fusion("first", "product", 10)
        + _start("two")
        + _fusion("second", "product", 30)
        + _done("one")
        + _fusion("third", "sum", 100)
        + _done("two")
        + "}\n"
    )
    figure = _overlap_picture.figure(report)
    (axes,) = figure.axes
    self.assertEqual(axes.get_ylim(), (3, 0))
    self.assertEqual(axes.get_xlim(), (0, 140))
    self.assertSameElements(
        [text.get_text() for text in axes.texts], ["exposed", "one", "two"]
    )
    self.assertEqual(
        figure.texts[0].get_text(),
        "3 SparseCore calls, 1 exposed; 100% of the matrix products run beside"
        " them",
    )
    path = pathlib.Path(self.create_tempdir().full_path, "lanes.png")
    report.plot(path)
    self.assertGreater(path.stat().st_size, 1000)

  def test_picture_without_matplotlib(self):
    report = overlap_report.overlap_in(_HEAD + "}\n")
    with absltest.mock.patch.dict("sys.modules", {"matplotlib.figure": None}):
      with self.assertRaisesRegex(ImportError, r"embedding\[plots\].*str\(\)"):
        report.plot("lanes.png")

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
