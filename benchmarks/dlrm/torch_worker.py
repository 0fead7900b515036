# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""PyTorch: EmbeddingBag with sparse gradients and torch.optim.Adagrad."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.dlrm import cases
from benchmarks.dlrm import model_worker


def _linear(layer: cases.Layer) -> torch.nn.Linear:
  inputs, outputs = layer.kernel.shape
  module = torch.nn.Linear(inputs, outputs, bias=layer.bias is not None)
  with torch.no_grad():
    module.weight.copy_(torch.from_numpy(layer.kernel.T.copy()))
    if layer.bias is not None:
      module.bias.copy_(torch.from_numpy(layer.bias))
  return module


class _DenseLayers(torch.nn.Module):
  """Everything behind the tables."""

  def __init__(self, case: cases.Case):
    super().__init__()
    layers = {
        name: [_linear(layer) for layer in of_name]
        for name, of_name in cases.make_layers(case).items()
    }

    def mlp(name):
      modules = []
      for layer in layers[name]:
        modules += [layer, torch.nn.ReLU()]
      return torch.nn.Sequential(*modules)

    self.bottom_mlp = mlp("bottom_mlp")
    self.narrow = torch.nn.ModuleList(layers["cross"][::2])
    self.wide = torch.nn.ModuleList(layers["cross"][1::2])
    self.top_mlp = mlp("top_mlp")
    (self.logit,) = layers["logit"]

  def forward(
      self, dense: torch.Tensor, activations: Sequence[torch.Tensor]
  ) -> torch.Tensor:
    x0 = x = torch.cat([self.bottom_mlp(dense), *activations], dim=1)
    for narrow, wide in zip(self.narrow, self.wide):
      x = x0 * wide(narrow(x)) + x
    return self.logit(self.top_mlp(x))[:, 0]


class _Torch(model_worker.Model):
  """In eager mode; its input is in tensors before the time is taken."""

  def __init__(self, case: cases.Case):
    self._batches = [
        (
            torch.from_numpy(batch.labels),
            torch.from_numpy(batch.dense),
            list(torch.from_numpy(batch.rows.T.astype("int64"))),
        )
        for batch in cases.make_batches(case)
    ]
    self._offsets = torch.arange(case.batch_size)
    self._bags = torch.nn.ModuleList()
    for _ in range(cases.NUM_TABLES):
      bag = torch.nn.EmbeddingBag(
          case.table_rows,
          case.embedding_dim,
          mode="sum",
          sparse=True,
          _weight=torch.zeros(case.table_rows, case.embedding_dim),
      )
      self._bags.append(bag)
    self._adagrad = torch.optim.Adagrad(
        self._bags.parameters(),
        lr=cases.TABLE_LEARNING_RATE,
        initial_accumulator_value=cases.INITIAL_ACCUMULATOR,
    )
    self._layers = _DenseLayers(case)
    # One kernel for all parameters: the faster of its three ways.
    self._adam = torch.optim.Adam(
        self._layers.parameters(), lr=cases.DENSE_LEARNING_RATE, fused=True
    )
    self._loss = torch.nn.BCEWithLogitsLoss()
    self._gradients = list(torch.from_numpy(cases.make_gradients(case)))
    self._activations = [
        gradient.clone().requires_grad_() for gradient in self._gradients
    ]

  def _look_up(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [bag(ids, self._offsets) for bag, ids in zip(self._bags, rows)]

  def step(self, batch_number: int) -> float:
    labels, dense, rows = self._batches[batch_number]
    self._adagrad.zero_grad()
    self._adam.zero_grad()
    loss = self._loss(self._layers(dense, self._look_up(rows)), labels)
    loss.backward()
    self._adagrad.step()
    self._adam.step()
    return loss.item()

  def tables(self, batch_number: int) -> None:
    _, _, rows = self._batches[batch_number]
    self._adagrad.zero_grad()
    torch.autograd.backward(self._look_up(rows), self._gradients)
    self._adagrad.step()

  def dense(self, batch_number: int) -> None:
    labels, dense, _ = self._batches[batch_number]
    self._adam.zero_grad()
    for activation in self._activations:
      activation.grad = None
    self._loss(self._layers(dense, self._activations), labels).backward()
    self._adam.step()


class Worker(model_worker.ModelWorker):
  """The commands."""

  def __init__(self):
    torch.set_num_threads(model_worker.num_threads())

  def make(self, case: cases.Case) -> model_worker.Model:
    return _Torch(case)

  def versions(self) -> dict[str, str]:
    return {"torch": torch.__version__}
