# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Compiles programs: equal ones once, different ones at the same time."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence
import concurrent.futures
import hashlib

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import recent_values

# A program with one of these refers to something that its text does not show:
# a Python function, by its number in this program, or a constant outside of it.
_REFERENCES = ("callback", "stablehlo.send", "jax.const")


# Those of large models, a few for each kind of table and optimizer.
_COMPILED = recent_values.RecentValues(max_size=64)
# A longer text has constants, such as a table, which are not to be kept.
_MAX_KEPT_TEXT = 2**20


def compile_all(
    programs: Sequence[jax.stages.Lowered], devices: Hashable | None = None
) -> list[jax.stages.Compiled]:
  """Each program compiled.

  Equal are programs of the same text and types of arguments, whatever functions
  they were traced from: two functions may do the same, and one may do something
  else in each call.

  Args:
    programs: all for the same devices, and with keep_unused: which arguments
      were left out is not in the text.
    devices: what the programs are for beside their text. Later calls with the
      same use what was compiled before; None: they do not.
  """
  # Often the same object many times; writing a program takes milliseconds. The
  # text says u32[4] for a key, whatever its implementation.
  texts = {
      id(program): f"{program.in_avals}\n{program.as_text()}"
      for program in set(programs)
  }
  keys = []
  for i, program in enumerate(programs):
    text = texts[id(program)]
    refers = any(reference in text for reference in _REFERENCES)
    keys.append(i if refers else text)
  different = dict(zip(keys, programs))

  def compile_one(key, program):
    if devices is None or isinstance(key, int) or len(key) > _MAX_KEPT_TEXT:
      return program.compile()
    digest = hashlib.blake2b(key.encode()).digest()
    return _COMPILED.get((digest, devices), program.compile)

  # XLA compiles without the interpreter lock: threads are as fast as processes.
  with concurrent.futures.ThreadPoolExecutor(
      hardware.num_schedulable_cpus()
  ) as pool:
    compiled = dict(
        zip(different, pool.map(compile_one, different, different.values()))
    )
  return [compiled[key] for key in keys]
