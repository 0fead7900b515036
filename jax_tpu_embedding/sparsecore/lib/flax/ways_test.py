# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""docs/design/ways.md names the files that ids and gradients really pass."""

import pathlib
import re
import traceback
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_grad_with_sgd as sgd
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

_PACKAGE = f"{pathlib.Path(__file__).parents[2]}/"
_DOCUMENT = pathlib.Path(__file__).parents[4] / "docs/design/ways.md"


def _files_on_the_stack() -> list[str]:
  """Files of the package, outermost call first, each once."""
  names = [frame.filename for frame in traceback.extract_stack()]
  paths = [n.removeprefix(_PACKAGE) for n in names if n.startswith(_PACKAGE)]
  return list(dict.fromkeys(p for p in paths if not p.endswith("_test.py")))


def _documented(section: str) -> list[str]:
  """The paths in the first column of a table, in order."""
  text = _DOCUMENT.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
  return re.findall(r"^\| `([^`]+\.py)`", text, re.MULTILINE)


def _files_of_a_step(
    primitive: jax.extend.core.Primitive,
    defined_in: str,
    target: str,
    is_training: bool,
) -> list[str]:
  """What is on the stack where a primitive is traced, and where it is lowered.

  Args:
    primitive: that the step uses.
    defined_in: the file that defines it.
    target: of the native call that it becomes.
    is_training: whether the step differentiates.
  """
  table = embedding_spec.TableSpec(
      vocabulary_size=64,
      embedding_dim=8,
      initializer=jax.nn.initializers.zeros,
      optimizer=embedding_spec.SGDOptimizerSpec(0.1),
      combiner="sum",
      name="t",
  )
  specs = {
      "f": embedding_spec.FeatureSpec(
          name="f", table_spec=table, input_shape=(16, 1), output_shape=(16, 8)
      )
  }
  layer = embed.SparseCoreEmbed(specs, tables="ref")
  ids = {"f": jnp.asarray(np.arange(16)[:, None], jnp.int32)}
  params = layer.init(jax.random.key(0), ids)["params"]
  tables = layer.create_embedding_variables(specs, jax.random.key(0))

  @jax.jit
  def step(params, tables, ids):
    def loss(params):
      variables = {"params": params, "embedding": tables}
      return jnp.square(layer.apply(variables, ids)["f"]).sum()

    return jax.grad(loss)(params) if is_training else loss(params)

  traced, lowered = [], []
  bind, lowering = primitive.bind, jax.ffi.ffi_lowering

  def spy_on_bind(*args, **params):
    traced.append(_files_on_the_stack())
    return bind(*args, **params)

  def spy_on_lowering(name, *args, **kwargs):
    if name == target:
      lowered.append(_files_on_the_stack())
    return lowering(name, *args, **kwargs)

  with (
      mock.patch.object(primitive, "bind", spy_on_bind),
      mock.patch.object(jax.ffi, "ffi_lowering", spy_on_lowering),
  ):
    step(params, tables, ids)
  return list(dict.fromkeys((*traced[0], defined_in, *lowered[0])))


class WaysTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          "The way of an id",
          convert_ids.convert_ids_p,
          "lib/core/primitives/convert_ids.py",
          "jte_convert_ids_cpu",
      ),
      (
          "The way of an id that is only read",
          lookup_ids.lookup_ids_p,
          "lib/core/primitives/lookup_ids.py",
          "jte_lookup_ids_cpu",
          False,
      ),
      (
          "The way of a row",
          lookup.lookup_p,
          "lib/core/primitives/lookup.py",
          "jte_lookup_cpu",
      ),
      (
          "The way of a gradient",
          sgd.tpu_sparse_dense_matmul_grad_with_sgd_primitive,
          "lib/core/primitives/update.py",
          "jte_update_cpu",
      ),
  )
  def test_are_as_documented(
      self, section, primitive, defined_in, target, is_training=True
  ):
    between = set(_documented("Between them"))
    found = _files_of_a_step(primitive, defined_in, target, is_training)
    expected = _documented(section)
    self.assertEqual([x for x in found if x not in between], expected)
    self.assertLessEqual(len(expected), 7)


if __name__ == "__main__":
  absltest.main()
