# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Models checked for TPUs that are not there."""

import contextlib
import dataclasses
import importlib.util
import io
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.core.testing import unread_output
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.planning import check

_GIB = 2**30

# A table whose limits do not fit.
_PROGRAM = """
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

def _feature(name, rows, **limits):
  table = embedding_spec.TableSpec(
      name=name, vocabulary_size=rows, embedding_dim=128,
      optimizer=embedding_spec.AdagradOptimizerSpec(0.1), **limits)
  return embedding_spec.FeatureSpec(
      name=name, table_spec=table, input_shape=(64, 4), output_shape=(64, 128))

def feature_specs():
  large = dict(max_ids_per_partition=8192, max_unique_ids_per_partition=8192)
  return [_feature("large", 40_000, **large)]
"""


def _stack(name, **changes):
  stack = check.StackCheck(
      name=name,
      description="8 x 8 float32",
      table_bytes=3 * _GIB,
      part_bytes=_GIB,
      part_size=_GIB // 4,
      choices=(choice.Choice("lookup", "calls", ""),),
      memory=memory_report.MemoryReport(
          argument_bytes=4 * _GIB,
          output_bytes=3 * _GIB,
          aliased_bytes=3 * _GIB,
          temporary_bytes=_GIB,
          code_bytes=0,
          moves=(),
      ),
  )
  return dataclasses.replace(stack, **changes)


def _check(*stacks):
  return check.Check(
      topology="v6e:2x2", num_devices=4, memory_bytes=11 * _GIB, stacks=stacks
  )


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters(
      (["specs.py"], "arguments are required: --topology"),
      (["specs.py", "--topology", "v6e:2x2", "--x"], "arguments: --x"),
      (["specs.py", "--topology", "v6e:2x2", "--batch=x"], "invalid int value"),
  )
  def test_wrong_ones_do_not_end_like_what_does_not_fit(self, argv, message):
    err = io.StringIO()
    with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(err):
      check.main(argv)
    self.assertEqual(end.exception.code, 1)
    self.assertIn(message, err.getvalue())

  def test_help_that_nobody_reads_ends_quietly(self):
    self.assertEqual(unread_output.run(check.__name__, "--help"), (141, ""))


class ReportTest(absltest.TestCase):

  def test_what_fits(self):
    by_kernels = _stack(
        "b",
        choices=(choice.Choice("lookup", "kernels", "bfloat16"),),
        kernels=(subcores.KernelMemory("sum_runs", 500, 65536),),
    )
    report = _check(_stack("a"), by_kernels)
    # Temporaries of two stacks are not there at once.
    self.assertEqual(report.total_bytes, 9 * _GIB)
    self.assertEmpty(report.problems)
    self.assertRegex(
        str(report),
        r"(?s)lookup +by calls\n.*lookup +by kernels \(bfloat16\)\n.*"
        r"sum_runs +500 of +65536 words.*9.00 GiB of 11.00 GiB.*fits",
    )

  def test_what_does_not_fit(self):
    report = _check(_stack("a"), _stack("b"), _stack("c", problems=("Slow.",)))
    slow, large = report.problems
    self.assertEqual(slow, "c: Slow.")
    # 9 GiB on four devices, of which each has 7 beside a batch.
    self.assertRegex(large, "has 11.00 GiB and needs 13.00 GiB. Use 6 devices")
    self.assertIn("  ! Slow.", str(report))
    self.assertIn(f"! {large}", str(report))

  def test_what_does_not_compile_counts_by_the_plan(self):
    report = _check(_stack("a", memory=None))
    self.assertEqual(report.total_bytes, 3 * _GIB)

  def test_arrays_of_a_batch_are_no_moves_of_the_table(self):
    moves = [
        memory_report.Move(size_bytes=2**20, operation="x", result=result)
        for result in (
            "f32[2048,128]{1,0:T(8)}",
            "f32[128,2048]{0,1:T(8,128)}",
            "(f32[262144]{0:T(1024)S(1)}, u32[]{:S(2)})",
            "f32[4194304]{0:T(1024)}",
            "(f32[16384,128]{1,0:T(8,128)}, s32[16384]{0:T(1024)})",
        )
    ]
    found = check._moves_of_table(moves, 2048 * 128)
    self.assertEqual(found, moves[:3])
    self.assertEmpty(check._moves_of_table(None, 2048 * 128))


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CommandTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.dict(os.environ))

  def _file(self, text):
    return self.create_tempfile("specs.py", text).full_path

  def test_limits_that_fit_are_found(self):
    report = check.check(self._file(_PROGRAM), "v6e:2x2")
    self.assertEqual(report.memory_bytes, 34_400_000_000)
    (large,) = report.stacks
    self.assertEqual(
        [(x.operation, x.way) for x in large.choices],
        [("lookup", "calls"), ("update_adagrad", "calls")],
    )
    self.assertIsNone(large.memory)
    # A table and a slot, on four devices.
    self.assertEqual(large.bytes_at_rest, 40_000 * 128 * 8 // 4)
    (problem,) = large.problems
    self.assertRegex(
        problem,
        "max_unique_ids_per_partition=8192 does not fit .*; 4096 does. Set",
    )

  def test_a_batch_that_is_larger_than_its_table_is_no_problem(self):
    program = _PROGRAM.replace("(64, ", "(131072, ").replace("8192", "512")
    path = self._file(program.replace("40_000", "8192"))
    report = check.check(path, "v6e:2x2")
    (large,) = report.stacks
    # Such as zeros for the result of the lookup.
    self.assertGreater(large.memory.moves[0].size_bytes, large.part_bytes)
    self.assertEmpty(report.problems)

  def test_a_gradient_as_large_as_a_replicated_table_is_no_problem(self):
    program = _PROGRAM.replace("40_000", "4000").replace(
        "name=name, v", "placement='tensorcore', name=name, v"
    )
    report = check.check(self._file(program), "v6e:2x2")
    (large,) = report.stacks
    self.assertNotEmpty(large.memory.moves)
    self.assertEmpty(report.problems)

  def test_a_process_that_ends_is_a_problem_of_its_stack(self):
    ends = "import multiprocessing, os\nif multiprocessing.parent_process(): os._exit(3)\n"
    report = check.check(self._file(ends + _PROGRAM), "v6e:2x2")
    (problem,) = report.problems
    self.assertRegex(problem, "large: The compiler ended its process")

  @parameterized.parameters(
      ("row.reshape(3)", "TypeError: .*reshape"),
      ("row.no_such_thing", "AttributeError: .*no_such_thing"),
      ("next(iter(()))", "StopIteration: $"),  # an error that says nothing
  )
  def test_a_step_that_cannot_be_traced_is_a_problem_of_its_stack(
      self, result, said
  ):
    program = _PROGRAM.replace(
        "AdagradOptimizerSpec(0.1)",
        "CustomOptimizerSpec(0.1, custom_computation_fn=_step)",
    )
    step = f"def _step(grad, row, learning_rate): return {result}\n"
    report = check.check(self._file(step + program), "v6e:2x2")
    (problem,) = report.problems
    self.assertRegex(problem, f"large: It does not compile: {said}")

  def test_errors_are_printed(self):
    self.assertEqual(check.main(["specs.json", "--topology", "v6e:2x2"]), 1)
    path = self._file(_PROGRAM)
    self.assertEqual(check.main([path, "--topology", "v6x:2x2"]), 1)
    self.assertEqual(check.main([path + ":x", "--topology", "v6e:2x2"]), 1)


if __name__ == "__main__":
  absltest.main()
