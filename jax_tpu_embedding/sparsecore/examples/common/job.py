# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Several processes that train as one.

`run_here` starts a program several times on this machine, and ends all of them
if one ends. A job manager (SLURM, Open MPI, Kubernetes, a TPU pod) does the same
on many machines. In both cases the program calls `join` before it asks JAX for
devices: then jax.devices() are those of all processes.

Source: jax.distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import jax

# Each process that run_here starts finds its place in the job here:
# "localhost:PORT INDEX COUNT".
_PLACE = "JAX_TPU_EMBEDDING_EXAMPLE_PROCESS"
# After so many seconds without a sign of life JAX ends the other processes.
_HEARTBEAT_SECONDS = 60
# What the others have to end by themselves, once one has ended.
_SECONDS_TO_END = 5
# The code by which job managers know that starting again may help.
_TRY_AGAIN = os.EX_TEMPFAIL


def is_member() -> bool:
  """Whether run_here has started this process."""
  return _PLACE in os.environ


def join(num_processes: int, num_devices: int) -> None:
  """Makes this process one of its job, if it is of a job.

  Only the first one goes on printing to stdout.

  Args:
    num_processes: of the job; 0: as the job manager says that started them.
    num_devices: of all of them; CPUs are divided into as many.
  """
  if num_processes == 1:
    return
  if is_member():
    # With its starter, whatever becomes of that.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    address, index, count = os.environ[_PLACE].split()
    jax.config.update("jax_num_cpu_devices", num_devices // int(count))
    jax.distributed.initialize(
        address,
        int(count),
        int(index),
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
    )
  else:
    jax.distributed.initialize(heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
  # Of libraries' own lines on stdout, such as Gloo's, none are for users.
  stdout = os.dup(sys.__stdout__.fileno())
  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, sys.__stdout__.fileno())
  is_first = jax.process_index() == 0
  sys.stdout = os.fdopen(stdout if is_first else null, "w", buffering=1)


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
        stack.enter_context(tempfile.TemporaryFile("w+"))
        for _ in range(1, num_processes)
    ]
    members = [
        subprocess.Popen(
            command,
            env=os.environ | {_PLACE: f"{address} {i} {num_processes}"},
            stdout=None if i == 0 else subprocess.DEVNULL,
            stderr=errors[i],
        )
        for i in range(num_processes)
    ]
    try:
      failed = _first_that_failed(members)
    except KeyboardInterrupt:
      return 130  # A terminal interrupts all of them.
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
      f" {signal.Signals(-code).name}, and the others with it; --resume"
      " continues from the last checkpoint.",
      file=sys.stderr,
  )
  return _TRY_AGAIN


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
