# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What memory it takes to initialize variables, in a process of its own.

python peak_of_initialization.py NUM_DEVICES

prints, for each kind of initializer, the peak in bytes, and of which parts of
that the memory check says that it is not enough.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import subprocess
import sys
from typing import Any
from unittest import mock

_COLUMNS = 64
_MEBIBYTE_ROWS = 2**20 // (4 * _COLUMNS)
# Of what was measured.
PARTS = (0.96, 1.04)


def measure(num_devices: int) -> dict[str, dict[str, Any]]:
  """Kind -> "peak", and "errors" by part of it."""
  environment = os.environ | {
      "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
      # Else malloc keeps some of what it is given back, for later.
      "MALLOC_MMAP_THRESHOLD_": str(2**20),
  }
  output = subprocess.check_output(
      [sys.executable, __file__, str(num_devices)], env=environment, text=True
  )
  return json.loads(output.splitlines()[-1])


def _status_bytes(field: str) -> int:
  status = pathlib.Path("/proc/self/status").read_text()
  line = next(x for x in status.splitlines() if x.startswith(field))
  return int(line.split()[1]) * 1024


def _main(num_devices: int) -> None:
  import jax  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.core import free_memory  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.nn import embedding  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec  # pylint: disable=g-import-not-at-top
  import numpy as np  # pylint: disable=g-import-not-at-top

  jax.config.update("jax_num_cpu_devices", num_devices)
  sharding = jax.sharding.NamedSharding(
      jax.sharding.Mesh(jax.devices(), ("x",)),
      jax.sharding.PartitionSpec("x", None),
  )

  def of_two_keys(key, shape):
    """As a user may write it: no rows can be made alone."""
    first, second = jax.random.split(key)
    return jax.random.uniform(first, shape) - jax.random.uniform(second, shape)

  sgd = embedding_spec.SGDOptimizerSpec()
  adagrad = embedding_spec.AdagradOptimizerSpec()
  # Other ways are not here: when XLA frees a block of rows, and JAX an array of
  # NumPy that it has copied, may be a moment later.
  kinds = {
      "host": (32, jax.nn.initializers.ones, adagrad),
      "one program": (24, of_two_keys, sgd),
  }

  def initialize(mebibytes, initializer, optimizer):
    table = embedding_spec.TableSpec(
        name="items",
        vocabulary_size=mebibytes * _MEBIBYTE_ROWS,
        embedding_dim=_COLUMNS,
        initializer=initializer,
        optimizer=optimizer,
    )
    feature = embedding_spec.FeatureSpec(
        name="item",
        table_spec=table,
        input_shape=(64, 1),
        output_shape=(64, _COLUMNS),
    )
    embedding.prepare_feature_specs_for_training([feature], num_devices, 2)
    return jax.block_until_ready(
        embedding.init_embedding_variables(
            jax.random.key(0), [table], sharding, 2
        )
    )

  def is_error(kind, free_bytes):
    with mock.patch.object(
        free_memory, "free_bytes", return_value=int(free_bytes)
    ):
      try:
        initialize(*kind)
      except MemoryError:
        return True
    return False

  def let_go():
    gc.collect()
    jax.device_put(np.zeros(1)).block_until_ready()  # what JAX still held

  result = {}
  for name, kind in kinds.items():
    initialize(*kind)  # compilers take memory, too
    let_go()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is now
    before = _status_bytes("VmRSS")
    for _ in range(3):  # on a busy machine devices may not copy at once
      initialize(*kind)
      let_go()
    peak = _status_bytes("VmHWM") - before
    errors = [is_error(kind, part * peak) for part in PARTS]
    result[name] = {"peak": peak, "errors": errors}
  print(json.dumps(result))


if __name__ == "__main__":
  _main(int(sys.argv[1]))
