# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One feature over one table, on some devices and by either way, for tests."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

P = jax.sharding.PartitionSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneTableModel:
  """A table, and a batch of the feature "f"."""

  mesh: jax.sharding.Mesh
  specs: dict[str, embedding_spec.FeatureSpec]
  ids: np.ndarray  # i32[batch, valency], of which the inputs are made
  inputs: embedding.PreprocessedInput
  variables: dict[str, embedding.EmbeddingVariables]

  def lower(
      self, function: Callable[..., Any], variables: Any, way: str
  ) -> jax.stages.Lowered:
    """function(inputs, variables), as every device runs it.

    Args:
      function: of the batch and the variables of one device.
      variables: its second argument, for all devices.
      way: of lookups and updates, "calls" or "kernels".
    """

    def chosen(*operands):
      with choice.lower_by(way):
        return function(*operands)

    if self.mesh.size > 1:
      chosen = jax.shard_map(
          chosen,
          mesh=self.mesh,
          in_specs=P("x"),
          out_specs=P("x"),
          check_vma=False,
      )
    return jax.jit(chosen).lower(self.inputs, variables)


def make(
    table: embedding_spec.TableSpec,
    *,
    batch: int,
    valency: int,
    num_devices: int = 1,
    num_sc: int = 1,
    **options: Any,
) -> OneTableModel:
  """The model of a table, which is prepared for the devices.

  Args:
    table: any.
    batch: how many samples.
    valency: ids of each of them.
    num_devices: the first ones of JAX.
    num_sc: SparseCores of each of them.
    **options: of preprocessing.
  """
  specs = {"f": two_table_model.feature("f", table, valency, batch)}
  embedding.prepare_feature_specs_for_training(
      specs, num_devices, num_sc_per_device=num_sc
  )
  ids = np.random.default_rng(0).integers(
      0, table.vocabulary_size, (batch, valency), np.int32
  )
  inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
      {"f": ids},
      None,
      specs,
      num_devices,
      num_devices,
      num_sc_per_device=num_sc,
      **options,
  )
  mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
  variables = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(mesh, P("x", None)),
      num_sc,
  )
  return OneTableModel(
      mesh=mesh, specs=specs, ids=ids, inputs=inputs, variables=variables
  )
