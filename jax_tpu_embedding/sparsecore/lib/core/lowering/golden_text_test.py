# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The StableHLO text that every operation becomes, for TPU and for CPU.

testdata/<platform> has the texts. After a change that is meant, write them anew
with

  bazel run //jax_tpu_embedding/sparsecore/lib/core/lowering:golden_text_test \
      -- --update=$PWD/jax_tpu_embedding/sparsecore/lib/core/lowering/testdata

and review the difference like code.
"""

from __future__ import annotations

import pathlib

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.lowering import table
from jax_tpu_embedding.sparsecore.lib.core.testing import operation_programs

_UPDATE = flags.DEFINE_string("update", None, "Directory to write texts to.")
_TEXTS = pathlib.Path(__file__).parent / "testdata"
_HOW_TO_UPDATE = (
    "If the change is meant, or the operation new, write the texts anew with"
    " --update, as the first lines of golden_text_test.py say."
)

_PROGRAMS = operation_programs.PROGRAMS
# On TPU these are plain operations, and few.
_PLAIN_AND_SHORT = ("check_seal", "stack_gradients", "unstack_activations")


def _is_on_record(platform: str, operation: str) -> bool:
  """Whether it is a call of the platform.

  What is plain jnp instead has hundreds of lines, others in each version of
  JAX.
  """
  if operation == "custom_update" and platform == "cpu":
    return False  # A call checks its buffers; the rest is plain.
  if operation in _PLAIN_AND_SHORT and platform == "tpu":
    return True
  return platform in table.lowering_rules(operation)


_GOLDEN = [
    (platform, name)
    for platform in ("cpu", "tpu")
    for name, program in _PROGRAMS.items()
    if _is_on_record(platform, program.operation)
]


class GoldenTextTest(parameterized.TestCase):

  @parameterized.parameters(*_GOLDEN)
  def test_text_is_the_one_on_record(self, platform, name):
    text = _PROGRAMS[name].text(platform)
    path = f"{platform}/{name}.mlir"
    if _UPDATE.value:
      (pathlib.Path(_UPDATE.value) / path).write_text(text)
      return
    on_record = _TEXTS / path
    if not on_record.exists():
      self.fail(f"testdata/{path} is missing. {_HOW_TO_UPDATE}")
    self.assertMultiLineEqual(text, on_record.read_text(), _HOW_TO_UPDATE)

  def test_every_text_on_record_is_compared(self):
    if _UPDATE.value:
      self.skipTest("Texts are written, and those that were here are old.")
    on_record = [
        (path.parent.name, path.stem) for path in _TEXTS.glob("*/*.mlir")
    ]
    self.assertSameElements(on_record, _GOLDEN)

  def test_every_operation_has_a_program(self):
    self.assertSameElements(
        [program.operation for program in _PROGRAMS.values()],
        [operation for operation, _ in table.RULES] + list(table.BY_PARTS),
    )


class PlainTextTest(parameterized.TestCase):
  """What holds for any version of JAX."""

  @parameterized.parameters(
      *[
          name
          for name, program in _PROGRAMS.items()
          if ("tpu", name) not in _GOLDEN
          and program.operation not in table.BY_PARTS
      ]
  )
  def test_operation_that_is_not_on_record_calls_nothing_on_tpu(self, name):
    self.assertNotIn("custom_call", _PROGRAMS[name].text("tpu"))


if __name__ == "__main__":
  absltest.main()
