# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Native calls follow no address but those that this process has published."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
import numpy as np

_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)
_DIM = 3
# One SparseCore on each of two devices; id 1 of each, in sample 0.
_COO = (
    np.array([1, 9, 16, 16, 16, 16, 16, 16], np.int32),
    np.ones(16, np.int32),
    np.zeros(16, np.int32),
    np.ones(16, np.float32),
    np.int32(1),
)
_LAYOUT = dict(
    num_devices=np.int64(2),
    num_sc_per_device=np.int64(1),
    enable_minibatching=False,
)
_ROWS_WORD = 8  # of a record: the address of the rows


def _publish(coo, rows, *, rows_per_device=4, batch_size=2):
  return jax.ffi.ffi_call(
      "jte_publish_cpu", jax.ShapeDtypeStruct((64,), jnp.uint32)
  )(
      *coo,
      rows,
      **_LAYOUT,
      rows_per_device=np.int64(rows_per_device),
      batch_size=np.int64(batch_size),
  )


def _lookup(coo, table, records):
  return jax.ffi.ffi_call(
      cpu_calls.LOOKUP_TARGET, jax.ShapeDtypeStruct((2, _DIM), jnp.float32)
  )(*coo, table, records, **_LAYOUT, quantization=np.zeros(0))


def _update(coo, table, gradient, records, device):
  return jax.ffi.ffi_call(
      "jte_update_cpu",
      [jax.ShapeDtypeStruct(table.shape, jnp.float32)],
      input_output_aliases={6: 0},
  )(
      *coo,
      gradient,
      table,
      np.float32(1),
      records,
      device,
      **_LAYOUT,
      rule="sgd",
      num_hyperparameters=np.int64(1),
      static_params=np.zeros(0, np.float32),
      row_options="",
      min_value=np.float32(-np.inf),
      max_value=np.float32(np.inf),
      stochastic_rounding=False,
      rounding_num_shards=np.int64(1),
      rounding_shards_per_device=np.int64(1),
  )[
      0
  ]


def _hold(values, *operands, num_held):
  """`values`, once they are held with what others read."""
  (held,) = jax.ffi.ffi_call(
      "jte_hold_cpu",
      [jax.ShapeDtypeStruct(values.shape, values.dtype)],
      input_output_aliases={0: 0},
  )(
      values,
      *operands,
      num_devices=np.int64(2),
      num_held=np.array(num_held, np.int64),
  )
  return held.block_until_ready()


def _twice(record):
  """The records of two devices that have the same memory."""
  return jnp.stack([record, record])


class DeviceRecordsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Arrays of JAX, which stay where they are from call to call.
    self.coo = tuple(map(jnp.asarray, _COO))
    self.table = jnp.arange(4.0 * _DIM).reshape(4, _DIM)
    self.gradient = jnp.ones((2, _DIM))

  def test_calls_read_what_was_published(self):
    records = _twice(_publish(self.coo, self.table))
    np.testing.assert_array_equal(
        _lookup(self.coo, self.table, records)[0], 2 * self.table[1]
    )
    records = _twice(_publish(self.coo, self.gradient))
    updated = _update(self.coo, self.table, self.gradient, records, np.int32(0))
    np.testing.assert_array_equal(updated[1], self.table[1] - 2)

  @parameterized.parameters(
      lambda records: jnp.zeros_like(records),
      lambda records: records.at[1, _ROWS_WORD].add(4096),
      lambda records: records.at[0, 0].add(4),
  )
  def test_forged_records_are_refused(self, forge):
    refused = self.assertRaisesRegex(
        _NATIVE_ERRORS, "none that this process has published"
    )
    with refused:
      _lookup(
          self.coo, self.table, forge(_twice(_publish(self.coo, self.table)))
      ).block_until_ready()
    with refused:
      _update(
          self.coo,
          self.table,
          self.gradient,
          forge(_twice(_publish(self.coo, self.gradient))),
          np.int32(0),
      ).block_until_ready()

  def test_records_of_less_memory_than_is_read_are_refused(self):
    records = _twice(_publish(self.coo, self.table))
    with self.assertRaisesRegex(_NATIVE_ERRORS, "of these sizes"):
      _lookup(self.coo, jnp.ones((400, _DIM)), records).block_until_ready()

  @parameterized.parameters(-1, 2)
  def test_the_device_is_one_of_those(self, device):
    records = _twice(_publish(self.coo, self.gradient))
    message = f"The device has number {device} of 2 of the axis"
    with self.assertRaisesRegex(_NATIVE_ERRORS, message):
      _update(
          self.coo, self.table, self.gradient, records, np.int32(device)
      ).block_until_ready()
    with self.assertRaisesRegex(_NATIVE_ERRORS, message):
      _hold(self.table, np.int32(device), records, num_held=[0])

  def test_records_are_split_by_stack(self):
    together = jnp.arange(2 * 3 * 64, dtype=jnp.uint32).reshape(2, 3, 64)

    def split(*shapes):
      return jax.block_until_ready(
          jax.ffi.ffi_call(
              "jte_split_records_cpu",
              [jax.ShapeDtypeStruct(shape, jnp.uint32) for shape in shapes],
          )(together)
      )

    for k, of_stack in enumerate(split(*[(2, 64)] * 3)):
      np.testing.assert_array_equal(of_stack, together[:, k])
    with self.assertRaisesRegex(
        _NATIVE_ERRORS, "There are records of 3 stacks, and 2 results"
    ):
      split((2, 64), (2, 64))
    with self.assertRaisesRegex(
        _NATIVE_ERRORS, r"Result 1 must be uint32 of shape \[2, 64\]"
    ):
      split((2, 64), (2, 63), (2, 64))

  def test_what_is_held_is_what_each_stack_has_published(self):
    others = jnp.ones((4, _DIM))
    stacks = [
        _twice(_publish(self.coo, self.table)),
        self.table,
        _twice(_publish(self.coo, others)),
    ]
    held = _hold(self.table, np.int32(1), *stacks, others, num_held=[1, 1])
    np.testing.assert_array_equal(held, self.table)
    with self.assertRaisesRegex(
        _NATIVE_ERRORS, "Operand 5 is not what the other devices read"
    ):
      _hold(self.table, np.int32(1), *stacks, self.table, num_held=[1, 1])
    with self.assertRaisesRegex(
        _NATIVE_ERRORS, "A stack holds 6 operands, expected 0 to 5"
    ):
      _hold(self.table, np.int32(1), *stacks, others, num_held=[1, 6])

  @parameterized.parameters(
      (dict(rows_per_device=2**31 + 2), "The table has 2147483650 rows"),
      (dict(rows_per_device=-2), "The table has -2 rows"),
      (dict(batch_size=2**31 + 2), "The batch has 2147483650 rows"),
  )
  def test_rows_and_samples_have_numbers_of_32_bits(self, sizes, message):
    with self.assertRaisesRegex(
        _NATIVE_ERRORS, f"{message} on the device, expected at most 2\\^31"
    ):
      _publish(self.coo, self.table, **sizes).block_until_ready()


if __name__ == "__main__":
  absltest.main()
