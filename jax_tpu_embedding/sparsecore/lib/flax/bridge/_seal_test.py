# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

OLD, NEW = {"t": jnp.zeros(4)}, {"t": jnp.ones(4)}
UNUSED = np.zeros(5, np.float32)
BROKEN = "not the result of one update"


def seal_of(*ids):
  """The seal of a batch with these ids, as two devices may have them."""
  buffers = {"t": np.int32(ids)}
  arrays = embedding.SparseDenseMatmulInput({}, buffers, {}, {})
  inputs = embedding.PreprocessedInput(arrays)
  return np.asarray(_seal.after_update(_seal.initial_seal()[:5], inputs))


def batches_of_equal_hash(position):
  """Seals of the first two batches that differ, but not in this hash."""
  seals = {}
  for i in range(5000):
    seal = seal_of(i)
    other = seals.setdefault(seal[position], seal)
    if (other != seal).any():
      return other, seal
  raise ValueError("There are none.")


def mean(first, second):
  return (first + second) / 2


class SealTest(parameterized.TestCase):

  def test_seals_are_pairs_of_a_number_and_its_square(self):
    seals = np.array([seal_of(i, i + 7) for i in range(200)])
    np.testing.assert_array_equal(seals[:, 0], 1)
    for position in (1, 3):
      numbers, squares = seals[:, position], seals[:, position + 1]
      np.testing.assert_array_equal(squares, numbers**2)
      self.assertLess(numbers.max(), 2**11)
      # Of 200 random numbers below 2048, 191 are different.
      self.assertGreater(len(np.unique(numbers)), 170)

  def test_it_is_of_the_ids_in_any_order(self):
    np.testing.assert_array_equal(seal_of(3, 1, 9), seal_of(9, 3, 1))
    self.assertTrue((seal_of(1, 4) != seal_of(2, 3)).any(), "of equal sum")

  @parameterized.named_parameters(
      ("sum", lambda a, b: a + b),
      ("scaled", lambda a, b: a / 2),
      ("mean", mean),
      ("zero_and_one", lambda a, b: mean(a, UNUSED)),
      ("no_number", lambda a, b: a * np.nan),
  )
  def test_what_is_not_one_seal_is_broken(self, combine):
    with self.assertRaisesRegex(ValueError, BROKEN):
      _seal.replace(OLD, NEW, combine(seal_of(1), seal_of(2)))

  @parameterized.parameters(1, 3)
  def test_the_mean_of_batches_of_one_equal_hash_is_broken(self, position):
    first, second = batches_of_equal_hash(position)
    self.assertEqual(first[position], second[position])
    with self.assertRaisesRegex(ValueError, BROKEN):
      _seal.replace(OLD, NEW, mean(first, second))

  @parameterized.named_parameters(
      ("of_a_lookup", seal_of(5), NEW),
      ("of_none", UNUSED, OLD),
      ("initial", _seal.initial_seal(), NEW),
  )
  def test_tables_are_replaced_by_those_of_a_lookup(self, seal, expected):
    for replace in (_seal.replace, jax.jit(_seal.replace)):
      new = replace(OLD, NEW, seal)
      np.testing.assert_array_equal(new["t"], expected["t"])

  @parameterized.parameters(1, 2, 8)
  def test_layers_of_a_scan_are_replaced_one_by_one(self, num_layers):
    old = {
        "table": jnp.zeros((num_layers, 3, num_layers)),
        "count": jnp.zeros(num_layers),
    }
    new = jax.tree.map(lambda x: x + 1, old)
    seal = np.stack([seal_of(i) for i in range(num_layers)])
    for is_used in (
        np.ones(num_layers),
        np.arange(num_layers) > 0,
        np.zeros(num_layers),
    ):
      for replace in (_seal.replace, jax.jit(_seal.replace)):
        result = replace(old, new, jnp.asarray(seal * is_used[:, None]))
        for x in result.values():
          expected = is_used.reshape(-1, *[1] * (x.ndim - 1))
          np.testing.assert_array_equal(x, np.broadcast_to(expected, x.shape))
    with self.assertRaisesRegex(ValueError, BROKEN):
      _seal.replace(old, new, 2 * seal)

  def test_arrays_without_the_axis_of_a_scan_are_refused(self):
    seals = jnp.stack([seal_of(1), seal_of(2)])
    with self.assertRaisesRegex(ValueError, r"axes \(2,\).*shape \(4,\)"):
      jax.jit(_seal.replace)(OLD, NEW, seals)

  def test_a_batch_that_is_no_update_is_not_counted(self):
    arrays = embedding.SparseDenseMatmulInput({}, {"t": np.int32([3])}, {}, {})
    inputs = embedding.PreprocessedInput(arrays)
    seal = _seal.after_update(_seal.initial_seal(), inputs)
    for is_update, expected in ((False, 1), (True, 2)):
      new = _seal.after_update(seal, inputs, jnp.asarray(is_update))
      self.assertEqual(_seal.num_updates(new), expected)
      np.testing.assert_array_equal(new[:5], seal_of(3))

  @parameterized.parameters(0, 1, 2**16 - 1, 2**16, 2**24 + 3)
  def test_it_counts_updates_and_keeps_places(self, count):
    places = [2**24 - 1, 5]
    seal = _seal.initial_seal(places)
    seal[5:7] = count % 2**16, count // 2**16
    arrays = embedding.SparseDenseMatmulInput({}, {"t": np.int32([3])}, {}, {})
    new = jax.jit(_seal.after_update)(
        jnp.asarray(seal), embedding.PreprocessedInput(arrays)
    )
    self.assertEqual(_seal.num_updates(new), count + 1)
    np.testing.assert_array_equal(_seal.places(new), places)
    np.testing.assert_array_equal(new[:5], seal_of(3))


class HashOfBatchTest(absltest.TestCase):

  def test_padding_plays_no_role(self):
    def hash_of(ids):
      arrays = embedding.SparseDenseMatmulInput(
          {}, {"s": np.array(ids, np.int32)}, {}, {}
      )
      return int(_seal.hash_of_batch(embedding.PreprocessedInput(arrays)))

    padding = 2**31 - 1
    self.assertEqual(
        hash_of([1, 4, padding]), hash_of([1, 4, padding, padding])
    )
    self.assertNotEqual(hash_of([1, 4]), hash_of([2, 3]))


if __name__ == "__main__":
  absltest.main()
