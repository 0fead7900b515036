# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A pipeline of a few small batches, for tests."""

import threading

from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

NUM = 12  # batches


def specs(num_devices=1):
  """Prepared for the devices."""
  table = two_table_model.table(vocabulary_size=1000)
  features = {"f": two_table_model.feature("f", table)}
  embedding.prepare_feature_specs_for_training(features, num_devices, 1)
  return features


def mesh_of_one():
  return jax.sharding.Mesh(jax.devices()[:1], ("x",))


def item(i):
  """Batch i: 24 samples, each with an id more than those of the one before."""
  rng = np.random.default_rng(i)
  ids = rng.integers(1000, size=(24, 3 + i))
  return {"ids": ids, "label": np.full(24, i, np.float32)}


def items(n=NUM):
  """Batches of a source, as a list."""
  return [item(i) for i in range(n)]


class Source:
  """An iterator with a state."""

  def __init__(self):
    self.position = 0

  def __iter__(self):
    return self

  def __next__(self):
    if self.position == NUM:
      raise StopIteration
    self.position += 1
    return item(self.position - 1)

  def get_state(self):
    return {"position": self.position}

  def set_state(self, state):
    self.position = state["position"]


def pipeline(source, **options):
  """Of `source`; options, and `specs` among them, replace these defaults."""
  return input_pipeline.InputPipeline(
      source,
      options.pop("specs", None) or specs(),
      **dict(
          ids=lambda item: {"f": item["ids"]},
          rest=lambda item: item["label"],
          mesh=mesh_of_one(),
          sharding_axis="x",
      )
      | options,
  )


def threads():
  """Of pipelines."""
  return [t for t in threading.enumerate() if t.name.startswith("input ")]


def arrays(batch):
  """What a step gets, as NumPy arrays."""
  return jax.tree.map(np.asarray, (batch.inputs, batch.rest))


class TestCase(parameterized.TestCase):

  def assert_same(self, got, expected):
    """Batches with the same numbers and arrays."""
    self.assertEqual(
        [batch.number for batch in got], [batch.number for batch in expected]
    )
    for a, b in zip(got, expected):
      self.assertEqual(a.inputs.settings, b.inputs.settings)
      jax.tree.map(np.testing.assert_array_equal, arrays(a), arrays(b))
