# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Clients import the package, and run it, with nothing but its dependencies."""

import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib import embedding as older_embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding

# Makes imports fail as if the packages were not installed.
_WITHOUT = """
import sys
for name in {absent}:
  sys.modules[name] = None
"""
_EXTRAS = ["flax", "flatbuffers", "grpc", "libtpu", "matplotlib", "optax"]
_CLIENTS = ["keras", "keras_rs"]

_STEP = """
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

table = embedding_spec.TableSpec(
    name="t", vocabulary_size=8, embedding_dim=8, combiner="sum",
    initializer=jax.nn.initializers.ones,
    optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5))
specs = [embedding_spec.FeatureSpec(
    name="f", table_spec=table, input_shape=(2, 1), output_shape=(2, 8))]
embedding.prepare_feature_specs_for_training(specs, 1, 1)
inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
    [np.array([[3], [3]])], None, specs, 1, 1)
sharding = jax.sharding.NamedSharding(
    jax.sharding.Mesh(jax.devices(), "x"), jax.sharding.PartitionSpec("x", None))
variables = embedding.init_embedding_variables(jax.random.key(0), [table], sharding)
(ones,) = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
new = embedding.tpu_sparse_dense_matmul_grad([ones], inputs, variables, specs)
print(new["t"].table[2:5, 0])
"""


def _run(program, platform):
  return subprocess.run(
      [sys.executable, "-c", program],
      env=os.environ
      | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": platform},
      capture_output=True,
      text=True,
      check=False,
  )


class ImportsTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          (
              "lib.embedding",
              "lib.nn.embedding",
              "lib.nn.embedding_spec",
              "lib.nn.table_stacking",
              "utils.utils",
          ),
          _EXTRAS + _CLIENTS,
      ),
      (
          (
              "lib.flax.embed",
              "lib.flax.embed_optimizer",
              "lib.flax.linen.embed",
          ),
          ["libtpu"] + _CLIENTS,
      ),
  )
  def test_modules_import_without_what_they_do_not_need(self, modules, absent):
    program = _WITHOUT.format(absent=absent) + "".join(
        f"import jax_tpu_embedding.sparsecore.{module}\n" for module in modules
    )
    # A platform that is not there: asking JAX for devices would fail.
    result = _run(program, platform="tpu")
    self.assertEqual(result.returncode, 0, result.stderr)

  def test_a_step_needs_none_of_the_extras(self):
    result = _run(_WITHOUT.format(absent=_EXTRAS + _CLIENTS) + _STEP, "cpu")
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual(result.stdout, "[1. 0. 1.]\n")

  def test_older_name_has_every_public_name(self):
    names = [name for name in dir(embedding) if not name.startswith("_")]
    self.assertContainsSubset(
        ["Nested", "tpu_sparse_dense_matmul", "PreprocessedInput"], names
    )
    for name in names:
      self.assertIs(
          getattr(older_embedding, name), getattr(embedding, name), name
      )


if __name__ == "__main__":
  absltest.main()
