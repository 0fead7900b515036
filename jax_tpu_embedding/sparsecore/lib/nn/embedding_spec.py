# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Specs of tables, features and optimizers: the public names."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.nn import _custom_optimizer_spec
from jax_tpu_embedding.sparsecore.lib.nn import _learning_rate
from jax_tpu_embedding.sparsecore.lib.nn import _optimizer_spec
from jax_tpu_embedding.sparsecore.lib.nn import _optimizer_specs
from jax_tpu_embedding.sparsecore.lib.nn import _slot_variables
from jax_tpu_embedding.sparsecore.lib.nn import _specs

DEFAULT_ACTIVATION_MEM_BYTES_LIMIT = _specs.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
CallableTableInitializer = _specs.CallableTableInitializer
FeatureIdTransformation = _specs.FeatureIdTransformation
FeatureSpec = _specs.FeatureSpec
QuantizationConfig = _specs.QuantizationConfig
StackedTableSpec = _specs.StackedTableSpec
TableSettingInStack = _specs.TableSettingInStack
TableSpec = _specs.TableSpec

CallablePlaceholder = _learning_rate.CallablePlaceholder
HyperParameterType = _optimizer_spec.HyperParameterType
LearningRate = _learning_rate.LearningRate
NumericParameter = _learning_rate.NumericParameter

OptimizerSpec = _optimizer_spec.OptimizerSpec
AdagradMomentumOptimizerSpec = _optimizer_specs.AdagradMomentumOptimizerSpec
AdagradOptimizerSpec = _optimizer_specs.AdagradOptimizerSpec
AdamOptimizerSpec = _optimizer_specs.AdamOptimizerSpec
CustomOptimizerSpec = _custom_optimizer_spec.CustomOptimizerSpec
F2AOptimizerSpec = _optimizer_specs.F2AOptimizerSpec
FTRLOptimizerSpec = _optimizer_specs.FTRLOptimizerSpec
LaPropOptimizerSpec = _optimizer_specs.LaPropOptimizerSpec
LionOptimizerSpec = _optimizer_specs.LionOptimizerSpec
MomentumOptimizerSpec = _optimizer_specs.MomentumOptimizerSpec
RowwiseAdagradOptimizerSpec = _optimizer_specs.RowwiseAdagradOptimizerSpec
SGDOptimizerSpec = _optimizer_specs.SGDOptimizerSpec

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
