# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Compiles programs: equal ones once, different ones at the same time."""

from __future__ import annotations

from collections.abc import Sequence
import concurrent.futures
import os

import jax

# A program with one of these refers to something that its text does not show:
# a Python function, by its number in this program, or a constant outside of it.
_REFERENCES = ("callback", "stablehlo.send", "jax.const")


def compile_all(
    programs: Sequence[jax.stages.Lowered],
) -> list[jax.stages.Compiled]:
  """Each program compiled.

  Equal are programs of the same text, whatever functions they were traced from:
  two functions may do the same, and one may do something else in each call.

  Args:
    programs: all for the same devices, and with keep_unused: which arguments
      were left out is not in the text.
  """
  texts = [program.as_text() for program in programs]
  keys = [
      i if any(reference in text for reference in _REFERENCES) else text
      for i, text in enumerate(texts)
  ]
  different = dict(zip(keys, programs))
  # XLA compiles without the interpreter lock: threads are as fast as processes.
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    compiled = dict(
        zip(different, pool.map(lambda p: p.compile(), different.values()))
    )
  return [compiled[key] for key in keys]
