# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What nvcc makes of the kernels, read from its PTX and its report of registers.

Machine code of every GPU is made from this PTX. Of CUB's kernels, in sort.ptx,
nothing is claimed.
"""

import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized

_FOLDER = pathlib.Path(__file__).parent
_KERNEL = re.compile(r"\.entry (\w+)\(.*?^}", re.M | re.S)
_SPILLS = re.compile(
    r"Compiling entry function '(\w+)' for '(sm_\w+)'.*?"
    r"(\d+) bytes spill stores, (\d+) bytes spill loads",
    re.S,
)
# Names as the linker has them: Pool<T, 16 bytes of it, not quantized>, and
# Step<Rule, T, 4 columns at a time, once: up to 128 columns>.
_POOL = {
    "float32": "PoolIfLi4ELb0E",
    "bfloat16": "PoolINS_8Bfloat16ELi8ELb0E",
    "float16": "PoolINS_7Float16ELi8ELb0E",
}
_STEP_ONCE = "Li4ELi1E"
# Rules with a power that is known only when the kernel runs.
_HAS_POWER = "PowerOf"


def _kernels(*files: str) -> dict[str, str]:
  """The PTX of each kernel of ours, in these files or in all."""
  return {
      match[1]: match[0]
      for path in sorted(_FOLDER.glob("*.ptx"))
      if path.stem in (files or {path.stem} - {"sort"})
      for match in _KERNEL.finditer(path.read_text())
  }


@absltest.skipIf(not list(_FOLDER.glob("*.ptx")), "Built without CUDA.")
class CompiledCodeTest(parameterized.TestCase):

  def assert_no(self, pattern, code):
    self.assertEmpty(sorted(set(re.findall(pattern, code))))

  def test_floats_are_rounded_after_each_operation_and_not_added_atomically(
      self,
  ):
    kernels = _kernels()
    self.assertGreater(len(kernels), 50)
    for name, code in kernels.items():
      with self.subTest(name):
        # Without ".rn" the assembler may fuse them. In float64, fma is part of
        # CUDA's pow.
        self.assert_no(r"\b(?:fma\S*|add|sub|mul)\.(?:f32|f16|bf16)\b", code)
        self.assert_no(r"\b(?:atom|red)\.(?:global|shared)\S*\.f\d+", code)
        self.assert_no(r"\b(?:atom|red)\.\S*cas\S*", code)

  @parameterized.parameters(*_POOL)
  def test_lookup_has_four_rows_of_16_bytes_under_way(self, dtype):
    (code,) = [
        code
        for name, code in _kernels("pool_samples").items()
        if _POOL[dtype] in name
    ]
    instructions = re.findall(
        r"\b(ld\.global\.nc\.v4|ld\.global\S*u16|add\.rn\.f32"
        r"|st\.global[\w.]*)",
        code,
    )
    four_rows = ["ld.global.nc.v4"] * 4
    self.assertTrue(
        any(
            instructions[i : i + 5] == [*four_rows, "add.rn.f32"]
            for i in range(len(instructions))
        ),
        instructions,
    )
    self.assertEqual(
        set(instructions),
        {"ld.global.nc.v4", "add.rn.f32", "st.global.v4.f32"},
    )

  def test_update_reads_and_writes_whole_vectors(self):
    steps = {
        name: code
        for name, code in _kernels("step_rows").items()
        if "StepI" in name and _STEP_ONCE in name
    }
    self.assertGreater(len(steps), 25)
    for name, code in steps.items():
      with self.subTest(name):
        number = "f32" if f"f{_STEP_ONCE}" in name else "u16"
        moves = set(re.findall(r"\b((?:ld|st)\.global[\w.]*)", code))
        self.assertContainsSubset(
            {
                "ld.global.nc.v4.s32",  # gradients
                f"ld.global.v4.{number}",
                f"st.global.v4.{number}",
            },
            moves,
        )
        # Row-wise Adagrad writes one number of a row besides.
        alone = {"st.global.u16", "st.global.f32"}
        if "RowwiseAdagrad" in name:
          alone.remove("st.global.f32")
        self.assertEmpty(alone & moves)

  def test_registers_suffice_up_to_128_columns(self):
    found = [
        spill
        for file in ("pool_samples", "step_rows")
        for spill in _SPILLS.findall(
            (_FOLDER / f"{file}.usage.txt").read_text()
        )
    ]
    self.assertNotEmpty(found)
    for kernel, gpu, stores, loads in found:
      if "StepI" in kernel and _STEP_ONCE not in kernel:
        continue
      with self.subTest(f"{kernel}, {gpu}"):
        num_bytes = int(stores) + int(loads)
        self.assertLessEqual(num_bytes, 128 if _HAS_POWER in kernel else 0)


if __name__ == "__main__":
  absltest.main()
