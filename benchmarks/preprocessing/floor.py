# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The physical floor: reading the input and writing the output of a step."""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
import pathlib

import numpy as np

from benchmarks import turns

# Less than this is not worth the start of a thread.
_MIN_BYTES_PER_THREAD = 1 << 17


class Floor:
  """Moves as much memory as a conversion has to."""

  def __init__(
      self,
      inputs: Sequence[np.ndarray],
      output_sizes: Sequence[int],
      max_threads: int,
  ):
    """`inputs` of 4 or 8 byte elements; outputs of 4 byte elements."""
    library = ctypes.CDLL(
        str(pathlib.Path(__file__).with_name("move_memory.so"))
    )
    self._move = library.MoveMemory
    self._inputs = [np.ascontiguousarray(array) for array in inputs]
    self._input_sizes = _int64s([array.nbytes // 4 for array in self._inputs])
    self._input_pointers = _pointers(self._inputs)
    self._output_sizes = list(output_sizes)
    self._c_output_sizes = _int64s(self._output_sizes)
    num_bytes = 4 * sum(self._output_sizes)
    num_bytes += sum(array.nbytes for array in self._inputs)
    self._num_threads = max(
        1, min(max_threads, num_bytes // _MIN_BYTES_PER_THREAD)
    )
    self._reused = self._new_outputs()

  def _new_outputs(self) -> list[np.ndarray]:
    return [np.empty(size, np.int32) for size in self._output_sizes]

  def run(self, calls: int, reuse: bool) -> dict[str, float]:
    """Times `calls` moves, into new arrays or always the same; seconds."""

    def move():
      outputs = self._reused if reuse else self._new_outputs()
      self._move(
          self._input_pointers,
          self._input_sizes,
          ctypes.c_int64(len(self._inputs)),
          _pointers(outputs),
          self._c_output_sizes,
          ctypes.c_int64(len(outputs)),
          ctypes.c_int64(self._num_threads),
      )

    return turns.time_calls(move, calls)


def _int64s(numbers: Sequence[int]) -> ctypes.Array:
  return (ctypes.c_int64 * len(numbers))(*numbers)


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array:
  return (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
