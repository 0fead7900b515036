# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is packed into one array comes out of it bit by bit."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import packed
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)  # as tests of the same process

# Any bits: NaNs that are not the usual one, subnormal numbers.
_BITS = np.random.default_rng(0).bytes(4 * 6 * 10)


def _array(dtype, *shape):
  return np.frombuffer(_BITS, dtype, count=np.prod(shape)).reshape(shape)


_ARRAYS = {
    "one_type": [_array("f4", 6, 5), _array("f4", 12), _array("f4", 6, 1)],
    "one_size": [_array("i4", 6), _array("f4", 6, 3), _array("u4", 12)],
    "several_sizes": [_array("f4", 6, 3), _array("f2", 6, 5), _array("i4", 6)],
    "one": [_array("f2", 6, 5)],
}


class PackedTest(parameterized.TestCase):

  @parameterized.product(name=list(_ARRAYS), num_parts=[1, 2, 6])
  def test_arrays_come_back(self, name, num_parts):
    arrays = _ARRAYS[name]

    @jax.jit
    def run(arrays):
      together = packed.pack(arrays, num_parts)
      return together, packed.unpack(together, arrays)

    together, unpacked = run(arrays)
    self.assertEqual(together.shape[0], num_parts)
    self.assertEqual(together.nbytes, sum(x.nbytes for x in arrays))
    for actual, expected in zip(unpacked, arrays, strict=True):
      self.assertEqual(actual.dtype, expected.dtype)
      self.assertEqual(np.asarray(actual).tobytes(), expected.tobytes())

  @parameterized.parameters(list(_ARRAYS))
  def test_a_part_has_that_part_of_each(self, name):
    arrays = _ARRAYS[name]
    _, second = packed.pack(arrays, 2)
    expected = packed.pack([x[x.shape[0] // 2 :] for x in arrays])
    self.assertEqual(
        np.asarray(second).tobytes(), np.asarray(expected).tobytes()
    )

  @parameterized.parameters(list(_ARRAYS))
  def test_those_of_devices_come_one_after_the_other(self, name):
    arrays = _ARRAYS[name]
    together = packed.pack(arrays)
    gathered = np.concatenate([together, together, together])
    for actual, x in zip(
        packed.unpack(jax.numpy.asarray(gathered), arrays, times=3), arrays
    ):
      self.assertEqual(np.asarray(actual).tobytes(), 3 * x.tobytes())


if __name__ == "__main__":
  absltest.main()
