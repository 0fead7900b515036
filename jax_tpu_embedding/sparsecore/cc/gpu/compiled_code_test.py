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
# Names as the linker has them: Pool<T, 16 bytes of it, one sample at a time, not
# quantized>, and Step<Rule, T, 4 columns at a time, ...>.
_POOL = {
    "float32": "PoolIfLi4ELi1ELb0E",
    "bfloat16": "PoolINS_8Bfloat16ELi8ELi1ELb0E",
    "float16": "PoolINS_7Float16ELi8ELi1ELb0E",
}
_STEP = re.compile("Step.*(f|Float16|Bfloat16)E?Li4ELi[14]E")


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
        code.replace(".wb.v4.s32", ".v4").replace(".v4.f32", ".v4"),
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
        {"ld.global.nc.v4", "add.rn.f32", "st.global.v4"},
    )

  @parameterized.parameters(
      ("group_by_sample", "ReadSamplesILb1E", 8),  # ids and samples
      ("group_by_row", "ReadRowsAndSamplesILb1E", 12),  # and ids before them
      ("group_by_sample", "10PlaceCellsE", 12),
      ("group_by_sample", "13GroupFewCellsE", 8),
      ("group_by_row", "13GroupFewCellsE", 8),
  )
  def test_plans_have_four_cells_under_way(self, file, kernel, num_loads):
    (code,) = [code for name, code in _kernels(file).items() if kernel in name]
    # Without a branch in between, which what is read would have to wait for.
    most = max(
        len(re.findall(r"\bld\.global\S*32\b", part))
        for part in re.split(r"\bbra\b", code)
    )
    self.assertGreaterEqual(most, num_loads)

  def test_features_of_a_launch_are_not_copied_from_its_parameters(self):
    codes = [
        code
        for name, code in _kernels("occurrences").items()
        if "ForFeatures" in name
    ]
    self.assertLen(codes, 3)
    for code in codes:
      self.assert_no("__local_depot", code)

  def test_update_reads_and_writes_whole_vectors(self):
    steps = {
        name: code
        for name, code in _kernels("step_rows").items()
        if _STEP.search(name)
    }
    self.assertGreater(len(steps), 50)
    for name, code in steps.items():
      with self.subTest(name):
        is_float = _STEP.search(name)[1] == "f"
        moves = set(re.findall(r"\b((?:ld|st)\.global[\w.]*)", code))
        self.assertContainsSubset(
            {
                "ld.global.nc.v4.s32",  # gradients
                f"ld.global.v4.{'f32' if is_float else 'u16'}",
                f"st.global.wb.v{4 if is_float else 2}.s32",
            },
            moves,
        )
        # Row-wise Adagrad writes one number of a row besides.
        alone = {"st.global.u16", "st.global.f32"}
        if "RowwiseAdagrad" in name:
          alone.remove("st.global.f32")
        self.assertEmpty(alone & moves)

  def test_no_kernel_keeps_registers_in_memory(self):
    found = [
        spill
        for path in sorted(_FOLDER.glob("*.usage.txt"))
        if path.name != "sort.usage.txt"
        for spill in _SPILLS.findall(path.read_text())
    ]
    self.assertGreater(len(found), 100)
    for kernel, gpu, stores, loads in found:
      with self.subTest(f"{kernel}, {gpu}"):
        self.assertEqual((int(stores), int(loads)), (0, 0))


if __name__ == "__main__":
  absltest.main()
