# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What devices read of each other stays in memory until all have read it.

Were it not so, no result need be wrong: XLA may leave the memory alone for
long enough. So the programs are read. exchange_test.py has the results.
"""

import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_NUM_SCS, _ROWS_PER_SHARD, _BATCH_PER_SC, _DIM = 4, 16, 6, 4
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
_COO = random_coo.random_coo(
    num_sc_per_device=_NUM_SCS,
    rows_per_shard=_ROWS_PER_SHARD,
    batch_size_per_sc=_BATCH_PER_SC,
    ids_per_sample=4,
)
_TABLE = np.ones((_NUM_SCS * _ROWS_PER_SHARD, _DIM), np.float32)
_GRADIENT = np.ones((_NUM_SCS * _BATCH_PER_SC, _DIM), np.float32)


def _calls(operation, *operands, **params):
  """Operands of the calls that publish and hold, and what gathers."""
  lowering = every_lowering.LOWERINGS["cpu_shared_memory"]

  @lowering.compiled
  def run(coo, *operands):
    return lowering.bind(operation, *coo, *operands, **_LIMITS, **params)

  coo = lowering.coo_operands(_COO, _NUM_SCS)
  text = jax.jit(run).lower(coo, *operands).as_text()

  def operands_of(target):
    (found,) = re.findall(rf"custom_call @{target}\((.*?)\)", text)
    return found.split(", ")

  return (
      operands_of("jte_publish_cpu"),
      operands_of("jte_hold_cpu"),
      re.findall(r'(%\w+) = "stablehlo.all_gather"', text),
  )


class SharedMemoryTest(parameterized.TestCase):

  def test_a_lookup_holds_the_table(self):
    published, held, gathered = _calls(
        "lookup", _TABLE, device_batch_size=_BATCH_PER_SC
    )
    # Activations, device, records; then what the others read.
    self.assertEqual(held[3:-1], published[-1:])
    self.assertIn(held[-1], gathered)

  def test_an_update_holds_gradient_and_buffers(self):
    published, held, gathered = _calls(
        "update_sgd", _TABLE, _GRADIENT, np.float32(1)
    )
    # Table, device, records. Nobody reads the minibatch count of another.
    *buffers, _, gradient = published
    self.assertEqual(held[3:-1], [gradient, *buffers])
    self.assertIn(held[-1], gathered)

  def test_a_lookup_of_stacks_holds_every_table(self):
    lowering = every_lowering.LOWERINGS["cpu_shared_memory"]

    @lowering.compiled
    def run(coo, *tables):
      params = dict(device_batch_size=_BATCH_PER_SC, **_LIMITS)
      return lowering.bind_of_stacks(
          "lookup_of_stacks",
          [
              of_stacks.OfStack(f"t{k}", lookup.lookup_p, (*coo, table), params)
              for k, table in enumerate(tables)
          ],
      )

    coo = lowering.coo_operands(_COO, _NUM_SCS)
    tables = (_TABLE, _TABLE[:, :2], _TABLE[:, :3])
    text = jax.jit(run).lower(coo, *tables).as_text()
    published = [
        operands.split(", ")[-1]
        for operands in re.findall(
            r"custom_call @jte_publish_cpu\((.*?)\)", text
        )
    ]
    self.assertLen(set(published), 3)
    # What says that the device has read all; activations, device, and for each
    # stack records and table.
    _, held = re.findall(r"custom_call @jte_hold_cpu\((.*?)\)", text)
    self.assertEqual(held.split(", ")[5:-1:2], published)
    self.assertIn("num_held = dense<1> : tensor<3xi64>", text)


if __name__ == "__main__":
  absltest.main()
