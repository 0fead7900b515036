# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _samples
import numpy as np


def feature(*output_shape):
  table = embedding_spec.TableSpec(
      name="t",
      vocabulary_size=8,
      embedding_dim=output_shape[-1],
      optimizer=embedding_spec.SGDOptimizerSpec(),
  )
  return embedding_spec.FeatureSpec(
      name="f",
      table_spec=table,
      input_shape=output_shape[:-1],
      output_shape=output_shape,
  )


class OneRowPerSampleTest(parameterized.TestCase):

  @parameterized.parameters(
      # output shape, batch, shape of ids, samples, valency
      ((4, 8), 4, (4,), 4, 1),
      ((4, 8), 4, (4, 3), 4, 3),
      ((4, 8), 2, (2, 3), 2, 3),
      ((4, 5, 8), 4, (4, 5), 20, 1),
      ((4, 5, 8), 4, (4, 5, 3), 20, 3),
      ((4, 5, 8), 4, (20, 1), 20, 1),
      ((4, 5, 8), 2, (2, 5), 10, 1),
      ((4, 8), 4, (4, 0), 4, 0),
  )
  def test_shapes(self, output_shape, batch, shape, samples, valency):
    ids = np.arange(np.prod(shape)).reshape(shape)
    rows = _samples.one_row_per_sample(ids, feature(*output_shape), batch)
    self.assertEqual(rows.shape, (samples, valency))
    np.testing.assert_array_equal(rows.ravel(), ids.ravel())

  @parameterized.parameters(
      ((4, 8), (5, 3)),
      ((4, 5, 8), (4, 6)),
      ((4, 8), ()),
      ((4, 5, 8), (4, 5, 1, 1)),
  )
  def test_other_shapes_are_errors(self, output_shape, shape):
    with self.assertRaisesRegex(
        ValueError, r"Feature 'f': weights have shape \(.*must have shape \(4,"
    ):
      _samples.one_row_per_sample(
          np.zeros(shape), feature(*output_shape), 4, "weights"
      )

  @parameterized.parameters(
      ((4, 8), r"must have shape \(4,\) or \(4, 'valency'\)\.$"),
      (
          (4, 5, 8),
          r"must have shape \(4, 5\) or \(4, 5, 'valency'\) or"
          r" \(20, 'valency'\)\.$",
      ),
  )
  def test_each_shape_is_named_once(self, output_shape, message):
    with self.assertRaisesRegex(ValueError, message):
      _samples.one_row_per_sample(np.zeros(3), feature(*output_shape), 4)

  def test_other_shapes_of_weights_are_named_as_they_were_given(self):
    f = feature(4, 8)
    rows, weights = _samples.ids_and_weights(np.ones(4), np.ones((4, 1)), f, 4)
    self.assertEqual(rows.shape, weights.shape)
    with self.assertRaisesRegex(
        ValueError,
        r"Feature 'f': ids have shape \(4,\) and weights \(4, 2\)\. They must be",
    ):
      _samples.ids_and_weights(np.ones(4), np.ones((4, 2)), f, 4)


if __name__ == "__main__":
  absltest.main()
