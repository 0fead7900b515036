# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables that are made, trained and dropped leave nothing in memory."""

from __future__ import annotations

import gc
import pathlib

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

_ROWS, _COLUMNS, _BATCH = 40_960, 128, 32
# Large enough for huge pages, which it gets after some steps.
_TABLE_BYTES = 4 * _ROWS * _COLUMNS
_STEPS = 5


def _memory() -> tuple[int, int]:
  """Bytes of the process that no file has, and the number of its maps."""
  gc.collect()
  status = pathlib.Path("/proc/self/status").read_text()
  (line,) = [x for x in status.splitlines() if x.startswith("RssAnon:")]
  maps = pathlib.Path("/proc/self/maps").read_text().count("\n")
  return 1024 * int(line.split()[1]), maps


class DroppedTablesTest(absltest.TestCase):

  def test_leave_no_memory_and_no_maps(self):
    table = embedding_spec.TableSpec(
        name="t",
        vocabulary_size=_ROWS,
        embedding_dim=_COLUMNS,
        optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
    )
    specs = {
        "f": embedding_spec.FeatureSpec(
            name="f",
            table_spec=table,
            input_shape=(_BATCH, 4),
            output_shape=(_BATCH, _COLUMNS),
        )
    }
    layer = embed.SparseCoreEmbed(feature_specs=specs)
    ids = {"f": np.arange(4 * _BATCH, dtype=np.int32).reshape(_BATCH, 4)}
    params = embed.on_every_device(layer.init(jax.random.key(0), ids)["params"])

    @jax.jit
    def train_step(tables):
      def loss(params):
        variables = {"params": params, "embedding": tables}
        return jnp.sum(layer.apply(variables, ids)["f"] ** 2)

      return jax.grad(loss)(params)

    seen = []
    for i in range(16):
      tables = embed.SparseCoreEmbed.create_embedding_variables(
          specs, jax.random.key(i)
      )
      for _ in range(_STEPS):
        jax.block_until_ready(train_step(tables))
      del tables
      seen.append(_memory())
    # What the process keeps for later, it has by the sixth time.
    (num_bytes, num_maps), *later = seen[6:]
    for later_bytes, later_maps in later:
      self.assertLess(later_bytes, num_bytes + _TABLE_BYTES // 2, seen)
      self.assertLess(later_maps, num_maps + len(later), seen)


if __name__ == "__main__":
  absltest.main()
