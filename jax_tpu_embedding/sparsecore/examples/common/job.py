# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Several processes that train as one.

A program that is asked to be several starts itself again as members of a job,
and watches them: `run_here` starts all members on this machine; a job manager
(SLURM, Open MPI, Kubernetes, a TPU pod) starts the program once per member, and
`run_managed` starts that one. Members call `join` before they ask JAX for
devices: then jax.devices() are those of all processes.

If a member is killed, crashes or falls silent, the others end within the
deadline, and who watched them says which it was, with the code 75.

Source: jax.distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import ctypes
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import NoReturn
from typing import TypeVar

import jax
from jax.experimental import multihost_utils
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.lib.core import jax_private
import numpy as np

_T = TypeVar("_T")

# A member finds the process id of who started it here ...
_STARTER = "JAX_TPU_EMBEDDING_EXAMPLE_STARTER"
# ... and, if that is run_here, its place: "localhost:PORT INDEX COUNT".
_PLACE = "JAX_TPU_EMBEDDING_EXAMPLE_PROCESS"
# The file in which a member that run_managed has started says where it is: its
# index, and the name of each host of the job.
_HOSTS = "JAX_TPU_EMBEDDING_EXAMPLE_HOSTS"
# What the others have to end by themselves, once one has ended.
_SECONDS_TO_END = 5
# The code by which job managers know that starting again may help.
_TRY_AGAIN = os.EX_TEMPFAIL
# Of what a process wrote to stderr: JAX's last words, and stacks behind them.
_KEPT_CHARACTERS = 200_000
_RESUME = "--resume continues from the last checkpoint, if there is one."

# How JAX's coordination service, on process 0, names who is missing ...
_MISSING = (
    re.compile(r"Task (\d+) heartbeat timeout"),
    re.compile(r"stopped sending heartbeats\):\n(\d+)\n"),
)
# ... and what the others say if that service itself is gone.
_FIRST_IS_MISSING = "Failed to send RPC to coordination service"
# What all say if some never came.
_NOT_ALL_CAME = "CoordinationService/RegisterTask"


def is_member() -> bool:
  """Whether run_here or run_managed has started this process."""
  return _STARTER in os.environ


def join(num_processes: int, num_devices: int, heartbeat_seconds: int) -> None:
  """Makes this process one of its job, if it is of a job.

  Only the first one goes on printing to stdout.

  Args:
    num_processes: of the job; 0: as the job manager says that started them.
    num_devices: of all of them; CPUs are divided into as many.
    heartbeat_seconds: after so many without a sign of life of one process the
      others end. A process that is not there at the start has as long.

  Raises:
    UsageError: there is no job manager, or devices cannot be divided evenly.
  """
  if num_processes == 1:
    return
  if is_member():
    # It ends with its starter, whatever becomes of that, or became of it so far.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ[_STARTER]):
      os.kill(os.getpid(), signal.SIGKILL)
  place = {}
  if _PLACE in os.environ:
    address, index, count = os.environ[_PLACE].split()
    place = {
        "coordinator_address": address,
        "num_processes": int(count),
        "process_id": int(index),
    }
  try:
    jax.distributed.initialize(
        **place,
        # JAX takes five seconds more than it is told.
        initialization_timeout=max(1, heartbeat_seconds - 5),
        heartbeat_timeout_seconds=heartbeat_seconds,
        shutdown_timeout_seconds=heartbeat_seconds,
    )
  except ValueError as error:  # None of the managers that JAX knows.
    raise command_line.UsageError(
        "--num_processes=0 is for processes that a job manager has started, and"
        f" JAX finds none: {error}"
    ) from error
  index, count = jax_private.place_in_job()
  if num_devices % count:
    raise command_line.UsageError(
        f"--num_devices must be a multiple of the {count} processes of the job,"
        f" got {num_devices}."
    )
  jax.config.update("jax_num_cpu_devices", num_devices // count)
  if _HOSTS in os.environ:
    _note_hosts(index, count, heartbeat_seconds)
  # Of libraries' own lines on stdout, such as Gloo's, none are for users.
  stdout = os.dup(sys.__stdout__.fileno())
  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, sys.__stdout__.fileno())
  sys.stdout = os.fdopen(
      stdout if index == 0 else null,
      "w",
      buffering=1,
      encoding=sys.__stdout__.encoding,
      errors=sys.__stdout__.errors,
  )


def _note_hosts(index: int, count: int, timeout_seconds: float) -> None:
  """Tells who watches this process where it and the others are."""
  jax_private.tell_job(f"host_of_process/{index}", socket.gethostname())
  hosts = [
      jax_private.ask_job(f"host_of_process/{i}", timeout_seconds)
      for i in range(count)
  ]
  with open(os.environ[_HOSTS], "w", encoding="utf-8") as file:
    file.write(" ".join([str(index), *hosts]))


def from_first(make: Callable[[], _T]) -> _T:
  """What `make()` returns in the first process, in all of them.

  Raises:
    UsageError: `make` raised it there.
    RuntimeError: in the others, `make` raised something else there, which the
      message names. There, it is raised as it is.
  """
  if jax.process_count() == 1:
    return make()
  result, failure = b"", None
  if jax.process_index() == 0:
    try:
      result = pickle.dumps((make(), None))
    except Exception as error:  # The others would wait for a result for ever.
      failure = error
      result = pickle.dumps((None, _error_in_others(error)))
  size = multihost_utils.broadcast_one_to_all(np.int64(len(result)))
  padded = np.zeros(size, np.uint8)
  padded[: len(result)] = np.frombuffer(result, np.uint8)
  result = multihost_utils.broadcast_one_to_all(padded)
  if failure is not None:
    raise failure
  value, error = pickle.loads(np.asarray(result).tobytes())
  if error is not None:
    raise error
  return value


def _error_in_others(error: Exception) -> Exception:
  """What an error of the first process is in the others; it can be pickled."""
  if isinstance(error, command_line.UsageError):
    return command_line.UsageError(str(error))
  return RuntimeError(
      "The first process of the job failed with"
      f" {type(error).__name__}: {error}"
  )


def on_host(array: jax.Array) -> np.ndarray:
  """All of an array, in every process."""
  if array.is_fully_addressable:
    return np.asarray(array)
  return multihost_utils.process_allgather(array, tiled=True)


def run_here(program: str, command: Sequence[str], num_processes: int) -> int:
  """Runs a command several times, as one job; returns its exit code.

  That of the process that ended first with another one than 0; or 75, "try
  again", if it was killed or crashed, with a line that says which it was.

  Args:
    program: what messages call it.
    command: of a program that calls `join`.
    num_processes: how many.
  """
  address = f"localhost:{_free_port()}"
  with contextlib.ExitStack() as stack:
    # The first one's, progress for one, is seen; of the others what they say at
    # the end if they are the reason.
    errors = [None] + [
        stack.enter_context(
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        )
        for _ in range(1, num_processes)
    ]
    members = [
        subprocess.Popen(
            command,
            env=_environment(_PLACE, f"{address} {i} {num_processes}"),
            stdout=None if i == 0 else subprocess.DEVNULL,
            stderr=errors[i],
        )
        for i in range(num_processes)
    ]
    try:
      failed = _first_that_failed(members)
    except KeyboardInterrupt:
      _end(members)
      # A terminal interrupts all of them, and the first one says so.
      if members[0].returncode != 130:
        print(f"{program}: interrupted; {_RESUME}", file=sys.stderr)
      return 130
    finally:
      _end(members)
    if failed is None:
      return 0
    code = members[failed].returncode
    if failed > 0:
      errors[failed].seek(0)
      text = errors[failed].read()
      # What a user can put right is one line, which all of them find.
      is_said = text.count("\n") == 1 and members[0].returncode == code
      sys.stderr.write("" if is_said else text)
  if code > 0:
    return code
  print(
      f"{program}: process {failed} of {num_processes} was ended by"
      f" {signal.Signals(-code).name}, and the others with it; {_RESUME}",
      file=sys.stderr,
  )
  return _TRY_AGAIN


def run_managed(program: str, command: Sequence[str]) -> int:
  """Runs a command as one process of a job manager's job; its exit code.

  That of the process; or 75, "try again", if it was killed or crashed, or ended
  because another one is missing, with a line that says which one and where.

  Args:
    program: what messages call it.
    command: of a program that calls `join`.
  """
  with tempfile.NamedTemporaryFile("r", encoding="utf-8") as hosts_file:
    member = subprocess.Popen(
        command,
        env=_environment(_HOSTS, hosts_file.name),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    # A manager, or a terminal, that wants an end wants that of the member.
    signal.signal(signal.SIGTERM, lambda *_: member.terminate())
    signal.signal(signal.SIGINT, lambda *_: None)
    text = ""
    for line in member.stderr:
      sys.stderr.write(line)
      text = (text + line)[-_KEPT_CHARACTERS:]
    code = member.wait()
    place = hosts_file.read().split()
  if code >= 0:
    return code
  own, hosts = (int(place[0]), place[1:]) if place else (None, [])

  def name(index):
    where = f" of {len(hosts)}, on {hosts[index]}," if hosts else ""
    return f"process {index}{where}" if index is not None else "this process"

  missing = _missing(text)
  if code == -signal.SIGABRT and _NOT_ALL_CAME in text:
    reason = "another process was not there at the start"
  elif code == -signal.SIGABRT and missing not in (None, own):
    reason = f"{name(missing)} gives no sign of life"
  else:
    reason = f"{name(own)} was ended by {signal.Signals(-code).name}"
  print(f"{program}: {reason}; {_RESUME}", file=sys.stderr)
  return _TRY_AGAIN


def _missing(text: str) -> int | None:
  """The process that is missing, by what JAX wrote before it ended this one."""
  for pattern in _MISSING:
    if found := pattern.search(text):
      return int(found[1])
  return 0 if _FIRST_IS_MISSING in text else None


def is_managed() -> bool:
  """Whether this process is one of a job manager's job, and has joined it."""
  return _HOSTS in os.environ and jax.distributed.is_initialized()


def leave(code: int) -> NoReturn:
  """Ends a process of a job manager's job that has an error of its own.

  JAX would let it wait for the others, which may wait for it in an exchange.
  But where all find the same error, each has the time to say so.
  """
  index, count = jax_private.place_in_job()
  jax_private.tell_job(f"left/{index}", "")
  end = time.monotonic() + _SECONDS_TO_END
  with contextlib.suppress(TimeoutError, jax.errors.JaxRuntimeError):
    for i in range(count):
      jax_private.ask_job(f"left/{i}", max(0.001, end - time.monotonic()))
  if index == 0:
    time.sleep(1)  # The others ask this process, and end with it.
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _environment(name: str, value: str) -> dict[str, str]:
  """What a member is started with."""
  return os.environ | {_STARTER: str(os.getpid()), name: value}


def _free_port() -> int:
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return listener.getsockname()[1]


def _first_that_failed(members: Sequence[subprocess.Popen[str]]) -> int | None:
  """The index of the process that failed first, once one has; or all ended."""
  while any(member.poll() is None for member in members):
    if any(member.poll() for member in members):
      break
    time.sleep(0.02)
  codes = [member.poll() for member in members]
  # One that was killed is why others, which miss it, fail at the same time.
  killed = [i for i, code in enumerate(codes) if (code or 0) < 0]
  others = [i for i, code in enumerate(codes) if code]
  return next(iter(killed + others), None)


def _end(members: Sequence[subprocess.Popen[str]]) -> None:
  end = time.monotonic() + _SECONDS_TO_END
  for member in members:
    try:
      member.wait(max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
      member.kill()
      member.wait()
