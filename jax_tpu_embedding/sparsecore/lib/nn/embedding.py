# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Large embedding tables: specs to plans, ids to buffers, lookup and update.

The public functions of the library, each defined in a module of its own:

  prepare, stack           _plan.py
  initialize               _initialize.py   (read: _row_ids.py)
  preprocess on the host   _preprocess.py   (inside jit: _convert.py)
  look up, update          _lookup.py, _update.py   (read only: _lookup_ids.py)
  limits that grow         _adaptive_limits.py
  gradients of rows        _sparse_gradients.py
  errors of layers         core/batch_errors.py
"""

from __future__ import annotations

import jax
from jax_tpu_embedding.sparsecore.lib.core import batch_errors
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import job_nodes
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.nn import _program_types
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _convert
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _counts
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _preprocess
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _shapes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.limits import _adaptive_limits
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.plan import _report
from jax_tpu_embedding.sparsecore.lib.nn.plan import _row_ids
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _compile_check
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup_ids
from jax_tpu_embedding.sparsecore.lib.nn.step import _sparse_gradients
from jax_tpu_embedding.sparsecore.lib.nn.step import _update
from jax_tpu_embedding.sparsecore.lib.nn.values import _initialize
from jax_tpu_embedding.sparsecore.lib.nn.values import _variables

ArrayLike = jax.typing.ArrayLike

Nested = _tables.Nested
Topology = layout.Topology
LimitsCallable = table_stacking.LimitsCallable
get_default_limits = table_stacking.get_default_limits

auto_stack_tables = _plan.auto_stack_tables
prepare_feature_specs_for_training = _plan.prepare_feature_specs_for_training
get_table_specs = _prepared.get_table_specs
get_stacked_table_specs = _prepared.get_stacked_table_specs
StackingPlan = _report.StackingPlan
get_plan = _report.get_plan

EmbeddingVariables = _variables.EmbeddingVariables
EmbeddingVariablesInitializer = _initialize.EmbeddingVariablesInitializer
init_embedding_variables = _initialize.init_embedding_variables
int8_variables = _variables.int8_variables

read_rows = _row_ids.read_rows

PreprocessedInput = _buffers.PreprocessedInput
BufferSettings = _buffers.BufferSettings
SparseDenseMatmulInput = _buffers.SparseDenseMatmulInput
preprocess_sparse_dense_matmul_input = (
    _preprocess.preprocess_sparse_dense_matmul_input
)
preprocess_sparse_dense_matmul_input_from_sparse_tensor = (
    _preprocess.preprocess_sparse_dense_matmul_input_from_sparse_tensor
)
eval_preprocess_sparse_dense_matmul_input_shape = (
    _shapes.eval_preprocess_sparse_dense_matmul_input_shape
)
compute_row_pointers_size_per_device = (
    _shapes.compute_row_pointers_size_per_device
)
compute_theoretical_max_coo_buffer_size = (
    _shapes.compute_theoretical_max_coo_buffer_size
)
compute_coo_buffer_size_per_device = (
    _prepared.compute_coo_buffer_size_per_device
)
sharding_strategy_to_enum = _conversion.sharding_strategy_to_enum
FeatureStackingStrategy = _feature_stacking.FeatureStackingStrategy
feature_stacking_strategy_to_enum = (
    _feature_stacking.feature_stacking_strategy_to_enum
)
OutputPool = _conversion.OutputPool
get_all_reduce_interface = minibatching_node.get_all_reduce_interface
all_reduce_interface_of_job = job_nodes.all_reduce_interface_of_job
convert_ids = _convert.convert_ids
lookup_ids = _lookup_ids.lookup_ids
raise_errors = batch_errors.raise_errors

SparseDenseMatmulInputStats = _stats.SparseDenseMatmulInputStats
count_ids = _counts.count_ids
count_batch = _counts.count_batch
sample_ids = _counts.sample_ids
FeatureCounts = _counts.FeatureCounts
compile_check = _compile_check.compile_check
AdaptiveLimits = _adaptive_limits.AdaptiveLimits
Growth = _adaptive_limits.Growth
Limits = _limits.Limits
StackLimits = _limits.StackLimits
update_preprocessing_parameters = _stats.update_preprocessing_parameters

tpu_sparse_dense_matmul = _lookup.tpu_sparse_dense_matmul
tpu_sparse_dense_matmul_grad = _update.tpu_sparse_dense_matmul_grad
unstack_embedding_activations = _lookup.unstack_embedding_activations
stack_embedding_gradients = _update.stack_embedding_gradients

SparseGradient = _sparse_gradients.SparseGradient
sparse_gradients = _sparse_gradients.sparse_gradients
add_sparse_gradients = _sparse_gradients.add_sparse_gradients
apply_sparse_gradients = _sparse_gradients.apply_sparse_gradients

create_proto_from_feature_specs = (
    embedding_proto_utils.create_proto_from_feature_specs
)
optimizer_spec_to_proto = embedding_proto_utils.optimizer_spec_to_proto
proto_to_optimizer_spec = embedding_proto_utils.proto_to_optimizer_spec
feature_specs_from_proto = embedding_proto_utils.feature_specs_from_proto
table_specs_from_proto = embedding_proto_utils.table_specs_from_proto
get_optimizer_class = embedding_proto_utils.get_optimizer_class
get_optimizer_type = embedding_proto_utils.get_optimizer_type

# Programs of the reference use it; nothing here does.
_assert_same_structure = _structure.assert_same_structure

_program_types.register()
