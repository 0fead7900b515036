# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What overlaps in pipelined steps that are compiled for a TPU."""

import functools
import importlib.util

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import overlap_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import compiled_steps

_TABLE_BYTES = (  # on each of four devices
    compiled_steps.ROWS // 4 * compiled_steps.DIM * 4
)


def _compiled(mode, name):
  mesh = topology.topology_mesh(name)
  return kept_programs.compile_for(mesh, compiled_steps.lower_step(mode, mesh))


@functools.cache
def _on_v5p(mode):
  compiled = _compiled(mode, "v5p:2x2x1")
  return (
      overlap_report.overlap_report(compiled),
      memory_report.memory_report(compiled, min_move_bytes=_TABLE_BYTES),
  )


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CompileForTpuTest(parameterized.TestCase):

  @parameterized.parameters("v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
  def test_exact_step_has_one_call_beside_the_weight_gradients(self, name):
    if name == "v5p:2x2x1":
      report, _ = _on_v5p("exact")
    else:
      report = overlap_report.overlap_report(_compiled("exact", name))
    self.assertLen(report.calls, 1, str(report))
    self.assertEmpty(report.exposed_calls, str(report))
    # The products that come after the gradients of activations are those of
    # weights: the call has the time of all of them.
    (call,) = report.calls
    after = [
        x for x in report.instructions if x.is_matmul and x.start >= call.start
    ]
    self.assertEqual(call.matmul_cost, sum(x.cost for x in after))
    self.assertGreater(call.matmul_cost, 0.2 * report.matmul_cost)

  def test_stale_step_has_one_call_beside_all_products(self):
    report, _ = _on_v5p("stale")
    self.assertLen(report.calls, 1, str(report))
    self.assertGreaterEqual(
        report.overlapped_matmul_cost, 0.99 * report.matmul_cost
    )

  def test_lookup_of_the_plain_step_is_exposed(self):
    report, _ = _on_v5p("off")
    self.assertLen(report.calls, 2, str(report))
    self.assertLen(report.exposed_calls, 1, str(report))
    self.assertIn("csr", report.exposed_calls[0].operation)

  def test_memory_is_that_of_the_plain_step_and_of_what_is_in_flight(self):
    memory = {mode: _on_v5p(mode)[1] for mode in ("off", "exact")}
    in_flight = memory["exact"].argument_bytes - memory["off"].argument_bytes
    # On each of four devices: activations of two tables, and buffers of them.
    activations = 2 * compiled_steps.BATCH // 4 * compiled_steps.DIM * 4
    self.assertBetween(in_flight, activations, 3 * activations)
    self.assertLessEqual(
        memory["exact"].total_bytes,
        1.05 * memory["off"].total_bytes + in_flight,
    )

  @parameterized.parameters("exact", "stale")
  def test_tables_and_slots_are_updated_in_place(self, mode):
    _, memory = _on_v5p(mode)
    self.assertGreaterEqual(memory.aliased_bytes, 2 * 2 * _TABLE_BYTES)
    # What weights move is as large.
    rows = f"[{compiled_steps.ROWS // 4},{compiled_steps.DIM}]"
    moves = [x for x in memory.moves or () if rows in x.result]
    self.assertEmpty(moves, str(memory))


if __name__ == "__main__":
  absltest.main()
