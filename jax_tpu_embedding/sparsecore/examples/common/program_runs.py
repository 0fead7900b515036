# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""For tests: runs of a whole program, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import io
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
from typing import Any

from absl.testing import flagsaver
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
import numpy as np
import orbax.checkpoint as ocp


def compile_once() -> None:
  """Lets all runs of a test, in whatever process, share what XLA compiles.

  It is most of the time of a short run: shakespeare_test.py took 48 s of CPU
  without this, and 28 s with it. Where all tests share a cache, as under bazelw,
  that one serves.
  """
  if jax.config.jax_compilation_cache_dir:
    return
  options = {
      "jax_compilation_cache_dir": tempfile.mkdtemp(
          dir=os.environ.get("TEST_TMPDIR")
      ),
      "jax_persistent_cache_min_compile_time_secs": 0,
  }
  for name, value in options.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)


def run(
    main: Callable[[Any], None],
    settings: type[command_line.Settings],
    program: str,
    *arguments: str,
) -> tuple[int, str, str]:
  """Runs a program in this process: exit code, stdout, stderr."""
  stdout, stderr = io.StringIO(), io.StringIO()
  code = 0
  with (
      flagsaver.flagsaver(),
      contextlib.redirect_stdout(stdout),
      contextlib.redirect_stderr(stderr),
  ):
    try:
      argv = command_line.parse_flags([program, *arguments])
      launch.main(argv, settings, main)
    except SystemExit as error:
      code = error.code
  return code, stdout.getvalue(), stderr.getvalue()


def start(*command: str, **environment: str) -> subprocess.Popen[str]:
  """Starts Python in a process of its own: a file, or "-m" and a module."""
  own_directory = os.environ.get("TEST_TMPDIR", tempfile.gettempdir())
  return subprocess.Popen(
      [sys.executable, *command],
      env={
          **os.environ,
          "PYTHONPATH": os.pathsep.join(sys.path),
          # Else Matplotlib, and the fontconfig that it asks for fonts, complain
          # where the user's directory is not for writing.
          "MPLCONFIGDIR": own_directory,
          "XDG_CACHE_HOME": own_directory,
          # Else it may start again with tcmalloc, and say so on stderr.
          "LD_PRELOAD": "",
          **environment,
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
  )


# Both managers give processes a port in the last 4096, by the number of the job.
_FIRST_PORT = 65536 - 4096
# No job has that of an earlier one, of which processes may still look for it.
_PORTS = iter(random.sample(range(_FIRST_PORT, 65536), 4096))


def _slurm(job: int, index: int, count: int) -> dict[str, str]:
  return {
      "SLURM_JOB_ID": str(job),
      "SLURM_STEP_NODELIST": "localhost",
      "SLURM_NTASKS": str(count),
      "SLURM_PROCID": str(index),
      "SLURM_LOCALID": str(index),
  }


def _open_mpi(job: int, index: int, count: int) -> dict[str, str]:
  return {
      "OMPI_MCA_orte_hnp_uri": f"{job << 12}.0;tcp://127.0.0.1:1",
      "OMPI_COMM_WORLD_SIZE": str(count),
      "OMPI_COMM_WORLD_RANK": str(index),
      "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
  }


MANAGERS = {"slurm": _slurm, "open_mpi": _open_mpi}


def start_managed(
    manager: str, num_processes: int, *command: str | Callable[[int], str]
) -> list[subprocess.Popen[str]]:
  """Starts a command as a job manager does, as far as JAX looks.

  Args:
    manager: one of MANAGERS.
    num_processes: of the job.
    *command: as for `start`; what differs is a function of the process.
  """
  job = _free_port() - _FIRST_PORT
  return [
      start(
          *(part(i) if callable(part) else part for part in command),
          **MANAGERS[manager](job, i, num_processes),
      )
      for i in range(num_processes)
  ]


def _free_port() -> int:
  for port in _PORTS:
    with contextlib.suppress(OSError), socket.socket() as listener:
      listener.bind(("", port))
      return port
  raise RuntimeError("All ports are in use.")


def children(process: subprocess.Popen[str]) -> list[int]:
  """The ids of the processes that a process has started."""
  path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
  return [int(pid) for pid in path.read_text(encoding="utf-8").split()]


def saved_arrays(output_dir: str, step: int) -> dict[str, Any]:
  """All arrays of a checkpoint, read without the program's help."""
  path = pathlib.Path(output_dir, "checkpoints", str(step))
  tables = {}
  for name, table in checkpoint.describe(path).tables.items():
    tables[name] = {
        slot or "table": checkpoint.read_table(path, name, slot)
        for slot in (None, *table.slots)
    }
  # Into NumPy arrays: it may be of another number of devices.
  checkpointer = ocp.StandardCheckpointer()
  saved = checkpointer.metadata(path / "state").item_metadata
  state = checkpointer.restore(
      path / "state",
      jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), dict(saved)),
  )
  return {"state": state, "tables": tables}


class ProgramTest(parameterized.TestCase):
  """What tests of a program have in common."""

  def directory(self) -> str:
    """A new and empty one."""
    return self.create_tempdir().full_path

  def assert_same_checkpoint(self, one: str, other: str, step: int) -> None:
    """The checkpoints in two output directories are equal in every bit."""
    expected = saved_arrays(one, step)
    self.assertEqual(
        {name.split(".")[0] for name in expected["state"]},
        {"dense", "optimizer_state"},
    )
    for variables in expected["tables"].values():
      self.assertEqual(set(variables), {"table", "accumulator"})
    jax.tree.map(
        np.testing.assert_array_equal, expected, saved_arrays(other, step)
    )

  def assert_is_one_line(self, stderr: str, program: str, regex: str) -> None:
    """`stderr` is the program's name and a message that `regex` is found in."""
    self.assertRegex(stderr, rf"\A{program}: [^\n]*\n\Z")
    self.assertRegex(stderr, regex)

  def assert_help_lists_every_flag(
      self, package: str, settings: type[command_line.Settings]
  ) -> None:
    """`--help` says how to start `package`, and something on each setting."""
    process = start("-m", package, "--help")
    stdout, stderr = process.communicate()
    self.assertEqual((process.returncode, stderr), (0, ""))
    self.assertIn(f"\npython -m {package} [flags]\n", stdout)
    for name in settings.__dataclass_fields__:
      self.assertRegex(stdout, rf"--(\[no\])?{name}: [A-Z]")
