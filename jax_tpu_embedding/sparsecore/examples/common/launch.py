# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A program from its command line to its exit code, on the devices it wants."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import pathlib
import re
import signal
import sys
import traceback
import types
from typing import NoReturn
from typing import TypeVar

from absl import app
from absl import flags
from absl import logging
import jax
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import job
from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.core import readable_text
from jax_tpu_embedding.sparsecore.lib.core import tcmalloc
import numpy as np

_Settings = TypeVar("_Settings", bound=command_line.Settings)

# Steps wait for one another in threads that the devices of a CPU share. With as
# many threads as devices, two steps underway may take them all and wait for
# ever, in a loop of plain JAX with one sum over devices as well.
_THREADS_PER_DEVICE = 4

# Errors, not of JAX's runtime, that may be because another process is missing:
# of an exchange that fails as it is started; of agreeing on limits; of a file in
# the directory of a checkpoint that is being written, which the first process
# makes and renames.
_MAY_BE_OF_OTHERS = (
    r"Gloo|Reduction with sync_key|No such file .*\.orbax-checkpoint-tmp"
)


def provide_devices(
    num_devices: int, num_processes: int = 1, heartbeat_seconds: int = 60
) -> None:
  """Makes sure that JAX has as many devices, over all processes of the job.

  A CPU is one device, unless it is told otherwise before JAX makes its first
  array.

  Args:
    num_devices: of all processes.
    num_processes: as for job.join.
    heartbeat_seconds: as for job.join.

  Raises:
    UsageError: JAX has fewer, or there is no job to join.
  """
  if num_devices > 1:
    os.environ.setdefault("PJRT_NPROC", str(_THREADS_PER_DEVICE * num_devices))
  job.join(num_processes, num_devices, heartbeat_seconds)
  if num_processes == 1 and num_devices > max(
      1, jax.config.jax_num_cpu_devices
  ):
    # Raises where JAX has its devices already; they are counted below.
    with contextlib.suppress(RuntimeError):
      jax.config.update("jax_num_cpu_devices", num_devices)
  if jax.device_count() < num_devices:
    raise command_line.UsageError(
        f"--num_devices is {num_devices}, but JAX has {jax.device_count()}"
        f" {jax.default_backend()} devices."
    )


def check_memory(
    num_parameters: int,
    devices: Sequence[jax.Device],
    settings: command_line.Settings,
    *names: str,
) -> None:
  """Raises if dense layers do not fit, before XLA ends the process for it.

  Args:
    num_parameters: of these layers, float32 on each device. Adam has two more
      numbers for each, and there is a gradient.
    devices: of the run.
    settings: of the run.
    *names: of the settings that the number follows from.

  Raises:
    UsageError: names what is needed, what is free, and these settings.
  """
  local = [d for d in devices if d.process_index == jax.process_index()]
  # CPU devices have one memory.
  copies = 4 * (len(local) if local[0].platform == "cpu" else 1)
  needed = copies * num_parameters * np.dtype(np.float32).itemsize
  free = free_memory.free_bytes(local[0])
  if free is not None and needed > free:
    size = readable_text.format_bytes
    given = [command_line.as_flag(settings, name) for name in names]
    raise command_line.UsageError(
        f"The dense layers need {size(needed)} with their gradients and the"
        f" state of Adam, and {size(free)} are free. Lower one of"
        f" {', '.join(given)}."
    )


def main(
    argv: list[str],
    settings: type[_Settings],
    run: Callable[[_Settings], None],
) -> None:
  """Calls `run` as the parsed flags say; ends the process with a line if it
  cannot."""
  if not flags.FLAGS["verbosity"].present:
    # Orbax tells a long story of every checkpoint; --verbosity=0 shows it.
    logging.set_verbosity(logging.WARNING)
  # Text may have characters that stdout has no code for, and what was trained
  # is not to be lost for one.
  if getattr(sys.stdout, "errors", None) in ("strict", "surrogateescape"):
    sys.stdout.reconfigure(errors="replace")
  # Unless the user asks for something else, the examples are about the CPU.
  jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
  memory.keep_freed_memory()
  try:
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # of __main__.py
      signal.signal(signal.SIGINT, signal.default_int_handler)
    config = command_line.from_flags(settings)
    if config.num_processes != 1 and not job.is_member():
      sys.exit(_run_job(pathlib.Path(argv[0]).stem, config))
    with _leaving_the_job(argv[0]):
      run(config)
  except command_line.UsageError as error:
    command_line.fail(argv[0], error, code=1)
  except MemoryError as error:
    command_line.fail(argv[0], str(error) or "out of memory.", code=1)
  except jax.errors.JaxRuntimeError as error:
    is_of_memory = re.search("out of memory[^.]*", str(error), re.IGNORECASE)
    if not is_of_memory:
      raise
    command_line.fail(
        argv[0],
        f"{is_of_memory[0]}. Lower --batch_size, or widths of layers.",
        code=1,
    )
  except KeyboardInterrupt as interrupt:
    # A second one, while the process ends, ends it at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Nothing is saved here: the step may be half done. The notes are of what was
    # saved before.
    command_line.fail(
        argv[0],
        "; ".join(["interrupted", *getattr(interrupt, "__notes__", [])]) + ".",
        code=130,
    )


@contextlib.contextmanager
def _leaving_the_job(program: str) -> Iterator[None]:
  """Ends a process of a job that has an error, so that the others learn of it.

  Without a job, errors are those of `main`.
  """
  try:
    yield
  except Exception as error:
    # The process with which an exchange failed may be missing. JAX will name it
    # as it ends this one, while that waits for all at the end.
    if not job.is_managed() or _may_be_of_others(error):
      raise
    if isinstance(error, command_line.UsageError):
      print(f"{pathlib.Path(program).stem}: {error}", file=sys.stderr)
    else:
      traceback.print_exc()
    job.leave(1)


def _may_be_of_others(error: BaseException | None) -> bool:
  """Whether what led to `error` may be that another process is missing."""
  while error:
    if isinstance(error, jax.errors.JaxRuntimeError):
      return True
    if re.search(_MAY_BE_OF_OTHERS, str(error)):
      return True
    error = error.__cause__ or error.__context__
  return False


def _run_job(program: str, config: command_line.Settings) -> int:
  with command_line.output_directory(
      config.output_dir, f"{program}_"
  ) as directory:
    # What started this program, and the directory that all are to use.
    command = [*sys.orig_argv, f"--output_dir={directory}"]
    if config.num_processes:
      return job.run_here(program, command, config.num_processes)
    return job.run_managed(program, command)


def usage(main_module: types.ModuleType) -> str:
  """The command that starts a program in the way in which it was started."""
  if main_module.__spec__:
    # `python -m` of a folder runs the module of the same name.
    names = main_module.__spec__.name.split(".")
    if names[-1] == names[-2]:
      names.pop()
    return f"python -m {'.'.join(names)} [flags]"
  path = pathlib.Path(main_module.__file__)
  if "BUILD_WORKSPACE_DIRECTORY" not in os.environ:
    return f"python {path} [flags]"
  # `bazel run`: DIRECTORY.runfiles/jte/jax_tpu_embedding/.../NAME.py
  _, _, folder = str(path.parent).rpartition("/jax_tpu_embedding/")
  name = "" if path.stem == path.parent.name else f":{path.stem}"
  return f"./bazelw run //jax_tpu_embedding/{folder}{name} -- [flags]"


def start(
    settings: type[_Settings], run: Callable[[_Settings], None]
) -> NoReturn:
  """Runs a program from its command line."""
  tcmalloc.restart()
  command_line.define_flags(settings)
  # --help prints the description of the main module ...
  main_module = sys.modules["__main__"]
  main_module.__doc__ = f"{main_module.__doc__}\n{usage(main_module)}\n"
  # ... and the flags of the file that was started.
  for flag in flags.FLAGS.flags_by_module_dict()[command_line.__name__]:
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  app.run(
      lambda argv: main(argv, settings, run),
      flags_parser=command_line.parse_flags,
  )
