# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits that set themselves from the batches that are preprocessed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import logging
import threading
from typing import Any
from typing import Literal

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limit_history
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _to_buffers
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan

# From then on limits double: data that keep growing are not worth a program for
# each quarter.
_GROWTHS_BEFORE_DOUBLING = 16
# Reductions of the converter have numbers of their own, this many per batch.
_CALLS_PER_BATCH = 16
# Stacks of which a line of the log has numbers.
_MAX_LOGGED = 4
# Rungs below what was refused where the search for a ceiling begins.
_NEAR_CEILING = 4
_CEILING_NUMBERS = ("max_ids_per_partition", "max_unique_ids_per_partition")
_STATE_VERSION = 1
_BATCHES_PER_FILE = 1000  # of an FDO client
# Needs of another topology are no more than an estimate.
_MARGIN_OF_ESTIMATE = 1.5
# Contributions to the reduction of each batch.
_DOES_NOT_FIT, _HAS_ENDED = 1, 2


@dataclasses.dataclass(frozen=True)
class Growth:
  """A number that grew.

  Attributes:
    batch_number: of the batch that did not fit, on some process.
    stack: its name.
    number: a field of StackLimits.
    need: the largest that this process has seen so far.
    old: what it was.
    new: what it is since.
  """

  batch_number: int
  stack: str
  number: str
  need: int
  old: int
  new: int


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


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """The state of AdaptiveLimits at some time."""

  limits: _limits.Limits
  largest: _limits.Limits | None
  num_grown: int
  num_batches: int


def log_growth(growths: tuple[Growth, ...]) -> None:
  """Logs what grew at one batch, in one line."""
  by_stack = {}
  for growth in growths:
    by_stack.setdefault(growth.stack, []).append(
        f"{growth.number} {growth.old} -> {growth.new} (need {growth.need})"
    )
  listed = [
      f"stack {name!r}: {', '.join(changes)}"
      for name, changes in by_stack.items()
  ]
  if len(listed) > _MAX_LOGGED:
    others = len(listed) - _MAX_LOGGED
    listed[_MAX_LOGGED:] = [f"and those of {others} other stacks"]
  logging.getLogger(__name__).info(
      "limits: batch %d, %s. The step compiles again.",
      growths[0].batch_number,
      "; ".join(listed),
  )


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
      ceiling: (
          Mapping[str, int] | Callable[[str, _limits.StackLimits], bool] | None
      ) = None,
      enable_minibatching: bool = False,
      has_leading_dimension: bool = False,
      feature_stacking_strategy: str = "SPLIT_THEN_STACK",
      all_reduce_interface: Any | None = None,
      num_threads: int | None = None,
      output_pool: _to_buffers.OutputPool | None = None,
      fdo_client: Any | None = None,
      on_growth: Callable[[tuple[Growth, ...]], None] = log_growth,
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
      headroom: limits that grow are this many times the largest need, at least.
      near: numbers whose largest need, times this, exceeds them grow with
        others that have to.
      ceiling: "max_ids_per_partition", "max_unique_ids_per_partition", or both,
        and the most that they grow to. Or a function (stack name, limits) ->
        whether they can be had, as compile_check makes it; it is asked before
        distinct rows grow, some five times for a stack that it refuses. What
        exceeds the ceiling takes several passes. Needs enable_minibatching.
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
        devices. With several processes, all of them have one or none.
      on_growth: called with what grew at a batch; default: logs it.

    Raises:
      ValueError: for bad arguments, specs that are not prepared, or several
        processes without an all_reduce_interface.
    """
    self._num_sc = hardware.resolve_num_sc_per_device(num_sc_per_device)
    self._num_scs = global_device_count * self._num_sc
    self._devices = local_device_count, global_device_count
    self._feature_specs = feature_specs
    _plan.check_prepared(jax.tree.leaves(feature_specs), self._num_scs)
    self._rule = _limits.GrowthRule(growth, headroom, near)
    self._can_have = ceiling if callable(ceiling) else None
    self._ceiling = _check_ceiling(ceiling, enable_minibatching)
    self._most_unique: dict[str, int] = {}  # by stack, where some were refused
    if local_device_count < global_device_count and (
        all_reduce_interface is None
    ):
      raise ValueError(
          "Several processes have to agree on limits: this one has"
          f" {local_device_count} of {global_device_count} devices. Pass"
          " all_reduce_interface, which get_all_reduce_interface makes."
      )
    self._all_reduce = all_reduce_interface
    self._options = dict(
        enable_minibatching=enable_minibatching,
        has_leading_dimension=has_leading_dimension,
        feature_stacking_strategy=feature_stacking_strategy,
        all_reduce_interface=(
            all_reduce_interface if enable_minibatching else None
        ),
        num_threads=num_threads,
        output_pool=output_pool,
    )
    self._on_growth = on_growth
    self._rows_per_sc = _limits.rows_per_sc(feature_specs, self._num_scs)
    self._lock = threading.RLock()
    self._num_batches = 0
    self._num_reductions = 0
    self._num_grown = 0  # batches at which limits grew
    self._history = _limit_history.LimitHistory()
    self._growths: list[Growth] = []
    self._largest: _limits.Limits | None = None
    self._limits = self._first(start, enable_minibatching)
    self._copies: tuple[_limits.Limits | None, Any] = None, None
    self._fdo_client = fdo_client
    if fdo_client is not None and start == "first batch":
      self._start_with_published()

  def _first(self, start, enable_minibatching) -> _limits.Limits:
    if isinstance(start, _limits.Limits):
      if set(dict(start.stacks)) != set(self._rows_per_sc):
        raise ValueError(
            f"start has limits of the stacks {sorted(dict(start.stacks))},"
            f" and the specs have {sorted(self._rows_per_sc)}."
        )
      if start.enable_minibatching != enable_minibatching:
        raise ValueError(
            f"start has enable_minibatching={start.enable_minibatching}, and"
            f" this one has {enable_minibatching}."
        )
      start.set_on(self._feature_specs, self._num_sc)
      return start
    if start == "specs":
      return _limits.Limits.of(
          self._feature_specs,
          self._devices[1],
          self._num_sc,
          enable_minibatching=enable_minibatching,
      )
    if start != "first batch":
      raise ValueError(
          "start must be 'first batch', 'specs' or Limits, got" f" {start!r}."
      )
    # Of the first batch, this is enough to count what it needs.
    return self._least(enable_minibatching)

  def _least(self, enable_minibatching: bool) -> _limits.Limits:
    least = _limits.StackLimits(1, 1, 8)
    return _limits.Limits(
        tuple((name, least) for name in self._rows_per_sc), enable_minibatching
    )

  def _start_with_published(self) -> None:
    """Limits that what earlier runs published would have grown to."""
    needs = None
    try:
      needs = _limits.needs_of(self._fdo_client.load())
    except FileNotFoundError:
      pass  # the first run
    if needs is not None and set(dict(needs.stacks)) != set(self._rows_per_sc):
      logging.getLogger(__name__).warning(
          "limits: the published statistics are of the stacks %s, and the specs"
          " have %s. The first batch sets limits.",
          sorted(dict(needs.stacks)),
          sorted(self._rows_per_sc),
      )
      needs = None
    if needs is None:
      rungs = [0] * len(self._limits.stacks) * len(_limits.NUMBERS)
    else:
      needs = self._within_ceiling(needs)
      rungs = self._rule.wanted(self._limits, needs, needs)
    self._limits = self._grown(self._rule, rungs)
    if needs is not None:
      self._limits.set_on(self._feature_specs, self._num_sc)

  @property
  def feature_specs(self) -> Any:
    return self._feature_specs

  @property
  def num_sc_per_device(self) -> int:
    return self._num_sc

  @property
  def is_of_several_processes(self) -> bool:
    return self._devices[0] < self._devices[1]

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
    with self._lock:
      if batch_number is None:
        batch_number = self._num_batches
      self._num_batches = max(self._num_batches, batch_number + 1)
      limits = self._limits
    batch = Converted(batch_number, features, features_weights, limits)
    if limits.enable_minibatching:
      return batch
    return self._convert(batch, limits, 0)

  def settle(
      self, converted: Converted
  ) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
    """The other half: in the order of batches, one at a time.

    Lets limits grow if the batch did not fit, here or on another process.
    """
    with self._lock:
      result = self._settle(converted)
      if result is None:
        raise RuntimeError(
            "Another process has no more batches, and this one has batch"
            f" {converted.batch_number}. Give all processes the same number."
        )
      return result

  def settle_until_end(self, converted: Converted | None):
    """`settle`, where processes may have different numbers of batches.

    Args:
      converted: the batch; None if this process has none left.

    Returns:
      None as soon as some process has none left.
    """
    with self._lock:
      return self._settle(converted)

  def _settle(self, converted):
    if converted is None:
      self._reduce(_HAS_ENDED)
      return None
    attempt = 0
    if converted.inputs is None:
      converted = self._convert(converted, self._limits, attempt)
    while True:
      needs = _limits.needs_of(converted.stats)
      if not attempt:
        self._history.add(needs, self._rule)
      if self._largest is None or not self._largest.covers(needs):
        self._largest = needs.union(self._largest or needs)
      needs = self._within_ceiling(needs)
      fits = self._limits.covers(needs)
      state = self._reduce(0 if fits else _DOES_NOT_FIT)
      if state & _HAS_ENDED:
        return None
      if not state & _DOES_NOT_FIT:
        break
      self._grow(converted.batch_number, needs)
      if self._limits.enable_minibatching:
        # Passes are agreed upon, so all processes convert again.
        attempt += 1
        converted = self._convert(converted, self._limits, attempt)
    if not converted.limits.covers(needs):
      converted = self._convert(converted, self._limits, attempt + 1)
    if self._limits.enable_minibatching:
      was_split = not self._limits.covers(_limits.needs_of(converted.stats))
      if self._reduce(int(was_split)):
        # Now an id that no number of passes has room for is an error.
        converted = self._convert(
            converted, self._limits, attempt + 1, drops=False
        )
    inputs = converted.inputs
    self._record(converted)
    if converted.limits != self._limits:
      inputs = _limits.pad(inputs, self._limits)
    return inputs, converted.stats

  def _record(self, converted: Converted) -> None:
    if self._fdo_client is None:
      return
    self._fdo_client.record(converted.stats)
    has_grown = self._growths and (
        self._growths[-1].batch_number == converted.batch_number
    )
    if has_grown or (converted.batch_number + 1) % _BATCHES_PER_FILE == 0:
      self._fdo_client.publish()

  def _convert(self, batch, limits, attempt, drops=True) -> Converted:
    number = batch.batch_number
    if attempt >= _CALLS_PER_BATCH:
      raise RuntimeError(
          f"Batch {number} does not fit {limits} after {attempt} attempts."
      )
    inputs, stats = _to_buffers.to_buffers(
        batch.features,
        batch.features_weights,
        self._specs_with(limits),
        *self._devices,
        num_sc_per_device=self._num_sc,
        # Only to count: what does not fit is converted again.
        allow_id_dropping=drops,
        batch_number=number * _CALLS_PER_BATCH + attempt,
        **self._options,
    )
    return dataclasses.replace(batch, limits=limits, inputs=inputs, stats=stats)

  def _specs_with(self, limits: _limits.Limits) -> Any:
    """Copies of the specs with these limits; the last ones are kept."""
    of_limits, specs = self._copies
    if of_limits is not limits:
      specs = limits.on_copies(self._feature_specs, self._num_sc)
      self._copies = limits, specs
    return specs

  def _within_ceiling(self, needs: _limits.Limits) -> _limits.Limits:
    if not self._ceiling and not self._most_unique:
      return needs
    unique = "max_unique_ids_per_partition"
    by_stack = {
        name: self._ceiling
        | {unique: min(most, self._ceiling.get(unique, most))}
        for name, most in self._most_unique.items()
    }
    return dataclasses.replace(
        needs,
        stacks=tuple(
            (
                name,
                dataclasses.replace(
                    need,
                    **{
                        number: min(getattr(need, number), most)
                        for number, most in by_stack.get(
                            name, self._ceiling
                        ).items()
                    },
                ),
            )
            for name, need in needs.stacks
        ),
    )

  def _reduce(self, value: int) -> int:
    """The bits that any process has."""
    if not self.is_of_several_processes:
      return value
    self._num_reductions += 1
    # Converters use positive keys. All processes make the same reductions.
    return self._all_reduce.bitwise_or(-self._num_reductions, value)

  def _grow(self, batch_number: int, needs: _limits.Limits) -> None:
    rule = self._rule
    if self._num_grown >= _GROWTHS_BEFORE_DOUBLING and rule.growth < 2:
      rule = dataclasses.replace(rule, growth=2.0)
    rungs = rule.wanted(
        self._limits, needs, self._within_ceiling(self._largest)
    )
    old = self._limits
    new = self._that_can_be_had(self._grown(rule, rungs), rule)
    new.set_on(self._feature_specs, self._num_sc)
    self._limits = new
    self._num_grown += 1
    growths = tuple(
        Growth(
            batch_number,
            name,
            number,
            getattr(self._largest[name], number),
            getattr(old[name], number),
            getattr(of_stack, number),
        )
        for name, of_stack in new.stacks
        for number in _limits.NUMBERS
        if getattr(old[name], number) != getattr(of_stack, number)
    )
    self._growths += growths
    if growths:
      self._on_growth(growths)

  def _grown(
      self, rule: _limits.GrowthRule, rungs: list[int]
  ) -> _limits.Limits:
    """The limits with numbers raised to the highest rungs of all processes."""
    if self.is_of_several_processes:
      # A rung is that many bits, so that the union of bits is the highest.
      rungs = [
          self._reduce((1 << min(k, _limits.MAX_RUNG)) - 1).bit_length()
          for k in rungs
      ]
    return rule.grown(
        self._limits, rungs, self._rows_per_sc, self._num_scs, self._ceiling
    )

  def _that_can_be_had(
      self, limits: _limits.Limits, rule: _limits.GrowthRule
  ) -> _limits.Limits:
    """The limits with no more distinct rows than the ceiling has room for."""
    if self._can_have is None:
      return limits
    stacks = []
    for name, new in limits.stacks:
      old = self._limits[name].max_unique_ids_per_partition
      if new.max_unique_ids_per_partition > old:
        new = self._highest(name, new, old, rule)
      stacks.append((name, new))
    return dataclasses.replace(limits, stacks=tuple(stacks))

  def _highest(self, name, limits, old: int, rule) -> _limits.StackLimits:
    """`limits`, or those of the highest rung of distinct rows below."""

    def with_rows(unique):
      return dataclasses.replace(limits, max_unique_ids_per_partition=unique)

    wanted = limits.max_unique_ids_per_partition
    most = self._most_unique.get(name)
    if most is not None:
      return with_rows(max(min(wanted, most), old))
    if self._can_have(name, limits):
      return limits
    low, high = 0, rule.rung_above(wanted)  # `low` can be had, `high` cannot
    while old > 1 and rule.rung(low + 1) <= old:
      low += 1
    # What is refused is mostly refused by a little.
    middle = max(high - _NEAR_CEILING, (low + high) // 2)
    while high - low > 1:
      if self._can_have(name, with_rows(rule.rung(middle))):
        low = middle
      else:
        high = middle
      middle = (low + high) // 2
    if not low:
      raise ValueError(
          f"Stack {name!r}: not even {rule.rung(1)} distinct rows per partition"
          " can be had. Use more devices, or a smaller batch."
      )
    self._most_unique[name] = max(rule.rung(low), old)
    logging.getLogger(__name__).warning(
        "limits: stack %r needs %d distinct rows per partition, and %d are the"
        " most that compile: batches take several passes. More devices or a"
        " smaller batch need fewer.",
        name,
        wanted,
        self._most_unique[name],
    )
    return with_rows(self._most_unique[name])

  def shrunk(self, quantile: float = 0.999) -> _limits.Limits:
    """Limits for another run on such data: `start=limits.shrunk()`.

    What this share of the batches so far needed, with the headroom, and no more
    than now. Of several processes, each has its own: take those of one.

    Raises:
      ValueError: if the share is not in (0, 1], or before the first batch.
    """
    if not 0 < quantile <= 1:
      raise ValueError(f"quantile must be in (0, 1], got {quantile!r}.")
    with self._lock:
      if self._largest is None:
        raise ValueError("There was no batch yet that limits could shrink to.")
      rungs = []
      for name, _ in self._limits.stacks:
        for number in _limits.NUMBERS:
          k = self._history.quantile_rung(name, number, quantile)
          need = min(self._rule.rung(k), getattr(self._largest[name], number))
          rungs.append(self._rule.rung_above(self._rule.headroom * need))
      shrunk = self._rule.grown(
          self._least(self._limits.enable_minibatching),
          rungs,
          self._rows_per_sc,
          self._num_scs,
          self._ceiling,
      )
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

  def snapshot(self) -> Snapshot:
    """What `state_dict` makes a state of, later: taken for every batch."""
    with self._lock:
      return Snapshot(
          self._limits, self._largest, self._num_grown, self._num_batches
      )

  def state_dict(self, snapshot: Snapshot | None = None) -> dict[str, Any]:
    """What a restart needs to have the same shapes at once, as JSON has it.

    Args:
      snapshot: of another time; default: of now.
    """
    of = snapshot or self.snapshot()
    return {
        "version": _STATE_VERSION,
        "topology": [self._devices[1], self._num_sc],
        "enable_minibatching": of.limits.enable_minibatching,
        "limits": _to_json(of.limits),
        "largest": of.largest and _to_json(of.largest),
        "num_grown": of.num_grown,
        "num_batches": of.num_batches,
    }

  def load_state_dict(self, state: Mapping[str, Any]) -> None:
    """Continues where `state_dict` was called.

    On other devices, limits are what the largest needs would be if ids spread
    evenly, and half as much on top; they grow from there.

    Raises:
      ValueError: if the state is of another version, layout or model. Start
        anew then: limits are soon learnt.
    """
    with self._lock:
      expected = self.state_dict()
      for key in ("version", "enable_minibatching"):
        if state.get(key) != expected[key]:
          raise ValueError(
              f"The state of the limits has {key} {state.get(key)!r}, expected"
              f" {expected[key]!r}. Limits of another {key} do not transfer:"
              " leave the state out, and they set themselves anew."
          )
      if set(state["limits"]) != set(expected["limits"]):
        raise ValueError(
            f"The state has limits of the stacks {sorted(state['limits'])}, and"
            f" the specs have {sorted(expected['limits'])}."
        )
      self._num_batches = state["num_batches"]
      largest = state["largest"] and self._from_json(state["largest"])
      if list(state["topology"]) == expected["topology"]:
        self._limits = self._from_json(state["limits"])
        self._largest = largest
        self._num_grown = state["num_grown"]
      elif largest is not None:
        self._limits = self._transferred(largest, state["topology"])
      else:
        return  # there was no batch yet
      self._limits.set_on(self._feature_specs, self._num_sc)

  def _transferred(
      self, largest: _limits.Limits, topology: list[int]
  ) -> _limits.Limits:
    """Limits for the largest needs on devices of another number."""
    num_devices, num_sc = topology
    # Of a SparseCore's ids, and of those the part that goes to another one.
    ids = num_devices * num_sc / self._num_scs
    to_another = max(ids, ids * ids)
    logging.getLogger(__name__).info(
        "limits: of a run on %d devices with %d SparseCores, for %d with %d.",
        num_devices,
        num_sc,
        self._devices[1],
        self._num_sc,
    )
    rungs = []
    for name, _ in self._limits.stacks:
      for number in _limits.NUMBERS:
        ratio = ids if number == "coo_cells_per_sc" else to_another
        need = _MARGIN_OF_ESTIMATE * ratio * getattr(largest[name], number)
        rungs.append(self._rule.rung_above(need))
    return self._rule.grown(
        self._least(self._limits.enable_minibatching),
        rungs,
        self._rows_per_sc,
        self._num_scs,
        self._ceiling,
    )

  def _from_json(self, stacks) -> _limits.Limits:
    return dataclasses.replace(
        self._limits,
        stacks=tuple(
            (name, _limits.StackLimits(**stacks[name]))
            for name, _ in self._limits.stacks
        ),
    )

  def describe(self) -> str:
    """The limits as text: beside the largest needs, and what is empty."""
    with self._lock:
      lines = [
          f"limits of {len(self._limits.stacks)} stack(s), after"
          f" {self._num_batches} batches, of which {self._num_grown} made them"
          " grow"
      ]
      for name, limits in self._limits.stacks:
        lines.append(f"  {name}:")
        for number in _limits.NUMBERS:
          limit = getattr(limits, number)
          need = self._largest and getattr(self._largest[name], number)
          lines.append(
              f"    {number}: {limit}"
              + (
                  f", largest need {need} ({100 * (limit - need) / limit:.0f}%"
                  " above it)"
                  if need and limit >= need
                  else f", largest need {need}, in several passes"
                  if need
                  else ""
              )
          )
      if self._largest is not None:
        shrunk = self.shrunk()
        saved = sum(
            4 * 3 * (limits.coo_cells_per_sc - shrunk[name].coo_cells_per_sc)
            for name, limits in self._limits.stacks
        )
        if saved > 0:
          lines.append(
              f"  A restart with start=limits.shrunk() would save {saved} bytes"
              " per SparseCore and batch."
          )
      return "\n".join(lines)


def _to_json(limits: _limits.Limits) -> dict[str, dict[str, int]]:
  return {
      name: dataclasses.asdict(of_stack) for name, of_stack in limits.stacks
  }


def _check_ceiling(ceiling, enable_minibatching) -> dict[str, int]:
  if not ceiling:
    return {}
  ceiling = {} if callable(ceiling) else ceiling
  for number, most in ceiling.items():
    if number not in _CEILING_NUMBERS:
      raise ValueError(
          f"ceiling has {number!r}; the choices are {_CEILING_NUMBERS}."
      )
    if not isinstance(most, int) or most <= 0:
      raise ValueError(
          f"ceiling: {number} must be a positive integer, got {most!r}."
      )
  if not enable_minibatching:
    raise ValueError(
        "ceiling needs enable_minibatching=True: what is above it takes several"
        " passes."
    )
  return dict(ceiling)
