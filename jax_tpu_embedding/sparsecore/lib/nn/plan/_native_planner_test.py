# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

_PLAN = """
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec, embedding
feature = embedding_spec.FeatureSpec(
    name="feature",
    table_spec=embedding_spec.TableSpec(
        name="table",
        vocabulary_size=50,
        embedding_dim=8,
        optimizer=embedding_spec.SGDOptimizerSpec(),
    ),
    input_shape=(8, 1),
    output_shape=(8, 8),
)
embedding.prepare_feature_specs_for_training([feature], 1, 2)
print(feature.table_spec.setting_in_stack.padded_vocab_size)
"""
_LOAD_OTHER_PROTOBUF = """
import ctypes
ctypes.CDLL({path!r}, ctypes.RTLD_GLOBAL)
"""


class NativePlannerTest(parameterized.TestCase):

  @parameterized.parameters("", "before", "after")
  def test_plans_beside_another_protobuf(self, when):
    path = str(pathlib.Path(__file__).with_name("other_protobuf.so"))
    load = _LOAD_OTHER_PROTOBUF.format(path=path)
    program = {
        "": _PLAN,
        "before": load + _PLAN,
        "after": "import jax_tpu_embedding.sparsecore.lib.nn.embedding"
        + load
        + _PLAN,
    }[when]
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual(int(result.stdout) % 2, 0)


if __name__ == "__main__":
  absltest.main()
