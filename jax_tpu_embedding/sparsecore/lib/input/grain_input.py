# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The input pipeline as the last stage of a grain dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax_tpu_embedding.sparsecore import extras
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline

try:
  import grain
except ModuleNotFoundError:
  extras.require("grain", "grain")  # says how to install it
  raise


def preprocess(
    ds: grain.MapDataset | grain.IterDataset,
    layer_or_specs: Any,
    *,
    ids: Callable[[Any], Any],
    **options: Any,
) -> grain.IterDataset:
  """A dataset of batches that are preprocessed and on their devices.

  Its iterators are grain's: get_state, set_state at any time, start_prefetch
  and close, so that grain.checkpoint.CheckpointSave takes them. They share
  their limits, so that of several processes, one that begins closes the one
  before. The stages are threads of this process, and come after mp_prefetch.

  Args:
    ds: of this process's parts of batches.
    layer_or_specs: as in InputPipeline.
    ids: as there.
    **options: its other arguments.

  Returns:
    A dataset of input_pipeline.Batch.

  Raises:
    What InputPipeline raises, now. Copying the dataset, which grain does to
    send it to other processes, is a TypeError.
  """
  options["ids"] = ids
  # Whose arguments are wrong is told here and not at the first batch.
  input_pipeline.InputPipeline((), layer_or_specs, **options)
  return _PreprocessedDataset(ds, layer_or_specs, options)


class _PreprocessedDataset(grain.IterDataset):
  """See preprocess."""

  def __init__(
      self,
      parent: grain.MapDataset | grain.IterDataset,
      layer_or_specs: Any,
      options: dict[str, Any],
  ):
    super().__init__(parent)
    self._before, self._layer_or_specs = parent, layer_or_specs
    self._options = options

  def __iter__(self) -> grain.DatasetIterator:
    before = iter(self._before)
    return _PreprocessedIterator(before, self._pipeline(before), self._pipeline)

  def _pipeline(
      self, source: grain.DatasetIterator
  ) -> input_pipeline.InputPipeline:
    pipeline = input_pipeline.InputPipeline(
        source, self._layer_or_specs, **self._options
    )
    # Of the next ones, too, with the threads and the agreement that they have.
    self._options |= dict(
        limits=pipeline.limits, num_threads=None, all_reduce_interface=None
    )
    return pipeline

  def __getstate__(self) -> Any:
    raise TypeError(
        "preprocess of grain_input is copied, or sent to a process, as"
        " mp_prefetch does. Its limits are shared by threads, not by processes:"
        " put it after mp_prefetch. It releases the interpreter lock."
    )

  def __str__(self) -> str:
    return "preprocess"


class _PreprocessedIterator(grain.DatasetIterator):
  """A pipeline, and the iterator that it reads."""

  def __init__(
      self,
      before: grain.DatasetIterator,
      pipeline: input_pipeline.InputPipeline,
      make_pipeline: Callable[
          [grain.DatasetIterator], input_pipeline.InputPipeline
      ],
  ):
    self._before, self._pipeline = before, pipeline
    self._make_pipeline = make_pipeline
    super().__init__(before)

  def __next__(self) -> input_pipeline.Batch:
    self._assert_not_closed()
    return next(self._pipeline)

  def get_state(self) -> dict[str, Any]:
    return self._pipeline.get_state()

  def set_state(self, state: dict[str, Any]) -> None:
    now = self.get_state()
    try:
      self._go_to(state)
    except BaseException:
      self._go_to(now)
      raise

  def _go_to(self, state: dict[str, Any]) -> None:
    self._pipeline.close()
    self._pipeline = self._make_pipeline(self._before)
    self._pipeline.set_state(state)

  def start_prefetch(self) -> None:
    self._assert_not_closed()
    self._pipeline.start()

  def close(self) -> None:
    self._pipeline.close()
    super().close()
