# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Buffers that the converter made for more devices than the program has.

Up to 8 SparseCores row pointers have the same size, so that only their values
say that there are ids for other devices. These would be lost.
"""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_hosts
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

# jaxlib raises the first if the call ran at once, the second if it ran later.
_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)
_SAMPLES_PER_SC, _IDS_PER_SAMPLE, _DIM, _VOCABULARY_SIZE = 4, 4, 8, 256
_MOST_IDS = 16  # of a SparseCore

_WAYS = {
    "native": dict(platform="cpu"),
    "native_messages": dict(platform="cpu", by_messages=True),
    "native_batches": dict(platform="cpu", by_messages=True, by_batches=True),
    "reference": dict(platform=None),
}


def _coo(num_devices, num_sc_per_device, global_device_count, limit):
  """Buffers for the program's devices; with a limit, in minibatches."""
  topology = layout.Topology(
      local_device_count=num_devices,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )
  num_samples = num_devices * num_sc_per_device * _SAMPLES_PER_SC
  # All are different.
  ids = np.random.default_rng(0).permutation(_VOCABULARY_SIZE)
  ids = ids[: num_samples * _IDS_PER_SAMPLE].reshape(num_samples, -1)
  stack = input_preprocessing.Stack(
      combiner="sum",
      max_ids_per_partition=limit or _MOST_IDS,
      max_unique_ids_per_partition=limit or _MOST_IDS,
  )
  feature = input_preprocessing.Feature(
      name="f", ids=ids.astype(np.int32), vocabulary_size=_VOCABULARY_SIZE
  )
  ((stacks, num_minibatches),) = converter_hosts.run_hosts(
      1,
      lambda unused_number, host: converter_requests.convert_step(
          [(stack, [feature])],
          topology,
          enable_minibatching=limit is not None,
          all_reduce_interface=host,
      ),
  )
  buffers = [
      getattr(stacks[0], name).reshape(-1)
      for name in converter_requests.BUFFERS
  ]
  return (*buffers, np.int32(num_minibatches))


def _results(lowering, operation, coo, num_scs, enable_minibatching=False):
  """Of an operation on a table of ones."""
  table = np.ones((_VOCABULARY_SIZE, _DIM), np.float32)
  num_samples = _SAMPLES_PER_SC * num_scs
  gradient = np.ones((num_samples, _DIM), np.float32)
  most_ids = dict(max_ids_per_partition=_MOST_IDS)
  operands, params = {
      "lookup": (
          [table],
          dict(device_batch_size=num_samples // lowering.num_devices)
          | most_ids,
      ),
      "update_sgd": ([table, gradient, np.float32(1)], most_ids),
      "row_gradients": (
          [gradient],
          dict(
              global_device_count=lowering.num_devices,
              rows_per_device=_VOCABULARY_SIZE // lowering.num_devices,
          ),
      ),
  }[operation]

  @lowering.compiled
  def run(coo, *operands):
    return lowering.bind(
        operation,
        *coo,
        *operands,
        max_unique_ids_per_partition=_MOST_IDS,
        enable_minibatching=enable_minibatching,
        **params,
    )

  return np.asarray(run(coo, *operands)[-1])


class MoreDevicesTest(parameterized.TestCase):

  @parameterized.parameters(list(_WAYS))
  def test_buffers_for_the_devices_of_the_program_are_used(self, way):
    lowering = every_lowering.Lowering(num_devices=4, **_WAYS[way])
    coo = _coo(4, 1, global_device_count=4, limit=None)
    activations = _results(lowering, "lookup", coo, num_scs=4)
    np.testing.assert_array_equal(activations, _IDS_PER_SAMPLE)

  # Devices and SparseCores per device; 8 SparseCores in all have the buffers.
  @parameterized.product(
      topology=[(1, 1), (1, 2), (2, 2), (4, 1)],
      limit=[None, 2],
      operation=["lookup", "update_sgd", "row_gradients"],
      way=list(_WAYS),
  )
  def test_no_id_is_lost(self, topology, limit, operation, way):
    num_devices, num_sc_per_device = topology
    num_scs = num_devices * num_sc_per_device
    lowering = every_lowering.Lowering(num_devices=num_devices, **_WAYS[way])
    coo = _coo(*topology, 8 // num_sc_per_device, limit)
    self.assertEqual(coo[4] > 1, limit is not None)

    def run():
      return _results(lowering, operation, coo, num_scs, limit is not None)

    # Native gradients of rows know no other way over devices.
    by_messages = num_devices > 1 and (
        lowering.by_messages or operation == "row_gradients"
    )
    if lowering.platform == "cpu" and not by_messages:
      with self.assertRaisesRegex(
          _NATIVE_ERRORS,
          rf"row_pointers\[\d+\] is \d+, expected at most \d+: the end of"
          rf" the program's {num_scs} partitions, rounded up. The buffers"
          " look made for more devices: preprocess with"
          rf" global_device_count={num_devices} and"
          rf" num_sc_per_device={num_sc_per_device}\.",
      ):
        run()
    elif operation == "lookup":
      self.assertTrue(np.isnan(run()).all())
    else:
      self.assertTrue(np.isnan(run()).any())


if __name__ == "__main__":
  absltest.main()
