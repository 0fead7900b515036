# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A frozen dataclass as command line flags; mistakes as one line of text."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from typing import Any
from typing import NoReturn
from typing import TypeVar

from absl import flags

_Settings = TypeVar("_Settings")


class UsageError(ValueError):
  """Something the user can put right: reported in one line, no traceback."""


def setting(
    default: Any,
    help_text: str,
    *,
    shapes_result: bool = False,
    is_path: bool = False,
) -> Any:
  """A field of a dataclass of settings.

  Args:
    default: the flag's default; its type is the flag's type. A tuple is one of
      whole numbers, separated by commas on the command line.
    help_text: what `--help` says.
    shapes_result: whether another value gives another model or another stream
      of batches, so that a run cannot be resumed with it.
    is_path: whether a relative value starts where the user typed the command.
  """
  return dataclasses.field(
      default=default,
      metadata={
          "help": help_text,
          "shapes_result": shapes_result,
          "is_path": is_path,
      },
  )


_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


def define_flags(settings: type[Any]) -> None:
  """Defines one flag per field of `settings`; call it once, before app.run."""
  for field in dataclasses.fields(settings):
    define = _DEFINE[type(field.default)]
    default = field.default
    if isinstance(default, tuple):
      default = [str(number) for number in default]
    define(field.name, default, field.metadata["help"])


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
  if field.metadata["is_path"] and value:
    # `bazel run` starts programs in a directory of its own.
    start = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    return str(pathlib.Path(start, pathlib.Path(value).expanduser()))
  return value


def fail(program: str, message: object, code: int) -> NoReturn:
  """Ends the program with one line and an exit code."""
  print(f"{program}: {message}", file=sys.stderr)
  sys.exit(code)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the command line: an error is one line, and help is no error."""
  program = pathlib.Path(argv[0]).stem
  try:
    arguments = flags.FLAGS(argv)
  except flags.Error as error:
    fail(program, " ".join(str(error).split()), code=2)
  except SystemExit:  # How absl ends after --help, with code 1.
    sys.exit(0)
  if len(arguments) > 1:
    fail(
        program,
        f"unexpected argument '{arguments[1]}'; flags start with --.",
        code=2,
    )
  return arguments
