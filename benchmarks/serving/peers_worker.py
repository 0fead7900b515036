# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookups of PyTorch and FBGEMM in tables that are only read, on the CPU.

They have ids and offsets of the types that they take, converted before.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import fbgemm_gpu
from fbgemm_gpu import split_embedding_configs
from fbgemm_gpu import split_embedding_inference_converter
from fbgemm_gpu import split_table_batched_embeddings_ops_common as tbe_common
from fbgemm_gpu import split_table_batched_embeddings_ops_training as tbe
import numpy as np
import torch

from benchmarks import turns
from benchmarks.serving import workload


class _Peer(abc.ABC):
  """Sums rows of one table.

  Attributes:
    index_type: of ids and offsets.
    row_bytes: of the table.
  """

  index_type: torch.dtype
  row_bytes: int

  @abc.abstractmethod
  def look_up(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """[samples, columns]."""


class _EmbeddingBag(_Peer):
  """torch.nn.EmbeddingBag, whose sums have the type of the table."""

  index_type = torch.int64

  def __init__(self, values: torch.Tensor, dtype: torch.dtype):
    self.row_bytes = values.shape[1] * dtype.itemsize
    self._bag = torch.nn.EmbeddingBag.from_pretrained(
        values.to(dtype), mode="sum", include_last_offset=True
    )

  def look_up(self, ids, offsets):
    return self._bag(ids, offsets)


class _QuantizedBag(_Peer):
  """The operators behind torch.ao.nn.quantized.EmbeddingBag."""

  index_type = torch.int64

  def __init__(
      self,
      values: torch.Tensor,
      pack: Callable[..., torch.Tensor],
      look_up: Callable[..., torch.Tensor],
  ):
    self._rows = pack(values)
    self._look_up = look_up
    self.row_bytes = self._rows.shape[1]

  def look_up(self, ids, offsets):
    return self._look_up(
        self._rows, ids, offsets, mode=0, include_last_offset=True
    )


class _Fbgemm(_Peer):
  """A table of FBGEMM for training, as its converter makes one to serve."""

  index_type = torch.int32

  def __init__(
      self, values: torch.Tensor, type_: split_embedding_configs.SparseType
  ):
    model = torch.nn.Module()
    model.bag = tbe.SplitTableBatchedEmbeddingBagsCodegen(
        [
            (
                *values.shape,
                tbe_common.EmbeddingLocation.HOST,
                tbe.ComputeDevice.CPU,
            )
        ],
        pooling_mode=tbe_common.PoolingMode.SUM,
    )
    [weights] = model.bag.split_embedding_weights()
    weights.copy_(values)
    converter = split_embedding_inference_converter.SplitEmbInferenceConverter(
        type_, None
    )
    self._bag = converter.convert_model(model).bag
    self._bag.output_dtype = split_embedding_configs.SparseType.FP32.as_int()
    [parts] = self._bag.split_embedding_weights()
    self.row_bytes = sum(part.shape[1] for part in parts if part is not None)

  def look_up(self, ids, offsets):
    return self._bag(ids, offsets)


def _peers(values: torch.Tensor) -> dict[str, _Peer]:
  """By the package and the encoding."""
  quantized = torch.ops.quantized
  types = split_embedding_configs.SparseType
  return {
      "torch, float32": _EmbeddingBag(values, torch.float32),
      "torch, bfloat16": _EmbeddingBag(values, torch.bfloat16),
      "torch, float16": _EmbeddingBag(values, torch.float16),
      "torch, int8": _QuantizedBag(
          values,
          quantized.embedding_bag_byte_prepack,
          quantized.embedding_bag_byte_rowwise_offsets,
      ),
      "torch, int4": _QuantizedBag(
          values,
          quantized.embedding_bag_4bit_prepack,
          quantized.embedding_bag_4bit_rowwise_offsets,
      ),
      "FBGEMM, float32": _Fbgemm(values, types.FP32),
      "FBGEMM, float16": _Fbgemm(values, types.FP16),
      "FBGEMM, int8": _Fbgemm(values, types.INT8),
      "FBGEMM, int4": _Fbgemm(values, types.INT4),
  }


class Worker:
  """The commands."""

  def __init__(self):
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

  def load(self, rows: int, num_checked: int) -> dict[str, Any]:
    """Makes the tables.

    Args:
      rows: of the table.
      num_checked: how many of them are looked up to see their errors.

    Returns:
      "peers": name -> bytes of a row and the two errors of workload.errors;
      "versions": package -> version.
    """
    values = workload.values(rows)
    self._peers = _peers(torch.from_numpy(values))
    offsets = np.arange(0, workload.SAMPLES * workload.IDS + 1, workload.IDS)
    self._batches = {
        index_type: (
            [
                torch.from_numpy(ids.reshape(-1)).to(index_type)
                for ids in workload.batches(rows)
            ],
            torch.from_numpy(offsets).to(index_type),
        )
        for index_type in (torch.int32, torch.int64)
    }
    described = {}
    for name, peer in self._peers.items():
      each = torch.arange(num_checked + 1, dtype=peer.index_type)
      got = peer.look_up(each[:-1], each).float().numpy()
      described[name] = (
          peer.row_bytes,
          *workload.errors(values[:num_checked], got),
      )
    return {
        "peers": described,
        "versions": {
            "torch": torch.__version__,
            "fbgemm-gpu": fbgemm_gpu.__version__,
        },
    }

  def run(self, peer: str, calls: int) -> dict[str, float]:
    """Times `calls` lookups of the batches in turn; seconds per lookup."""
    contender = self._peers[peer]
    batches, offsets = self._batches[contender.index_type]
    numbers = iter(range(calls))
    return turns.time_calls(
        lambda: contender.look_up(
            batches[next(numbers) % len(batches)], offsets
        ),
        calls,
    )
