# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Shapes of features in messages; all else is in embedding_proto_utils_test."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec


class SpecToProtoTest(parameterized.TestCase):

  @parameterized.parameters(
      ((16, 3), [16, 3]),
      ((16, None), [16, -1]),
      ((None, None), [-1, -1]),
      ((None,), [-1]),
  )
  def test_sizes_that_are_not_given_stay_so(self, shape, expected):
    table = embedding_spec.TableSpec(
        name="items",
        vocabulary_size=40,
        embedding_dim=8,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
    )
    feature = embedding_spec.FeatureSpec(
        name="bought",
        table_spec=table,
        input_shape=shape,
        output_shape=(16, 8),
    )
    embedding.prepare_feature_specs_for_training([feature], 1, 2)
    message = embedding_proto_utils.create_proto_from_feature_specs(
        [feature], 1, 2
    )
    (stack,) = message.stacked_table_specs
    written = stack.table_specs[0].feature_specs[0]
    self.assertEqual(list(written.input_shape), expected)
    (read,) = embedding_proto_utils.feature_specs_from_proto(message)
    self.assertEqual(read.input_shape, shape)
    self.assertEqual(read.output_shape, (16, 8))


if __name__ == "__main__":
  absltest.main()
