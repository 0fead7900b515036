# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The wheel's modules run on any x86-64-v2, and use AVX2 and AVX-512."""

import pathlib
import platform
import re
import shutil
import subprocess
import unittest

from absl.testing import absltest
from absl.testing import parameterized

from tools import instruction_sets

_WORKSPACE = pathlib.Path(__file__).parent.parent
_FILES = _WORKSPACE / "jax_tpu_embedding/sparsecore/wheel_files"
# The functions in which lookups, updates and conversions spend their time: of
# JTE_VECTOR_CLONES, and of WithVectorLanes.
_CLONES = (
    "SumShortRows<jte::kernels::PartitionOrder>",
    "SumShortRows<jte::kernels::SortedOrder>",
    "AddAllColumns<jte::kernels::PartitionOrder",
    "AddAllColumns<jte::kernels::SortedOrder",
    "StepBlock<jte::kernels::SgdRule>",
    "StepBlock<jte::kernels::AdagradRule",
    "StepBlock<jte::kernels::AdamRule",
    "UnpackSamples(",
    "HashPositions(",
)
_RULES_WITH_POWERS = (
    "AdagradMomentumRule<jte::kernels::Power>",
    "F2aRule<jte::kernels::Power>",
    "FtrlRule<jte::kernels::Power>",
)
_POOLED = "jte::kernels::PoolSamples<{0}, jte::kernels::ArrayRows<{0}>, jte::"
_LOOPS = (
    _POOLED.format("float") + "kernels::AsStored>",
    _POOLED.format("jte::Bfloat16") + "kernels::AsStored>",
    *(
        f"jte::kernels::StepEntries<jte::kernels::{rule}Rule, {has_options}>"
        for rule in ("Sgd", "Adagrad")
        for has_options in ("false", "true")
    ),
    "jte::serving::PoolRowsOf<jte::serving::PlainRows<float> >",
    "jte::serving::PoolRowsOf<jte::serving::PlainRows<jte::Bfloat16> >",
    "jte::serving::PoolRowsOf<jte::serving::CodedRows<8> >",
)
# Needs more registers than there are.
_SORTING = "jte::kernels::SortRows(unsigned int*, long)"
_CLONES_OF_A_LOOP = """
  [[gnu::target_clones("avx2", "default")]]
  void Double(float* x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2; }
"""
_LEADING_ZEROS = "int Leading(unsigned x) { return __builtin_clz(x); }"


def setUpModule():
  if platform.machine() != "x86_64":
    raise unittest.SkipTest(f"This is no x86-64: {platform.machine()}.")
  if not shutil.which("objdump"):
    raise unittest.SkipTest("There is no objdump (binutils).")


class ModulesTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.modules = {
        path.name: instruction_sets.newer_instructions(str(path))
        for path in _FILES.rglob("*.so")
    }
    cls.functions = {}
    for functions in cls.modules.values():
      cls.functions |= functions

  def assert_uses(self, register: str, functions: list[str]) -> None:
    self.assertNotEmpty(functions)
    for function in functions:
      self.assertRegex(
          "\n".join(self.functions[function]), f"%{register}", function
      )

  def test_need_nothing_beyond_x86_64_v2(self):
    self.assertContainsSubset(
        [
            "ffi_cpu.so",
            "pybind_checked_files.so",
            "pybind_embedding_tables.so",
            "pybind_input_preprocessing.so",
            "pybind_planner.so",
        ],
        self.modules,
    )
    for name, functions in self.modules.items():
      with self.subTest(name):
        self.assertEmpty(instruction_sets.not_chosen_at_run_time(functions))

  @parameterized.product(
      kernel=_CLONES, clone=tuple(instruction_sets.CLONES.items())
  )
  def test_clones_use_the_vectors_of_newer_processors(self, kernel, clone):
    suffix, register = clone
    # What is seldom run may stand apart.
    clones = [
        name
        for name in self.functions
        if kernel in name and name.endswith(f"[clone .{suffix}]")
    ]
    self.assert_uses(register, clones)

  def functions_of_loop(self, wrapper: str, kernel: str) -> list[str]:
    return [
        name
        for name in self.functions
        if f"jte::{wrapper}<" in name and kernel in name
    ]

  @parameterized.product(
      kernel=(*_LOOPS, _SORTING), loop=tuple(instruction_sets.LOOPS.items())
  )
  def test_loops_use_the_vectors_of_newer_processors(self, kernel, loop):
    wrapper, register = loop
    self.assert_uses(register, self.functions_of_loop(wrapper, kernel))

  @parameterized.product(
      rule=_RULES_WITH_POWERS,
      chosen=tuple(
          zip(instruction_sets.CLONES, instruction_sets.LOOPS.items())
      ),
  )
  def test_powers_are_computed_by_vectors(self, rule, chosen):
    suffix, (wrapper, register) = chosen
    of_blocks = [
        name
        for name in self.functions
        if f"StepBlock<jte::kernels::{rule}" in name
        and name.endswith(f"[clone .{suffix}]")
    ]
    of_entries = self.functions_of_loop(
        wrapper, f"StepEntries<jte::kernels::{rule}"
    )
    self.assertLen(of_blocks, 1)
    self.assertLen(of_entries, 1)
    for name in of_blocks + of_entries:
      # The division in a logarithm.
      self.assertRegex(
          "\n".join(self.functions[name]), rf"vdivpd .*%{register}", name
      )

  @parameterized.product(kernel=_LOOPS, wrapper=tuple(instruction_sets.LOOPS))
  def test_sums_stay_in_registers(self, kernel, wrapper):
    functions = self.functions_of_loop(wrapper, kernel)
    self.assertNotEmpty(functions)
    for function in functions:
      vectors = [x for x in self.functions[function] if re.search("%[yz]mm", x)]
      on_stack = [x for x in vectors if re.search(r"\(%r[sb]p", x)]
      # Rows of 16 bits that are stepped are floats there until they are rounded,
      # and options read the numbers that they need.
      does_more = re.search(
          "StepEntries.*(true>|<jte::B?[Ff]loat16>)", function
      )
      # Half of them are if vectors are longer than registers.
      limit = (0.4 if does_more else 0.2) * len(vectors)
      self.assertLess(len(on_stack), limit, function)

  @parameterized.parameters(*instruction_sets.CHOSEN_BY_HAND.items())
  def test_functions_chosen_by_hand_do_too(self, name, register):
    functions = [f for f in self.functions if f"{name}(" in f]
    self.assert_uses(register, functions)


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters((), ("--help",), ("a.so", "--all"))
  def test_others_than_libraries_show_the_help(self, *arguments):
    with self.assertRaisesRegex(SystemExit, "Finds functions that need"):
      instruction_sets.main(list(arguments))


@unittest.skipUnless(shutil.which("g++"), "There is no g++.")
class NewerInstructionsTest(parameterized.TestCase):

  def compile(self, code: str, *options: str) -> str:
    directory = pathlib.Path(self.create_tempdir().full_path)
    (directory / "code.cc").write_text(code)
    library = str(directory / "library.so")
    subprocess.run(
        ["g++", "-O3", "-shared", "-fPIC", "-march=x86-64-v2", *options]
        + [str(directory / "code.cc"), "-o", library],
        check=True,
    )
    return library

  @parameterized.parameters(
      ("float Half(float x) { return x / 2; }", "-mavx", "Half(float)", "v"),
      ("int Shift(int x, int n) { return x << n; }", "-mbmi2", "Shift", "shlx"),
      (_LEADING_ZEROS, "-mlzcnt", "Leading(unsigned int)", "lzcnt"),
      ("void Set(int* x) { x[0] = __builtin_bswap32(x[1]); }", "-mmovbe")
      + ("Set(int*)", "movbe"),
  )
  def test_are_found(self, code, option, function, instruction):
    self.assertEqual(instruction_sets.main([self.compile(code)]), 0)
    library = self.compile(code, option)
    newer = instruction_sets.newer_instructions(library)
    [name] = instruction_sets.not_chosen_at_run_time(newer)
    self.assertStartsWith(name, function)
    self.assertStartsWith(newer[name][0], instruction)
    self.assertEqual(instruction_sets.main([library]), 1)

  def test_may_be_in_clones(self):
    library = self.compile(_CLONES_OF_A_LOOP)
    newer = instruction_sets.newer_instructions(library)
    self.assertEqual(list(newer), ["Double(float*, int) [clone .avx2]"])
    self.assertIn("%ymm", "\n".join(newer["Double(float*, int) [clone .avx2]"]))
    self.assertEqual(instruction_sets.main([library]), 0)

  def test_may_not_be_around_clones(self):
    library = self.compile(_CLONES_OF_A_LOOP, "-mavx")
    newer = instruction_sets.newer_instructions(library)
    [name] = instruction_sets.not_chosen_at_run_time(newer)
    # The clone for all others; some versions of GCC add `[clone .default]`.
    self.assertStartsWith(name, "Double(float*, int)")
    self.assertEqual(instruction_sets.main([library]), 1)


if __name__ == "__main__":
  absltest.main()
