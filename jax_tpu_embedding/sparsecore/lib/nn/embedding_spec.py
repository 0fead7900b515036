# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Specs of tables, features and optimizers: the public names."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.core import optimizer_spec
from jax_tpu_embedding.sparsecore.lib.core import schedules
from jax_tpu_embedding.sparsecore.lib.nn.specs import _custom_optimizer
from jax_tpu_embedding.sparsecore.lib.nn.specs import _optimizers
from jax_tpu_embedding.sparsecore.lib.nn.specs import _slot_variables
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

DEFAULT_ACTIVATION_MEM_BYTES_LIMIT = _tables.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
CallableTableInitializer = _tables.CallableTableInitializer
FeatureIdTransformation = _tables.FeatureIdTransformation
FeatureSpec = _tables.FeatureSpec
QuantizationConfig = _tables.QuantizationConfig
StackedTableSpec = _tables.StackedTableSpec
TableSettingInStack = _tables.TableSettingInStack
TableSpec = _tables.TableSpec

CallablePlaceholder = schedules.CallablePlaceholder
HyperParameterType = optimizer_spec.HyperParameterType
LearningRate = schedules.LearningRate
NumericParameter = schedules.NumericParameter

OptimizerSpec = optimizer_spec.OptimizerSpec
AdagradMomentumOptimizerSpec = _optimizers.AdagradMomentumOptimizerSpec
AdagradOptimizerSpec = _optimizers.AdagradOptimizerSpec
AdamOptimizerSpec = _optimizers.AdamOptimizerSpec
CustomOptimizerSpec = _custom_optimizer.CustomOptimizerSpec
F2AOptimizerSpec = _optimizers.F2AOptimizerSpec
FTRLOptimizerSpec = _optimizers.FTRLOptimizerSpec
LaPropOptimizerSpec = _optimizers.LaPropOptimizerSpec
LionOptimizerSpec = _optimizers.LionOptimizerSpec
MomentumOptimizerSpec = _optimizers.MomentumOptimizerSpec
RowwiseAdagradOptimizerSpec = _optimizers.RowwiseAdagradOptimizerSpec
SGDOptimizerSpec = _optimizers.SGDOptimizerSpec

AdagradMomentumSlotVariables = _slot_variables.AdagradMomentumSlotVariables
AdagradSlotVariables = _slot_variables.AdagradSlotVariables
AdamSlotVariables = _slot_variables.AdamSlotVariables
F2ASlotVariables = _slot_variables.F2ASlotVariables
FTRLSlotVariables = _slot_variables.FTRLSlotVariables
LaPropSlotVariables = _slot_variables.LaPropSlotVariables
LionSlotVariables = _slot_variables.LionSlotVariables
MomentumSlotVariables = _slot_variables.MomentumSlotVariables
RowwiseAdagradSlotVariables = _slot_variables.RowwiseAdagradSlotVariables
SGDSlotVariables = _slot_variables.SGDSlotVariables
