# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables that an update leaves alone, as if there were no optimizer for them."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
import itertools
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables


def stacks_of(
    feature_specs: _tables.Nested[_tables.FeatureSpec], frozen: Collection[str]
) -> set[str]:
  """The stacks of frozen tables.

  Args:
    feature_specs: the prepared specs, any tree.
    frozen: names of tables.

  Raises:
    TypeError: if `frozen` is a name, or nothing that has names.
    ValueError: if there is no such table, or one shares its stack with a table
      that is not frozen.
  """
  if isinstance(frozen, str) or not isinstance(frozen, Collection):
    raise TypeError(
        f"frozen must be a tuple of the names of tables, got {frozen!r}. Of one"
        " table, pass (name,); of none, ()."
    )
  tables = _prepared.get_table_specs(feature_specs)
  unknown = sorted(set(frozen) - set(tables))
  if unknown:
    raise ValueError(
        f"frozen names the tables {unknown}, and there are {sorted(tables)}."
    )
  stack_of = {
      name: table.setting_in_stack.stack_name for name, table in tables.items()
  }
  stacks = {stack_of[name] for name in frozen}
  for stack in sorted(stacks):
    trained = sorted(
        name
        for name, of_table in stack_of.items()
        if of_table == stack and name not in frozen
    )
    if trained:
      raise ValueError(
          f"Stack {stack!r}: the tables"
          f" {sorted(n for n in frozen if stack_of[n] == stack)} are frozen, and"
          f" {trained} are not. A stack is updated as a whole. Freeze all of its"
          " tables, or stack them apart: give those that are frozen an optimizer"
          " of their own, such as SGDOptimizerSpec(0.0), before stacking."
      )
  return stacks


def leave_out(
    stacks: Collection[str],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    gradients: Any,
    inputs: _buffers.PreprocessedInput | _buffers.SparseDenseMatmulInput,
    variables: Mapping[str, Any],
    *,
    gradients_are_by_stack: bool = False,
) -> tuple[Any, Any, Any, dict[str, Any]]:
  """The arguments of an update of the other stacks, of which there may be none.

  Args:
    stacks: names of those to leave out.
    feature_specs: the prepared specs, any tree.
    gradients: of the activations: that tree, or stack name -> gradient.
    inputs: the buffers.
    variables: by stack name.
    gradients_are_by_stack: which of the two.

  Returns:
    specs and gradients, as lists, inputs and variables.

  Raises:
    ValueError: if the trees differ.
  """
  features = jax.tree.leaves(feature_specs)
  is_trained = [
      feature.table_spec.setting_in_stack.stack_name not in stacks
      for feature in features
  ]
  if gradients_are_by_stack:
    gradients = _without(stacks, gradients)
  else:
    _structure.assert_same_structure(
        feature_specs, gradients, "feature_specs", "activation_gradients"
    )
    gradients = list(itertools.compress(jax.tree.leaves(gradients), is_trained))
  arrays = getattr(inputs, "sparse_dense_matmul_input", inputs)
  arrays = type(arrays)(*(_without(stacks, by_stack) for by_stack in arrays))
  if isinstance(inputs, _buffers.PreprocessedInput):
    arrays = inputs.replace(
        sparse_dense_matmul_input=arrays,
        samples=_without(stacks, inputs.samples),
    )
  return (
      list(itertools.compress(features, is_trained)),
      gradients,
      arrays,
      _without(stacks, variables),
  )


def _without(
    stacks: Collection[str], by_stack: Mapping[str, Any]
) -> dict[str, Any]:
  return {name: x for name, x in by_stack.items() if name not in stacks}
