# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""PyTorch's EmbeddingBag, and FBGEMM's table batched embedding, on the CPU."""

from __future__ import annotations

import fbgemm_gpu
from fbgemm_gpu import split_embedding_configs
from fbgemm_gpu import split_table_batched_embeddings_ops_common as tbe_common
from fbgemm_gpu import split_table_batched_embeddings_ops_training as tbe
import numpy as np
import torch

from benchmarks.lookup import case_worker
from benchmarks.lookup import cases


class _Torch(case_worker.Contender):
  """Input as both take it: ids, offsets and weights."""

  def __init__(self, case: cases.Case, step: str):
    self._gradient = torch.from_numpy(cases.make_gradient(case))
    self._offsets = torch.arange(0, case.num_ids + 1, case.valency)
    self._batches = [
        (
            torch.from_numpy(batch.ids.reshape(-1).astype(np.int64)),
            torch.from_numpy(batch.weights.reshape(-1)),
        )
        for batch in cases.make_batches(case)
    ]
    self._updates = step != cases.FORWARD

  def activations(self) -> np.ndarray:
    return self._activations.detach().numpy()


class _EmbeddingBag(_Torch):
  """With sparse gradients, and the optimizers of torch.optim."""

  def __init__(self, case: cases.Case, step: str):
    super().__init__(case, step)
    self._bag = torch.nn.EmbeddingBag(
        case.num_rows,
        case.dim,
        mode="sum",
        sparse=True,
        include_last_offset=True,
    )
    with torch.no_grad():
      self._bag.weight.copy_(torch.from_numpy(cases.make_table(case)))
    if step == cases.SGD:
      self._optimizer = torch.optim.SGD(
          self._bag.parameters(), lr=cases.LEARNING_RATE
      )
    elif step == cases.ADAGRAD:
      self._optimizer = torch.optim.Adagrad(
          self._bag.parameters(),
          lr=cases.LEARNING_RATE,
          initial_accumulator_value=cases.INITIAL_ACCUMULATOR,
      )

  def step(self, batch_number: int) -> None:
    ids, weights = self._batches[batch_number]
    if not self._updates:
      with torch.no_grad():
        self._activations = self._bag(ids, self._offsets, weights)
      return
    self._optimizer.zero_grad()
    self._activations = self._bag(ids, self._offsets, weights)
    self._activations.backward(self._gradient)
    self._optimizer.step()

  def table(self) -> np.ndarray:
    return self._bag.weight.detach().numpy()


class _Fbgemm(_Torch):
  """With the optimizer in the backward pass; its Adagrad is row-wise."""

  is_row_wise = True

  def __init__(self, case: cases.Case, step: str):
    super().__init__(case, step)
    types = split_embedding_configs.EmbOptimType
    self._bag = tbe.SplitTableBatchedEmbeddingBagsCodegen(
        [
            (
                case.num_rows,
                case.dim,
                tbe_common.EmbeddingLocation.HOST,
                tbe.ComputeDevice.CPU,
            )
        ],
        optimizer=(
            types.EXACT_ROWWISE_ADAGRAD
            if step == cases.ADAGRAD
            else types.EXACT_SGD
        ),
        learning_rate=cases.LEARNING_RATE,
        eps=1e-8,
        pooling_mode=tbe_common.PoolingMode.SUM,
    )
    (self._weights,) = self._bag.split_embedding_weights()
    with torch.no_grad():
      self._weights.copy_(torch.from_numpy(cases.make_table(case)))
    if step == cases.ADAGRAD:
      ((accumulator,),) = self._bag.split_optimizer_states()
      accumulator.fill_(cases.INITIAL_ACCUMULATOR)

  def step(self, batch_number: int) -> None:
    ids, weights = self._batches[batch_number]
    if not self._updates:
      with torch.no_grad():
        self._activations = self._bag(ids, self._offsets, weights)
      return
    self._activations = self._bag(ids, self._offsets, weights)
    self._activations.backward(self._gradient)

  def table(self) -> np.ndarray:
    return self._weights.detach().numpy()


class Worker(case_worker.CaseWorker):
  """The commands."""

  def __init__(self):
    torch.set_num_threads(case_worker.num_threads())

  def contenders(
      self, case: cases.Case, step: str
  ) -> dict[str, case_worker.Contender]:
    return {"torch": _EmbeddingBag(case, step), "FBGEMM": _Fbgemm(case, step)}

  def versions(self) -> dict[str, str]:
    return {"torch": torch.__version__, "fbgemm-gpu": fbgemm_gpu.__version__}
