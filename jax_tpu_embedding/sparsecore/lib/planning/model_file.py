# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The feature specs of a model that a command is given."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import re
import runpy
import sys
from typing import Any

from google.protobuf import json_format
from google.protobuf import message as protobuf_message
from google.protobuf import text_format
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2

HELP = (
    "program.py:attribute, which is feature specs or a function that makes"
    " them (without :attribute, feature_specs); or an EmbeddingSpecProto: .pb,"
    " .pbtxt, .json"
)


def load(model: str, *, batch: int | None = None) -> Any:
  """The feature specs of a model, prepared if they are there.

  Args:
    model: what HELP says.
    batch: samples of all devices, in place of those of the specs. Specs that
      are prepared keep their stacks, with room for as many samples.

  Raises:
    ValueError: if the model is none of these, a file of a message has none, or
      the batch is below 1.
    OSError: if there is no such file.
  """
  if batch is not None and batch < 1:
    raise ValueError(f"batch must be at least 1, got {batch}.")
  specs = _load(model)
  return specs if batch is None else _with_batch(specs, batch)


def _load(model: str) -> Any:
  # Other colons may be in the path.
  program = re.fullmatch(r"(?s)(.+\.py):([^/:]*)", model)
  path, attribute = program.groups() if program else (model, "")
  suffix = pathlib.Path(path).suffix
  if suffix == ".py":
    return _of_program(path, attribute)
  if suffix in _PARSERS:
    return _of_message(pathlib.Path(path), _PARSERS[suffix])
  ending = f"ends with {suffix!r}" if suffix else "has no suffix"
  raise ValueError(
      f"{path!r} {ending}, and a model is .py:attribute, .pb, .pbtxt or .json."
  )


def _of_program(path: str, attribute: str) -> Any:
  with _first_on_path(pathlib.Path(path).resolve().parent):
    module = runpy.run_path(path)
    if not attribute and "feature_specs" not in module:
      raise ValueError(
          f"{path!r} does not say which attribute of the program has the"
          " feature specs. Write program.py:attribute, or call it"
          " feature_specs."
      )
    attribute = attribute or "feature_specs"
    if attribute not in module:
      raise ValueError(f"{path} has no attribute {attribute!r}.")
    specs = module[attribute]
    return specs() if callable(specs) else specs


@contextlib.contextmanager
def _first_on_path(folder: pathlib.Path) -> Iterator[None]:
  """Lets a program import what is beside it, as `python program.py` does."""
  sys.path.insert(0, str(folder))
  try:
    yield
  finally:
    # The program may have changed it too.
    with contextlib.suppress(ValueError):
      sys.path.remove(str(folder))


def _parse_text(data: bytes, message: Any) -> None:
  text_format.Parse(data.decode(), message)


_PARSERS = {
    ".pb": lambda data, message: message.ParseFromString(data),
    ".pbtxt": _parse_text,
    ".textproto": _parse_text,
    ".json": lambda data, message: json_format.Parse(data.decode(), message),
}


def _of_message(path: pathlib.Path, parse: Callable[[bytes, Any], Any]) -> Any:
  data = path.read_bytes()
  message = embedding_spec_pb2.EmbeddingSpecProto()
  try:
    parse(data, message)
  except (
      json_format.ParseError,
      protobuf_message.DecodeError,
      text_format.ParseError,
      UnicodeDecodeError,
  ) as error:
    reason = str(error).rstrip(".")
    raise ValueError(
        f"{path} is not an EmbeddingSpecProto: {reason}. Write it again, with"
        " embedding.create_proto_from_feature_specs."
    ) from error
  return embedding.feature_specs_from_proto(message)


def _with_batch(specs: Any, batch: int) -> Any:
  features, structure = jax.tree.flatten(specs)
  # How many samples stacks have, and where in them those of a feature begin.
  stacked = {x.name: x for x in features if x.table_spec.is_stacked()}
  resized = _batch_sizes.resize(stacked, dict.fromkeys(stacked, batch))
  features = [
      dataclasses.replace(
          resized.get(feature.name, feature),
          input_shape=(batch, *feature.input_shape[1:]),
          output_shape=(batch, *feature.output_shape[1:]),
      )
      for feature in features
  ]
  return jax.tree.unflatten(structure, features)
