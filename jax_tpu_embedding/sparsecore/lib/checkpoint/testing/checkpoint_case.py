# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A test with a place for a checkpoint, and what it asks of one."""

from __future__ import annotations

import hashlib
import json
import pathlib

from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
import numpy as np

ONE = any_tables.Topology(1, 2, "alone")


def file_hashes(path: pathlib.Path) -> dict[str, str]:
  """What must not depend on the writer's devices."""
  hashes = {}
  for file in sorted((path / "tables").rglob("*")):
    if file.is_dir():
      continue
    content = file.read_bytes()
    if file.name == "tables.json":
      fields = json.loads(content)
      del fields["embedding_spec"], fields["crc32"]
      content = json.dumps(fields, sort_keys=True).encode()
    name = str(file.relative_to(path))
    hashes[name] = hashlib.sha256(content).hexdigest()
  return hashes


class CheckpointCase(parameterized.TestCase):
  """Has `path`, where there is nothing yet."""

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / "saved"

  def assert_same_values(self, found, expected):
    self.assertEqual(found.keys(), expected.keys())
    for table, slots in expected.items():
      self.assertEqual(found[table].keys(), slots.keys(), table)
      for slot, array in slots.items():
        self.assertEqual(found[table][slot].dtype, array.dtype)
        np.testing.assert_array_equal(
            found[table][slot], array, f"{table} {slot}", strict=True
        )

  def save(self, topology=ONE, tables=any_tables.TABLES, **kwargs):
    """Saves random values; returns them."""
    kinds = {
        name: kwargs.pop(name) for name in ("of", "dtype") if name in kwargs
    }
    specs = any_tables.feature_specs(topology, tables, **kinds)
    values = any_tables.values(tables, **kinds)
    variables = any_tables.random_variables(topology, specs, values)
    any_tables.save(self.path, variables, specs, **kwargs)
    return values
