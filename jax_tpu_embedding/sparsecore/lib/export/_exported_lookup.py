# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A lookup, and what follows it, as a program that needs only JAX.

    <path>/lookup.jax_export     what jax.export.deserialize takes
    <path>/signature.json        its arguments and results, for other readers

The program has XLA's operations alone, and nothing of this package. Tables are
arguments of it, as they are in the files of served tables: so it stays small,
and the next version of the tables needs no other program.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import json
import os
import pathlib
import shutil
from typing import Any

import jax
from jax import export as jax_export
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore import extras
from jax_tpu_embedding.sparsecore.lib.export import _served_directory
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

PROGRAM = "lookup.jax_export"
SIGNATURE = "signature.json"
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# What follows the lookup: a function of parameters and activations, and its
# parameters.
Model = tuple[Callable[[Any, dict[str, jax.Array]], Any], Any]


def export_lookup(
    path: str | os.PathLike[str],
    feature_specs: Any,
    *,
    encoding: str | Mapping[str, str] = "float32",
    ragged: bool = False,
    weights: bool = False,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    model: Model | None = None,
) -> dict[str, Any]:
  """Writes a program that looks ids up in served tables.

  It is called as `program.call(tables, inputs)`, where

    tables   {table: array} as in the files: f32, bf16 or f16 [rows, columns],
             or for int8 and int4 u8[rows, row_bytes]
    inputs   {feature: ids}, of any number b >= 1 of samples, the same for all
             features. Dense: i32[b, ids per sample], or, where the feature's
             output_shape has more dimensions, i32[b, .., ids per sample].
             Ragged: (values i32[n], row_splits i32[b + 1]), n >= 1; what is
             behind row_splits[-1] counts for nothing, so values may be padded.
             With weights they follow, f32 of the shape of ids: (ids, weights)
             or (values, row_splits, weights).

  and returns {feature: f32[*output_shape, with b for the batch]}, or what the
  model returns. Ids that are no rows, and weights that are no numbers, are
  treated as the feature says; where it says "error", which a program cannot
  raise, they are left out, as with "drop".

  Args:
    path: a new or empty directory.
    feature_specs: of the features to look up.
    encoding: of the tables, as of export_tables.
    ragged: whether samples come as values and row_splits.
    weights: whether inputs have weights.
    platforms: that it can run on: "cpu", "cuda", "rocm", "tpu".
    model: (function, params); function(params, {feature: activations}) is part
      of the program, and so are params: they are constants in it.

  Returns:
    What is in signature.json.

  Raises:
    TypeError: an argument is of another kind. No file was made.
    ValueError: an encoding or a platform is not known, two features or two
      different tables have one name, something is at the path, or a feature
      cannot be ragged. No file was made.
  """
  extras.require("export", "flatbuffers")
  tables = _sources.of_specs(feature_specs, None, encoding)
  features = {f.name: f for f in jax.tree.leaves(feature_specs)}
  # Of a link, where it leads to: only there can the files get their name.
  path = pathlib.Path(os.path.realpath(path))
  _check(path, features, ragged, weights, platforms, model)

  def lookup(rows_of, inputs):
    activations = {
        name: _lookup_feature(
            feature,
            tables[feature.table_spec.name],
            rows_of[feature.table_spec.name],
            inputs[name],
            ragged,
            weights,
        )
        for name, feature in features.items()
    }
    if model is None:
      return activations
    function, params = model
    return function(params, activations)

  arguments = _table_shapes(tables), _input_shapes(features, ragged, weights)
  exported = jax_export.export(jax.jit(lookup), platforms=list(platforms))(
      *arguments
  )
  signature = {
      "format": "jax_tpu_embedding.lookup",
      "format_version": 1,
      "jax": jax.__version__,
      "calling_convention_version": exported.calling_convention_version,
      "platforms": list(exported.platforms),
      "tables": {
          name: _described(arguments[0][name])
          | {"encoding": table.encoding.name, "columns": table.columns}
          for name, table in tables.items()
      },
      "features": {
          name: {
              "table": feature.table_spec.name,
              "combiner": feature.table_spec.combiner,
              "inputs": [
                  {"name": part} | _described(shape)
                  for part, shape in zip(
                      _input_names(ragged, weights),
                      jax.tree.leaves(arguments[1][name]),
                      strict=True,
                  )
              ],
          }
          for name, feature in features.items()
      },
      "outputs": [
          {"name": jax.tree_util.keystr(where)} | _described(shape)
          for where, shape in jax.tree.leaves_with_path(
              jax.tree.unflatten(exported.out_tree, exported.out_avals)
          )
      ],
  }
  _write(path, bytes(exported.serialize()), signature)
  return signature


def _check(
    path: pathlib.Path,
    features: Mapping[str, embedding_spec.FeatureSpec],
    ragged: bool,
    weights: bool,
    platforms: Sequence[str],
    model: Model | None,
) -> None:
  for name, value in ("ragged", ragged), ("weights", weights):
    if not isinstance(value, bool):
      raise TypeError(f"{name} must be a bool, got {value!r}.")
  is_model = isinstance(model, (tuple, list)) and len(model) == 2
  if model is not None and not (is_model and callable(model[0])):
    raise TypeError(f"model must be (function, params), got {model!r:.80}.")
  if (
      isinstance(platforms, str)
      or not isinstance(platforms, Iterable)
      or not platforms
      or any(name not in _PLATFORMS for name in platforms)
  ):
    raise ValueError(
        f"platforms must be some of {', '.join(_PLATFORMS)}, got"
        f" {platforms!r}."
    )
  for name, feature in features.items():
    if ragged and len(feature.output_shape) > 2:
      raise ValueError(
          f"Feature {name!r}: its output_shape {tuple(feature.output_shape)}"
          " looks up several positions of a sample, which ragged ids have not."
          " Pass ragged=False, or export it by itself."
      )
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise ValueError(f"{path} is there, and is no empty directory.")


def _lookup_feature(
    feature: embedding_spec.FeatureSpec,
    table: _sources.Table,
    rows: jax.Array,
    inputs: Any,
    ragged: bool,
    weights: bool,
) -> jax.Array:
  """One vector per sample."""
  parts = dict(
      zip(
          _input_names(ragged, weights),
          inputs if ragged or weights else (inputs,),
          strict=True,
      )
  )
  ids, is_used = _rows_of_ids(feature, table, parts["ids"])
  gains = jnp.ones(ids.shape, jnp.float32)
  if weights:
    gains, are_numbers = _finite_weights(feature, parts["weights"])
    is_used &= are_numbers
  gains = jnp.where(is_used, gains, 0)
  # As in training, an output_shape may have fewer columns than the table.
  values = _decoded(table, rows[ids])[..., : feature.output_shape[-1]]
  # A row that is left out must not count even if it were infinite.
  values = jnp.where(is_used[..., None], values, 0)
  if ragged:
    splits = parts["row_splits"]
    # Values behind the last sample get a number that is none: they are dropped.
    begins = jnp.zeros(ids.shape, jnp.int32).at[splits[1:]].add(1, mode="drop")
    sample = jnp.cumsum(begins)

    def add_up(terms):
      return jax.ops.segment_sum(
          terms, sample, splits.shape[0] - 1, indices_are_sorted=True
      )

    def of_ids(numbers):
      return numbers[sample]

  else:
    last = ids.ndim - 1

    def add_up(terms):
      return terms.sum(axis=last)

    def of_ids(numbers):
      # Of the whole shape: XLA makes gains / numbers[..., None] a product with
      # reciprocals, which are zero for the largest numbers.
      return jnp.broadcast_to(jnp.expand_dims(numbers, last), ids.shape)

  if table.combiner != "sum":
    # Before rows are multiplied, as in training: weights times rows may overflow
    # where gains do not.
    divisor = of_ids(_divisor(table.combiner, gains, add_up))
    gains = jnp.where(divisor == 0, 0, gains / divisor)
  return add_up(values * gains[..., None])


def _rows_of_ids(
    feature: embedding_spec.FeatureSpec, table: _sources.Table, ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Rows to read, and which of them count."""
  last = table.rows - 1
  if feature.out_of_range_ids == "clamp":
    return jnp.clip(ids, 0, last), jnp.ones(ids.shape, bool)
  if feature.out_of_range_ids == "modulo":
    return ids % table.rows, jnp.ones(ids.shape, bool)
  return jnp.clip(ids, 0, last), (ids >= 0) & (ids <= last)


def _finite_weights(
    feature: embedding_spec.FeatureSpec, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Weights, and which of them count."""
  everywhere = jnp.ones(weights.shape, bool)
  if feature.non_finite_weights == "keep":
    return weights, everywhere
  if feature.non_finite_weights == "clamp":
    return jnp.nan_to_num(weights), everywhere
  return weights, jnp.isfinite(weights)


def _decoded(table: _sources.Table, rows: jax.Array) -> jax.Array:
  """Encoded rows [.., elements] -> f32[.., columns]; see _encodings.py."""
  if table.encoding.tensor_type != "U8":
    return rows.astype(jnp.float32)
  is_int8 = table.encoding.name == "int8"
  kind = jnp.float32 if is_int8 else jnp.float16
  bits = jnp.uint32 if is_int8 else jnp.uint16
  size = jnp.dtype(kind).itemsize

  def number(first):
    # Not a bitcast of several elements to one, which cannot be compiled where
    # batches have any size.
    parts = [
        rows[..., first + i].astype(bits) << jnp.array(8 * i, bits)
        for i in range(size)
    ]
    found = jax.lax.bitcast_convert_type(sum(parts[1:], parts[0]), kind)
    return found.astype(jnp.float32)[..., None]

  width = table.row_bytes
  scale = number(width - 2 * size)
  bias = number(width - size)
  codes = rows[..., : width - 2 * size]
  if table.encoding.name == "int4":
    codes = jnp.stack([codes & 15, codes >> 4], axis=-1)
    codes = codes.reshape(*rows.shape[:-1], 2 * (width - 2 * size))
  return codes[..., : table.columns].astype(jnp.float32) * scale + bias


def _divisor(
    combiner: str,
    gains: jax.Array,
    add_up: Callable[[jax.Array], jax.Array],
) -> jax.Array:
  """That of each sample."""
  if combiner == "mean":
    return add_up(gains)
  return jnp.sqrt(add_up(gains * gains))


def _input_names(ragged: bool, weights: bool) -> list[str]:
  names = ["ids", "row_splits"] if ragged else ["ids"]
  return names + ["weights"] * weights


def _table_shapes(
    tables: Mapping[str, _sources.Table],
) -> dict[str, jax.ShapeDtypeStruct]:
  return {
      name: jax.ShapeDtypeStruct(
          (table.rows, table.encoding.row_elements(table.columns)),
          table.encoding.element,
      )
      for name, table in tables.items()
  }


def _input_shapes(
    features: Mapping[str, embedding_spec.FeatureSpec],
    ragged: bool,
    weights: bool,
) -> dict[str, Any]:
  """What the program takes of each feature, of any number of samples."""
  scope = jax_export.SymbolicScope()
  result = {}
  for i, (name, feature) in enumerate(features.items()):
    positions = [
        f"p{i}_{j}" if size is None else str(size)
        for j, size in enumerate(feature.output_shape[1:-1])
    ]
    shape = f"n{i}" if ragged else ", ".join(["b", *positions, f"k{i}"])
    ids = jax_export.symbolic_shape(shape, scope=scope)
    parts = [jax.ShapeDtypeStruct(ids, jnp.int32)]
    if ragged:
      splits = jax_export.symbolic_shape("b + 1", scope=scope)
      parts.append(jax.ShapeDtypeStruct(splits, jnp.int32))
    if weights:
      parts.append(jax.ShapeDtypeStruct(ids, jnp.float32))
    result[name] = tuple(parts) if ragged or weights else parts[0]
  return result


def _described(shape: Any) -> dict[str, Any]:
  """A shape in JSON; sizes that may be any are letters."""
  return {
      "dtype": np.dtype(shape.dtype).name,
      "shape": [
          size if isinstance(size, int) else str(size) for size in shape.shape
      ],
  }


def _write(
    path: pathlib.Path, program: bytes, signature: Mapping[str, Any]
) -> None:
  """Writes both files, or none; also if the machine stops meanwhile."""
  path.parent.mkdir(parents=True, exist_ok=True)
  # By chance: processes in containers have the same few numbers.
  temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
  temporary.mkdir()
  try:
    described = json.dumps(signature, indent=1) + "\n"
    _served_directory.write_durably(temporary / PROGRAM, program)
    _served_directory.write_durably(temporary / SIGNATURE, described.encode())
    _served_directory.sync_directory(temporary)
    os.rename(temporary, path)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise
  _served_directory.sync_directory(path.parent)
