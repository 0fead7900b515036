# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Feature specs prepared for devices, without changing those of the user."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables


def prepared(
    feature_specs: Any, num_devices: int, num_sc: int
) -> list[embedding_spec.FeatureSpec]:
  """Copies of the specs, flat, that are prepared for devices.

  Specs that are not prepared for so many SparseCores are stacked for them,
  automatically.

  Args:
    feature_specs: any tree; stays as it is.
    num_devices: of the job.
    num_sc: SparseCores of a device.

  Raises:
    TypeError: if something else is among them.
    ValueError: if there are no features, or they cannot be stacked.
  """
  features = _tables.features_of(feature_specs)
  if not features:
    raise ValueError("feature_specs has no features.")

  def copied(**changes):
    tables, copies = {}, []
    for feature in features:
      feature, table = copy.copy(feature), feature.table_spec
      if id(table) not in tables:
        tables[id(table)] = dataclasses.replace(table, **changes)
      feature.table_spec = tables[id(table)]
      copies.append(feature)
    return copies

  # Those that are stacked by hand stay so.
  copies = copied()
  try:
    _prepared.check_prepared(copies, num_devices * num_sc)
    return copies
  except ValueError:
    pass
  copies = copied(_stacked_table_spec=None, _setting_in_stack=None)
  embedding.auto_stack_tables(copies, num_devices, num_sc)
  embedding.prepare_feature_specs_for_training(
      copies, num_devices, num_sc_per_device=num_sc
  )
  return copies
