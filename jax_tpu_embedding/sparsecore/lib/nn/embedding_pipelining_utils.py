# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A pipeline in three stages that the program writes itself.

Step i updates tables with batch i - 2, looks batch i up, and does the dense
work of batch i - 1:

    SparseCores | update i - 2, lookup i    TensorCore | dense i - 1

so activations miss one update. It takes two more steps than there are batches:

    for i in range(get_pipeline_train_steps(num_steps)):
      batch = batches[min(i, num_steps - 1)]
      output, _, train_state, tables, state = step(
          CurrentStepInput(sparse_inputs, dense_inputs), train_state, tables,
          state, look_up, dense, update,
          fake_tc_step=not is_output_valid(i, num_steps))

lib/pipelining/pipelining.py makes a pipeline of a train step as it is, without
stages, and also one in which activations miss nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import types
from typing import Any
from typing import Generic
from typing import Protocol
from typing import TypeVar

import jax
from jax.experimental import layout
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup
from jax_tpu_embedding.sparsecore.lib.nn.step import _update
from jax_tpu_embedding.sparsecore.lib.nn.values import _variables
import numpy as np

P = jax.sharding.PartitionSpec

Sharding = jax.sharding.Sharding | layout.Format
NestedArray = _tables.Nested[jax.Array]
NestedFeatureSpecs = _tables.Nested[_tables.FeatureSpec]
NestedEmbeddingVariables = Mapping[str, _variables.EmbeddingVariables]
DefaultSparseInputs = _buffers.PreprocessedInput
DefaultEmbeddingActivations = NestedArray
DefaultEmbeddingGradients = NestedArray
DefaultScFwdAux = types.NoneType
DefaultTcAux = types.NoneType
DefaultScBwdAux = types.NoneType

SparseInputs = TypeVar("SparseInputs")
DenseInputs = TypeVar("DenseInputs")
Activations = TypeVar("Activations")
Gradients = TypeVar("Gradients")
ScFwdAux = TypeVar("ScFwdAux")
TcAux = TypeVar("TcAux")
Output = TypeVar("Output")


class ScFwdStageFun(Protocol):
  """Looks up."""

  def __call__(
      self, sparse_inputs: Any, embedding_variables: Any
  ) -> tuple[Any, Any]:
    """Returns (activations, sc_fwd_aux)."""


class TcStageFun(Protocol):
  """The dense work: forward, backward and optimizer."""

  def __call__(
      self,
      embedding_activations: Any,
      dense_inputs: Any,
      train_state: Any,
      sc_fwd_aux: Any = None,
  ) -> tuple[Any, Any, Any, Any]:
    """Returns (gradients of the activations, output, train_state, tc_aux)."""


class ScBwdStageFun(Protocol):
  """Updates tables."""

  def __call__(
      self,
      sparse_inputs: Any,
      embedding_gradients: Any,
      embedding_variables: Any,
      tc_aux: Any = None,
  ) -> tuple[Any, Any]:
    """Returns (embedding_variables, sc_bwd_aux)."""


class _Replaceable:

  def replace(self, **changes):
    """A copy with some fields replaced."""
    return dataclasses.replace(self, **changes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CurrentStepInput(_Replaceable, Generic[SparseInputs, DenseInputs]):
  """A batch."""

  sparse_inputs: SparseInputs
  dense_inputs: DenseInputs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LastStepInput(
    _Replaceable, Generic[SparseInputs, Activations, DenseInputs, ScFwdAux]
):
  """A batch that has been looked up."""

  sparse_inputs: SparseInputs
  embedding_activations: Activations
  dense_inputs: DenseInputs
  sc_fwd_aux: ScFwdAux


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepBeforeLastStepInput(
    _Replaceable, Generic[SparseInputs, Gradients, TcAux]
):
  """A batch that has been trained with, but for its tables."""

  sparse_inputs: SparseInputs
  embedding_gradients: Gradients
  tc_aux: TcAux


ShardedLastStepInput = LastStepInput[Sharding, Sharding, Sharding, Sharding]
ShardedStepBeforeLastStepInput = StepBeforeLastStepInput[
    Sharding, Sharding, Sharding
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PipelineState(
    _Replaceable,
    Generic[
        SparseInputs,
        Activations,
        DenseInputs,
        Gradients,
        ScFwdAux,
        TcAux,
        Output,
    ],
):
  """What is between two steps. A pytree, to be donated or saved."""

  pipeline_step: jax.Array  # i32[], how many steps there were
  last_step_inputs: LastStepInput[
      SparseInputs, Activations, DenseInputs, ScFwdAux
  ]
  step_before_last_step_inputs: StepBeforeLastStepInput[
      SparseInputs, Gradients, TcAux
  ]
  # What steps without dense work return in its place.
  placeholder_output: Output
  placeholder_tc_aux: TcAux


def get_pipeline_train_steps(num_steps: int) -> int:
  """How many steps `num_steps` batches take."""
  return num_steps + 2


def is_output_valid(pipeline_step: int, num_steps: int) -> bool:
  """Whether the step of this number, from 0, has the output of a batch."""
  return 1 <= pipeline_step <= num_steps


def get_default_sc_fwd_function(
    feature_specs: NestedFeatureSpecs, global_mesh: jax.sharding.Mesh
) -> ScFwdStageFun:
  """`embedding.tpu_sparse_dense_matmul` as a stage; its aux is None.

  Args:
    feature_specs: the prepared specs, any tree.
    global_mesh: all devices, with one axis.

  Raises:
    ValueError: if the mesh has several axes.
  """
  split = P(_axis(global_mesh))

  def look_up(sparse_inputs, embedding_variables):
    activations = jax.shard_map(
        lambda inputs, tables: _lookup.tpu_sparse_dense_matmul(
            inputs, tables, feature_specs
        ),
        mesh=global_mesh,
        in_specs=(
            _input_specs(sparse_inputs, split),
            _specs_of_tables(feature_specs, split),
        ),
        out_specs=split,
        check_vma=False,
    )(sparse_inputs, embedding_variables)
    return activations, None

  return look_up


def _specs_of_tables(
    feature_specs: NestedFeatureSpecs, split: P
) -> dict[str, P]:
  """Stack name -> how its variables are split; replicated ones are not."""
  return {
      name: P() if stack.is_replicated else P(*split, None)
      for name, stack in _prepared.get_stacked_table_specs(
          feature_specs
      ).items()
  }


def get_default_sc_bwd_function(
    feature_specs: NestedFeatureSpecs, global_mesh: jax.sharding.Mesh
) -> ScBwdStageFun:
  """`embedding.tpu_sparse_dense_matmul_grad` as a stage; its aux is None.

  The stage takes `tc_aux` as the step of the update, i32[]: return the number
  of the batch as tc_aux, from 0, where a learning rate is a schedule or the
  optimizer counts, as Adam does. None is as there.

  Args:
    feature_specs: the prepared specs, any tree.
    global_mesh: all devices, with one axis.

  Raises:
    ValueError: if the mesh has several axes.
  """
  split = P(_axis(global_mesh))

  def update(
      sparse_inputs, embedding_gradients, embedding_variables, tc_aux=None
  ):
    of_tables = _specs_of_tables(feature_specs, split)
    embedding_variables = jax.shard_map(
        lambda gradients, inputs, tables, step: (
            _update.tpu_sparse_dense_matmul_grad(
                gradients, inputs, tables, feature_specs, step=step
            )
        ),
        mesh=global_mesh,
        in_specs=(split, _input_specs(sparse_inputs, split), of_tables, P()),
        out_specs=of_tables,
        check_vma=False,
    )(embedding_gradients, sparse_inputs, embedding_variables, tc_aux)
    return embedding_variables, None

  return update


def _axis(mesh: jax.sharding.Mesh) -> str:
  if len(mesh.axis_names) != 1:
    raise ValueError(
        f"global_mesh must have one axis, got {mesh.axis_names}. Make one of"
        " all its devices, or write a stage with jax.shard_map."
    )
  return mesh.axis_names[0]


def _input_specs(sparse_inputs: Any, split: P) -> Any:
  # A scalar number of minibatches is that of all devices.
  return jax.tree.map(lambda x: split if jnp.ndim(x) else P(), sparse_inputs)


def get_pipeline_state_sharding(
    pipeline_state_cls: Any,
    dense_input_sharding: Sharding,
    sparse_input_sharding: Sharding,
    pipeline_output_sharding: Any,
    tc_aux_sharding: Any,
) -> PipelineState:
  """A state with shardings in place of trees, for jit.

  Args:
    pipeline_state_cls: PipelineState, subscripted or not.
    dense_input_sharding: of dense inputs and the aux of lookups.
    sparse_input_sharding: of the buffers; on TPU, activations and gradients
      have the layout of tables besides.
    pipeline_output_sharding: of what the dense work returns.
    tc_aux_sharding: of its aux.
  """
  stacked = table_layouts.embedding_table_format_with_sharding(
      sparse_input_sharding
  )
  return pipeline_state_cls(
      pipeline_step=None,
      last_step_inputs=LastStepInput(
          sparse_inputs=sparse_input_sharding,
          embedding_activations=stacked,
          dense_inputs=dense_input_sharding,
          sc_fwd_aux=dense_input_sharding,
      ),
      step_before_last_step_inputs=StepBeforeLastStepInput(
          sparse_inputs=sparse_input_sharding,
          embedding_gradients=stacked,
          tc_aux=tc_aux_sharding,
      ),
      placeholder_output=pipeline_output_sharding,
      placeholder_tc_aux=tc_aux_sharding,
  )


def get_initial_state(
    pipeline_input: CurrentStepInput,
    tc_train_state: Any,
    embedding_variables: Any,
    sc_fwd_function: ScFwdStageFun,
    tc_function: TcStageFun,
    dense_input_sharding: Sharding | None = None,
    sparse_input_sharding: Sharding | None = None,
) -> PipelineState:
  """The state before the first step: zeros, and batches without ids.

  Values of the arguments are not looked at, and nothing is mutated; may be
  called under jax.eval_shape. Compiles `tc_function`, for the shardings of its
  results.

  Args:
    pipeline_input: any batch.
    tc_train_state: what tc_function takes.
    embedding_variables: what sc_fwd_function takes.
    sc_fwd_function: looks up.
    tc_function: the dense work.
    dense_input_sharding: of dense inputs and the aux of lookups, where they are
      neither scalars nor replicated over all devices; default: theirs.
    sparse_input_sharding: the same of buffers, activations and gradients.
  """
  sparse_inputs = _types(pipeline_input.sparse_inputs, sparse_input_sharding)
  dense_inputs = _types(pipeline_input.dense_inputs, dense_input_sharding)
  activations, sc_fwd_aux = jax.eval_shape(
      sc_fwd_function, sparse_inputs, _types(embedding_variables)
  )
  activations = _types(activations, sparse_input_sharding)
  sc_fwd_aux = _types(sc_fwd_aux, dense_input_sharding)
  compiled = (
      jax.jit(tc_function)
      .lower(activations, dense_inputs, _types(tc_train_state), sc_fwd_aux)
      .compile()
  )
  gradients, output, _, tc_aux = jax.tree.map(
      lambda x, sharding: jax.ShapeDtypeStruct(
          x.shape, x.dtype, sharding=sharding
      ),
      compiled.out_info,
      compiled.output_shardings,
  )
  gradients = _types(gradients, sparse_input_sharding)
  output, tc_aux = _types((output, tc_aux))
  last = LastStepInput(
      sparse_inputs=_without_ids(sparse_inputs),
      embedding_activations=_zeros(activations),
      dense_inputs=_zeros(dense_inputs),
      sc_fwd_aux=_zeros(sc_fwd_aux),
  )
  placeholder_tc_aux = _zeros(tc_aux)
  return PipelineState(
      pipeline_step=jnp.array(0),
      last_step_inputs=last,
      step_before_last_step_inputs=StepBeforeLastStepInput(
          # Buffers of their own: a state is donated, each of them once.
          sparse_inputs=jax.tree.map(_safe_copy, last.sparse_inputs),
          embedding_gradients=_zeros(gradients),
          tc_aux=jax.tree.map(_safe_copy, placeholder_tc_aux),
      ),
      placeholder_output=_zeros(output),
      placeholder_tc_aux=placeholder_tc_aux,
  )


def _types(tree: Any, sharding: Any = None) -> Any:
  """Shapes, types and shardings, `sharding` where an array is split."""

  def of_array(x):
    own = _sharding_of(x)
    of_x = jax.eval_shape(lambda x: x, x)
    is_replicated = own is not None and own.is_fully_replicated
    if sharding is not None and of_x.ndim and not is_replicated:
      own = sharding
    return jax.ShapeDtypeStruct(of_x.shape, of_x.dtype, sharding=own)

  return jax.tree.map(of_array, tree)


def _sharding_of(x: Any) -> Any:
  """Where an array has to be; None if it can be anywhere."""
  if isinstance(x, jax.core.Tracer) or not getattr(x, "committed", True):
    return None
  sharding = getattr(x, "sharding", None)
  if sharding is None or len(sharding.device_set) == 1:
    # What is on one device was not split yet.
    return None
  return sharding


def _zeros(tree: Any) -> Any:
  return jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), tree
  )


def _without_ids(sparse_inputs: Any) -> Any:
  """Zeros; what was preprocessed becomes a batch in which no row is named."""

  def of_input(x):
    zeros = _zeros(x)
    if not isinstance(x, _buffers.PreprocessedInput):
      return zeros
    return zeros.replace(
        # There is no batch of none.
        num_minibatches=zeros.num_minibatches + 1,
        samples={
            name: samples.without_ids_if(jnp.array(True))
            for name, samples in zeros.samples.items()
        },
    )

  return jax.tree.map(
      of_input,
      sparse_inputs,
      is_leaf=lambda x: isinstance(x, _buffers.PreprocessedInput),
  )


def _safe_copy(x: Any) -> Any:
  """A new array with the values of an array; all else as it is."""
  if isinstance(x, (jax.Array, np.ndarray)):
    return jnp.array(x, copy=True)
  return x


def step(
    pipeline_input: CurrentStepInput,
    tc_train_state: Any,
    embedding_variables: Any,
    pipeline_state: PipelineState,
    sc_fwd_function: ScFwdStageFun,
    tc_function: TcStageFun,
    sc_bwd_function: ScBwdStageFun,
    *,
    fake_tc_step: bool,
) -> tuple[Any, Any, Any, Any, PipelineState]:
  """Updates with the batch before the last, looks up, trains with the last.

  Args:
    pipeline_input: the batch to look up.
    tc_train_state: of the dense work.
    embedding_variables: tables and slots.
    pipeline_state: what the step before returned, or `get_initial_state`.
    sc_fwd_function: looks up, after the update.
    tc_function: the dense work.
    sc_bwd_function: the update.
    fake_tc_step: whether there is no last batch, so no dense work: the output
      is the placeholder, and `tc_train_state` stays as it is.

  Returns:
    (output of the last batch, sc_bwd_aux of the one before, train_state,
    embedding_variables, the state for the next step).
  """
  # Outside of jit, the state would have arrays that the caller may fill with
  # the next batch.
  pipeline_input = jax.tree.map(
      lambda x: x.copy() if isinstance(x, np.ndarray) else x, pipeline_input
  )
  last = pipeline_state.last_step_inputs
  before = pipeline_state.step_before_last_step_inputs
  with jax.named_scope("pipelined_sc_bwd"):
    embedding_variables, sc_bwd_aux = sc_bwd_function(
        before.sparse_inputs,
        before.embedding_gradients,
        embedding_variables,
        before.tc_aux,
    )
  with jax.named_scope("pipelined_sc_fwd"):
    activations, sc_fwd_aux = sc_fwd_function(
        pipeline_input.sparse_inputs, embedding_variables
    )
  if fake_tc_step:
    gradients = before.embedding_gradients
    output = pipeline_state.placeholder_output
    tc_aux = pipeline_state.placeholder_tc_aux
  else:
    with jax.named_scope("pipelined_tc"):
      gradients, output, tc_train_state, tc_aux = tc_function(
          last.embedding_activations,
          last.dense_inputs,
          tc_train_state,
          last.sc_fwd_aux,
      )
  state = pipeline_state.replace(
      pipeline_step=pipeline_state.pipeline_step + 1,
      last_step_inputs=LastStepInput(
          sparse_inputs=pipeline_input.sparse_inputs,
          embedding_activations=activations,
          dense_inputs=pipeline_input.dense_inputs,
          sc_fwd_aux=sc_fwd_aux,
      ),
      step_before_last_step_inputs=StepBeforeLastStepInput(
          sparse_inputs=last.sparse_inputs,
          embedding_gradients=gradients,
          tc_aux=tc_aux,
      ),
  )
  return output, sc_bwd_aux, tc_train_state, embedding_variables, state
