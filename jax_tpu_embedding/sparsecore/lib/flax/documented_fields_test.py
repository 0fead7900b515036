# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every field of a public class is explained where help() shows it."""

import dataclasses
import inspect
import re

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec


def _fields(cls):
  """Names of the public fields of a dataclass or named tuple."""
  if dataclasses.is_dataclass(cls):
    names = [field.name for field in dataclasses.fields(cls) if field.init]
  else:
    names = getattr(cls, "_fields", ())
  return [name for name in names if not name.startswith("_")]


def _classes():
  return {
      f"{module.__name__.rpartition('.')[2]}.{name}": cls
      for module in (embedding, embedding_spec, embed)
      for name, cls in vars(module).items()
      if inspect.isclass(cls) and not name.startswith("_") and _fields(cls)
  }


class DocumentedFieldsTest(parameterized.TestCase):

  def test_public_classes_are_found(self):
    for name in (
        "embedding.PreprocessedInput",
        "embedding.EmbeddingVariables",
        "embedding_spec.TableSpec",
        "embedding_spec.AdamOptimizerSpec",
        "embed.SparseCoreEmbed",
    ):
      self.assertIn(name, _classes())

  @parameterized.named_parameters(_classes().items())
  def test_docstring_has_every_field(self, cls):
    text = inspect.getdoc(cls) or ""
    _, _, attributes = text.partition("\nAttributes:\n")
    documented = re.findall(r"^  (\w+): \S", attributes, re.MULTILINE)
    # Fields of every Flax module are explained by Flax.
    missing = set(_fields(cls)) - set(documented) - {"parent", "name"}
    self.assertEmpty(missing)


if __name__ == "__main__":
  absltest.main()
