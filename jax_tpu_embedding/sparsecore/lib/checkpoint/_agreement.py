# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether all processes of a job have written their part of something.

A checkpoint, or a version of served tables, is there when all parts are. So
each process tells the others, through the service of jax.distributed, what
became of its part: no operation of devices, since files are finished in the
background too, while steps run.

    agreement = Agreement("checkpoint", [OSError])
    with agreement.stage() as written:
      written.value = write_rows()      # of this process
    if agreement.is_first:
      write_table_of_contents(written.values)    # all are there
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import json
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import jax_private

# As long as orbax waits. Processes that end are noticed by jax.distributed.
_TIMEOUT_SECONDS = 1200
# All processes write the same things in the same order.
_numbers = itertools.count()


@dataclasses.dataclass
class Stage:
  """Something that all processes do before any goes on.

  Attributes:
    value: of this process, for the others: anything that JSON has. Set it
      within the stage.
    values: after the stage, that of each process; of the first process alone.
    first: after the stage, that of the first process.
  """

  value: Any = None
  values: Sequence[Any] = ()
  first: Any = None


class Agreement:
  """Of the processes that write something together, made by all in one order.

  Args:
    what: they write.
    kinds: of errors. That of another process is raised as the first of these
      that it is one of, or else as the first of all.
    is_alone: whether this process writes without the others of its job. JAX is
      not asked for any device then.

  Attributes:
    count: processes that write.
    index: of this one among them.
  """

  def __init__(
      self,
      what: str,
      kinds: Sequence[type[Exception]],
      *,
      is_alone: bool = False,
  ):
    self.count = 1 if is_alone else jax.process_count()
    self.index = 0 if is_alone else jax.process_index()
    self._kinds = {kind.__name__: kind for kind in kinds}
    self._numbers_of_stages = itertools.count()
    # What was told in earlier stages, which all have passed when one ends.
    self._told = []
    if self.count > 1:
      self._name = f"jax_tpu_embedding/{what}/{next(_numbers)}"

  @property
  def is_first(self) -> bool:
    return self.index == 0

  @contextlib.contextmanager
  def stage(self) -> Iterator[Stage]:
    """A stage, at whose end all processes have ended it.

    Raises:
      Exception: of one of `kinds`, that names the process: another one has
        raised something in the stage. A process that raises does not wait.
    """
    stage = Stage()
    if self.count == 1:
      yield stage
      stage.values, stage.first = [stage.value], stage.value
      return
    name = f"{self._name}/{next(self._numbers_of_stages)}"
    try:
      yield stage
    except Exception as error:
      self._tell(name, {"error": self._fields(self.index, error)})
      raise
    if self.is_first:
      told = [self._ask(name, process) for process in range(1, self.count)]
      errors = [fields["error"] for fields in told if "error" in fields]
      result = {"error": errors[0]} if errors else {"value": stage.value}
      self._tell(name, result)
      stage.values = [stage.value, *(fields.get("value") for fields in told)]
    else:
      self._tell(name, {"value": stage.value})
      result = self._ask(name, 0)
    if "error" in result:
      process, kind, text = result["error"]
      raise self._kinds[kind](
          f"Process {process} could not write its part: {text}"
      )
    stage.first = result["value"]
    while len(self._told) > 1:
      jax_private.forget_in_job(self._told.pop(0))

  def _fields(self, process: int, error: Exception) -> tuple[int, str, str]:
    """An error, for JSON."""
    kinds = [
        name for name, kind in self._kinds.items() if isinstance(error, kind)
    ]
    return process, (kinds or list(self._kinds))[0], str(error)

  def _tell(self, stage: str, fields: Any) -> None:
    key = f"{stage}/{self.index}"
    self._told.append(key)
    jax_private.tell_job(key, json.dumps(fields))

  def _ask(self, stage: str, process: int) -> Any:
    # The first process waits for the others before it tells what became of all.
    seconds = _TIMEOUT_SECONDS * (1 if process else 2)
    try:
      return json.loads(jax_private.ask_job(f"{stage}/{process}", seconds))
    except TimeoutError as error:
      late = type(error)(f"it did not finish within {seconds} seconds.")
      return {"error": self._fields(process, late)}
