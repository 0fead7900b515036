# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Reads the golden cases; README.md describes the files."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import json
import pathlib
import types
from typing import Any

import numpy as np

BUFFERS = ("row_pointers", "embedding_ids", "sample_ids", "gains")
STATS = (
    "max_ids_per_partition",
    "max_unique_ids_per_partition",
    "required_buffer_size_per_sc",
    "id_drop_counters",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoldenCase:
  """One case: its configuration and every stored array."""

  name: str
  config: dict[str, Any]
  arrays: dict[str, np.ndarray]

  @property
  def num_hosts(self) -> int:
    return self.config["topology"]["num_hosts"]

  def topology(self) -> dict[str, int]:
    """The three counts, by their names in layout.Topology."""
    counts = dict(self.config["topology"])
    del counts["num_hosts"]
    return counts

  def feature_order(self) -> list[int]:
    """Features in the order in which JAX flattens the case's container."""
    names = [f["name"] for f in self.config["features"]]
    order = range(len(names))
    if self.config["container"] == "dict":
      return sorted(order, key=lambda i: names[i])
    return list(order)

  @property
  def is_sparse(self) -> bool:
    return self.config["inputs"]["kind"] == "sparse"

  def sparse(self, host: int, member: str) -> list[np.ndarray]:
    """`indices`, `values` or `dense_shape` of each feature's sparse tensor."""
    return [
        self.arrays[f"h{host}/in/{i}/{member}"] for i in self.feature_order()
    ]

  def ids(self, host: int) -> list[np.ndarray]:
    """Ids of each feature, in feature_order()."""
    return [self._leaf(host, i, "ids", "values") for i in self.feature_order()]

  def weights(self, host: int) -> list[np.ndarray] | None:
    if not self.config["inputs"]["weights"]:
      return None
    return [
        self._leaf(host, i, "weights", "weights") for i in self.feature_order()
    ]

  def feature_specs(self) -> list[types.SimpleNamespace]:
    """What preprocessing reads of the feature specs, in feature_order()."""
    return [
        self._feature_spec(self.config["features"][i])
        for i in self.feature_order()
    ]

  def num_minibatches(self, host: int) -> int:
    # One value for all devices.
    return int(self.arrays[f"h{host}/num_minibatches"].flat[0])

  def stacks(self) -> list[str]:
    return sorted(self.config["resolved"]["stacks"])

  def outputs(self, host: int, stack: str) -> dict[str, np.ndarray]:
    """BUFFERS and STATS by name."""
    return {
        name: self.arrays[f"h{host}/out/{stack}/{name}"] for name in BUFFERS
    } | {name: self.arrays[f"h{host}/stats/{stack}/{name}"] for name in STATS}

  def _leaf(self, host: int, i: int, dense: str, ragged: str) -> np.ndarray:
    prefix = f"h{host}/in/{i}/"
    if self.config["inputs"]["kind"] == "dense":
      return self.arrays[prefix + dense]
    splits = self.arrays[prefix + "row_splits"]
    rows = np.empty(len(splits) - 1, object)
    for r, row in enumerate(
        np.split(self.arrays[prefix + ragged], splits[1:-1])
    ):
      rows[r] = row
    return rows

  def _feature_spec(self, feature: dict[str, Any]) -> types.SimpleNamespace:
    resolved = self.config["resolved"]
    numbers = resolved["features"][feature["name"]]
    table = next(
        t for t in self.config["tables"] if t["name"] == feature["table"]
    )
    return types.SimpleNamespace(
        name=feature["name"],
        input_shape=tuple(feature["input_shape"]),
        _id_transformation=types.SimpleNamespace(
            row_offset=numbers["row_offset"],
            col_offset=numbers["col_offset"],
            col_shift=numbers["col_shift"],
        ),
        table_spec=types.SimpleNamespace(
            name=table["name"],
            vocabulary_size=table["vocabulary_size"],
            setting_in_stack=types.SimpleNamespace(stack_name=numbers["stack"]),
            stacked_table_spec=types.SimpleNamespace(
                **resolved["stacks"][numbers["stack"]]
            ),
        ),
    )


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Element-wise equality of bits, in which any NaN equals any NaN."""
  if a.dtype.kind == "f":
    same = a.view(np.uint32) == b.view(np.uint32)
    return same | (np.isnan(a) & np.isnan(b))
  return a == b


def golden_cases() -> Iterator[GoldenCase]:
  """All cases, by name."""
  for path in sorted(pathlib.Path(__file__).parent.glob("*.npz")):
    with np.load(path, allow_pickle=False) as file:
      arrays = dict(file)
    config = json.loads(str(arrays.pop("config")))
    yield GoldenCase(name=path.stem, config=config, arrays=arrays)
