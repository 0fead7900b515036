# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Finds functions that need a newer processor than the wheel promises.

    python3 tools/instruction_sets.py LIBRARY.so ...

The wheel is for every x86-64-v2. A function may use newer instructions if it is
called only on a processor that has them: the clones of JTE_VECTOR_CLONES, the
loops of WithVectorLanes, and those of CHOSEN_BY_HAND. Prints all others, and fails if there are any.

Source: which bytes begin an instruction of AVX, BMI or AVX-512 in 64-bit code,
and none before: Intel's Software Developer's Manual, volume 2, 2.3 and 2.7.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
import re
import subprocess
import sys

# Called after a look at __builtin_cpu_supports. Name -> registers it uses.
CHOSEN_BY_HAND = {
    "CompactInVectors": "zmm",
    "CopyInVectors": "zmm",
    "FindBucketsWithAvx2": "ymm",
    "FindBucketsWithAvx512": "zmm",
    "SortInRegisters": "zmm",
    "SumInVectors": "zmm",
}

# Clones that GCC adds a look at the processor to. Suffix -> registers.
CLONES = {"avx2": "ymm", "avx512f": "zmm"}

# What WithVectorLanes calls after a look at the processor. Name -> registers.
LOOPS = {"WithAvx2": "ymm", "WithAvx512": "zmm"}

_CHOSEN = re.compile(
    rf"\[clone \.({'|'.join(CLONES)})\b"
    rf"|^(\w+ )?jte::({'|'.join(LOOPS)})<"
    rf"|^jte::\w+::(\(anonymous namespace\)::)?({'|'.join(CHOSEN_BY_HAND)})\("
)
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
# VEX and EVEX, after prefixes; and the two of x86-64-v3 that are coded
# otherwise. (tzcnt is left out: GCC writes it for every processor, as one that
# does not know it runs bsf, and that does the same where GCC writes it.)
_NEWER_INSTRUCTION = re.compile(
    r"^ *[0-9a-f]+:\t"
    r"(?:(?:(?:26|2e|36|3e|64|65|67) )*(?:62|c4|c5) [^\t]*\t"
    r"|[^\t]*\t(?=lzcnt|movbe))(.+)"
)


def newer_instructions(library: str) -> dict[str, list[str]]:
  """Returns what x86-64-v2 does not have, by function that has such.

  Needs objdump. Names are demangled; those of clones end in `[clone .avx2]`.
  """
  instructions = collections.defaultdict(list)
  function = ""
  command = ["objdump", "--disassemble", "--demangle", "--wide", library]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as objdump:
    for line in objdump.stdout:
      if match := _FUNCTION.match(line):
        function = match[1]
      elif match := _NEWER_INSTRUCTION.match(line):
        instructions[function].append(match[1])
  if objdump.returncode:
    raise RuntimeError(f"objdump cannot read {library}; it says why above.")
  return dict(instructions)


def not_chosen_at_run_time(functions: Iterable[str]) -> list[str]:
  """Those that run on any processor."""
  return [name for name in functions if not _CHOSEN.search(name)]


def main(libraries: list[str]) -> int:
  if not libraries or any(library.startswith("-") for library in libraries):
    sys.exit(__doc__)
  found = False
  for library in libraries:
    newer = newer_instructions(library)
    for function in not_chosen_at_run_time(newer):
      found = True
      print(
          f"{library}: {function} has {newer[function][0]!r}, which is not in"
          " x86-64-v2. Compile for that, or choose the function at run time"
          " (cc/base/vector_clones.h).",
          file=sys.stderr,
      )
  return int(found)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
