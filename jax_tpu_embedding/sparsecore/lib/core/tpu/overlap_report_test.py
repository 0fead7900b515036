# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.tpu import _overlap
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


def _of_h100s(mode):
  """As lib/pipelining/testing/compile_for_gpu.py wrote it."""
  path = pathlib.Path(__file__).parent / "testdata" / f"h100_{mode}.hlo.txt"
  return overlap_report.overlap_in(path.read_text(), "gpu")


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
        [(call.name, call.matmul_cost) for call in report.calls],
        [("one", 110), ("two", 1100)],
    )
    self.assertEqual(report.overlapped_matmul_cost, 1110)
    self.assertEqual(report.matmul_cost, 11111)
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
    self.assertEqual(report.overlapped_matmul_cost, 0)
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
    self.assertEqual(report.calls[0].matmul_cost, 100)

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
        [(x.name, x.start, x.cost, x.is_matmul) for x in report.instructions],
        [("a", 0, 5, False), ("b", 5, 10, True), ("c", 15, 20, True)],
    )
    (call,) = report.calls
    self.assertEqual((call.start, call.end), (5, 15))
    self.assertEqual(call.operation, "csr")

  @parameterized.parameters(("off", 4, 40), ("exact", 5, 33), ("stale", 3, 100))
  def test_collectives_of_gpus(self, mode, num_exposed, percent):
    report = _of_h100s(mode)
    # Ids and rows of a lookup, and of an update, of both tables together.
    exchanges = [call for call in report.calls if call.of_tables]
    self.assertCountEqual(
        [call.operation for call in exchanges],
        [
            f"{operation}/all_stacks/all_to_all"
            for operation in ("lookup", "update")
            for _ in range(2)
        ],
    )
    self.assertLen(report.calls, len(exchanges) + 3)  # all-reduces
    self.assertLen(report.exposed_calls, num_exposed)
    # Forward and backward by 512 x 256 x 1024 and 512 x 1024 x 1024.
    small, large = 2 * 512 * 256 * 1024, 2 * 512 * 1024 * 1024
    self.assertEqual(report.matmul_cost, 3 * small + 3 * large)
    self.assertEqual(
        round(100 * report.overlapped_matmul_cost / report.matmul_cost),
        percent,
    )

  def test_on_gpus_the_next_lookup_has_the_time_of_weight_gradients(self):
    def longest(mode):
      times = {"lookup": 0, "update": 0}
      for call in _of_h100s(mode).calls:
        if call.of_tables:
          kind = call.operation.split("/")[0]
          times[kind] = max(times[kind], call.matmul_cost)
      return times

    both = 2 * 512 * (256 + 1024) * 1024
    self.assertEqual(longest("off"), {"lookup": 0, "update": both})
    self.assertEqual(longest("exact"), {"lookup": both, "update": 0})

  def test_products_in_calls_and_by_cublas_are_counted(self):
    hlo = (
        "HloModule step, is_scheduled=true\n\n"
        "%graph (a: f32[2,3], b: f32[3,5]) -> f32[2,5] {\n"
        "  %a = f32[2,3]{1,0} parameter(0)\n"
        "  %b = f32[3,5]{1,0} parameter(1)\n"
        "  ROOT %c = (f32[2,5]{1,0}, s8[64]{0}) custom-call(%a, %b),"
        ' custom_call_target="__cublas$lt$matmul", backend_config={'
        '"gemm_backend_config":{"dot_dimension_numbers":{'
        '"lhs_contracting_dimensions":["1"]}}}\n'
        "}\n\n"
        "%moved (m: f32[8]) -> f32[4] {\n"
        "  %m = f32[8]{0} parameter(0)\n"
        "  ROOT %r = f32[4]{0} reduce-scatter(%m), dimensions={0}\n"
        "}\n\n"
        "ENTRY %main () -> f32[] {\n"
        "  %s = ((f32[8]), f32[4]) async-start(%x), calls=%moved\n"
        "  %k = f32[2,5] call(%x, %y), to_apply=%graph\n"
        "  %copy = (f32[8], f32[8]) copy-start(%x)\n"
        "  %d = f32[4]{0} async-done(%s)\n"
        "  %e = f32[8]{0} all-gather(%d), dimensions={0}\n"
        "}\n"
    )
    report = overlap_report.overlap_in(hlo, "gpu")
    self.assertEqual(report.matmul_cost, 2 * 2 * 3 * 5)
    self.assertEqual(
        [(call.name, call.matmul_cost) for call in report.calls],
        [("s", 60), ("e", 0)],
    )
    self.assertRegex(str(report), "60 FLOPs, 0 .* of rows\ns: beside 60 FLOPs")

  def test_picture_of_gpus(self):
    figure = _overlap.figure(_of_h100s("exact"))
    (axes,) = figure.axes
    self.assertEqual(axes.get_xlabel(), "FLOPs of matrix products")
    self.assertEqual(
        [text.get_text() for text in axes.get_yticklabels()],
        [
            "matrix products",
            "reduce_or",
            "reduce_sum",
            "update/all_stacks/all_to_all",
            "lookup/all_stacks/all_to_all",
            "all-reduce-start.2",
        ],
    )
    self.assertEqual(
        figure.texts[0].get_text(),
        "7 collectives, 5 exposed; 33% of the matrix products run beside"
        " exchanges of rows",
    )

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
    figure = _overlap.figure(report)
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

  def test_platform_is_that_of_the_compiled_program(self):
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    with self.assertRaisesRegex(ValueError, "platform 'cpu', and reports are"):
      overlap_report.overlap_report(compiled)

  def test_programs_that_say_nothing(self):
    with self.assertRaisesRegex(ValueError, "not scheduled"):
      overlap_report.overlap_in("HloModule step\n" + _HEAD)
    with self.assertRaisesRegex(ValueError, r"\['lookup'\] start and do not"):
      overlap_report.overlap_in(_HEAD + _start("lookup") + "}\n")
    with self.assertRaisesRegex(ValueError, "no computation .* with ENTRY"):
      overlap_report.overlap_in(_HEAD.partition("ENTRY")[0])
    with self.assertRaisesRegex(ValueError, "takes no arrays"):
      overlap_report.overlap_report(jax.jit(lambda: None).lower().compile())
    with self.assertRaisesRegex(TypeError, "Pass what .* got Lowered"):
      overlap_report.overlap_report(jax.jit(lambda: None).lower())

  @parameterized.parameters(
      "call(%x)",
      "fusion(%x), calls=%missing",
      "dot(%x, %x)",
      "dot(%missing, %x), lhs_contracting_dims={1}",
      "dot(%x, %x), lhs_contracting_dims={2}",
      "async-start(%x)",
  )
  def test_text_that_xla_does_not_write(self, instruction):
    with self.assertRaisesRegex(ValueError, "not what XLA writes .*'gpu'"):
      overlap_report.overlap_in(
          f"{_HEAD}  %y = f32[8,8] {instruction}\n}}\n", "gpu"
      )


if __name__ == "__main__":
  absltest.main()
