# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A tree of arrays as orbax saves it: read and written array by array.

orbax reads and writes trees as a whole. This reads any item of its handlers of
trees, zarr version 2 or 3, in files or in OCDBT, without allocating what nobody
asked for, and writes the form of it that needs no merge: zarr version 3 in
plain files. Leaves of other kinds, strings and empty containers, are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
import json
from typing import Any

from jax_tpu_embedding.sparsecore.lib.checkpoint import _chunk_files
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
import numpy as np
import tensorstore

CheckpointError = _row_blocks.CheckpointError

METADATA = "_METADATA"
_STRINGS = "_strings.json"
_ARRAY_METADATAS = "array_metadatas/process_0"
# As _METADATA says it of a key of a dict.
_DICT_KEY = 2

# Where a leaf is: names from the root on.
Keys = tuple[str, ...]


class Tree:
  """The arrays of an item.

  Args:
    directory: of the item.

  Raises:
    CheckpointError: it is no tree of orbax.
  """

  def __init__(self, directory: _zarr_rows.Directory):
    self._directory = directory
    text = directory.read_file(METADATA)
    try:
      if text is None:
        raise ValueError("there is no such file.")
      self._metadata = json.loads(text)
      self._leaves = {
          tuple(str(key["key"]) for key in entry["key_metadata"]): entry
          for entry in self._metadata["tree_metadata"].values()
      }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise CheckpointError(
          f"{directory.path}/{METADATA} does not describe a tree of orbax:"
          f" {error}"
      ) from error
    self._driver = "zarr3" if self._metadata.get("use_zarr3") else "zarr"
    self._is_ocdbt = directory.read_file("manifest.ocdbt") is not None

  def keys(self) -> list[Keys]:
    """Of all leaves, those included that are no arrays."""
    return list(self._leaves)

  def is_array(self, keys: Keys) -> bool:
    value = self._leaves[keys]["value_metadata"]
    return not value.get("skip_deserialize") and value["value_type"] != "string"

  @property
  def custom_metadata(self) -> Mapping[str, Any]:
    return self._metadata.get("custom_metadata") or {}

  def open(self, keys: Keys) -> tensorstore.TensorStore:
    """An array, of which nothing is read.

    Raises:
      CheckpointError: it is not there.
    """
    files = self._directory.kvstore_spec
    if self._is_ocdbt:
      files = {"driver": "ocdbt", "base": files, "path": f"{_name(keys)}/"}
    else:
      files = {**files, "path": f"{files['path']}{_name(keys)}/"}
    try:
      return tensorstore.open(
          {
              "driver": self._driver,
              "kvstore": files,
              "fill_missing_data_reads": False,
          },
          open=True,
          context=_chunk_files.context(),
      ).result()
    except (OSError, ValueError) as error:
      raise CheckpointError(
          f"{self._directory.path}: cannot open {_name(keys)!r}: {error}"
      ) from error

  def read(self, keys: Keys) -> np.ndarray:
    """A whole array.

    Raises:
      CheckpointError: it is not there, or damaged.
    """
    try:
      return np.asarray(self.open(keys).read().result())
    except (OSError, ValueError) as error:
      raise CheckpointError(
          f"{self._directory.path}: {_name(keys)!r} is damaged: {error}"
      ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewTree:
  """A tree to be written.

  Attributes:
    copied: what to take leaves from, unchanged.
    without: the leaves of `copied` to leave out.
    arrays: more leaves: their keys, and what makes them when their turn comes,
      so that only one is there at a time.
    empty: more leaves, which are empty dicts.
    custom_metadata: orbax keeps it beside the tree.
  """

  copied: Tree | None = None
  without: frozenset[Keys] = frozenset()
  arrays: Mapping[Keys, Any] = dataclasses.field(default_factory=dict)
  empty: Sequence[Keys] = ()
  custom_metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def write(self, directory: _zarr_rows.Directory) -> None:
    """Writes all of it, in blocks.

    Raises:
      CheckpointError: something cannot be read, or not written.
    """
    entries = {keys: _entry(keys, "Dict", True) for keys in self.empty}
    for keys, make in self.arrays.items():
      entries[keys] = _entry(keys, "np.ndarray", False)
      array = make()
      _copy(array, directory, keys, _chunk_of(array))
    if self.copied is not None:
      for keys, entry in self._kept().items():
        entries[keys] = entry
        if self.copied.is_array(keys):
          array = self.copied.open(keys)
          _copy(array, directory, keys, _read_chunk(array))
      self._copy_beside(directory)
    metadata = {
        "tree_metadata": {str(keys): entry for keys, entry in entries.items()},
        "use_ocdbt": False,
        "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": dict(self.custom_metadata) or None,
    }
    directory.write_file(METADATA, json.dumps(metadata).encode())

  def _kept(self) -> dict[Keys, Any]:
    return {
        keys: entry
        for keys, entry in self.copied._leaves.items()  # pylint: disable=protected-access
        if keys not in self.without
    }

  def _copy_beside(self, directory: _zarr_rows.Directory) -> None:
    """What orbax keeps of leaves in files beside their arrays."""
    source = self.copied._directory  # pylint: disable=protected-access
    strings = source.read_file(_STRINGS)
    if strings is not None:
      directory.write_file(_STRINGS, strings)
    # Of which kind random keys are.
    found = source.read_file(_ARRAY_METADATAS)
    if found is not None:
      content = json.loads(found)
      kept = {_name(keys) for keys in self._kept()}
      content["array_metadatas"] = [
          entry
          for entry in content["array_metadatas"]
          if entry["array_metadata"]["param_name"] in kept
      ]
      directory.write_file(_ARRAY_METADATAS, json.dumps(content).encode())


def _entry(keys: Keys, value_type: str, is_skipped: bool) -> dict[str, Any]:
  return {
      "key_metadata": [{"key": key, "key_type": _DICT_KEY} for key in keys],
      "value_metadata": {
          "value_type": value_type,
          "skip_deserialize": is_skipped,
      },
  }


def _name(keys: Keys) -> str:
  return ".".join(keys)


def _copy(
    source: np.ndarray | tensorstore.TensorStore,
    directory: _zarr_rows.Directory,
    keys: Keys,
    chunk: Sequence[int],
) -> None:
  """Writes an array in chunks, one after the other."""
  codecs = [
      {"name": "bytes", "configuration": {"endian": "little"}},
      {"name": "crc32c"},
  ]
  dtype = tensorstore.dtype(
      source.dtype if isinstance(source, np.ndarray) else source.dtype.name
  )
  if dtype.numpy_dtype.itemsize == 1:
    del codecs[0]["configuration"]
  files = directory.kvstore_spec
  name = _name(keys)
  chunk = [max(size, 1) for size in chunk]
  try:
    target = tensorstore.open(
        {
            "driver": "zarr3",
            "kvstore": {**files, "path": f"{files['path']}{name}/"},
            "metadata": {
                "shape": list(source.shape),
                "data_type": dtype.name,
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": chunk},
                },
                "codecs": codecs,
            },
            "store_data_equal_to_fill_value": True,
        },
        create=True,
        context=_chunk_files.context(),
    ).result()
    for region in _regions(source.shape, chunk):
      values = source[region]
      if not isinstance(values, (np.ndarray, np.generic)):
        values = values.read().result()
      target[region].write(values).result()
  except (OSError, ValueError) as error:
    raise CheckpointError(
        f"Cannot copy {name!r} to {directory.path}: {error}"
    ) from error


def regions(array: tensorstore.TensorStore) -> Iterator[tuple[slice, ...]]:
  """The parts of an array that are read at once, in order."""
  return _regions(array.shape, _read_chunk(array))


def _read_chunk(array: tensorstore.TensorStore) -> tuple[int, ...]:
  # None for one number.
  return tuple(array.chunk_layout.read_chunk.shape or ())


def _regions(
    shape: Sequence[int], chunk: Sequence[int]
) -> Iterator[tuple[slice, ...]]:
  along = [
      [slice(i, min(i + part, size)) for i in range(0, size, part)]
      for size, part in zip(shape, chunk)
  ]
  return itertools.product(*along)


def _chunk_of(array: np.ndarray) -> tuple[int, ...]:
  """Blocks of rows of about as many bytes as others have."""
  if array.ndim < 2:
    return array.shape
  *leading, rows, columns = array.shape
  per_block = _row_blocks.rows_per_block(
      rows, columns * array.dtype.itemsize, _row_blocks.BLOCK_BYTES
  )
  return (*[1] * len(leading), per_block, columns)
