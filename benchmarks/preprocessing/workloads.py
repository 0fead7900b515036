# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The batches that the benchmark converts. Seeded, and NumPy only.

A workload is a row of `WORKLOADS`: distributions of ids and of ids per sample,
a topology, and the form of the input. Each is measured without weights and,
where the form can carry them, with weights.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from benchmarks import zipf

# MLPerf DLRM-DCNv2: rows of the 26 tables, capped at 40 M, and ids per sample.
# Source: https://github.com/mlcommons/training, recommendation_v2.
_CRITEO_VOCABULARIES = (
    40_000_000,
    39_060,
    17_295,
    7_424,
    20_265,
    3,
    7_122,
    1_543,
    63,
    40_000_000,
    3_067_956,
    405_282,
    10,
    2_209,
    11_938,
    155,
    4,
    976,
    14,
    40_000_000,
    40_000_000,
    40_000_000,
    590_152,
    12_973,
    108,
    36,
)  # pyformat: disable
_CRITEO_VALENCIES = (
    3,
    2,
    1,
    2,
    6,
    1,
    1,
    1,
    1,
    7,
    3,
    8,
    1,
    6,
    9,
    5,
    1,
    1,
    1,
    12,
    100,
    27,
    10,
    3,
    1,
    1,
)  # pyformat: disable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
  local_device_count: int
  global_device_count: int
  num_sc_per_device: int


_ONE_SC = Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=1
)
_ONE_DEVICE = Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=4
)
_ONE_HOST = Topology(
    local_device_count=8, global_device_count=8, num_sc_per_device=4
)
_EIGHT_HOSTS = Topology(
    local_device_count=8, global_device_count=64, num_sc_per_device=4
)
_64_HOSTS = Topology(
    local_device_count=8, global_device_count=512, num_sc_per_device=4
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """One row. A "step" is what one host converts in one call."""

  name: str
  topology: Topology
  # One per feature; each feature has a table of its own.
  vocabularies: Sequence[int]
  # Ids per sample, of each feature; with `varying`, their mean.
  valencies: Sequence[int]
  # Samples per step of each feature.
  batch_size: int = 16384
  # The s of the Zipf law of the ids; 0 is uniform.
  zipf: float = 1.05
  # "dense", "ragged" (object array of rows) or "sparse" (COO: indices, values).
  form: str = "dense"
  dtype: str = "int32"
  combiner: str = "sum"
  # All tables in one stack, instead of one stack per table.
  stacked: bool = False
  enable_minibatching: bool = False
  # Both limits, as a part of the largest partition of the batch. Below 1 the
  # batch needs minibatches.
  limit: float = 1.1
  # How many minibatches it has to take; None: any number.
  num_minibatches: int | None = 1

  @property
  def can_have_weights(self) -> bool:
    return self.form != "sparse"


def _one_table(name: str, topology: Topology, valency: int = 1, **changes):
  return Workload(
      name=name,
      topology=topology,
      vocabularies=[1_000_000],
      valencies=[valency],
      **changes,
  )


def _criteo(name: str, topology: Topology = _ONE_HOST, **changes):
  return Workload(
      name=name,
      topology=topology,
      vocabularies=_CRITEO_VOCABULARIES,
      valencies=_CRITEO_VALENCIES,
      **changes,
  )


WORKLOADS = (
    _one_table("one table, 1 x 1", _ONE_SC),
    _one_table("one table, 8 x 4", _ONE_HOST),
    _one_table("one table, 8 of 64 x 4", _EIGHT_HOSTS),
    _criteo("Criteo, 8 x 4"),
    _criteo("Criteo, int64", dtype="int64"),
    _criteo("Criteo, 8 of 64 x 4", _EIGHT_HOSTS),
    Workload(
        name="100 stacked features",
        topology=_ONE_HOST,
        vocabularies=[100_000] * 100,
        valencies=[1] * 100,
        stacked=True,
    ),
    _one_table(
        "ragged, mean of 20", _ONE_HOST, 20, form="ragged", combiner="mean"
    ),
    _one_table(
        "COO, mean of 20", _ONE_HOST, 20, form="sparse", combiner="mean"
    ),
    # Few ids for each of so many partitions.
    *(
        _one_table(
            f"{name}, 8 of {topology.global_device_count} x 4",
            topology,
            20,
            form=form,
            combiner="mean",
        )
        for topology in (_EIGHT_HOSTS, _64_HOSTS)
        for name, form in (("ragged", "ragged"), ("COO", "sparse"))
    ),
    _one_table("duplicates, Zipf 1.2", _ONE_HOST, 50, zipf=1.2),
    _one_table(
        "minibatching not needed",
        _ONE_HOST,
        25,
        zipf=0,
        enable_minibatching=True,
    ),
    # Between the largest quarter and the smallest half of a partition's
    # buckets, so that quarters fit and halves do not.
    _one_table(
        "4 minibatches",
        _ONE_HOST,
        25,
        zipf=0,
        enable_minibatching=True,
        limit=0.35,
        num_minibatches=4,
    ),
    _one_table("64 ids", _ONE_DEVICE, batch_size=64),
    *(
        Workload(
            name=name,
            topology=_ONE_DEVICE,
            vocabularies=[100_000] * 100,
            valencies=[1] * 100,
            batch_size=64,
            stacked=stacked,
        )
        for name, stacked in (
            ("6400 ids in 100 features", False),
            ("6400 ids in 100 stacked features", True),
        )
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureBatch:
  """One feature's part of a step. Ids lie sample after sample."""

  ids: np.ndarray  # [num_ids], int32 or int64
  row_splits: np.ndarray  # i64[batch_size + 1]
  weights: np.ndarray | None  # f32[num_ids]


def make_batch(workload: Workload, has_weights: bool) -> list[FeatureBatch]:
  """One step of `workload`; the same ids with weights and without."""
  batch = []
  for i, (vocabulary, valency) in enumerate(
      zip(workload.vocabularies, workload.valencies, strict=True)
  ):
    rng = np.random.default_rng([i, vocabulary, valency])
    if workload.form == "dense":
      lengths = np.full(workload.batch_size, valency)
    else:
      lengths = rng.integers(0, 2 * valency + 1, workload.batch_size)
    row_splits = np.concatenate([[0], np.cumsum(lengths)])
    num_ids = int(row_splits[-1])
    ids = zipf.sample(rng, workload.zipf, vocabulary, num_ids)
    weights = rng.random(num_ids, np.float32) + np.float32(0.5)
    batch.append(
        FeatureBatch(
            ids=ids.astype(workload.dtype),
            row_splits=row_splits,
            weights=weights if has_weights else None,
        )
    )
  return batch


def shrink(workload: Workload) -> Workload:
  """`workload` with 64 samples and small tables: for a test of the harness."""
  return dataclasses.replace(
      workload,
      batch_size=64,
      vocabularies=[min(v, 50_000) for v in workload.vocabularies],
      # At this size, fewer ids in a bucket make it vary.
      num_minibatches=None if workload.enable_minibatching else 1,
  )
