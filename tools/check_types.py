# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks that mypy and pyright know the types of an installed wheel.

    python check_types.py

Needs both in the environment: pip install mypy 'pyright[nodejs]'. Runs them on
a program with mistakes, client.py, and stops if either finds others than those
marked.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

_PROGRAM = """
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import pybind_planner
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2
import jax_tpu_embedding

version: str = jax_tpu_embedding.__version__
layer: type = embed.SparseCoreEmbed
sgd = embedding_spec.SGDOptimizerSpec(learning_rate=0.1)
table = embedding_spec.TableSpec(
    name="t", vocabulary_size=8, embedding_dim=8, optimizer=sgd
)
rows: int = table.vocabulary_size
name: str = embedding_spec_pb2.EmbeddingSpecProto.DESCRIPTOR.full_name
idle: int = embedding.OutputPool(max_bytes=8).idle_bytes
feature = embedding_spec.FeatureSpec(
    name="f", table_spec=table, input_shape=(8, 1), output_shape=(8, 8)
)
embedding.auto_stack_tables({"tower": {"f": feature}, "other": [feature]}, 1)

embed.SparseCoreEmbedding  # error
text: str = table.vocabulary_size  # error
embedding_spec.SGDOptimizerSpec(learning_rat=0.1)  # error
embedding.OutputPool(max_byte=8)  # error
embedding.auto_stack_tables({"tower": {"f": 8}}, 1)  # error
pybind_planner.plan_stack_alone("")  # error
ffi_cpu.registration()  # error
pybind_input_preprocessing.preprocess()  # error
embedding_spec_pb2.EmbeddingSpec  # error
jax_tpu_embedding.__versions__  # error
"""


def main() -> None:
  expected = {
      number
      for number, line in enumerate(_PROGRAM.splitlines(), start=1)
      if line.endswith("# error")
  }
  pyright = ["pyright", "--pythonpath", sys.executable]
  for checker, *options in (["mypy"], pyright):
    if importlib.util.find_spec(checker) is None:
      raise SystemExit(f"{sys.executable} has no {checker}: see --help.")
    with tempfile.TemporaryDirectory() as folder:
      pathlib.Path(folder, "client.py").write_text(_PROGRAM)
      output = subprocess.run(
          [sys.executable, "-m", checker, *options, "client.py"],
          cwd=folder,
          stdout=subprocess.PIPE,
          text=True,
          check=False,
      ).stdout
    found = set(map(int, re.findall(r"client\.py:(\d+).* error: ", output)))
    if found != expected:
      raise SystemExit(
          f"{checker} finds errors in lines {sorted(found)} of client.py,"
          f" expected {sorted(expected)}:\n{output}"
      )
    print(f"{checker} finds the {len(found)} planted errors and no other")


if __name__ == "__main__":
  if len(sys.argv) > 1:
    sys.exit(__doc__)
  main()
