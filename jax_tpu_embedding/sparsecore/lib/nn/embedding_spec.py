# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Specs of tables, features and optimizers: the public names."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.nn import _optimizer_specs
from jax_tpu_embedding.sparsecore.lib.nn import _specs

DEFAULT_ACTIVATION_MEM_BYTES_LIMIT = _specs.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
CallableTableInitializer = _specs.CallableTableInitializer
FeatureIdTransformation = _specs.FeatureIdTransformation
FeatureSpec = _specs.FeatureSpec
QuantizationConfig = _specs.QuantizationConfig
StackedTableSpec = _specs.StackedTableSpec
TableSettingInStack = _specs.TableSettingInStack
TableSpec = _specs.TableSpec

AdagradOptimizerSpec = _optimizer_specs.AdagradOptimizerSpec
AdagradSlotVariables = _optimizer_specs.AdagradSlotVariables
AdamOptimizerSpec = _optimizer_specs.AdamOptimizerSpec
AdamSlotVariables = _optimizer_specs.AdamSlotVariables
CallablePlaceholder = _optimizer_specs.CallablePlaceholder
HyperParameterType = _optimizer_specs.HyperParameterType
LearningRate = _optimizer_specs.LearningRate
NumericParameter = _optimizer_specs.NumericParameter
OptimizerSpec = _optimizer_specs.OptimizerSpec
SGDOptimizerSpec = _optimizer_specs.SGDOptimizerSpec
SGDSlotVariables = _optimizer_specs.SGDSlotVariables
