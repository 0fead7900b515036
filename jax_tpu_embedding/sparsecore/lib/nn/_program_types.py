# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The library's own types in programs that jax.export writes to bytes.

jax.export knows trees of them by the names given here, which therefore never
change.
"""

from __future__ import annotations

import dataclasses
import json

from jax import export
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.step import _sparse_gradients
from jax_tpu_embedding.sparsecore.lib.nn.values import _variables


def register() -> None:
  """Makes the types known to jax.export; once for each process."""
  for named_tuple in (
      _variables.EmbeddingVariables,
      _buffers.SparseDenseMatmulInput,
      _sparse_gradients.SparseGradient,
  ):
    export.register_namedtuple_serialization(
        named_tuple, serialized_name=f"jax_tpu_embedding.{named_tuple.__name__}"
    )
  export.register_pytree_node_serialization(
      _buffers.PreprocessedInput,
      serialized_name="jax_tpu_embedding.PreprocessedInput",
      serialize_auxdata=_write_settings,
      deserialize_auxdata=_read_settings,
  )
  export.register_pytree_node_serialization(
      _buffers.SampleIds,
      serialized_name="jax_tpu_embedding.SampleIds",
      serialize_auxdata=lambda unused_static_fields: b"",
      deserialize_auxdata=lambda unused_data: (),
  )


def _write_settings(
    static_fields: tuple[_buffers.BufferSettings | None],
) -> bytes:
  (settings,) = static_fields
  if settings is None:
    return b""
  return json.dumps(dataclasses.asdict(settings)).encode()


def _read_settings(data: bytes) -> tuple[_buffers.BufferSettings | None]:
  if not data:
    return (None,)
  fields = json.loads(data)
  fields["limits"] = tuple(
      (name, layout.PartitionLimits(*limits))
      for name, limits in fields["limits"]
  )
  fields["batches"] = tuple(map(tuple, fields["batches"]))
  # Those of earlier versions have none.
  fields["layouts"] = tuple(
      _buffers.StackLayout(name, num_samples, tuple(map(tuple, features)))
      for name, num_samples, features in fields.get("layouts", ())
  )
  return (_buffers.BufferSettings(**fields),)
