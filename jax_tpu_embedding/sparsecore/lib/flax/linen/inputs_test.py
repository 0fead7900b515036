# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Forms of ids, weights and specs that the layer takes, over devices."""

from typing import Any
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

BATCH, VOCAB, DIM = 16, 32, 8


class _SparseTensor(NamedTuple):
  indices: Any
  values: Any
  dense_shape: Any


def make_feature(**kwargs):
  table = dict(
      name="t",
      vocabulary_size=VOCAB,
      embedding_dim=DIM,
      optimizer=embedding_spec.SGDOptimizerSpec(0.5),
      # Row i is full of i.
      initializer=lambda: np.repeat(
          np.arange(VOCAB, dtype=np.float32)[:, None], DIM, axis=1
      ),
  )
  feature = dict(
      name="f",
      table_spec=embedding_spec.TableSpec(**table | kwargs.pop("table", {})),
      input_shape=(BATCH, 2),
      output_shape=(BATCH, DIM),
  )
  return embedding_spec.FeatureSpec(**feature | kwargs)


def make_layer(num_devices, specs, **options):
  """The layer over the first devices, and variables to apply it with."""
  mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
  place = dict(mesh=mesh, sharding_axis="x", num_sc_per_device=2)
  layer = embed.SparseCoreEmbed(specs, tables="ref", **place, **options)
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0), **place
  )
  return layer, {"params": {"update_anchor": 0.0}, "embedding": tables}


def make_ragged(rng, capacity=40):
  """Values and row splits, the same rows as lists, and weights of values."""
  lengths = rng.integers(0, 4, BATCH)
  row_splits = np.concatenate([[0], np.cumsum(lengths)])
  values = rng.integers(0, VOCAB, capacity)
  weights = rng.integers(1, 4, capacity).astype(np.float32)
  spans = list(zip(row_splits[:-1], row_splits[1:]))
  expected = [np.dot(weights[a:b], values[a:b]) for a, b in spans]
  return values, row_splits, weights, np.float32(expected)


class InputsTest(parameterized.TestCase):

  @parameterized.parameters(1, 2)
  def test_another_batch_than_that_of_the_specs(self, num_devices):
    specs = {
        "f": make_feature(),
        "g": make_feature(name="g", table=dict(name="u")),
    }
    embedding.auto_stack_tables(specs, num_devices, 2)
    layer, variables = make_layer(num_devices, specs)
    for batch in (2 * num_devices, 2 * BATCH):
      ids = {
          "f": np.resize(np.arange(VOCAB), (batch, 2)),
          "g": np.resize(np.arange(5), (batch, 1)),
      }
      splits = np.arange(batch + 1)
      ragged = {"f": ids["f"], "g": (ids["g"][:, 0], splits)}
      for inputs in (ids, ragged, layer.preprocess_inputs(0, ids, None)):
        params = layer.init(jax.random.key(0), inputs)["params"]
        out = layer.apply(variables | {"params": params}, inputs)
        for name, values in ids.items():
          self.assertEqual(out[name].shape, (batch, DIM))
          np.testing.assert_array_equal(out[name][:, 0], values.sum(axis=1))
    with self.assertRaisesRegex(ValueError, f"multiple of {2 * num_devices}"):
      layer.preprocess_inputs(0, {name: x[:3] for name, x in ids.items()}, None)

  @parameterized.parameters(1, 4)
  def test_one_ragged_pair_for_all_devices(self, num_devices):
    values, row_splits, weights, expected = make_ragged(
        np.random.default_rng(0)
    )
    layer, variables = make_layer(num_devices, {"f": make_feature()})
    out = jax.jit(layer.apply)(
        variables, {"f": (values, row_splits)}, {"f": weights}
    )
    np.testing.assert_array_equal(out["f"][:, 0], expected)

  def test_ragged_pairs_that_are_split_already(self):
    values, row_splits, weights, expected = make_ragged(
        np.random.default_rng(1)
    )
    pieces = ([], [], [])
    for device in range(4):
      splits = row_splits[device * 4 : device * 4 + 5]
      span = np.r_[splits[0] : splits[-1]]
      pad = (0, 12 - len(span))
      for piece, x in zip(
          pieces,
          (
              np.pad(values[span], pad),
              splits - splits[0],
              np.pad(weights[span], pad),
          ),
      ):
        piece.append(x)
    values, row_splits, weights = map(np.concatenate, pieces)
    layer, variables = make_layer(4, {"f": make_feature()})
    out = jax.jit(layer.apply)(
        variables, {"f": (values, row_splits)}, {"f": weights}
    )
    np.testing.assert_array_equal(out["f"][:, 0], expected)

  @parameterized.parameters("cuda", "rocm")
  def test_raw_ids_need_no_device_that_knows_them(self, platform):
    # Lowered only; there need not be such a device.
    values, row_splits, weights, _ = make_ragged(np.random.default_rng(0))
    specs = {
        "f": make_feature(),
        "g": make_feature(name="g", table=dict(name="u")),
    }
    layer, variables = make_layer(1, specs)
    ids = {"f": (values, row_splits), "g": np.zeros((BATCH, 2), np.int32)}

    def loss(params, ids, weights):
      out = layer.apply(variables | {"params": params}, ids, weights)
      return out["f"].sum() + out["g"].sum()

    traced = jax.jit(jax.grad(loss)).trace(
        variables["params"], ids, {"f": weights, "g": None}
    )
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    self.assertNotRegex(text, r"@jte_\w+_cpu\b")

  @parameterized.named_parameters(
      ("first_is_not_zero", lambda s: s + 1, "ascend from 0"),
      ("descend", lambda s: s[[*range(9), 8, 9, 5, *range(12, 17)]], "ascend"),
      (
          "beyond_the_values",
          # 24 of 20, though from the last device's first, 12, it is not far.
          lambda s: s + 8 * (s == 16),
          "must end in .*got 24",
      ),
  )
  def test_wrong_row_splits_give_nan_and_can_be_raised(self, change, message):
    row_splits = change(np.arange(17))
    layer, variables = make_layer(4, {"f": make_feature()})
    out = jax.jit(layer.apply)(
        variables, {"f": (np.zeros(20, np.int32), row_splits)}
    )
    self.assertTrue(np.isnan(out["f"]).any())
    with self.assertRaisesRegex(ValueError, f"'f': row_splits.*{message}"):
      embedding.raise_errors(out)

  @parameterized.named_parameters(
      ("three_arrays", _SparseTensor(0, 0, 0), "got a tuple of 3"),
      (
          "other_samples",
          (np.zeros(4, "i4"), np.zeros(15, "i4")),
          r"row_splits have shape \(15,\), expected \(17,\).* or \(20,\)",
      ),
      ("floats", np.zeros((BATCH, 2), "f4"), "ids must be integers"),
  )
  def test_other_ids_raise(self, ids, message):
    layer, variables = make_layer(4, {"f": make_feature()})
    with self.assertRaisesRegex((TypeError, ValueError), message):
      layer.apply(variables, {"f": ids})

  def test_weights_are_real_numbers(self):
    layer, variables = make_layer(1, {"f": make_feature()})
    ids = {"f": np.full((BATCH, 2), 3)}
    weights = np.full((BATCH, 2), 2 + 1j)
    for program in (layer.apply, jax.jit(layer.apply)):
      with self.assertRaisesRegex(
          TypeError, "'f': weights must be real numbers, got complex"
      ):
        program(variables, ids, {"f": weights})
    # A type that JAX does not have.
    out = layer.apply(variables, ids, {"f": weights.real.astype("longdouble")})
    np.testing.assert_array_equal(out["f"], np.full((BATCH, DIM), 12))

  @parameterized.parameters(1, 4)
  def test_ids_of_64_bits_are_not_cut(self, num_devices):
    layer, variables = make_layer(num_devices, {"f": make_feature()})
    ids = np.zeros((BATCH, 2), np.int64)
    ids[3, 1] = (1 << 32) + 1
    with self.assertRaisesRegex(ValueError, "'f': id 4294967297 is outside"):
      layer.apply(variables, {"f": ids})

  @parameterized.parameters(1, 4)
  def test_the_batch_is_that_of_the_ids(self, num_devices):
    spec = make_feature(input_shape=(None, 2), output_shape=(None, DIM))
    layer, variables = make_layer(num_devices, {"f": spec})
    apply = jax.jit(layer.apply)
    for batch in (8, 24):
      ids = np.arange(batch * 2).reshape(batch, 2) % VOCAB
      out = apply(variables, {"f": ids})
      np.testing.assert_array_equal(out["f"][:, 0], ids.sum(1))
    self.assertFalse(spec.table_spec.is_stacked())

  def test_features_of_unknown_batch_share_their_table(self):
    first = make_feature(output_shape=(None, DIM))
    second = embedding_spec.FeatureSpec(
        name="g",
        table_spec=first.table_spec,
        input_shape=(None, None),
        output_shape=(None, None, DIM),
    )
    layer, variables = make_layer(4, {"f": first, "g": second})
    ids = {"f": np.arange(8)[:, None], "g": np.arange(24).reshape(8, 3)}
    out = jax.jit(layer.apply)(variables, ids)
    self.assertEqual(list(variables["embedding"]), ["t"])
    np.testing.assert_array_equal(out["f"][:, 0], ids["f"][:, 0])
    np.testing.assert_array_equal(out["g"][..., 0], ids["g"])

  @parameterized.parameters(1, 4)
  def test_row_splits_tell_the_batch(self, num_devices):
    spec = make_feature(output_shape=(None, DIM))
    layer, variables = make_layer(num_devices, {"f": spec})
    out = layer.apply(variables, {"f": (np.arange(8), np.arange(9))})
    np.testing.assert_array_equal(out["f"][:, 0], np.arange(8))

  @parameterized.named_parameters(
      ("too_few_axes", np.arange(8), r"ids of shape \(8,\) do not tell"),
      ("ragged", (np.arange(8), np.arange(9)), "Leave out the batch only"),
  )
  def test_ids_that_do_not_tell_the_sizes_raise(self, ids, message):
    spec = make_feature(output_shape=(None, None, DIM))
    layer, variables = make_layer(1, {"f": spec})
    with self.assertRaisesRegex(ValueError, f"'f': .*{message}"):
      layer.apply(variables, {"f": ids})

  def test_raw_ids_need_no_minibatches(self):
    layer, variables = make_layer(
        4, {"f": make_feature()}, enable_minibatching=True
    )
    ids = np.arange(32).reshape(16, 2)
    for inputs in ({"f": ids}, layer.preprocess_inputs(0, {"f": ids}, None)):
      out = layer.apply(variables, inputs)
      np.testing.assert_array_equal(out["f"][:, 0], ids.sum(1))

  def test_features_may_be_a_list(self):
    specs = [make_feature(), make_feature(name="g", table=dict(name="u"))]
    layer, variables = make_layer(4, specs)
    ids = np.arange(32).reshape(16, 2)
    first, second = layer.apply(variables, [ids, ids[::-1]])
    np.testing.assert_array_equal(first[:, 0], ids.sum(1))
    np.testing.assert_array_equal(second[:, 0], ids[::-1].sum(1))

  def test_preprocessing_needs_the_batch(self):
    spec = make_feature(output_shape=(None, DIM))
    layer, _ = make_layer(1, {"f": spec})
    with self.assertRaisesRegex(
        ValueError, r"'f': output_shape is \(None, 8\)"
    ):
      layer.preprocess_inputs(0, {"f": np.zeros((8, 1), int)}, None)

  def test_samples_may_follow_feature_by_feature(self):
    specs = {"f": make_feature()}
    specs["g"] = embedding_spec.FeatureSpec(
        name="g",
        table_spec=specs["f"].table_spec,
        input_shape=(BATCH, 1),
        output_shape=(BATCH, DIM),
    )
    layer, variables = make_layer(
        4, specs, feature_stacking_strategy="STACK_THEN_SPLIT"
    )
    ids = {"f": np.arange(32).reshape(16, 2), "g": np.arange(16)[:, None]}
    preprocessed = layer.preprocess_inputs(0, ids, None)
    for inputs in (ids, preprocessed):
      out = jax.jit(layer.apply)(variables, inputs)
      np.testing.assert_array_equal(out["f"][:, 0], ids["f"].sum(1))
      np.testing.assert_array_equal(out["g"][:, 0], ids["g"][:, 0])

  def test_small_steps_of_bfloat16_tables_are_not_lost(self):
    # A step of 1 / 2048 from 1 is an eighth of the distance to the next
    # bfloat16 below, 1 - 1 / 256: of 4096 numbers about 512 move, where
    # rounding to the nearest would move none.
    spec = make_feature(
        table=dict(
            dtype="bfloat16",
            vocabulary_size=512,
            initializer=lambda: np.ones((512, DIM), np.float32),
            optimizer=embedding_spec.SGDOptimizerSpec(1 / 2048),
        ),
        input_shape=(512, 1),
        output_shape=(512, DIM),
    )
    layer, variables = make_layer(4, {"f": spec})

    @jax.jit
    def gradient(variables, ids, step):
      def loss(params):
        out = layer.apply(variables | {"params": params}, ids, step=step)
        return out["f"].sum()

      return jax.grad(loss)(variables["params"])

    ids = {"f": np.arange(512)[:, None]}
    gradient(variables, ids, 0)
    first = two_feature_model.values(variables["embedding"])["t"].table
    self.assertBetween((first != 1).sum(), 400, 640)
    gradient(variables, ids, 1)
    second = two_feature_model.values(variables["embedding"])["t"].table
    moved_again = second != first
    self.assertBetween(moved_again.sum(), 400, 640)
    # Another step rounds by other numbers: an eighth moves in both steps.
    self.assertBetween((moved_again & (first != 1)).sum(), 20, 200)
    self.assertEqual(first.dtype, jnp.bfloat16)


if __name__ == "__main__":
  absltest.main()
