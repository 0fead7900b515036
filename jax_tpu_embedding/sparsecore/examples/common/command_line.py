# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A frozen dataclass as command line flags; mistakes as one line of text."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import math
import os
import pathlib
import sys
import tempfile
from typing import Any
from typing import NoReturn
from typing import TypeVar

from absl import flags
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import standard_output

_Settings = TypeVar("_Settings", bound="Settings")

# Ids have 32 bits.
_MAX_TABLE_ROWS = 2**31 - 1


class UsageError(ValueError):
  """Something the user can put right: reported in one line, no traceback."""


def setting(
    default: Any,
    help_text: str,
    *,
    shapes_result: bool = False,
    is_path: bool = False,
    older_name: str | None = None,
) -> Any:
  """A field of a subclass of Settings.

  Args:
    default: the flag's default; its type is the flag's type. A tuple is one of
      whole numbers, separated by commas on the command line.
    help_text: what `--help` says.
    shapes_result: whether another value gives another model or another stream
      of batches, so that a run cannot be resumed with it.
    is_path: whether a relative value starts where the user typed the command.
    older_name: what the flag was called before; it is understood, too.
  """
  return dataclasses.field(
      default=default,
      metadata={
          "help": help_text,
          "shapes_result": shapes_result,
          "is_path": is_path,
          "older_name": older_name,
      },
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """A base of settings: each field, made by setting(), is a flag.

  Paths are absolute once `from_flags` has run.
  """

  # Of the job; a program that can be several has a field of this name (of
  # JobSettings), and one that is called output_dir.
  num_processes = 1

  def check_at_least(self, **minima: int) -> None:
    """Raises a UsageError for a field that is below its minimum."""
    for name, minimum in minima.items():
      value = getattr(self, name)
      if value < minimum:
        raise UsageError(f"--{name} must be at least {minimum}, got {value}.")

  def check_rows_of_tables(self, *names: str) -> None:
    """Raises a UsageError for a field that is more rows than a table can have."""
    for name in names:
      if (value := getattr(self, name)) > _MAX_TABLE_ROWS:
        raise UsageError(
            f"--{name} must be at most {_MAX_TABLE_ROWS}, got {value}."
        )

  def check_positive_and_finite(self, *names: str) -> None:
    """Raises a UsageError for a field that is no rate to learn with."""
    for name in names:
      value = getattr(self, name)
      if not 0 < value < float("inf"):
        raise UsageError(f"--{name} must be positive and finite, got {value}.")

  def result_shaping(self) -> dict[str, Any]:
    """The settings that must not change when a run is resumed, as JSON has
    them."""
    values = {
        field.name: getattr(self, field.name)
        for field in dataclasses.fields(self)
        if field.metadata["shapes_result"]
    }
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSettings(Settings):
  """A base of settings of programs that can be several processes.

  They have fields num_devices, batch_size and output_dir.
  """

  num_devices: int = setting(
      1,
      "Devices to train on; CPUs are divided into as many.",
  )
  num_processes: int = setting(
      1,
      "Processes that train together, started on this machine; the devices are"
      " divided among them. 0: this is one of those that a job manager started.",
  )
  heartbeat_seconds: int = setting(
      60,
      "Processes of a job end after so many seconds without a sign of life of"
      " one of them.",
  )

  def check_job(self, *factors: str) -> None:
    """Raises a UsageError if no job can be made of this.

    Args:
      *factors: fields that tell how many vectors are looked up per sample.
    """
    self.check_at_least(
        num_devices=1,
        num_processes=0,
        # JAX sends one in half of the time.
        heartbeat_seconds=2,
    )
    if self.batch_size % self.num_devices:
      raise UsageError(
          f"--batch_size must be a multiple of --num_devices={self.num_devices}"
          f" to be divided evenly, got {self.batch_size}."
      )
    names = ("batch_size", *factors)
    found = math.prod(getattr(self, name) for name in names)
    most = constants.MAX_SAMPLES_PER_DEVICE * self.num_devices
    if found > most:
      raise UsageError(
          f"{' x '.join(f'--{name}' for name in names)} must be at most {most}"
          f" on --num_devices={self.num_devices}, got {found}."
      )
    if self.num_processes and self.num_devices % self.num_processes:
      raise UsageError(
          "--num_devices must be a multiple of"
          f" --num_processes={self.num_processes}, got {self.num_devices}."
      )
    if self.num_processes == 0 and not self.output_dir:
      raise UsageError(
          "--num_processes=0 needs an --output_dir that all processes share."
      )


_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


def define_flags(settings: type[Settings]) -> None:
  """Defines one flag per field of `settings`; call it once, before app.run."""
  for field in dataclasses.fields(settings):
    define = _DEFINE[type(field.default)]
    default = field.default
    if isinstance(default, tuple):
      default = [str(number) for number in default]
    define(field.name, default, field.metadata["help"])
    if field.metadata["older_name"]:
      flags.DEFINE_alias(field.metadata["older_name"], field.name)


def from_flags(settings: type[_Settings]) -> _Settings:
  """The settings given on the command line.

  Raises:
    UsageError: a value is out of range.
  """
  return settings(
      **{
          field.name: _value(field, getattr(flags.FLAGS, field.name))
          for field in dataclasses.fields(settings)
      }
  )


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
  """A flag's value as the field has it."""
  if isinstance(field.default, tuple):
    try:
      return tuple(int(number) for number in value)
    except ValueError:
      raise UsageError(
          f"--{field.name} must be whole numbers separated by commas, got"
          f" '{','.join(value)}'."
      ) from None
  if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
    raise UsageError(f"--{field.name} must be of at most 64 bits, got {value}.")
  if field.metadata["is_path"] and value:
    try:
      return str(as_typed(value))
    except (OSError, RuntimeError) as error:
      # A user that there is not, or a working directory that was removed.
      reason = getattr(error, "strerror", None) or str(error).rstrip(".")
      raise UsageError(
          f"--{field.name}: cannot find {value}: {reason}."
      ) from None
  return value


def as_flag(settings: Settings, name: str) -> str:
  """A setting as on the command line."""
  value = getattr(settings, name)
  if isinstance(value, tuple):
    value = ",".join(map(str, value))
  return f"--{name}={value}"


def as_typed(path: str) -> pathlib.Path:
  """A path, absolute; a relative one starts where the command was typed."""
  # `bazel run` starts programs in a directory of its own.
  start = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
  return pathlib.Path(start, pathlib.Path(path).expanduser())


def make_directory(path: pathlib.Path, flag: str) -> None:
  """Makes a directory that `flag` asks for, and what it is in.

  Raises:
    UsageError: it cannot be made.
  """
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UsageError(
        f"--{flag}: cannot make {path}: {error.strerror}."
    ) from None


@contextlib.contextmanager
def output_directory(chosen: str, prefix: str) -> Iterator[pathlib.Path]:
  """The directory that the user chose, or else a new one in /tmp.

  A new one in which no file is at the end, as after a mistake, is removed.
  """
  if chosen:
    yield pathlib.Path(chosen)
    return
  directory = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
  try:
    yield directory
  finally:
    for path in (*directory.iterdir(), directory):
      # A file is no directory, and a directory may have files.
      with contextlib.suppress(OSError):
        path.rmdir()


@contextlib.contextmanager
def writing(path: pathlib.Path, flag: str) -> Iterator[None]:
  """Writes a file to where `flag` says.

  Raises:
    UsageError: it cannot be written; the disk may be full.
  """
  try:
    yield
  except OSError as error:
    # What pyarrow says in place of the system's words is longer.
    reason = os.strerror(error.errno) if error.errno else error
    raise UsageError(f"--{flag}: cannot write {path}: {reason}.") from None


def say(*words: object) -> None:
  """Prints to stdout, at once.

  Raises:
    UsageError: nobody reads it any more, or it cannot be written, as to a file
      on a disk that is full.
  """
  try:
    print(*words, flush=True)
  except OSError as error:
    standard_output.discard()
    if isinstance(error, BrokenPipeError):
      reason = "nobody reads its output any more."
    else:
      reason = f"cannot write its output: {error.strerror}."
    raise UsageError(reason) from None


def fail(program: str, message: object, code: int) -> NoReturn:
  """Ends the program, whose argv[0] is `program`, with a line and a code."""
  print(f"{pathlib.Path(program).stem}: {message}", file=sys.stderr)
  sys.exit(code)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the command line: an error is one line, and help is no error."""
  try:
    arguments = flags.FLAGS(argv)
  except flags.Error as error:
    fail(argv[0], " ".join(str(error).split()), code=2)
  except SystemExit:  # How absl ends after --help, with code 1.
    sys.exit(0)
  if len(arguments) > 1:
    fail(
        argv[0],
        f"unexpected argument '{arguments[1]}'; flags start with --.",
        code=2,
    )
  return arguments
