# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What PyTorch and FBGEMM take for the batches that accept.py times.

    mkdir fbgemm && tar xf fbgemm.tar.xz -C fbgemm  # of pack_peer.py
    PYTHONPATH=.:fbgemm python3 benchmarks/gpu/peers.py --output=peers.json

Runs where PyTorch is; without FBGEMM its lines say so. Each line is one number:
`ms` of a call among many, with all that Python does for it, and then, by the
profiler, `ms of kernels`: what the GPU alone is busy with. (A call with short
kernels may be mostly Python.) A number with an optimizer is a whole step, from
lookup to the updated table. With --platform=cpu the same program runs small
cases, and its times mean nothing.

The peers have their best settings, as far as they are known:

* Tables, slots and ids are in the GPU's memory, without FBGEMM's cache for
  tables in the host's. Ids are not checked, weights are not rounded at random.
* FBGEMM takes int32 and int64 ids: the lookup and row-wise Adagrad have a line
  of each. Others have int32, which halve what it sorts.
* FBGEMM's second version of lookups (use_experimental_tbe) is a line by itself.
* PyTorch has sparse gradients: dense ones are as large as the table.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import faulthandler
import functools
import gc
import importlib
import itertools
import json
import pathlib
import re
import statistics
import time
import traceback
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks import machine
from benchmarks.gpu import cases as cases_lib

_PEERS = ("torch", "fbgemm")
_NUM_RUNS = 7
_NUM_CALLS = 20  # of a run, as in accept.py
_NUM_PROFILED = 6  # each batch twice
_MAX_SECONDS = 2.0  # of a number: slower calls are fewer
_LEARNING_RATE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platform:
  """Where this runs.

  Attributes:
    device: PyTorch's name of it.
    cases: to time.
  """

  device: str
  cases: tuple[cases_lib.Case, ...]

  @property
  def is_gpu(self) -> bool:
    return self.device != "cpu"

  def synchronize(self) -> None:
    if self.is_gpu:
      torch.cuda.synchronize()


PLATFORMS = {
    "cuda": Platform(device="cuda", cases=cases_lib.CASES),
    "cpu": Platform(device="cpu", cases=cases_lib.SMALL),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
  """A batch as PyTorch and FBGEMM take it, and where its samples start."""

  ids: torch.Tensor  # [batch * valency]
  offsets: torch.Tensor  # [batch + 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
  """One number to find.

  Attributes:
    name: of it.
    lookup: activations of an input.
    step: a lookup with the step that updates the table; None for the lookup
      alone.
    table: after the steps so far.
    ids_dtype: of inputs.
    is_deterministic: whether PyTorch is told to be.
  """

  name: str
  lookup: Callable[[Input], torch.Tensor]
  step: Callable[[Input], torch.Tensor] | None
  table: torch.Tensor
  ids_dtype: torch.dtype
  is_deterministic: bool


# --- PyTorch ---


def _torch_lookup(table: torch.Tensor, batch: Input) -> torch.Tensor:
  return functional.embedding_bag(
      batch.ids,
      table,
      batch.offsets,
      mode="sum",
      sparse=True,
      include_last_offset=True,
  )


def torch_contender(
    where: Platform,
    case: cases_lib.Case,
    *,
    optimizer: str = "",
    ids_dtype: torch.dtype = torch.int32,
) -> Contender:
  """PyTorch's embedding_bag, and its SGD with sparse gradients."""
  table = torch.empty(case.num_rows, case.dim, device=where.device)
  table.uniform_(-1, 1)
  table.requires_grad_()
  gradient = _gradient(where, case)
  if optimizer:
    sgd = torch.optim.SGD([table], lr=_LEARNING_RATE)

  def step(batch):
    sgd.zero_grad()
    activations = _torch_lookup(table, batch)
    activations.backward(gradient)
    sgd.step()
    return activations

  name = f"torch {optimizer or 'forward'}"
  name += ", int64" * (ids_dtype == torch.int64)
  return Contender(
      name=name,
      lookup=lambda batch: _torch_lookup(table, batch),
      step=step if optimizer else None,
      table=table,
      ids_dtype=ids_dtype,
      is_deterministic=False,
  )


# --- FBGEMM ---


def fbgemm_contender(
    where: Platform,
    case: cases_lib.Case,
    *,
    optimizer: str = "",
    ids_dtype: torch.dtype = torch.int32,
    is_experimental: bool = False,
    is_deterministic: bool = False,
) -> Contender:
  """FBGEMM's table batched embedding, with the step in the backward pass.

  Its deterministic mode is that of PyTorch, which its backward pass asks: one
  block of threads then adds all gradients of a row, however many there are.
  """
  # Here, since FBGEMM need not be there.
  prefix = "fbgemm_gpu.split_table_batched_embeddings_ops"
  common = importlib.import_module(f"{prefix}_common")
  training = importlib.import_module(f"{prefix}_training")
  configs = importlib.import_module("fbgemm_gpu.split_embedding_configs")
  if where.is_gpu:
    placement = common.EmbeddingLocation.DEVICE, training.ComputeDevice.CUDA
  else:
    placement = common.EmbeddingLocation.HOST, training.ComputeDevice.CPU
  bag = training.SplitTableBatchedEmbeddingBagsCodegen(
      [(case.num_rows, case.dim, *placement)],
      optimizer=configs.EmbOptimType[optimizer or "EXACT_SGD"],
      learning_rate=_LEARNING_RATE,
      pooling_mode=common.PoolingMode.SUM,
      weights_precision=configs.SparseType.FP32,
      output_dtype=configs.SparseType.FP32,
      stochastic_rounding=False,
      bounds_check_mode=common.BoundsCheckMode.NONE,
      use_experimental_tbe=is_experimental,
      embedding_table_index_type=ids_dtype,
      embedding_table_offset_type=ids_dtype,
  )
  (table,) = bag.split_embedding_weights()
  with torch.no_grad():
    table.uniform_(-1, 1)
  gradient = _gradient(where, case)

  def lookup(batch):
    return bag(batch.ids, batch.offsets)

  def step(batch):
    activations = lookup(batch)
    activations.backward(gradient)
    return activations

  name = f"FBGEMM {optimizer or 'forward'}"
  name += ", second version" * is_experimental
  name += ", deterministic" * is_deterministic
  name += ", int64" * (ids_dtype == torch.int64)
  return Contender(
      name=name,
      lookup=lookup,
      step=step if optimizer else None,
      table=table,
      ids_dtype=ids_dtype,
      is_deterministic=is_deterministic,
  )


_FBGEMM_OPTIMIZERS = (
    "EXACT_SGD",
    "EXACT_ADAGRAD",
    "EXACT_ROWWISE_ADAGRAD",
    "ADAM",
)


def contenders(
    peer: str, case: cases_lib.Case
) -> Iterator[tuple[Callable[..., Contender], dict[str, Any]]]:
  """What makes a peer's contenders of a case, and with which settings."""
  if peer == "torch":
    yield torch_contender, {}
    yield torch_contender, dict(ids_dtype=torch.int64)
    yield torch_contender, dict(optimizer="sparse SGD")
    return
  yield fbgemm_contender, {}
  yield fbgemm_contender, dict(ids_dtype=torch.int64)
  yield fbgemm_contender, dict(is_experimental=True)
  for optimizer in _FBGEMM_OPTIMIZERS:
    yield fbgemm_contender, dict(optimizer=optimizer)
  of_rows = dict(optimizer="EXACT_ROWWISE_ADAGRAD")
  yield fbgemm_contender, of_rows | dict(ids_dtype=torch.int64)
  # Popular rows are what the two modes differ in.
  if case.zipf or case.is_one_row:
    for optimizer in _FBGEMM_OPTIMIZERS:
      yield fbgemm_contender, dict(optimizer=optimizer, is_deterministic=True)


# --- What is found ---


def _gradient(where: Platform, case: cases_lib.Case) -> torch.Tensor:
  shape = (case.batch_size, case.dim)
  return torch.full(shape, 1e-3, device=where.device)


def make_input(
    where: Platform, case: cases_lib.Case, ids: np.ndarray, dtype: torch.dtype
) -> Input:
  """A batch on the device."""
  offsets = torch.arange(0, ids.size + 1, case.valency, dtype=dtype)
  return Input(
      ids=torch.from_numpy(ids.reshape(-1)).to(where.device, dtype),
      offsets=offsets.to(where.device),
  )


def check(
    contender: Contender, case: cases_lib.Case, ids: np.ndarray, batch: Input
) -> None:
  """Compares a few activations, and the rows of a step, with sums in NumPy.

  Raises:
    AssertionError: if they differ.
  """
  samples = np.linspace(0, case.batch_size - 1, 8).astype(np.int64)
  rows = torch.from_numpy(ids[samples].astype(np.int64))
  rows = rows.to(contender.table.device)
  before = contender.table.detach()[rows].cpu().numpy()
  activations = (contender.step or contender.lookup)(batch)
  actual = activations.detach()[torch.from_numpy(samples).to(rows.device)]
  np.testing.assert_allclose(
      actual.cpu().numpy(), before.sum(axis=1), rtol=1e-4, atol=1e-4
  )
  if contender.step is None:
    return
  change = contender.table.detach()[rows].cpu().numpy() - before
  if "SGD" not in contender.name:
    # All gradients are positive, and these optimizers scale them by row.
    if not np.all(change < 0):
      raise AssertionError("The step did not lower every weight it met.")
    return
  counts = np.bincount(ids.reshape(-1), minlength=case.num_rows)
  expected = -_LEARNING_RATE * 1e-3 * counts[ids[samples]][..., np.newaxis]
  # Of weights of up to 1 the last bits of the change are rounded off; in a sum
  # of 327,680 parts, each of them may be.
  np.testing.assert_allclose(
      change, np.broadcast_to(expected, change.shape), rtol=3e-2, atol=1e-6
  )


def _run(contender: Contender, batches: list[Input], num_calls: int) -> None:
  run = contender.step or contender.lookup
  for i in range(num_calls):
    run(batches[i % len(batches)])


def milliseconds(
    where: Platform, contender: Contender, batches: list[Input]
) -> dict[str, Any]:
  """Of one of many calls: by the host's clock and by the GPU's, medians."""
  _run(contender, batches, 3)
  where.synchronize()
  start = time.perf_counter()
  _run(contender, batches, 3)
  where.synchronize()
  of_call = (time.perf_counter() - start) / 3
  num_calls = int(_MAX_SECONDS / _NUM_RUNS / of_call)
  num_calls = min(_NUM_CALLS, max(1, num_calls))
  host, device = [], []
  for _ in range(_NUM_RUNS):
    start = time.perf_counter()
    if where.is_gpu:
      events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
      events[0].record()
    _run(contender, batches, num_calls)
    if where.is_gpu:
      events[1].record()
    where.synchronize()
    host.append(1e3 * (time.perf_counter() - start) / num_calls)
    if where.is_gpu:
      device.append(events[0].elapsed_time(events[1]) / num_calls)
  found = {
      "ms": round(statistics.median(host), 4),
      "ms, least": round(min(host), 4),
      "ms, most": round(max(host), 4),
      "calls": num_calls,
  }
  if device:
    found["ms by events"] = round(statistics.median(device), 4)
  return found


def kernel_milliseconds(
    where: Platform, contender: Contender, batches: list[Input]
) -> dict[str, Any]:
  """What the GPU is busy with in a call: the sum, and the longest kernels."""
  with torch.profiler.profile(
      activities=[torch.profiler.ProfilerActivity.CUDA]
  ) as profiler:
    _run(contender, batches, _NUM_PROFILED)
    where.synchronize()
  micros = collections.Counter()
  for event in profiler.events():
    is_of_gpu = event.device_type == torch.autograd.DeviceType.CUDA
    if is_of_gpu and not event.is_user_annotation:
      micros[event.name] += event.device_time_total
  of_call = lambda x: round(x / 1e3 / _NUM_PROFILED, 4)
  return {
      "ms of kernels": of_call(micros.total()),
      "longest": [(name, of_call(x)) for name, x in micros.most_common(6)],
  }


def measure(
    where: Platform,
    case: cases_lib.Case,
    find: Callable[..., dict[str, Any]],
    contender: Contender,
) -> dict[str, Any]:
  """What is found of a contender, and whether its results are right."""
  ids = _ids(case)
  batches = [make_input(where, case, x, contender.ids_dtype) for x in ids]
  # Told to be deterministic, PyTorch also fills what it allocates, which is
  # not wanted of a peer.
  torch.utils.deterministic.fill_uninitialized_memory = False
  torch.use_deterministic_algorithms(contender.is_deterministic, warn_only=True)
  try:
    # A lookup by itself keeps nothing for a backward pass.
    with torch.set_grad_enabled(contender.step is not None):
      try:
        check(contender, case, ids[0], batches[0])
        wrong = {}
      except AssertionError as error:
        wrong = {"wrong": str(error).strip()}
      return find(where, contender, batches) | wrong
  finally:
    torch.use_deterministic_algorithms(False)


@functools.cache
def _ids(case: cases_lib.Case) -> list[np.ndarray]:
  """The ids of batches that take turns."""
  return [cases_lib.make_batch(case, seed).ids for seed in range(3)]


def about(where: Platform) -> dict[str, Any]:
  """What this ran on."""
  found = {"host": machine.describe(), "torch": torch.__version__}
  if where.is_gpu:
    found["device"] = torch.cuda.get_device_name()
    found["CUDA"] = torch.version.cuda
  return found


def run(
    where: Platform, case_names: str, peers: list[str], with_kernels: bool
) -> Iterator[dict[str, Any]]:
  """Yields the numbers, or the error, of each contender.

  The profiler runs after all that is timed, since launches may be slower once
  it was there. One peer runs after the other, so that a crash of the last does
  not take the first along.

  Args:
    where: this runs.
    case_names: a regular expression of those to time.
    peers: of "torch" and "fbgemm".
    with_kernels: whether the profiler runs too.
  """
  chosen = [x for x in where.cases if re.search(case_names, x.name)]
  finders = [milliseconds] + [kernel_milliseconds] * (
      with_kernels and where.is_gpu
  )
  for find, peer, case in itertools.product(finders, peers, chosen):
    for make, settings in contenders(peer, case):
      found = {"case": case.name, "name": f"{peer} {settings}"}
      try:
        contender = make(where, case, **settings)
        found["name"] = contender.name
        found |= measure(where, case, find, contender)
      except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        found["error"] = traceback.format_exc(limit=-1).strip()
      # The largest tables fill a good part of the memory, so one goes before
      # the next comes.
      contender = None
      gc.collect()
      if where.is_gpu:
        with contextlib.suppress(RuntimeError):
          torch.cuda.empty_cache()
      yield found


def _line(found: dict[str, Any]) -> str:
  wrong = " (its results are WRONG)" if "wrong" in found else ""
  for unit in ("ms", "ms of kernels"):
    if unit in found:
      name = f"{found['case']}: {found['name']}{wrong}"
      return f"{name}, {unit}: {found[unit]}"
  reason = found["error"].splitlines()[-1]
  return f"{found['case']}: {found['name']}: {reason}"


def main() -> None:
  faulthandler.enable()
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--platform", choices=PLATFORMS, default="cuda")
  parser.add_argument(
      "--cases", default="", help="A regular expression of their names."
  )
  parser.add_argument("--peers", default="torch,fbgemm")
  parser.add_argument(
      "--kernels",
      action=argparse.BooleanOptionalAction,
      default=True,
      help="Whether to profile kernels.",
  )
  parser.add_argument("--output", type=pathlib.Path, help="For JSON.")
  arguments = parser.parse_args()
  peers = arguments.peers.split(",")
  if unknown := set(peers) - set(_PEERS):
    parser.error(f"There are no peers {sorted(unknown)}. Use {_PEERS}.")
  where = PLATFORMS[arguments.platform]
  report = {"about": about(where), "numbers": []}
  print(report["about"], flush=True)
  start = time.perf_counter()
  for found in run(where, arguments.cases, peers, arguments.kernels):
    report["numbers"].append(found)
    print(_line(found), flush=True)
    # Each time: the next one may end the process.
    if arguments.output:
      arguments.output.write_text(json.dumps(report, indent=1))
  print(f"{time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
  main()
