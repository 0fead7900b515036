# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What has to hold of the kernels on a GPU: right, the same each time, fast.

    python accept.py --platform=cuda --output=results.json

Right are the bits that the CPU's kernels have on the same machine. The steps
are functions, in the order in which they run; one that fails is a line of the
report and does not end the others, but for wrong bits in `smoke`. With
--platform=emulated the same program runs on a CPU, on small cases, and its times
mean nothing: it is there to be finished before a GPU is at hand.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import json
import pathlib
import tempfile
import time
import traceback
from typing import Any

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cuda_library
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import conversion
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

from benchmarks import machine
from benchmarks.gpu import case_programs
from benchmarks.gpu import cases as cases_lib
from benchmarks.gpu import one_for_several
from benchmarks.gpu import platforms

_PLATFORM = flags.DEFINE_enum(
    "platform", "cuda", ["cuda", "emulated"], "What runs the kernels."
)
_STEPS = flags.DEFINE_list("steps", [], "Those to run; default: all.")
_CASES = flags.DEFINE_string(
    "cases", "", "A regular expression of names of cases; default: all."
)
_OUTPUT = flags.DEFINE_string("output", "", "A file for the report, as JSON.")

_OPTIMIZERS = ("sgd", "adagrad", "adam", "rowwise_adagrad")
_Setting = update_programs.Setting
_SETTINGS = {
    "one source": _Setting(num_sc=1, dim=8),
    "four sources, 160 columns": _Setting(
        num_sc=4, dim=160, row_options=("max_gradient_norm",)
    ),
    "minibatches, all options": _Setting(
        num_sc=2,
        num_minibatches=3,
        dim=64,
        row_options=row_options.ROW_OPTIONS,
        min_value=-0.5,
        max_value=0.25,
    ),
    "bfloat16, rounded at random": _Setting(
        num_sc=2, dim=128, dtype="bfloat16", stochastic_rounding=True
    ),
    "float16": _Setting(num_sc=1, dim=512, dtype="float16"),
    # Of which a thread has one each, and more than it has at a time.
    "5 columns": _Setting(num_sc=2, dim=5),
    "1030 columns": _Setting(num_sc=2, dim=1030),
}


def about(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """What this ran on."""
  yield platforms.Finding(name="device", value=where.device.device_kind)
  yield platforms.Finding(name="host", value=machine.describe())
  yield platforms.Finding(name="JAX", value=jax.__version__)
  if where.is_timed:
    yield platforms.Finding(
        name="driver's CUDA", value=cuda_library.ffi_cuda.driver_version()
    )
    yield platforms.Finding(
        name="kernels are used",
        value=cuda_library.is_usable(),
        wanted="True",
        is_met=cuda_library.is_usable(),
    )
  yield platforms.Finding(
      name="copy, GB/s", value=round(case_programs.copy_rate(where) / 1e9, 1)
  )


def smoke(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """One lookup and update. What is wrong here ends the run."""
  for finding in _compare(where, {"sgd"}, {"one source"}):
    if not finding.is_met:
      raise AssertionError(f"{finding.name}: {finding.value}")
    yield finding


def bits(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """Every optimizer and kind of table, beside the CPU's kernels."""
  yield from _compare(where, set(update_cases.CASES), set(_SETTINGS))


def _compare(where, names, settings) -> Iterator[platforms.Finding]:
  """How many numbers are others than those of the CPU's kernels."""
  cpu = jax.devices("cpu")[0]
  for name in sorted(names):
    case = update_cases.CASES[name]
    for setting_name in sorted(settings):
      setting = _SETTINGS[setting_name]
      given = update_programs.random_update(case, setting)
      results = []
      for lowering, device in (
          (every_lowering.LOWERINGS["cpu"], cpu),
          (where.lowering, where.device),
      ):
        with jax.default_device(device):
          results.append(_lookup_and_update(lowering, case, setting, given))
      yield _same_bytes(f"{name}, {setting_name}", *results)


def _same_bytes(name: str, expected: Any, actual: Any) -> platforms.Finding:
  """How many bytes of some arrays are others than those of other arrays."""
  pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True)
  wrong = sum(int(np.sum(_bytes(a) != _bytes(b))) for a, b in pairs)
  return platforms.Finding(
      name=f"{name}: bytes that differ",
      value=wrong,
      wanted="0",
      is_met=wrong == 0,
  )


def _bytes(array: Any) -> np.ndarray:
  return np.asarray(array).reshape(-1).view(np.uint8)


def _lookup_and_update(lowering, case, setting, given):
  """Activations, table and slots; arguments are put where the default is."""
  operands = jax.tree.map(np.asarray, update_programs.in_order(given.operands))
  params = setting.params()
  activations = jax.jit(
      lambda *operands: lowering.bind(
          "lookup",
          *operands,
          device_batch_size=given.operands.gradient.shape[0],
          enable_minibatching=params["enable_minibatching"],
          **update_programs.LIMITS,
      )
  )(*operands[:5], np.asarray(given.operands.table))
  updated = jax.jit(
      lambda *operands: lowering.bind(
          f"update_{case.rule.name}", *operands, **case.static_params, **params
      )
  )(*operands)
  return [*activations, *updated]


def exchange(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """Several SparseCores, minibatches, and four devices one after the other.

  Of batches that fill a GPU, where half of the entries are of 4 rows of each
  SparseCore, which have several blocks of terms.
  """
  num_devices = 4
  batch_size_per_sc = 8192 if where.is_timed else 12
  for name in ("sgd", "adam", "rowwise_adagrad"):
    case = update_cases.CASES[name]
    for setting_name, setting in (
        ("four SparseCores", _Setting(num_sc=num_devices, dim=32)),
        ("minibatches", _Setting(num_sc=2, num_minibatches=3, dim=32)),
    ):
      given = update_programs.random_update(
          case, setting, batch_size_per_sc=batch_size_per_sc
      )
      with jax.default_device(jax.devices("cpu")[0]):
        expected = _lookup_and_update(
            every_lowering.LOWERINGS["cpu"], case, setting, given
        )
      with jax.default_device(where.device):
        actual = _lookup_and_update(where.lowering, case, setting, given)
      yield _same_bytes(f"{name}, {setting_name}", expected, actual)
      if setting.num_minibatches:
        continue
      run = one_for_several.lookup_and_update(
          where.library,
          case.rule,
          setting.params() | case.static_params,
          num_devices,
      )
      operands = jax.tree.map(np.asarray, given.operands)
      with jax.default_device(where.device):
        actual = jax.jit(run)(operands)
      yield _same_bytes(f"{name}, {num_devices} devices", expected, actual)


def train(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """Programs as users write them, beside the same on the CPU."""
  # Here, since other steps need neither Flax nor Optax.
  from benchmarks.gpu import training  # pylint: disable=g-import-not-at-top

  cpu = jax.devices("cpu")[0]
  yield _same_bytes(
      "five steps of four features, lookups in int8 codes after them",
      training.tables_after_steps(cpu),
      training.tables_after_steps(where.device),
  )
  expected, actual = map(training.losses_of_layer, (cpu, where.device))
  yield platforms.Finding(
      name="a Flax layer: losses",
      value=[round(x, 4) for x in actual],
      wanted=f"{[round(x, 4) for x in expected]} within 1 %",
      is_met=np.allclose(actual, expected, rtol=0.01)
      and actual[-1] < actual[0],
  )


def repeats(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """The same bits each time, donated or not; and those of the CPU's kernels."""
  of_cpu = dataclasses.replace(
      where,
      lowering=every_lowering.LOWERINGS["cpu"],
      device=jax.devices("cpu")[0],
  )
  for case in where.cases:
    if case.num_rows > 2**20:
      continue
    tables = functools.partial(
        case_programs.make_tables, where, case, "adagrad"
    )
    # Sines are not the same on all platforms.
    digest_of_cpu = _digest_of_steps(of_cpu, case)(
        jax.device_put(jax.device_get(tables()), of_cpu.device), donate=False
    )
    run = _digest_of_steps(where, case)
    digests = {
        run(tables(), donate=i % 2 == 0) for i in range(where.num_repeats)
    }
    yield platforms.Finding(
        name=f"{case.name}: results of {where.num_repeats} runs",
        value=sorted(digests),  # to compare with other settings of XLA
        wanted="one, that of the CPU's kernels",
        is_met=digests == {digest_of_cpu},
    )


def _digest_of_steps(
    where: platforms.Platform, case: cases_lib.Case
) -> Callable[..., tuple[int, ...]]:
  """A function of tables: a digest of them after a step, and of activations."""
  gradient = np.random.default_rng(0).normal(size=(case.batch_size, case.dim))
  _, buffers = case_programs.make_batches(where, case)
  gradient = jax.device_put(np.float32(gradient), where.device)
  lookup = case_programs.lookup_program(where, case)
  updates = {
      donate: case_programs.update_program(where, "adagrad", donate)
      for donate in (False, True)
  }

  def run(tables, *, donate):
    with jax.default_device(where.device):
      tables = updates[donate](buffers[0], tables, gradient)
      activations = lookup(buffers[1], tables[0])
      return tuple(case_programs.digest([activations, *tables]).tolist())

  return run


def convert(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """Raw ids to buffers, alone and in a program with a lookup and an update."""
  for case in where.cases:
    batches = [cases_lib.make_batch(case, seed) for seed in range(3)]
    ids = [jax.device_put(batch.ids, where.device) for batch in batches]
    program = case_programs.convert_program(where.lowering, case)
    buffers = [program(x) for x in ids]
    with jax.default_device(jax.devices("cpu")[0]):
      of_cpu = case_programs.convert_program(
          every_lowering.LOWERINGS["cpu"], case
      )
      expected = [of_cpu(batch.ids) for batch in batches]
    yield _same_bytes(f"{case.name}: convert_ids", expected, buffers)

    seconds = case_programs.seconds(where, lambda i: program(ids[i % 3]))
    in_jnp = jax.jit(
        functools.partial(
            conversion.convert_ids, **case_programs.conversion_params(case)
        )
    )
    of_plain = case_programs.seconds(where, lambda i: in_jnp(ids[i % 3]))
    share = (
        batches[0].conversion_bytes() / seconds / case_programs.copy_rate(where)
    )
    yield where.wants(
        f"{case.name}: convert_ids, ms and share of the copy rate",
        [round(1e3 * seconds, 4), round(share, 3)],
        f"<= plain JAX ({1e3 * of_plain:.4f} ms)",
        seconds <= of_plain,
    )
    if case.num_rows <= 2**20:
      yield _from_ids_beside_parts(where, case, ids[0], buffers[0])
    parts = (
        seconds
        + case_programs.lookup_seconds(where, case, buffers)
        + case_programs.update_seconds(where, case, buffers, "adagrad")
    )
    together = _from_ids_seconds(where, case, ids, "adagrad")
    yield where.wants(
        f"{case.name}: convert_ids, lookup and adagrad in one program, ms",
        round(1e3 * together, 4),
        f"<= 1.05 x each by itself ({1e3 * parts:.4f})",
        together <= 1.05 * parts,
    )


def _from_ids_beside_parts(where, case, ids, buffers) -> platforms.Finding:
  """One program has the bits of three, whatever XLA runs beside what."""
  tables = case_programs.make_tables(where, case, "adagrad")
  # They are as good a gradient as any.
  activations = case_programs.lookup_program(where, case)(buffers, tables[0])
  expected = activations, case_programs.update_program(where, "adagrad")(
      buffers, tables, activations
  )
  actual = case_programs.step_from_ids_program(where, case, "adagrad")(
      ids, case_programs.make_tables(where, case, "adagrad"), activations
  )
  return _same_bytes(f"{case.name}: one program for all", expected, actual)


def _from_ids_seconds(where, case, ids, optimizer) -> float:
  """Of a conversion, a lookup and an update in place, in one program."""
  step = case_programs.step_from_ids_program(where, case, optimizer)
  tables = case_programs.make_tables(where, case, optimizer)
  gradient = case_programs.make_gradient(where, case)

  def run(i):
    nonlocal tables
    activations, tables = step(ids[i % 3], tables, gradient)
    return activations, tables

  return case_programs.seconds(where, run)


def speed(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """Lookups and updates beside what the memory allows."""
  seconds_of = {}
  for case in where.cases:
    batches, buffers = case_programs.make_batches(where, case)
    seconds = case_programs.lookup_seconds(where, case, buffers)
    moved = batches[0].lookup_bytes(case)
    yield _share(where, f"{case.name}: lookup", seconds, moved, 0.7)
    for optimizer in _OPTIMIZERS:
      seconds = case_programs.update_seconds(where, case, buffers, optimizer)
      rule = update_rules.UPDATE_RULES[optimizer]
      num_row_slots = len(rule.row_slots)
      moved = batches[0].update_bytes(
          case, len(rule.slots) - num_row_slots, num_row_slots
      )
      name = f"{case.name}: {optimizer}"
      seconds_of[case, optimizer] = seconds
      uniform = seconds_of[where.cases[0], optimizer]
      if case.is_one_row or case.zipf:
        factor = 3 if case.is_one_row else 1
        yield where.wants(
            f"{name}, ms",
            round(1e3 * seconds, 4),
            f"<= {factor} x uniform ({1e3 * uniform:.4f})",
            seconds <= factor * uniform,
        )
      else:
        yield _share(where, name, seconds, moved, 0.8)


def _share(where, name, seconds, moved, wanted) -> platforms.Finding:
  share = moved / seconds / case_programs.copy_rate(where)
  return where.wants(
      f"{name}, ms and share of the copy rate",
      [round(1e3 * seconds, 4), round(share, 3)],
      f">= {wanted}",
      share >= wanted,
  )


def kernels(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """Which kernels the time of a call goes to."""
  for case in where.cases:
    batches, buffers = case_programs.make_batches(where, case)
    convert = case_programs.convert_program(where.lowering, case)
    lookup = case_programs.lookup_program(where, case)
    update = case_programs.update_program(where, "adagrad")
    tables = case_programs.make_tables(where, case, "adagrad")
    gradient = case_programs.make_gradient(where, case)
    ids = jax.device_put(batches[0].ids, where.device)
    micros = _kernel_micros(lambda: convert(ids))
    yield platforms.Finding(
        name=f"{case.name}: convert_ids, us of kernels", value=micros
    )
    micros = _kernel_micros(lambda: lookup(buffers[0], tables[0]))
    yield platforms.Finding(
        name=f"{case.name}: lookup, us of kernels", value=micros
    )

    def step():
      nonlocal tables
      tables = update(buffers[0], tables, gradient)
      return tables

    micros = _kernel_micros(step)
    yield platforms.Finding(
        name=f"{case.name}: adagrad, us of kernels", value=micros
    )


def _kernel_micros(
    run: Callable[[], Any], num_calls: int = 5
) -> dict[str, float]:
  """Of a call, by the names of kernels and copies; nothing without a GPU."""
  jax.block_until_ready(run())
  total = collections.Counter()
  with tempfile.TemporaryDirectory() as directory:
    with jax.profiler.trace(directory):
      for _ in range(num_calls):
        last = run()
      jax.block_until_ready(last)
    for path in pathlib.Path(directory).rglob("*.xplane.pb"):
      profile = jax.profiler.ProfileData.from_file(str(path))
      for plane in profile.planes:
        if not plane.name.startswith("/device:GPU"):
          continue
        for line in plane.lines:
          # Other lines say the same again by module and by operation.
          if line.name.startswith("Stream"):
            for event in line.events:
              total[event.name] += event.duration_ns
  return {
      _short_name(name): round(nanos / 1e3 / num_calls, 2)
      for name, nanos in total.most_common()
  }


def _short_name(kernel: str) -> str:
  """Without what all kernels have, and at most 80 letters."""
  for part in ("void ", "jte::gpu::", "(anonymous namespace)::", "cub::"):
    kernel = kernel.replace(part, "")
  return kernel[:80]


def table_size(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """The time of a step does not follow the size of the table."""
  first = where.cases[0]
  seconds = []
  for factor in (1, 64 if where.is_timed else 2):
    case = dataclasses.replace(first, num_rows=factor * first.num_rows)
    # The same ids, spread: as many distinct rows in either table.
    batches = [cases_lib.make_batch(first, seed) for seed in range(3)]
    buffers = []
    for batch in batches:
      coo = list(batch.coo)
      coo[1] = coo[1] * factor
      buffers.append(jax.device_put(tuple(coo), where.device))
    seconds.append(case_programs.update_seconds(where, case, buffers, "sgd"))
    stats = where.device.memory_stats() or {}
    yield platforms.Finding(
        name=f"SGD, {case.num_rows} rows: ms, peak bytes, table's bytes",
        value=[
            round(1e3 * seconds[-1], 4),
            stats.get("peak_bytes_in_use"),
            4 * case.num_rows * case.dim,
        ],
    )
  ratio = seconds[1] / seconds[0]
  yield where.wants(
      "time in the larger table / in the smaller",
      round(ratio, 3),
      "0.95 to 1.05",
      0.95 <= ratio <= 1.05,
  )


def small(where: platforms.Platform) -> Iterator[platforms.Finding]:
  """What a lookup of 8 ids takes beside a program that does nothing."""
  case = cases_lib.Case(
      name="8 ids", num_rows=1024, batch_size=8, valency=1, dim=32
  )
  _, buffers = case_programs.make_batches(where, case)
  (table,) = case_programs.make_tables(where, case, "sgd")
  lookup, nothing = case_programs.lookup_program(where, case), jax.jit(
      lambda x: x[:8] + 1
  )
  micros = 1e6 * (
      case_programs.seconds(where, lambda i: lookup(buffers[i % 3], table), 200)
      - case_programs.seconds(where, lambda _: nothing(table), 200)
  )
  yield where.wants("8 ids, us more", round(micros, 1), "<= 40", micros <= 40)


STEPS = {
    step.__name__: step
    for step in (
        about,
        smoke,
        bits,
        exchange,
        train,
        repeats,
        convert,
        speed,
        kernels,
        table_size,
        small,
    )
}


def run(
    where: platforms.Platform, steps: Sequence[str], output: str = ""
) -> dict[str, list[platforms.Finding]]:
  """The findings of each step.

  Args:
    where: to run them.
    steps: their names; none: all.
    output: a file for them, as JSON; empty: none.

  Raises:
    ValueError: if there is no such step.
    AssertionError: if the smallest case is wrong already.
  """
  if unknown := set(steps) - set(STEPS):
    raise ValueError(
        f"There are no steps {sorted(unknown)}. Use some of {list(STEPS)}."
    )
  report = {}
  for step in steps or STEPS:
    start = time.perf_counter()
    findings = report[step] = []
    try:
      for finding in STEPS[step](where):
        findings.append(finding)
        print(_line(finding), flush=True)
    except AssertionError:
      if step == "smoke":
        raise
      findings.append(_failure(step))
    except Exception:  # pylint: disable=broad-except
      findings.append(_failure(step))
    print(f"== {step}: {time.perf_counter() - start:.0f} s", flush=True)
    if output:  # after each: what was found stays if a machine is lost
      _write(report, output)
  return report


def _write(report: dict[str, list[platforms.Finding]], output: str) -> None:
  as_json = {
      step: [dataclasses.asdict(finding) for finding in findings]
      for step, findings in report.items()
  }
  pathlib.Path(output).write_text(json.dumps(as_json, indent=1))


def _failure(step: str) -> platforms.Finding:
  traceback.print_exc()
  return platforms.Finding(
      name=f"{step} ended",
      value=traceback.format_exc(limit=-1),
      wanted="no error",
      is_met=False,
  )


def _line(finding: platforms.Finding) -> str:
  mark = {True: "ok ", False: "NO ", None: "   "}[finding.is_met]
  wanted = f", wanted {finding.wanted}" if finding.wanted else ""
  return f"{mark} {finding.name}: {finding.value}{wanted}"


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
  report = run(
      platforms.platform(_PLATFORM.value, _CASES.value),
      _STEPS.value,
      _OUTPUT.value,
  )
  found = [finding for findings in report.values() for finding in findings]
  num_unmet = sum(finding.is_met is False for finding in found)
  print(f"{len(found)} findings, {num_unmet} of them not as wanted")
  raise SystemExit(bool(num_unmet))


if __name__ == "__main__":
  app.run(main)
