# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits that set themselves from the batches that are preprocessed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import operator
import os
import threading
from typing import Any
from typing import Literal

from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _to_buffers
from jax_tpu_embedding.sparsecore.lib.nn.limits import _agreement
from jax_tpu_embedding.sparsecore.lib.nn.limits import _ceiling
from jax_tpu_embedding.sparsecore.lib.nn.limits import _feedback
from jax_tpu_embedding.sparsecore.lib.nn.limits import _history
from jax_tpu_embedding.sparsecore.lib.nn.limits import _saved
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _compile_check

# From then on limits double: data that keep growing are not worth a program for
# each quarter.
_GROWTHS_BEFORE_DOUBLING = 16
# Conversions of a batch. Each one after the first has limits that grew.
_MAX_ATTEMPTS = 16

Growth = _growth.Growth


@dataclasses.dataclass(frozen=True)
class Converted:
  """A batch that was converted, and may not fit: an argument of settle.

  `inputs` and `stats` are None where processes have to agree on several passes:
  with the limits that they agree on before.
  """

  batch_number: int
  features: Any
  features_weights: Any
  limits: _limits.Limits
  inputs: _buffers.PreprocessedInput | None = None
  stats: _stats.SparseDenseMatmulInputStats | None = None


class AdaptiveLimits:
  """Limits of stacks that follow what batches need. Threads may share them.

      limits = embedding.AdaptiveLimits(feature_specs, 1, 1)
      for features in batches:
        inputs, stats = limits.preprocess(features)

  A batch that does not fit is never dropped or skipped: limits grow, the batch
  is preprocessed again, and since its shapes and settings are others, `jit`
  compiles the step once more. Limits never shrink. What grew is also written to
  the specs, so that whoever reads these sees it.
  """

  def __init__(
      self,
      feature_specs: Any,
      local_device_count: int,
      global_device_count: int,
      *,
      num_sc_per_device: int | None = None,
      start: Literal["first batch", "specs"] | _limits.Limits = "first batch",
      growth: float = 1.25,
      headroom: float = 1.25,
      near: float = 1.1,
      ceiling: _ceiling.Ceiling = "compile",
      enable_minibatching: bool = False,
      has_leading_dimension: bool = False,
      feature_stacking_strategy: str = "SPLIT_THEN_STACK",
      all_reduce_interface: Any | None = None,
      num_threads: int | None = None,
      output_pool: _conversion.OutputPool | None = None,
      fdo_client: Any | None = None,
      on_growth: Callable[[tuple[Growth, ...]], None] = _growth.log_growth,
  ):
    """Starts without batches.

    Args:
      feature_specs: prepared specs, any tree. Their limits change in place.
      local_device_count: devices of this process.
      global_device_count: devices of all processes.
      num_sc_per_device: SparseCores per device; default: as JAX's first device.
      start: what limits are before the first batch: set by it, those of the
        specs, or a value, for example that of an earlier run.
      growth: limits are from a ladder; the ratio of two of its rungs.
      headroom: limits that grow are this many times the largest need, at least;
        of needs below 144 more, since small counts vary more.
      near: numbers whose largest need, times this, exceeds them grow with
        others that have to.
      ceiling: "compile": what compiles, by compile_check over JAX's first
        devices, if they are TPUs with SparseCores, where distinct rows are
        more than 256. Or a function (stack name, limits) -> whether they can be
        had, which is asked before distinct rows grow, some five times for a
        stack that it refuses. Or "max_ids_per_partition",
        "max_unique_ids_per_partition", or both, and the most that they grow
        to. None: there is none. What exceeds the ceiling takes several passes;
        without enable_minibatching it is an error.
      enable_minibatching: whether buffers have the layout of several passes.
      has_leading_dimension: as in preprocessing, like all that follows.
      feature_stacking_strategy: which samples each SparseCore gets.
      all_reduce_interface: how processes agree on limits, needed with several:
        one that nothing else uses. It gets a reduction per batch.
      num_threads: how many threads work.
      output_pool: where the buffers' memory comes from.
      fdo_client: is given the statistics of each batch, and publishes them when
        limits grow and every 1,000 batches. What all processes published before
        sets the limits in place of the first batch, if it is of as many
        devices and SparseCores; else there is a warning, and the client is
        given nothing. With several processes, all of them have one or none.
      on_growth: called with what grew at a batch; default: logs it.

    Raises:
      TypeError: for arguments of a wrong kind.
      ValueError: for bad arguments, specs that are not prepared, or several
        processes without an all_reduce_interface.
    """
    self._feature_specs = feature_specs
    self._conversion = _conversion.Conversion(
        local_device_count,
        global_device_count,
        hardware.resolve_num_sc_per_device(num_sc_per_device),
        has_leading_dimension,
        enable_minibatching,
        all_reduce_interface if enable_minibatching else None,
        _feature_stacking.feature_stacking_strategy_name(
            feature_stacking_strategy
        ),
        num_threads,
        output_pool,
    )
    num_scs = self._conversion.topology.num_scs
    _prepared.check_prepared(_tables.features_of(feature_specs), num_scs)
    self._rule = _growth.GrowthRule(growth, headroom, near)
    if not callable(on_growth):
      raise TypeError(
          "on_growth must be a function of what grew at a batch, got"
          f" {on_growth!r}. Leave it out to have that logged."
      )
    if ceiling == "compile":
      ceiling = _compile_check.compile_check_on_these_devices(
          feature_specs, self._conversion
      )
    self._ceiling = _ceiling.LimitCeiling(ceiling, enable_minibatching)
    if self.is_of_several_processes and all_reduce_interface is None:
      raise ValueError(
          "Several processes have to agree on limits: this one has"
          f" {local_device_count} of {global_device_count} devices. Pass"
          " all_reduce_interface, which all_reduce_interface_of_job makes, or"
          " get_all_reduce_interface from addresses."
      )
    self._all_reduce = all_reduce_interface
    self._bounds = _growth.Bounds(
        _growth.rows_per_sc(feature_specs, num_scs),
        num_scs,
        self._ceiling.numbers,
    )
    self._on_growth = on_growth
    self._process = os.getpid()
    self._lock = threading.RLock()
    self._num_batches = 0
    self._agreement = self._agreement_by(all_reduce_interface)
    self._num_grown = 0  # batches at which limits grew
    self._history = _history.LimitHistory(self._rule)
    self._growths: list[Growth] = []
    self._largest: _limits.Limits | None = None
    self._limits = self._first(start)
    self._copies: tuple[_limits.Limits | None, Any] = None, None
    self._feedback = _feedback.LimitFeedback(
        fdo_client, list(self._bounds.rows_per_sc), self._conversion
    )
    if fdo_client is not None:
      # Also if they are not used: what is published from now on replaces them.
      needs = self._feedback.needs_of_earlier_runs()
      if start == "first batch":
        self._start_with(needs)

  def _first(self, start) -> _limits.Limits:
    enable_minibatching = self._conversion.enable_minibatching
    stacks = self._bounds.rows_per_sc
    if isinstance(start, _limits.Limits):
      if set(dict(start.stacks)) != set(stacks):
        raise ValueError(
            f"start has limits of the stacks {sorted(dict(start.stacks))},"
            f" and the specs have {sorted(stacks)}."
        )
      if start.enable_minibatching != enable_minibatching:
        raise ValueError(
            f"start has enable_minibatching={start.enable_minibatching}, and"
            f" this one has {enable_minibatching}."
        )
      start.set_on(self._feature_specs, self.num_sc_per_device)
      return start
    if start == "specs":
      return _limits.Limits.of(
          self._feature_specs,
          self._conversion.global_device_count,
          self.num_sc_per_device,
          enable_minibatching=enable_minibatching,
      )
    if start != "first batch":
      raise ValueError(
          "start must be 'first batch', 'specs' or Limits, got" f" {start!r}."
      )
    return _limits.Limits.least(stacks, enable_minibatching)

  def _start_with(self, needs: _limits.Limits | None) -> None:
    """Limits that would have grown to these needs of earlier runs, if any."""
    if needs is None:
      rungs = [0] * len(self._limits.stacks) * len(_limits.NUMBERS)
    else:
      needs = self._ceiling.cut(needs)
      rungs = self._rule.wanted(self._limits, needs, needs)
    self._limits = self._ceiling.below(
        self._grown(self._rule, rungs), self._limits, self._rule
    )
    if needs is not None:
      self._limits.set_on(self._feature_specs, self.num_sc_per_device)

  @property
  def feature_specs(self) -> Any:
    return self._feature_specs

  @property
  def num_sc_per_device(self) -> int:
    return self._conversion.num_sc_per_device

  @property
  def local_device_count(self) -> int:
    return self._conversion.local_device_count

  @property
  def is_of_several_processes(self) -> bool:
    return not self._conversion.is_of_one_process

  @property
  def all_reduce_interface(self) -> Any | None:
    """How processes agree on limits; see `restart`."""
    return self._all_reduce

  @property
  def limits(self) -> _limits.Limits:
    """The present ones."""
    return self._limits

  @property
  def growths(self) -> tuple[Growth, ...]:
    """All numbers that grew, the first batch's included."""
    with self._lock:
      return tuple(self._growths)

  def preprocess(
      self,
      features: Any,
      features_weights: Any | None = None,
      *,
      batch_number: int | None = None,
  ) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
    """The buffers of this process's part of a batch, in the present limits.

    Args:
      features: ids, in any form of preprocess_sparse_dense_matmul_input.
      features_weights: weights, or None for ones.
      batch_number: for messages; default: counts. With several processes, all
        preprocess the same batches in the same order.

    Raises:
      RuntimeError: in a process that was forked from the one that made them.
      What preprocess_sparse_dense_matmul_input raises, but for limits.
    """
    return self.settle(self.convert(features, features_weights, batch_number))

  def convert(
      self,
      features: Any,
      features_weights: Any | None = None,
      batch_number: int | None = None,
  ) -> Converted:
    """Half of `preprocess`, for threads: may run for many batches at a time."""
    self._check_process()
    if batch_number is not None:
      try:
        batch_number = operator.index(batch_number)
      except TypeError as error:
        raise TypeError(
            f"batch_number must be an integer, got {batch_number!r}."
        ) from error
    with self._lock:
      if batch_number is None:
        batch_number = self._num_batches
      self._num_batches = max(self._num_batches, batch_number + 1)
      limits = self._limits
    if limits.enable_minibatching:
      return Converted(batch_number, features, features_weights, limits)
    return self._convert(batch_number, features, features_weights, limits)

  def settle(
      self, converted: Converted
  ) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
    """The other half: in the order of batches, one at a time.

    Lets limits grow if the batch did not fit, here or on another process.

    Raises:
      RuntimeError: another process has no more batches.
      ValueError: its batch, or its limits, are not as those of this one. All
        raise it, and may go on with the next batch.
    """
    self._check_process()
    with self._lock:
      result = self._settle(converted)
      if result is None:
        raise RuntimeError(
            "Another process has no more batches, and this one has batch"
            f" {converted.batch_number}. Give all processes the same number."
        )
      return result

  def settle_until_end(self, converted: Converted | None, rest: str = ""):
    """`settle`, where processes may have different numbers of batches.

    Args:
      converted: the batch; None if this process has none left.
      rest: what else is to be the same on all processes, as messages say it.

    Returns:
      None as soon as some process has none left.
    """
    self._check_process()
    with self._lock:
      return self._settle(converted, rest)

  def _check_process(self) -> None:
    """Raises RuntimeError in a fork, where the lock may be held for ever."""
    if os.getpid() != self._process:
      raise RuntimeError(
          "These AdaptiveLimits are of the process that this one was forked"
          " from, whose threads may have held their lock. Make others here, and"
          " give them the state_dict() of those."
      )

  def _settle(self, converted, rest=""):
    if converted is None:
      self._agreement.union(_agreement.HAS_ENDED)
      return None
    attempt = 0
    if converted.inputs is None:
      # Before the reductions of the converter: who has no batch makes none.
      if self._agreement.union(0) & _agreement.HAS_ENDED:
        return None
      converted = self._convert_again(converted, attempt)
    while True:
      needs = self._needs_of(converted)
      if not attempt:
        self._history.add(needs, converted.batch_number)
      if self._largest is None or not self._largest.covers(needs):
        self._largest = needs.union(self._largest or needs)
      needs = self._ceiling.cut(needs)
      fits = self._limits.covers(needs)
      settings = converted.inputs.settings
      state = self._agreement.union_of_batch(
          0 if fits else _agreement.DOES_NOT_FIT,
          (settings.batches, settings.layouts, rest, self._limits),
      )
      if state & _agreement.HAS_ENDED:
        return None
      if state & _agreement.DIFFERS:
        raise _agreement.not_alike(
            converted.batch_number, settings.batches, rest
        )
      if not state & _agreement.DOES_NOT_FIT:
        break
      self._grow(converted.batch_number, needs)
      attempt += 1
      if self._limits.enable_minibatching:
        # Passes are agreed upon, so all processes convert again.
        converted = self._convert_again(converted, attempt)
    # Since it was converted, limits may have grown, or become those of a state.
    is_older = converted.limits is not self._limits
    if is_older and not (
        converted.limits.covers(needs) and self._limits.covers(converted.limits)
    ):
      converted = self._convert_again(converted, attempt + 1)
    if self._limits.enable_minibatching:
      was_split = not self._limits.covers(_limits.needs_of(converted.stats))
      if self._agreement.union(int(was_split)):
        # Now an id that no number of passes has room for is an error.
        converted = self._convert_again(converted, attempt + 1, drops=False)
    inputs = converted.inputs
    has_grown = bool(self._growths) and (
        self._growths[-1].batch_number == converted.batch_number
    )
    self._feedback.record(converted.stats, converted.batch_number, has_grown)
    if is_older and converted.limits != self._limits:
      inputs = _limits.pad(inputs, self._limits)
    return inputs, converted.stats

  def _needs_of(self, converted: Converted) -> _limits.Limits:
    """What the batch needs in limits that grow no further for it."""
    needs = _limits.needs_of(converted.stats)
    limits = converted.limits
    if not limits.enable_minibatching or _limits.cover_partitions(
        limits, self._ceiling.cut(needs)
    ):
      return needs
    # Limits grow now, and it will be split anew, into fewer passes, whose
    # alignment takes less. The first batch was split into all there can be.
    stats = converted.stats.replace(minibatch_alignment_per_sc={})
    return _limits.needs_of(stats)

  def _convert_again(self, batch, attempt, drops=True) -> Converted:
    """The batch in the present limits."""
    return self._convert(
        batch.batch_number,
        batch.features,
        batch.features_weights,
        self._limits,
        attempt,
        drops,
    )

  def _convert(
      self, number, features, weights, limits, attempt=0, drops=True
  ) -> Converted:
    if attempt >= _MAX_ATTEMPTS:
      raise RuntimeError(
          f"Batch {number} does not fit {limits} after {attempt} attempts."
      )
    reduces = self._conversion.all_reduce_interface is not None
    inputs, stats = _to_buffers.to_buffers(
        self._conversion,
        features,
        weights,
        self._specs_with(limits),
        # Only to count: what does not fit is converted again.
        drops,
        self._agreement.next_number() if reduces else 0,
    )
    return Converted(number, features, weights, limits, inputs, stats)

  def _specs_with(self, limits: _limits.Limits) -> Any:
    """Copies of the specs with these limits; the last ones are kept."""
    of_limits, specs = self._copies
    if of_limits is not limits:
      specs = limits.on_copies(self._feature_specs, self.num_sc_per_device)
      self._copies = limits, specs
    return specs

  def _agreement_by(self, all_reduce_interface) -> _agreement.Agreement:
    return _agreement.Agreement(
        all_reduce_interface if self.is_of_several_processes else None
    )

  def _grow(self, batch_number: int, needs: _limits.Limits) -> None:
    rule = self._rule
    if self._num_grown >= _GROWTHS_BEFORE_DOUBLING and rule.growth < 2:
      rule = dataclasses.replace(rule, growth=2.0)
    rungs = rule.wanted(self._limits, needs, self._ceiling.cut(self._largest))
    old = self._limits
    new = self._ceiling.below(self._grown(rule, rungs), old, rule)
    new.set_on(self._feature_specs, self.num_sc_per_device)
    self._limits = new
    self._num_grown += 1
    growths = _growth.growths_of(batch_number, old, new, self._largest)
    self._growths += growths
    if growths:
      self._on_growth(growths)

  def _grown(
      self, rule: _growth.GrowthRule, rungs: list[int]
  ) -> _limits.Limits:
    """The limits with numbers raised to the highest rungs of all processes."""
    return rule.grown(
        self._limits, self._agreement.highest(rungs), self._bounds
    )

  def restart(self, all_reduce_interface: Any) -> None:
    """Agrees with other processes by another interface from now on.

    Where something failed, or a pipeline was closed before its end, processes
    may have stopped at different reductions, and with different limits. All
    call this together, then limits are the largest that any of them has. Waits
    for a batch that is being settled: close the earlier node first.

    Args:
      all_reduce_interface: as in the beginning; nothing has used it yet.

    Raises:
      What the interface raises; call it again then, with another one.
    """
    with self._lock:
      self._all_reduce = all_reduce_interface
      if self._conversion.enable_minibatching:
        self._conversion = self._conversion._replace(
            all_reduce_interface=all_reduce_interface
        )
      self._agreement = self._agreement_by(all_reduce_interface)
      numbers = [self._num_grown]
      for _, of_stack in self._limits.stacks:
        numbers += dataclasses.astuple(of_stack)
      self._num_grown, *numbers = self._agreement.highest(numbers)
      numbers = iter(numbers)
      stacks = tuple(
          (name, _limits.StackLimits(*(next(numbers) for _ in _limits.NUMBERS)))
          for name, _ in self._limits.stacks
      )
      limits = dataclasses.replace(self._limits, stacks=stacks)
      if limits != self._limits:
        self._limits = limits
        self._limits.set_on(self._feature_specs, self.num_sc_per_device)

  def shrunk(self, quantile: float = 0.999) -> _limits.Limits:
    """Limits for another run on such data: `start=limits.shrunk()`.

    What this share of the batches so far needed, with the headroom, and no more
    than now. Of several processes, each has its own: take those of one.

    Raises:
      ValueError: if the share is not in (0, 1], or before the first batch. A
        state has the largest needs of the batches before it, and no more.
    """
    if not 0 < quantile <= 1:
      raise ValueError(f"quantile must be in (0, 1], got {quantile!r}.")
    with self._lock:
      if self._history.is_empty:
        raise ValueError(
            "There was no batch yet in this run that limits could shrink to."
        )
      rungs = []
      for name, _ in self._limits.stacks:
        for number in _limits.NUMBERS:
          k = self._history.quantile_rung(name, number, quantile)
          need = min(self._rule.rung(k), getattr(self._largest[name], number))
          rungs.append(self._rule.rung_above(self._rule.with_headroom(need)))
      least = _limits.Limits.least(
          self._bounds.rows_per_sc, self._limits.enable_minibatching
      )
      shrunk = self._rule.grown(least, rungs, self._bounds)
      return shrunk.intersection(self._limits)

  def plot(self, path: Any) -> None:
    """Draws what batches needed, and the limits. Needs matplotlib.

    For each stack and number the least, mean and largest need of 100 batches
    (of more in a long run), the limit, and a dot where it grew.

    Args:
      path: of the picture, in any format of matplotlib.
    """
    with self._lock:
      self._history.plot(path, self._limits, self._growths)

  def pad(
      self, inputs: _buffers.PreprocessedInput
  ) -> _buffers.PreprocessedInput:
    """An earlier batch as it would be with the present limits.

    Args:
      inputs: its buffers, on the host or on devices. Not changed.

    Raises:
      ValueError: if they were not made with earlier limits of this object.
    """
    return _limits.pad(inputs, self._limits)

  def snapshot(self) -> _saved.Snapshot:
    """What `state_dict` makes a state of, later: taken for every batch."""
    with self._lock:
      return _saved.Snapshot(
          self._limits, self._largest, self._num_grown, self._num_batches
      )

  def state_dict(
      self, snapshot: _saved.Snapshot | None = None
  ) -> dict[str, Any]:
    """What a restart needs to have the same shapes at once, as JSON has it.

    Args:
      snapshot: of another time; default: of now.
    """
    return _saved.to_json(
        snapshot or self.snapshot(),
        self._conversion.global_device_count,
        self.num_sc_per_device,
    )

  def load_state_dict(self, state: Mapping[str, Any]) -> None:
    """Continues where `state_dict` was called.

    On other devices, limits are what the largest needs would be if ids spread
    evenly, and half as much on top; they grow from there.

    Raises:
      ValueError: if the state is of another version, layout or model. Start
        anew then: limits are soon learnt.
    """
    with self._lock:
      self.load_snapshot(self.snapshot_of(state))

  def snapshot_of(self, state: Mapping[str, Any]) -> _saved.Snapshot:
    """What `load_snapshot` takes, of a state. Changes nothing.

    Raises:
      ValueError: as load_state_dict.
    """
    with self._lock:
      return _saved.from_json(
          state,
          self.snapshot(),
          self._rule,
          self._bounds,
          lambda limits: self._ceiling.below(limits, self._limits, self._rule),
          self._conversion.global_device_count,
          self.num_sc_per_device,
      )

  def load_snapshot(self, snapshot: _saved.Snapshot) -> None:
    """Continues with it: the second half of `load_state_dict`."""
    with self._lock:
      is_other = snapshot.limits is not self._limits
      self._limits = snapshot.limits
      self._largest = snapshot.largest
      self._num_grown = snapshot.num_grown
      self._num_batches = snapshot.num_batches
      if is_other:
        self._limits.set_on(self._feature_specs, self.num_sc_per_device)

  def __reduce__(self) -> Any:
    raise TypeError(
        "AdaptiveLimits are shared by threads, and not by processes: they cannot"
        " be pickled or copied. Give state_dict() to the load_state_dict of"
        " others."
    )

  def describe(self) -> str:
    """The limits as text: beside the largest needs, and what is empty."""
    with self._lock:
      shrunk = None if self._history.is_empty else self.shrunk()
      return "\n".join(
          [
              f"limits of {len(self._limits.stacks)} stack(s), after"
              f" {self._num_batches} batches, of which {self._num_grown} made"
              " them grow",
              *_history.describe(self._limits, self._largest, shrunk),
          ]
      )
