# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Batches on devices, preprocessed while the step before them runs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import copy
import dataclasses
import logging
import operator
import os
import reprlib
import threading
import time
from typing import Any
import weakref

import jax
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import job_nodes
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.input import _rest
from jax_tpu_embedding.sparsecore.lib.input import _stages
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

_STATE_VERSION = 1


# After so many batches it is said if the program waited for them too long.
_BATCHES_PER_WARNING = 1000
_STARVED_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Timings:
  """Where the time of a batch went, in seconds.

  The stages work at the same time on different batches: only the last number is
  time that the program lost.

  Attributes:
    source: until the source returned it.
    preprocess: of `ids`, `weights`, `rest`, and of the conversion.
    agree: to settle limits, which waits for other processes, and to preprocess
      again what did not fit.
    send: to devices.
    starved: that the program waited for it.
  """

  source: float
  preprocess: float
  agree: float
  send: float
  starved: float


@dataclasses.dataclass(frozen=True)
class Batch:
  """A batch, no pytree: `inputs` and `rest` are what a jitted step is given.

  Attributes:
    inputs: buffers as global arrays.
    rest: what else the source said of the batch, as global arrays.
    number: counts from 0.
    stats: what this process's part of the batch needed.
  """

  inputs: embedding.PreprocessedInput
  rest: Any
  number: int
  stats: embedding.SparseDenseMatmulInputStats


class InputPipeline:
  """An iterator of preprocessed batches, which stays ahead.

      with InputPipeline(
          source, layer, ids=lambda batch: batch["ids"]
      ) as batches:
        for batch in batches:
          state = train_step(state, batch.inputs, batch.rest)

  Order and numbers are those of the source. Its threads end with the source,
  with `close`, with the `with` block, and when nothing refers to the pipeline
  any more.
  """

  def __init__(
      self,
      source: Any,
      layer_or_specs: Any,
      *,
      ids: Callable[[Any], Any],
      mesh: jax.sharding.Mesh | None = None,
      sharding_axis: str | tuple[str, ...] | None = None,
      weights: Callable[[Any], Any] | None = None,
      rest: Callable[[Any], Any] | None = None,
      limits: embedding.AdaptiveLimits | None = None,
      host_prefetch: int = 2,
      device_prefetch: int = 2,
      workers: int = 2,
      num_threads: int | None = None,
      all_reduce_interface: Any | None = None,
      on_batch: Callable[..., None] | None = None,
      count_every: int = 0,
  ):
    """Reads nothing before the first batch is asked for.

    Args:
      source: an iterator, or an iterable, of this process's parts of batches.
        Yields new arrays, or ones that it does not change: batches are read
        ahead. If your source fills one buffer again, yield copies.
      layer_or_specs: a SparseCoreEmbed of Linen or NNX, which knows its mesh,
        or prepared specs.
      ids: the tree of feature specs with the ids of a batch of the source, in
        any form of preprocessing.
      mesh: with specs: whose devices the batches go to.
      sharding_axis: with specs: the axis, or axes, that tables are split over.
      weights: the same tree with weights; default: ones.
      rest: what else a step needs, a tree of arrays [samples, ...]; default:
        of a batch that is a mapping, all but the arrays, anywhere in it, that
        `ids` and `weights` returned as they were; of others, nothing. Arrays
        of 64 bits get 32, as always in JAX without jax_enable_x64: integers
        that these cannot hold, and numbers that become infinite, are errors.
      limits: default: new ones, with memory of their own that is as large as
        what is ahead. Others have the memory that they were made with. Those
        of an earlier pipeline go on; of several processes, the pipeline that
        had them is closed when this one starts.
      host_prefetch: batches that wait before they are sent to devices.
      device_prefetch: batches on devices that wait for the step.
      workers: threads that preprocess, each of which uses several itself. With
        one, cores idle while it waits for the interpreter's lock. `ids`,
        `weights` and `rest` are called for one batch after the other.
      num_threads: how many those are. Not with `limits`, which have their own.
      all_reduce_interface: how processes agree on limits; default: those of
        jax.distributed find each other, when pipelines start, which all do in
        one order. Not with `limits`, which have their own.
      on_batch: called as on_batch(number, stats, timings) for each batch that
        is handed out, before it is, on the thread that asked for it.
      count_every: one of so many batches has statistics with what count_batch
        adds; 0: none has. It takes two fifths of the time of preprocessing.

    Raises:
      TypeError: for limits that are no AdaptiveLimits.
      ValueError: for bad numbers, limits of other specs or devices, what these
        have already, or where a mesh is missing or given twice.
    """
    for name, value, least in (
        ("host_prefetch", host_prefetch, 0),
        ("device_prefetch", device_prefetch, 0),
        ("workers", workers, 1),
        ("count_every", count_every, 0),
    ):
      if not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(
            f"{name} must be an integer of at least {least}, got {value!r}."
        )
    for name, value in (
        ("num_threads", num_threads),
        ("all_reduce_interface", all_reduce_interface),
    ):
      if limits is not None and value is not None:
        raise ValueError(
            f"{name}={value!r} is for limits that the pipeline makes, and"
            f" `limits` were given, which have their own. Pass {name} to"
            " AdaptiveLimits."
        )
    config = getattr(layer_or_specs, "lookup_config", None)  # of a layer
    num_given = (mesh is not None) + (sharding_axis is not None)
    if num_given != (2 if config is None else 0):
      raise ValueError(
          "Feature specs need mesh and sharding_axis, and a layer has its own:"
          f" got a {type(layer_or_specs).__name__} with mesh={mesh!r} and"
          f" sharding_axis={sharding_axis!r}."
      )
    feature_specs, settings = layer_or_specs, {}
    if config is not None:
      feature_specs = config.feature_specs
      mesh, sharding_axis = config.mesh, config.sharding_axis
      settings = dict(
          num_sc_per_device=config.num_sc_per_device,
          enable_minibatching=config.enable_minibatching,
          feature_stacking_strategy=config.feature_stacking_strategy,
      )
    self._sharding = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(sharding_axis)
    )
    self._pool, self._finalizer = None, None
    axes = (sharding_axis,) if isinstance(sharding_axis, str) else sharding_axis
    count = lambda of: int(np.prod([of.shape[name] for name in axes]))
    num_local, num_devices = count(mesh.local_mesh), count(mesh)
    self._num_local_devices = num_local
    if limits is None:
      self._pool = embedding.OutputPool()
      if all_reduce_interface is None and num_local < num_devices:
        all_reduce_interface = _OfJob()
      limits = embedding.AdaptiveLimits(
          feature_specs,
          num_local,
          num_devices,
          all_reduce_interface=all_reduce_interface,
          num_threads=num_threads,
          output_pool=self._pool,
          **settings,
      )
    elif not isinstance(limits, embedding.AdaptiveLimits):
      raise TypeError(f"limits must be AdaptiveLimits, got {limits!r}.")
    elif not _are_same(limits.feature_specs, feature_specs):
      raise ValueError(
          "limits are of other feature_specs than those of the pipeline. Make"
          " them with the same object."
      )
    elif limits.local_device_count != num_local:
      raise ValueError(
          f"limits are for {limits.local_device_count} devices of this process,"
          f" and along {sharding_axis!r} the mesh has {num_local} of them. Make"
          f" limits for {num_local}."
      )
    self._limits = limits
    # The last two, and those that the sender did not forget yet.
    self._handed_out: list[Batch] = []
    self._source = source
    self._iterator: Iterator[Any] | None = None
    self._functions = ids, weights, rest
    self._on_batch = on_batch
    self._count_every = count_every
    self._starved, self._since = 0.0, 0.0
    self._workers = workers
    self._finished_room = device_prefetch + 1
    self._room = host_prefetch + device_prefetch + workers + 1
    # Of `_stages`, `_is_closed`, and the state of the batch last handed out. A
    # thread that holds it may take it again: the source that begins, and the
    # handler of a signal that comes then, may ask for the state, or close.
    self._lock = threading.RLock()
    self._stages: _stages.Stages | None = None
    self._is_closed = False
    self._number = 0  # of the next batch that is handed out
    self._source_state: Any = None  # after the batch last handed out
    self._limits_state = limits.snapshot()
    self._process = os.getpid()

  @property
  def limits(self) -> embedding.AdaptiveLimits:
    return self._limits

  def __enter__(self) -> InputPipeline:
    return self

  def __exit__(self, *unused_exception: Any) -> None:
    self.close()

  def __iter__(self) -> InputPipeline:
    return self

  def __next__(self) -> Batch:
    """The next batch.

    Raises:
      StopIteration: if there is none left, here or on another process.
      RuntimeError: if the pipeline is closed, or was made in another process, or
        one of its own threads asks, as when the source does.
      What the source, preprocessing or sending raised for this batch. It is
      raised again by later calls.
      What `on_batch` raised. The batch is lost.
      A StopIteration of theirs, which is not the end, is a RuntimeError.
    """
    self.start()
    asked = time.perf_counter()
    try:
      batch, state, limits_state, seconds = self._stages.next()
    except BaseException:
      self._handed_out.clear()
      raise
    self._handed_out.append(batch)
    now = time.perf_counter()
    timings = Timings(*seconds, starved=now - asked)
    self._warn_if_starved(batch.number, timings.starved, now)
    if self._on_batch is not None:
      try:
        self._on_batch(batch.number, batch.stats, timings)
      except Exception as error:
        raise _stages.noted(error, batch.number, "on_batch")
    with self._lock:  # Of several threads, the one with the last batch counts.
      if batch.number >= self._number:
        self._source_state, self._limits_state = state, limits_state
        self._number = batch.number + 1
    return batch

  def _warn_if_starved(self, number: int, seconds: float, now: float) -> None:
    if number % _BATCHES_PER_WARNING == 0:  # the first one is always waited for
      elapsed = now - self._since
      if number and self._starved > _STARVED_SHARE * elapsed:
        logging.getLogger(__name__).warning(
            "input: the program waited %.0f%% of the time for batches %d to"
            " %d. It is bound by its input: %s is slow, or preprocessing is.",
            100 * self._starved / elapsed,
            number - _BATCHES_PER_WARNING,
            number - 1,
            _short(self._source),
        )
      self._starved, self._since = 0.0, now
    else:
      self._starved += seconds

  def start(self) -> None:
    """Begins to read, before the first batch is asked for.

    Raises:
      RuntimeError: if the pipeline is closed, or was made in another process.
      TimeoutError: if another process of the job does not start its pipeline.
    """
    if os.getpid() != self._process:
      raise RuntimeError(
          "This input pipeline was made in another process, whose threads a"
          " forked one does not have. Make it in the process that uses it."
      )
    with self._lock:  # Several threads may ask for the first batch.
      if not self._is_closed and self._stages is None:
        self._start()
      is_closed = self._is_closed  # perhaps meanwhile, by the source
    if is_closed:
      self.close()
      raise RuntimeError("The input pipeline is closed.")

  def _start(self) -> None:
    if self._iterator is None:
      source = self._source
      self._iterator = _not_the_end("iter", source, lambda: iter(source))
    limits = self._limits
    node = _restart(limits)
    try:
      self._start_stages()
    except BaseException:
      if node is not None:
        node.close()  # so that the others need not wait for this process
      raise
    # Threads that have ended need no end, and what they ended with may be an
    # error, which refers to the pipeline by the frames that it was raised in.
    self._finalizer = weakref.finalize(
        self, _close, weakref.ref(self._stages), node, self._process
    )
    if node is not None:
      limits.all_reduce_interface.close = self._finalizer

  def _start_stages(self) -> None:
    limits = self._limits
    get_ids, get_weights, get_rest = self._functions
    iterator, sharding = self._iterator, self._sharding
    if self._source_state is None:
      self._source_state = _state_of(iterator)

    feature_specs, count_every = limits.feature_specs, self._count_every
    num_local = self._num_local_devices
    pool, room, sized_for = self._pool, self._room, None
    clock = time.perf_counter
    handed_out = self._handed_out

    # Closures without `self`: the threads must not keep the pipeline alive.
    def read():
      begin = clock()
      item = next(iterator)
      return item, _state_of(iterator), clock() - begin

    # By one thread at a time: these are the program's functions.
    def prepare(item_and_state):
      item, state, seconds = item_and_state
      begin = clock()
      ids = get_ids(item)
      weights = get_weights and get_weights(item)
      rest = get_rest(item) if get_rest else _rest.others(item, ids, weights)
      return ids, weights, rest, state, (seconds, clock() - begin)

    def work(number, prepared):
      ids, weights, rest, state, (seconds, until_prepared) = prepared
      begin = clock()
      with jax.profiler.TraceAnnotation("embedding.preprocess", batch=number):
        converted = limits.convert(ids, weights, number)
      seconds = seconds, until_prepared + clock() - begin
      return converted, rest, state, seconds

    def finish(number, result):
      nonlocal sized_for
      converted, rest, state, seconds = result
      # Who lets go of a batch last frees its arrays, and for each of them waits
      # until no other thread has the interpreter's lock. Let it be this thread,
      # and not the program's.
      del handed_out[:-2]
      begin = clock()
      shapes = (
          _rest.shapes(rest, num_local)
          if limits.is_of_several_processes
          else ""
      )
      settled = limits.settle_until_end(converted, shapes)
      if settled is None:
        logging.getLogger(__name__).info(
            "input: another process has no batch %d, so all end here.", number
        )
        return None
      inputs, stats = settled
      agreed = clock()
      if limits.limits is not sized_for:
        sized_for = limits.limits
        _have_room(pool, room, inputs, rest)
      if count_every and number % count_every == 0:
        stats = embedding.count_batch(
            converted.features,
            feature_specs,
            converted.features_weights,
            inputs,
            stats,
        )
      counted = clock()
      inputs, rest = _send(
          (inputs, _rest.checked(rest, inputs, feature_specs, num_local)),
          sharding,
      )
      seconds += agreed - begin, clock() - counted
      batch = Batch(inputs, rest, number, stats)
      return batch, state, limits.snapshot(), seconds

    def end():
      limits.settle_until_end(None)

    self._stages = _stages.Stages(
        read,
        prepare,
        work,
        finish,
        end=end,
        first=self._number,
        workers=self._workers,
        room=self._room,
        num_finished=self._finished_room,
        name=_short(self._source),
    )

  def close(self) -> None:
    """Ends the threads. Batches that were not handed out are lost."""
    if os.getpid() != self._process:
      return  # A thread that this process does not have may hold the lock.
    with self._lock:
      self._is_closed = True
    if self._finalizer is not None:
      self._finalizer()
    self._handed_out.clear()
    if self._pool is not None:
      self._pool.clear()

  def get_state(self) -> dict[str, Any]:
    """Where the last batch that was handed out left the source and the limits.

    Before the first one, where they were. JSON, if the state of the source is.
    """
    with self._lock:
      source_state = self._source_state
      if self._iterator is None and hasattr(self._source, "__next__"):
        source_state = _state_of(self._source)
      return {
          "version": _STATE_VERSION,
          "number": self._number,
          # A copy: an iterator may keep what it is given, and change it.
          "source": copy.deepcopy(source_state),
          "limits": self._limits.state_dict(self._limits_state),
      }

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Continues after the batch that was handed out before `get_state`.

    The iterator of the source is given its state, if it has `set_state`. Else
    source.skip(number) is called, if there is one; what it returns, if not
    None, is iterated over in place of the source. Else as many batches are read
    and dropped: as many as the earlier pipeline handed out, so give this one a
    source that begins where that one's did. The log says which it was.

    Args:
      state: what get_state returned. Where its "limits" are None, those of the
        pipeline stay: new ones set themselves.

    Raises:
      RuntimeError: if a batch was asked for already.
      ValueError: if the state is none of get_state, or is of another version,
        model or source, or the source has fewer batches. Limits that do not fit
        are found before the source moves.
    """
    if self._iterator is not None:
      raise RuntimeError(
          "set_state comes before the first batch. Make a new pipeline."
      )
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != _STATE_VERSION:
      raise ValueError(
          f"The state has version {version!r}, expected {_STATE_VERSION}. Pass"
          " what get_state returned."
      )
    for key in ("number", "source"):
      if key not in state:
        raise ValueError(
            f"The state has no {key!r}, only {list(state)}. Pass what"
            " get_state returned."
        )
    number = state["number"]
    if (
        not isinstance(number, (int, np.integer))
        or isinstance(number, bool)
        or number < 0
    ):
      raise ValueError(
          f"The state has number {number!r}, expected how many batches were"
          " handed out, an integer of at least 0. Pass what get_state returned."
      )
    limits_state = state.get("limits")
    if limits_state is not None:
      limits_state = self._limits.snapshot_of(limits_state)
    iterator, way = self._source_after(number, copy.deepcopy(state["source"]))
    if limits_state is not None:
      self._limits.load_snapshot(limits_state)
    self._iterator = iterator
    self._number = number
    self._source_state = copy.deepcopy(state["source"])
    self._limits_state = self._limits.snapshot()
    logging.getLogger(__name__).info(
        "input: %s continues after %d batches: %s.",
        _short(self._source),
        number,
        way,
    )

  def _source_after(
      self, number: int, state: Any | None
  ) -> tuple[Iterator[Any], str]:
    """The iterator behind `number` batches, and how it got there."""
    if state is None and number and hasattr(self._source, "skip"):
      skipped = self._source.skip(number)
      source = self._source if skipped is None else skipped
      return iter(source), f"skip({number}) was called"
    iterator = iter(self._source)
    if state is not None:
      if not hasattr(iterator, "set_state"):
        raise ValueError(
            "The state is of a source with a state, and"
            f" {_short(self._source)} has no set_state. Pass the source that it"
            " was saved with."
        )
      iterator.set_state(state)
      return iterator, "its state was set"
    for i in range(number):
      try:
        next(iterator)
      except StopIteration:
        raise ValueError(
            f"The state is of after {number} batches, and the source has {i}."
        ) from None
    return iterator, f"{number} were read and dropped"


class _OfJob(converter.AllReduceInterface):
  """How limits that a pipeline made agree with the processes of the job.

  A node that is closed may stop at any reduction, elsewhere than the others. So
  each pipeline that starts has one of its own, and limits are of one pipeline.

  Attributes:
    close: closes the pipeline.
  """

  def __init__(self, node: minibatching_node.MinibatchingNode | None = None):
    super().__init__()
    self._node = node
    self.close: Callable[[], Any] = node.close if node else lambda: None

  def any_of(self, sync_key: int, value: bool) -> bool:
    return self._reduce(sync_key, value)

  def bitwise_or(self, sync_key: int, value: int) -> int:
    return self._reduce(sync_key, value)

  def _reduce(self, sync_key, value):
    if self._node is None:
      raise RuntimeError(
          "These limits were made by an input pipeline, and agree with other"
          " processes from its first batch on. Ask it for one."
      )
    return self._node.reduce(sync_key, value)


def _restart(
    limits: embedding.AdaptiveLimits,
) -> minibatching_node.MinibatchingNode | None:
  """The new node by which limits agree, if a pipeline made them for a job."""
  earlier = limits.all_reduce_interface
  if not isinstance(earlier, _OfJob):
    return None
  earlier.close()
  node = job_nodes.make_node()
  try:
    limits.restart(_OfJob(node))
  except BaseException:
    node.close()  # so that the others need not wait for this process
    raise
  return node


def _close(
    stages: weakref.ref[_stages.Stages],
    node: minibatching_node.MinibatchingNode | None,
    process: int,
) -> None:
  if os.getpid() != process:
    return  # Threads and connections are those of the process that forked.
  if node is not None:
    # Else a thread waits for other processes, for a batch that nobody takes any
    # more. They have what they need for those that this process has handed out.
    node.close()
  stages = stages()
  if stages is not None:
    stages.close()


def _not_the_end(name: str, source: Any, call: Callable[[], Any]) -> Any:
  """call(), whose StopIteration would be taken for the end of the batches."""
  try:
    return call()
  except StopIteration as error:
    raise RuntimeError(
        f"{name}({_short(source)}) raised StopIteration, which only the next of"
        " an iterator may, at the end. If it calls next() of something, give it"
        " more items, or a default."
    ) from error


def _state_of(iterator: Any) -> Any | None:
  """A copy of its state, which it may go on to change; None if it has none."""
  if not hasattr(iterator, "get_state"):
    return None
  state = _not_the_end("get_state", iterator, iterator.get_state)
  return copy.deepcopy(state)


def _short(source: Any) -> str:
  """What messages call a source, which may be a list of all batches."""
  shown = reprlib.Repr()
  shown.maxlist = shown.maxtuple = shown.maxdict = 1
  shown.maxother = shown.maxstring = 100
  return " ".join(shown.repr(source)[:100].split())


def _are_same(a: Any, b: Any) -> bool:
  """Whether the specs of two trees, frozen dicts or not, are the same ones."""
  a, b = jax.tree.leaves(a), jax.tree.leaves(b)
  return len(a) == len(b) and all(map(operator.is_, a, b))


def _send(tree: Any, sharding: jax.sharding.Sharding) -> Any:
  """Arrays of this process's samples, as arrays on devices that have them."""
  if sharding.is_fully_addressable:
    return jax.tree.map(
        lambda x: jax_private.put(np.asarray(x), sharding), tree
    )
  # One call for all arrays takes half of the time.
  return jax.make_array_from_process_local_data(sharding, tree)


def _have_room(
    pool: embedding.OutputPool | None, num_batches: int, inputs: Any, rest: Any
) -> None:
  """Sizes the pool, and says how much memory so many batches are."""

  def num_bytes(tree):
    return sum(np.asarray(x).nbytes for x in jax.tree.leaves(tree))

  if pool is not None:
    # A step may still have the batch before the one that was handed out last.
    pool.max_bytes = (num_batches + 2) * num_bytes(inputs)
  each = num_bytes((inputs, rest))
  logging.getLogger(__name__).info(
      "input: at most %d batches of %d bytes are ahead, %d bytes.",
      num_batches,
      each,
      num_batches * each,
  )
