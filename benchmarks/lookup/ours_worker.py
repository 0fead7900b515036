# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""This package: with its input converted before, or in every step."""

from __future__ import annotations

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks.lookup import case_worker
from benchmarks.lookup import cases
from benchmarks.lookup import limit

_OPTIMIZERS = {
    cases.FORWARD: embedding_spec.SGDOptimizerSpec(),
    cases.SGD: embedding_spec.SGDOptimizerSpec(
        learning_rate=cases.LEARNING_RATE
    ),
    cases.ADAGRAD: embedding_spec.AdagradOptimizerSpec(
        learning_rate=cases.LEARNING_RATE,
        initial_accumulator_value=cases.INITIAL_ACCUMULATOR,
    ),
}


_ROW_WISE_ADAGRAD = embedding_spec.RowwiseAdagradOptimizerSpec(
    learning_rate=cases.LEARNING_RATE,
    initial_accumulator_value=cases.INITIAL_ACCUMULATOR,
)


def make_specs(
    case: cases.Case,
    step: str,
    num_devices: int = 1,
    *,
    is_row_wise: bool = False,
) -> list[embedding_spec.FeatureSpec]:
  """One feature, for devices with one SparseCore each.

  Args:
    case: what to look up.
    step: one of cases.STEPS, which names the optimizer.
    num_devices: the devices that the table is sharded over.
    is_row_wise: Adagrad has one accumulator per row.
  """
  table = embedding_spec.TableSpec(
      name="table",
      vocabulary_size=case.num_rows,
      embedding_dim=case.dim,
      initializer=jax.nn.initializers.zeros,
      optimizer=_ROW_WISE_ADAGRAD if is_row_wise else _OPTIMIZERS[step],
      combiner="sum",
      max_ids_per_partition=_limit(case, num_devices),
      max_unique_ids_per_partition=_limit(case, num_devices),
  )
  feature = embedding_spec.FeatureSpec(
      name="feature",
      table_spec=table,
      input_shape=(case.batch_size, case.valency),
      output_shape=(case.batch_size, case.dim),
  )
  embedding.prepare_feature_specs_for_training(
      [feature], global_device_count=num_devices, num_sc_per_device=1
  )
  return [feature]


def _limit(case: cases.Case, num_devices: int) -> int:
  """Ids per partition: all, or twice the average, since ids are skewed."""
  if num_devices == 1:
    return case.num_ids
  return 2 * case.num_ids // num_devices**2


def make_variables(
    specs, mesh: jax.sharding.Mesh | None = None
) -> dict[str, embedding.EmbeddingVariables]:
  """Tables and slots as the specs start them.

  Args:
    specs: the prepared specs.
    mesh: the devices, along one axis "x"; default: the first one.
  """
  if mesh is None:
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  return embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
      1,
  )


def _variables_with(specs, table: np.ndarray | None):
  """The variables of one device, with the rows of `table` if there is one.

  They are in the memory that is initialized, which has huge pages; memory of
  jnp.array has them after some uses only.
  """
  variables = make_variables(specs)
  if table is None:
    return variables
  return checkpoint.load_tables(variables, specs, {"table": table})


def convert(specs, batch: cases.Batch, num_devices: int = 1):
  """The buffers of `batch`, in NumPy arrays."""
  return embedding.preprocess_sparse_dense_matmul_input(
      [batch.ids],
      [batch.weights],
      specs,
      num_devices,
      num_devices,
      num_sc_per_device=1,
  )[0]


class Ours(case_worker.Contender):
  """Jitted steps with donated tables."""

  def __init__(
      self,
      case: cases.Case,
      step: str,
      batches: Sequence[cases.Batch],
      *,
      table: np.ndarray | None = None,
      converts: bool = False,
      in_two_calls: bool = False,
      is_row_wise: bool = False,
  ):
    """Prepares the steps.

    Args:
      case: what to look up.
      step: one of cases.STEPS.
      batches: those of `case`, or others of their shape.
      table: f32[num_rows, dim] to start from, copied; default: zeros.
      converts: whether every step converts its ids.
      in_two_calls: whether an update makes the gradients of rows and applies
        them, as two calls.
      is_row_wise: Adagrad has one accumulator per row.
    """
    self.is_row_wise = is_row_wise
    specs = make_specs(case, step, is_row_wise=is_row_wise)
    self._variables = _variables_with(specs, table)
    (stack_name,) = self._variables
    self._stack_name = stack_name
    self._gradients = [jnp.array(cases.make_gradient(case))]
    if converts:
      self._input = lambda i: convert(specs, batches[i])
    else:
      inputs = [jax.device_put(convert(specs, batch)) for batch in batches]
      self._input = inputs.__getitem__

    def lookup(variables, inputs):
      return embedding.tpu_sparse_dense_matmul(inputs, variables, specs)[0]

    def train(variables, inputs, gradients):
      activations = lookup(variables, inputs)
      if in_two_calls:
        rows = embedding.sparse_gradients(gradients, inputs, specs)
        return activations, embedding.apply_sparse_gradients(
            rows, variables, specs
        )
      variables = embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, specs
      )
      return activations, variables

    self._lookup = jax.jit(lookup)
    self._train = jax.jit(train, donate_argnums=0)
    self._train_refs = jax.jit(functools.partial(_train_refs, train))
    self._updates = step != cases.FORWARD

  def step(self, batch_number: int) -> None:
    inputs = self._input(batch_number)
    if self._updates:
      self._activations, self._variables = self._train(
          self._variables, inputs, self._gradients
      )
      jax.block_until_ready(self._variables)
    else:
      self._activations = self._lookup(self._variables, inputs)
    self._activations.block_until_ready()

  def activations(self) -> np.ndarray:
    return np.asarray(self._activations)

  def tables(self) -> list[jax.Array]:
    """The table, and the slots."""
    return jax.tree.leaves(self._variables[self._stack_name])

  def table(self) -> np.ndarray:
    return np.asarray(self.tables()[0])


class OursFromIds(case_worker.Contender):
  """The lookup that takes ids as they come, for programs that only read."""

  def __init__(
      self, case: cases.Case, batches: Sequence[cases.Batch], table: np.ndarray
  ):
    specs = make_specs(case, cases.FORWARD)
    ((stack_name, (stack, *_)),) = _variables_with(specs, table).items()
    self._variables = {stack_name: (stack,)}
    self._batches = [
        jax.device_put((batch.ids, batch.weights)) for batch in batches
    ]
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=1
    )
    self._lookup = jax.jit(
        lambda variables, ids, weights: embedding.lookup_ids(
            [ids], [weights], variables, specs, topology
        )[0]
    )

  def step(self, batch_number: int) -> None:
    self._activations = self._lookup(
        self._variables, *self._batches[batch_number]
    )
    self._activations.block_until_ready()

  def activations(self) -> np.ndarray:
    return np.asarray(self._activations)

  def table(self) -> np.ndarray:
    ((table,),) = self._variables.values()
    return np.asarray(table)


class OursInRefs(Ours):
  """Tables in jax.Refs, which the step updates without donation."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._variables = jax.tree.map(jax.new_ref, self._variables)

  def step(self, batch_number: int) -> None:
    self._activations = self._train_refs(
        self._variables, self._input(batch_number), self._gradients
    )
    self._activations.block_until_ready()

  def tables(self) -> list[jax.Array]:
    return [ref[...] for ref in super().tables()]


def _train_refs(train, refs, inputs, gradients) -> jax.Array:
  """`train` on what is in `refs`; returns the activations."""
  variables = jax.tree.map(lambda ref: ref[...], refs)
  activations, variables = train(variables, inputs, gradients)

  def put(ref, value):
    ref[...] = value

  jax.tree.map(put, refs, variables)
  return activations


class Worker(case_worker.CaseWorker):
  """The commands."""

  def __init__(self):
    memory.keep_freed_memory()

  def contenders(
      self, case: cases.Case, step: str
  ) -> dict[str, case_worker.Contender]:
    batches = cases.make_batches(case)
    table = cases.make_table(case)
    contenders = {
        "limit": limit.Limit(case, step),
        "ours": Ours(case, step, batches, table=table),
        "ours with conversion": Ours(
            case, step, batches, table=table, converts=True
        ),
    }
    if step == cases.FORWARD:
      contenders["ours, from ids"] = OursFromIds(case, batches, table)
    else:
      contenders["ours, jax.Ref"] = OursInRefs(case, step, batches, table=table)
      contenders["ours, two calls"] = Ours(
          case, step, batches, table=table, in_two_calls=True
      )
    if step == cases.ADAGRAD:
      contenders["ours, row-wise"] = Ours(
          case, step, batches, table=table, is_row_wise=True
      )
    return contenders

  def versions(self) -> dict[str, str]:
    return {"jax": jax.__version__}
