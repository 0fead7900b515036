# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report

# In the style of an optimized program; sizes are made up.
_HLO = """HloModule jit_step, is_scheduled=true

%fused_computation (p: f32[1024,32]) -> f32[1024,32] {
  ROOT %copy.1 = f32[1024,32]{1,0:T(8)} copy(%p)
}

%body (p: (f32[512,32], s32[])) -> (f32[512,32], s32[]) {
  %p = (f32[512,32]{1,0:T(8)}, s32[]) parameter(0)
  %table = f32[512,32]{1,0:T(8)} get-tuple-element(%p), index=0
  %copy.2 = f32[512,32]{0,1:T(8,128)} copy(%table)
  ROOT %tuple = (f32[512,32]{1,0:T(8)}, s32[]) tuple(%copy.2, %i)
}

%condition (p: (f32[512,32], s32[])) -> pred[] {
  ROOT %copy.3 = f32[4096,32]{1,0:T(8)} copy(%p)
}

ENTRY %main (table: f32[1024,32]) -> f32[1024,32] {
  %table = f32[1024,32]{1,0:T(8)} parameter(0)
  %call-start = ((f32[1024,32]{1,0:T(8)}, token[]), f32[1024,32]{1,0:T(8)}) call-start(%table), to_apply=%sparse
  %custom-call-start = ((f32[1024,32]{1,0:T(8)}), f32[1024,32]{1,0:T(8)}, (s32[2]{0})) custom-call-start(%table), custom_call_target="SparseDenseMatmulGradOpWithOptimizerUpdate"
  %custom-call-update = ((f32[1024,32]{1,0:T(8)}), f32[1024,32]{1,0:T(8)}, (s32[2]{0})) custom-call-update(%custom-call-start)
  %custom-call-done = f32[1024,32]{1,0:T(8)} custom-call-done(%custom-call-update)
  %bitcast = f32[32768]{0:T(1024)} bitcast(%table)
  %while.1 = (f32[512,32]{1,0:T(8)}, s32[]) while(%t), condition=%condition, body=%body
  %fusion.1 = bf16[1024,32]{1,0:T(8,128)(2,1)S(1)} fusion(%table), kind=kLoop, calls=%fused_computation
  %copy-start.1 = (f32[1024,32]{1,0:T(8)S(1)}, f32[1024,32]{1,0:T(8)}, u32[]{:S(2)}) copy-start(%table)
  %small = f32[8,32]{1,0:T(8)} copy(%rows)
  %flags = pred[131072]{0} broadcast(%flag), dimensions={}
  ROOT %transpose.1 = f32[32,1024]{1,0:T(8,128)} transpose(%table), dimensions={1,0}
}
"""


class LargeMovesTest(absltest.TestCase):

  def moves(self, min_bytes):
    return [
        (move.operation, move.size_bytes)
        for move in memory_report.large_moves(_HLO, min_bytes)
    ]

  def test_moves_of_the_entry_and_of_loops_are_found(self):
    self.assertCountEqual(
        self.moves(2**14),
        [
            ("fusion", 2**16),
            ("copy-start", 2**17),
            ("broadcast", 2**17),
            ("transpose", 2**17),
            ("copy", 2**16),  # of the loop
        ],
    )

  def test_smaller_moves_are_left_out(self):
    self.assertCountEqual(
        self.moves(2**17),
        [("copy-start", 2**17), ("broadcast", 2**17), ("transpose", 2**17)],
    )
    self.assertIn(("copy", 1024), self.moves(1024))


class MemoryReportTest(absltest.TestCase):

  def report(self, moves):
    return memory_report.MemoryReport(
        argument_bytes=5 * 2**20,
        output_bytes=4 * 2**20,
        aliased_bytes=3 * 2**20,
        temporary_bytes=2 * 2**20,
        code_bytes=2**19,
        moves=moves,
    )

  def test_donated_memory_counts_once(self):
    self.assertEqual(self.report(()).total_bytes, 17 * 2**19)

  def test_text_has_sizes_and_moves(self):
    move = memory_report.Move(
        size_bytes=2**21, operation="copy", result="f32[8,65536]{0,1:T(8,128)}"
    )
    self.assertEqual(
        str(self.report((move,))).splitlines(),
        [
            "arguments           5.0 MiB",
            "outputs             4.0 MiB",
            "aliased            -3.0 MiB",
            "temporary           2.0 MiB",
            "code                0.5 MiB",
            "total               8.5 MiB",
            "moves 2.0 MiB by copy: f32[8,65536]{0,1:T(8,128)}",
        ],
    )
    self.assertEndsWith(str(self.report(())), "no large moves")
    self.assertContainsInOrder(["moves: not known"], str(self.report(None)))


if __name__ == "__main__":
  absltest.main()
