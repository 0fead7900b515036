# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""When processes send batches, and when rows."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)  # as tests of the same process

_NUM_DEVICES, _BATCH_SIZE, _NUM_ROWS, _DIM = 2, 64, 4096, 8


def _axis(name="x"):
  return mesh_axis.MeshAxis(
      name=name, size=_NUM_DEVICES, is_in_one_process=False
  )


def _coo(num_cells, num_row_pointers=8):
  ints = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
  return (
      ints(num_row_pointers),
      ints(num_cells),
      ints(num_cells),
      jax.ShapeDtypeStruct((num_cells,), jnp.float32),
      ints(),
  )


def _params(most_rows, **changes):
  return dict(
      max_unique_ids_per_partition=most_rows,
      device_batch_size=_BATCH_SIZE,
      **changes,
  )


_TABLE = jax.ShapeDtypeStruct((_NUM_ROWS, _DIM), jnp.float32)


class ByBatchesTest(parameterized.TestCase):

  # A batch of 64 samples of 8 columns and of 96 cells of 3 numbers is 808
  # numbers with 8 row pointers. A row is 9 numbers, so 90 are more than that.
  @parameterized.parameters((89, False), (90, True))
  def test_what_is_smaller_is_sent(self, most_rows, expected):
    coo = _coo(96)
    params = _params(most_rows)
    self.assertEqual(
        by_batches.are_smaller(coo, _TABLE, _BATCH_SIZE, params, _axis()),
        expected,
    )
    self.assertEqual(
        by_batches.serve_lookup(coo, _TABLE, params, _axis()), expected
    )

  def test_rows_of_one_number_are_sent(self):
    # A cell is 3 numbers, and its row is 2.
    table = jax.ShapeDtypeStruct((_NUM_ROWS,), jnp.float32)
    self.assertFalse(
        by_batches.are_smaller(_coo(96), table, 1, _params(96), _axis())
    )

  @parameterized.parameters(
      (dict(), "x", True),
      (dict(), ("y", "x"), False),
      (dict(enable_minibatching=True), "x", False),
  )
  def test_minibatches_and_several_axes_look_up_by_messages(
      self, changes, name, expected
  ):
    # Batches would always be smaller.
    coo = _coo(400, num_row_pointers=8 * 64 if changes else 8)
    params, axis = _params(400, **changes), _axis(name)
    self.assertTrue(
        by_batches.are_smaller(coo, _TABLE, _BATCH_SIZE, params, axis)
    )
    self.assertEqual(
        by_batches.serve_lookup(coo, _TABLE, params, axis), expected
    )

  def test_buffers_go_together_unless_they_are_large(self):
    axis = mesh_axis.MeshAxis(name="x", size=4, is_in_one_process=False)
    most = 1 << 18  # bytes
    sizes = [8, most // 4 + 1, most // 4, 24]
    batches = [
        [np.arange(4 * size, dtype=np.int32) + k for size in sizes] + [1]
        for k in range(2)
    ]

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=jax.sharding.Mesh(jax.devices()[:4], ("x",)),
        in_specs=([[jax.P("x")] * 4 + [jax.P()]] * 2,),
        out_specs=jax.P(),
        check_vma=False,
    )
    def run(batches):
      return by_batches._of_all(batches, axis)  # pylint: disable=protected-access

    # One for six buffers, and one for each of the large ones.
    text = run.lower(batches).as_text()
    self.assertEqual(text.count("stablehlo.all_gather"), 3)
    for gathered, batch in zip(run(batches), batches, strict=True):
      for actual, expected in zip(gathered, batch, strict=True):
        np.testing.assert_array_equal(actual, expected)


if __name__ == "__main__":
  absltest.main()
