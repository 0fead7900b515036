# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a batch has beside ids and weights."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.input.testing import small_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)


class PipelineRestTest(small_pipeline.TestCase):

  def test_the_rest_is_what_is_no_id(self):
    weights = np.ones(24 * 3, np.float32).reshape(24, 3)
    item = small_pipeline.item(0) | {
        "weights": weights,
        "dense": np.zeros((24, 2)),
    }
    options = dict(rest=None, weights=lambda item: {"f": item["weights"]})
    with small_pipeline.pipeline([item], **options) as batches:
      rest = next(batches).rest
      self.assertCountEqual(rest, ["label", "dense"])
      self.assertEqual(rest["dense"].shape, (24, 2))
    ids = lambda item: {"f": item[0]["ids"]}
    with small_pipeline.pipeline([(item,)], rest=None, ids=ids) as batches:
      self.assertIsNone(next(batches).rest)
    item = {"values": item["ids"].ravel(), "splits": np.arange(25) * 3}
    ids = lambda item: {"f": (item["values"], item["splits"])}
    with small_pipeline.pipeline([item], rest=None, ids=ids) as batches:
      self.assertEqual(next(batches).rest, {})
    with (
        small_pipeline.pipeline(
            [item | {"epoch": 1}], rest=None, ids=ids
        ) as batches,
        self.assertRaisesRegex(
            ValueError, r"rest\['epoch'\] has shape \(\), .* with 24 samples"
        ) as caught,
    ):
      next(batches)
    self.assertIn("input batch 0, stage send", caught.exception.__notes__)

  @parameterized.parameters(">f4", ">i2", ">i8", ">c8", "bfloat16")
  def test_numbers_of_any_byte_order_are_themselves(self, dtype):
    label = np.arange(24).astype(jnp.dtype(dtype))
    with small_pipeline.pipeline(
        [small_pipeline.item(0) | {"label": label}]
    ) as batches:
      got = next(batches).rest
    self.assertTrue(got.dtype.isnative)
    np.testing.assert_array_equal(np.asarray(got), label)

  def test_what_is_masked_is_not_lost(self):
    item = small_pipeline.item(0)
    item["label"] = np.ma.masked_less(np.arange(24.0), 2)
    with (
        small_pipeline.pipeline([item]) as batches,
        self.assertRaisesRegex(ValueError, "rest is a masked array"),
    ):
      next(batches)

  def test_the_rest_is_what_is_no_id_anywhere_in_it(self):
    ids, label = np.zeros((24, 3), np.int64), np.zeros(24)
    pair = (ids.ravel(), np.arange(25) * 3)
    nested = {"ids": {"f": ids}}
    none = {"ids": {"f": ids, "mask": None}}
    mixed = {"x": {"f": ids, "y": label}, "z": [ids, {"f": ids}, label]}
    for more, get_ids, expected in (
        (nested, lambda item: item["ids"], {}),
        ({"a": nested}, lambda item: item["a"]["ids"], {}),
        ({"ids": pair}, lambda item: {"f": item["ids"]}, {}),
        ({"ids": {"f": pair}}, lambda item: item["ids"], {}),
        (none, lambda item: {"f": item["ids"]["f"]}, {}),
        (
            mixed,
            lambda item: {"f": item["x"]["f"]},
            {"x": {"y": label}, "z": [None, {"f": None}, label]},
        ),
        # Ids that are no longer the same array, as in a flat item.
        (
            {"ids": {"f": ids}},
            lambda item: {"f": item["ids"]["f"] + 1},
            {"ids": {"f": ids}},
        ),
        (
            {"ids": ids, "empty": {}, "none": None},
            lambda item: {"f": item["ids"]},
            {"empty": {}, "none": None},
        ),
    ):
      item = {"label": label, **more}
      with small_pipeline.pipeline([item], rest=None, ids=get_ids) as batches:
        rest = next(batches).rest
      expected = {"label": label, **expected}
      self.assertEqual(jax.tree.structure(rest), jax.tree.structure(expected))
      jax.tree.map(np.testing.assert_array_equal, rest, expected)

  @parameterized.parameters(
      (np.int32(7), None),
      (np.int64(2**31 - 1), None),
      (np.int64(-(2**31)), None),
      (np.uint64(2**32 - 1), None),
      (np.float64(0.1), None),
      (np.float64(np.inf), None),
      (np.float64(np.nan), None),
      (np.int64(2**31), "the value 2147483648, .* int64 .* not fit int32"),
      (np.int64(-(2**31) - 1), "the value -2147483649, .* not fit int32"),
      (np.uint64(2**32), "the value 4294967296, .* not fit uint32"),
      (np.float64(-1e300), r"the value -1e\+300, .* not fit float32"),
  )
  def test_the_rest_fits_32_bits(self, value, message):
    last = np.zeros((24, 2), value.dtype)
    last[-1, 1] = value
    with small_pipeline.pipeline(
        [small_pipeline.item(0) | {"a": (last,)}], rest=None
    ) as batches:
      if message is None:
        got = next(batches).rest["a"][0]
        np.testing.assert_array_equal(got, last.astype(got.dtype))
      else:
        with self.assertRaisesRegex(
            ValueError, rf"rest\['a'\]\[0\] has {message}.* Cast"
        ):
          next(batches)

  @parameterized.parameters("<U4", "S4", "O", "M8[s]", "i4,f4", "longdouble")
  def test_the_rest_is_numbers(self, dtype):
    item = small_pipeline.item(0) | {"a": [np.zeros(24, dtype)]}
    with (
        small_pipeline.pipeline([item], rest=None) as batches,
        self.assertRaisesRegex(
            TypeError, r"rest\['a'\]\[0\] has dtype .* leave it out of"
        ),
    ):
      next(batches)

  @parameterized.parameters("bool", "int4", "bfloat16", "float8_e4m3fn")
  def test_the_rest_is_numbers_of_any_kind(self, dtype):
    label = np.ones(24, jax.numpy.dtype(dtype))
    item = small_pipeline.item(0) | {"label": label}
    with small_pipeline.pipeline([item]) as batches:
      rest = next(batches).rest
    self.assertEqual(rest.dtype, label.dtype)
    np.testing.assert_array_equal(rest, label)

  def test_the_rest_has_the_samples_of_ids(self):
    with (
        small_pipeline.pipeline(
            [small_pipeline.item(0) | {"a": np.zeros((23, 2))}], rest=None
        ) as batches,
        self.assertRaisesRegex(
            ValueError, r"rest\['a'\] has shape \(23, 2\), .* with 24 samples"
        ),
    ):
      next(batches)
    # A batch of another size than that of the specs.
    item = {"ids": np.zeros((8, 1), int), "label": np.zeros(8)}
    with small_pipeline.pipeline([item]) as batches:
      self.assertEqual(next(batches).rest.shape, (8,))
    # A number for each of three positions of a sample.
    with small_pipeline.pipeline(
        [small_pipeline.item(0) | {"a": np.zeros(72)}], rest=None
    ) as batches:
      self.assertEqual(next(batches).rest["a"].shape, (72,))

  def test_the_rest_may_have_the_leading_dimension_of_buffers(self):
    specs = small_pipeline.specs(num_devices=2)
    limits = embedding.AdaptiveLimits(specs, 2, 2, has_leading_dimension=True)
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    options = dict(rest=lambda item: item["label"].reshape(2, 12), mesh=mesh)
    with small_pipeline.pipeline(
        small_pipeline.items(), specs=specs, limits=limits, **options
    ) as batches:
      self.assertEqual(next(batches).rest.shape, (2, 12))


if __name__ == "__main__":
  absltest.main()
