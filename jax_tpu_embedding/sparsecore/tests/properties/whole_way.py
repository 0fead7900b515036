# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Random programs over the whole way, and what NumPy says they compute.

A case is a number. It names a program (feature specs, devices, the optimizer:
one compilation serves CASES_PER_PROGRAM cases) and a batch for it: ids and
weights in some form of input, or something that is no valid input at all.
`check` runs the batch through preprocessing, lookup and update, and raises
AssertionError unless the result is that of `expected`, or the invalid input is
refused with an error that names what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.testing import input_forms
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

CASES_PER_PROGRAM = 50
# How many cases are invalid, how many have ids that are converted in jit, and
# how many another batch size than declared, for which programs compile anew.
_INVALID, _RAW, _OTHER_BATCH = 0.25, 0.3, 0.03

_P = jax.sharding.PartitionSpec
_LEARNING_RATE = 0.5
_ACCUMULATOR = 0.25
# Of float32 sums of up to a hundred terms of about 1.
_TOLERANCE = dict(rtol=2e-4, atol=2e-4)


def _generator(*numbers: int) -> np.random.Generator:
  return np.random.default_rng([20261122, *numbers])


# ---- Programs ----


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """Specs, tables, and a training step that is compiled once per input."""

  specs: list[embedding_spec.FeatureSpec]
  topology: layout.Topology
  options: dict[str, Any]  # of preprocessing, lookup and update
  valency: int  # the most ids of a sample
  mesh: jax.sharding.Mesh
  variables: dict[str, embedding.EmbeddingVariables]
  tables: dict[str, np.ndarray]  # f32[V, D] by name: what `variables` hold

  @property
  def batch_size(self) -> int:
    return self.specs[0].output_shape[0]

  @functools.cached_property
  def step(self) -> Callable[..., Any]:
    """(gradients, buffers) -> (activations, new variables)."""
    return self._jit(lambda inputs: inputs)

  @functools.cached_property
  def raw_step(self) -> Callable[..., Any]:
    """(gradients, (ids, weights)) -> the same, by ids converted inside."""

    def convert(inputs):
      ids, weights = inputs
      return embedding.convert_ids(
          ids,
          weights,
          self.specs,
          self.topology,
          feature_stacking_strategy=self.options["feature_stacking_strategy"],
      )

    return self._jit(convert, enable_minibatching=False)

  def _jit(self, convert: Callable[[Any], Any], **changes: Any) -> Any:
    options = dict(
        global_device_count=self.topology.global_device_count,
        num_sc_per_device=self.topology.num_sc_per_device,
        **(self.options | changes),
    )

    def step(gradients, inputs, variables):
      inputs = convert(inputs)
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, variables, self.specs, **options
      )
      new = embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, self.specs, **options
      )
      return activations, new

    compiled = jax.jit(
        jax.shard_map(
            step,
            mesh=self.mesh,
            in_specs=_P("x"),
            out_specs=_P("x"),
            check_vma=False,
        )
    )
    return lambda gradients, inputs: compiled(gradients, inputs, self.variables)

  def read(self, variables: Any) -> dict[str, np.ndarray]:
    """The tables of `variables` by name, without padding."""
    tables = table_stacking.unshard_and_unstack_tables(
        {spec.table_spec.name: spec.table_spec for spec in self.specs},
        {name: table for name, (table, _) in variables.items()},
        self.topology.num_scs,
    )
    return jax.tree.map(np.asarray, tables)


@functools.lru_cache(maxsize=1)
def program(number: int) -> Program:
  """The program of this number, on all devices of the process."""
  rng = _generator(0, number)
  num_devices = jax.device_count()
  topology = layout.Topology(
      local_device_count=num_devices,
      global_device_count=num_devices,
      num_sc_per_device=int(rng.choice([1, 2, 4])),
  )
  batch_size = topology.num_scs * int(rng.choice([1, 2, 5]))
  valency = int(rng.choice([1, 2, 7]))
  minibatching = bool(rng.random() < 0.3)
  num_features = int(rng.integers(1, 4))
  # What one SparseCore can have at most; with minibatches, half of it.
  samples = batch_size * num_features // topology.num_scs
  limit = samples * valency
  if minibatching:
    limit = samples + limit // 2
  limit = max(8, limit)
  optimizer = rng.choice(
      [
          embedding_spec.SGDOptimizerSpec(learning_rate=_LEARNING_RATE),
          embedding_spec.AdagradOptimizerSpec(
              learning_rate=_LEARNING_RATE,
              initial_accumulator_value=_ACCUMULATOR,
          ),
      ]
  )
  tables = [
      embedding_spec.TableSpec(
          name=f"table{i}",
          vocabulary_size=int(rng.choice([1, 3, 50, 300])),
          embedding_dim=int(rng.choice([1, 3, 8, 17])),
          optimizer=optimizer,
          combiner=str(rng.choice(["sum", "mean", "sqrtn"])),
          initializer=jax.nn.initializers.normal(1.0),
          max_ids_per_partition=limit,
          max_unique_ids_per_partition=limit,
      )
      for i in range(int(rng.integers(1, 3)))
  ]
  specs = []
  for i in range(num_features):
    table = tables[i % len(tables)]
    specs.append(
        embedding_spec.FeatureSpec(
            name=f"feature{i}",
            table_spec=table,
            input_shape=(batch_size, valency),
            output_shape=(batch_size, table.embedding_dim),
            out_of_range_ids=str(
                rng.choice(["error", "error", "drop", "clamp", "modulo"])
            ),
        )
    )
  if rng.random() < 0.6:
    embedding.auto_stack_tables(
        specs,
        global_device_count=num_devices,
        num_sc_per_device=topology.num_sc_per_device,
        stack_to_max_ids_per_partition=lambda *_: limit,
        stack_to_max_unique_ids_per_partition=lambda *_: limit,
    )
  embedding.prepare_feature_specs_for_training(
      specs, num_devices, topology.num_sc_per_device
  )
  mesh = jax.sharding.Mesh(jax.devices(), ("x",))
  variables = embedding.init_embedding_variables(
      jax.random.key(number),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(mesh, _P("x", None)),
      topology.num_sc_per_device,
  )
  drawn = Program(
      specs=specs,
      topology=topology,
      options=dict(
          enable_minibatching=minibatching,
          feature_stacking_strategy=str(
              rng.choice(["SPLIT_THEN_STACK", "STACK_THEN_SPLIT"])
          ),
      ),
      valency=valency,
      mesh=mesh,
      variables=variables,
      tables={},
  )
  drawn.tables.update(drawn.read(variables))
  return drawn


# ---- Batches ----


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
  """Ids and weights of each feature, one array per sample."""

  ids: list[list[np.ndarray]]
  weights: list[list[np.ndarray] | None]
  gradients: list[np.ndarray]  # of the activations, f32[batch, D]


def draw_batch(
    rng: np.random.Generator, of: Program, form: str = "dense"
) -> Batch:
  """A batch that the program can run.

  Args:
    rng: where randomness comes from.
    of: the program.
    form: of the input. Samples of dense ones have `of.valency` ids each.
  """
  ids, weights, gradients = [], [], []
  batch_size = of.batch_size
  if rng.random() < _OTHER_BATCH:
    num_scs = of.topology.num_scs
    batch_size = num_scs * int(rng.integers(1, batch_size // num_scs + 1))
  for spec in of.specs:
    vocabulary = spec.table_spec.vocabulary_size
    lengths = rng.integers(0, of.valency + 1, batch_size)
    if form in input_forms.DENSE_FORMS:
      lengths[:] = of.valency
    # Popular ids, so that rows and samples repeat.
    few = min(vocabulary, int(rng.choice([1, 3, 1000])))
    dtype = rng.choice([np.int32, np.int64])
    rows = [rng.integers(0, few, n).astype(dtype) for n in lengths]
    if spec.out_of_range_ids != "error" and rng.random() < 0.5:
      far = [vocabulary, 2**31 - 2]
      if form != "coo":  # SciPy itself refuses others there.
        far += [-1, -(2**31), 2**31 - 1]
      for row in rows:
        row[rng.random(len(row)) < 0.3] = rng.choice(far)
    ids.append(rows)
    # Quarters: their sums are exact, so a sum of zero is zero.
    kind = rng.choice(["none", "any", "zeros"])
    values = {"any": [0, 0.25, 1, 2, -0.5], "zeros": [0], "none": [1]}[kind]
    weights.append(
        None
        if kind == "none"
        else [rng.choice(values, n).astype(np.float32) for n in lengths]
    )
    shape = (batch_size, spec.output_shape[-1])
    gradients.append(rng.standard_normal(shape).astype(np.float32))
  return Batch(ids=ids, weights=weights, gradients=gradients)


def expected(of: Program, batch: Batch) -> tuple[list[np.ndarray], Any]:
  """Activations of every feature and tables by name after a step."""
  activations = []
  sums = {name: np.zeros_like(t, float) for name, t in of.tables.items()}
  for f, spec in enumerate(of.specs):
    table, gradient_sum = (d[spec.table_spec.name] for d in (of.tables, sums))
    rows, combiner = len(table), spec.table_spec.combiner
    result = np.zeros(batch.gradients[f].shape)
    for s, ids in enumerate(batch.ids[f]):
      ids = ids.astype(np.int64)
      weights = np.ones(len(ids))
      if batch.weights[f] is not None:
        weights = batch.weights[f][s].astype(float)
      if spec.out_of_range_ids == "drop":
        is_in_range = (ids >= 0) & (ids < rows)
        ids, weights = ids[is_in_range], weights[is_in_range]
      ids = ids % rows if spec.out_of_range_ids == "modulo" else ids
      ids = ids.clip(0, rows - 1)
      square = np.sqrt(np.sum(weights**2))
      whole = {"sum": 1, "mean": np.sum(weights), "sqrtn": square}[combiner]
      gains = weights / whole if whole else np.zeros(len(ids))
      result[s] = gains @ table[ids]
      np.add.at(gradient_sum, ids, np.outer(gains, batch.gradients[f][s]))
    activations.append(result)
  new = {}
  for name, gradient in sums.items():
    if isinstance(
        of.specs[0].table_spec.optimizer, embedding_spec.AdagradOptimizerSpec
    ):
      gradient = gradient / np.sqrt(_ACCUMULATOR + gradient**2)
    new[name] = of.tables[name] - _LEARNING_RATE * gradient
  return activations, new


# ---- Cases ----


def check(case: int) -> None:
  """Runs a case.

  Raises:
    AssertionError: if its result is wrong, or an invalid input is accepted or
      refused with a wrong kind of error.
  """
  of = program(case // CASES_PER_PROGRAM)
  rng = _generator(1, case)
  if rng.random() < _INVALID:
    _check_refused(rng, of)
  elif rng.random() < _RAW:
    batch = draw_batch(rng, of)
    weights = [None if w is None else np.array(w) for w in batch.weights]
    inputs = [np.array(rows) for rows in batch.ids], weights
    _check_equal(of, batch, of.raw_step(batch.gradients, _narrow(inputs)))
  else:
    name = str(rng.choice([*input_forms.FORMS, *input_forms.DENSE_FORMS]))
    batch = draw_batch(rng, of, name)
    inputs = _preprocess(of, *_in_form(name, batch))
    _check_equal(of, batch, of.step(batch.gradients, inputs))


def _narrow(tree: Any) -> Any:
  """Ids as jit takes them: it would cut those of 64 bits."""
  return jax.tree.map(
      lambda x: x.astype(np.int32) if x.dtype == np.int64 else x, tree
  )


def _in_form(name: str, batch: Batch) -> tuple[list[Any], list[Any]]:
  """Features and weights as preprocessing takes them."""
  form = (input_forms.FORMS | input_forms.DENSE_FORMS)[name]
  features, weights = zip(*map(form, batch.ids, batch.weights))
  return list(features), list(weights)


def _preprocess(of: Program, features: Any, weights: Any) -> Any:
  inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
      features,
      weights,
      of.specs,
      of.topology.local_device_count,
      of.topology.global_device_count,
      num_sc_per_device=of.topology.num_sc_per_device,
      **of.options,
  )
  return inputs


def _check_equal(of: Program, batch: Batch, result: tuple[Any, Any]) -> None:
  activations, tables = expected(of, batch)
  got, variables = result
  for spec, a, b in zip(of.specs, activations, got):
    np.testing.assert_allclose(b, a, **_TOLERANCE, err_msg=spec.name)
  for name, table in of.read(variables).items():
    np.testing.assert_allclose(table, tables[name], **_TOLERANCE, err_msg=name)


# ---- Invalid input ----


def _splits(row_splits: Any) -> Any:
  """Ids and weights whose last split should be that of all four values."""
  return lambda n: ((np.zeros(4, np.int32), row_splits(n)), None)


def _sparse_tensor(indices: Any, values: Any) -> Any:
  return lambda n: (
      input_forms.sparse_tensor(np.array(indices), values, n),
      None,
  )


def _csr(**parts: Any) -> Callable[[int], Any]:
  """A SciPy array of a zero in each sample, with other parts than it had."""

  def make(n):
    matrix, _ = input_forms.csr([np.zeros(1, np.int32)] * n, None)
    for name, part in parts.items():
      setattr(matrix, name, part(n))
    return matrix, None

  return make


def _column(value: Any, dtype: Any = None) -> Callable[[int], Any]:
  """One id per sample."""
  return lambda n: (np.full((n, 1), value, dtype), None)


def _weighted(weights: Callable[[int], Any]) -> Callable[[int], Any]:
  return lambda n: (np.zeros((n, 1), np.int32), weights(n))


# What is no input: functions from a number of samples to ids and weights of a
# feature. Each is refused with an error that says where it is.
_INVALID_INPUTS = {
    "floats": _column(0.0),
    "bools": _column(True),
    "strings": _column("0"),
    "complex": _column(0, np.complex64),
    "objects": _column(object()),
    "dates": _column(0, "datetime64[s]"),
    "id of 64 bits": _column(2**40),
    "unsigned id of 64 bits": _column(2**64 - 1, np.uint64),
    "negative id": _column(-1),
    "large id": _column(2**31 - 1),
    "one sample too few": lambda n: (np.zeros((n - 1, 1), np.int32), None),
    "one sample too many": lambda n: (np.zeros((n + 1, 1), np.int32), None),
    "no dimension": lambda n: (np.int32(0), None),
    "four dimensions": lambda n: (np.zeros((n, 1, 1, 1), np.int32), None),
    "huge empty batch": lambda n: (
        np.zeros((0, 2**32), np.int32),
        np.zeros((0, 2**32), np.float32),
    ),
    "masked": lambda n: (
        np.ma.masked_array(np.zeros((n, 1), np.int32), np.ones((n, 1))),
        None,
    ),
    "rows of floats": lambda n: input_forms.rows([np.zeros(1)] * n, None),
    "rows of nothing": lambda n: (np.full(n, None), None),
    "rows of matrices": lambda n: input_forms.rows(
        [np.zeros((1, 1), np.int32)] * n, None
    ),
    "tuple of one": lambda n: ((np.zeros(n, np.int32),), None),
    "splits that descend": _splits(lambda n: np.array([4, *[0] * (n - 1), 4])),
    "splits from below zero": _splits(lambda n: np.array([-1, *[4] * n])),
    "splits beyond the values": _splits(lambda n: np.array([0, *[5] * n])),
    "splits far beyond": _splits(lambda n: np.array([0, *[2**62] * n])),
    "one split too few": _splits(lambda n: np.array([0, *[4] * (n - 1)])),
    "splits of floats": _splits(lambda n: np.array([0.0, *[4.0] * n])),
    "no splits": _splits(lambda n: None),
    "splits without dimension": _splits(lambda n: np.int64(4)),
    "sample beyond the batch": _sparse_tensor([[2**40, 0]], np.zeros(1, int)),
    "negative sample": _sparse_tensor([[-1, 0]], np.zeros(1, int)),
    "indices without values": _sparse_tensor([[0, 0]], np.zeros(0, int)),
    "flat indices": _sparse_tensor([0, 0], np.zeros(2, int)),
    "values without dimension": _sparse_tensor([[0, 0]], np.array(0)),
    "columns beyond the vocabulary": _csr(indices=lambda n: np.full(n, 2**30)),
    "pointers that descend": _csr(
        indptr=lambda n: np.array([n, *[0] * (n - 1), n])
    ),
    "pointers beyond the data": _csr(indptr=lambda n: np.full(n + 1, 2**40)),
    "data without dimension": _csr(data=lambda n: np.array(1.0)),
    "data too short": _csr(data=lambda n: np.ones(n - 1)),
    "NaN as weight": _weighted(lambda n: np.full((n, 1), np.nan)),
    "infinite weight": _weighted(lambda n: np.full((n, 1), -np.inf)),
    "weights of another shape": _weighted(lambda n: np.ones((n, 2))),
    "weights of a sample less": _weighted(lambda n: np.ones((n - 1, 1))),
    "weights that are strings": _weighted(lambda n: np.full((n, 1), "1")),
    "weights of another form": _weighted(
        lambda n: (np.ones(n), np.arange(n + 1))
    ),
}
# Batches that one SparseCore can have, and several cannot share evenly.
_OTHER_BATCHES = {
    "one sample too few",
    "one sample too many",
    "one split too few",
}
# Ids that a policy of the feature may make valid.
_OUT_OF_RANGE = {
    "id of 64 bits",
    "unsigned id of 64 bits",
    "negative id",
    "large id",
    "columns beyond the vocabulary",
}


def _check_refused(rng: np.random.Generator, of: Program) -> None:
  """Spoils one feature of a batch, and expects an error that says where."""
  features, weights = _in_form("rows", draw_batch(rng, of, "rows"))
  f = int(rng.integers(len(of.specs)))
  spec = of.specs[f]
  kinds = set(_INVALID_INPUTS)
  if spec.out_of_range_ids != "error":
    kinds -= _OUT_OF_RANGE
  if of.topology.num_scs == 1:
    kinds -= _OTHER_BATCHES
  kind = str(rng.choice(sorted(kinds)))
  features[f], weights[f] = _INVALID_INPUTS[kind](of.batch_size)
  try:
    _preprocess(of, features, weights)
  except (ValueError, TypeError) as error:
    # The feature, its place in the list of features, or its stack.
    stack_name = spec.table_spec.setting_in_stack.stack_name
    names = (f"'{spec.name}'", f"[{f}]", f"'{stack_name}'")
    if not any(name in str(error) for name in names):
      raise AssertionError(
          f"{kind}: the message has none of {names}: {error}"
      ) from error
  else:
    raise AssertionError(f"{kind}, as {spec.name!r}, was accepted.")
