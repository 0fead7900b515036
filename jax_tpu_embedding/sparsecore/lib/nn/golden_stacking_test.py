# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Stacks are those that release 0.1.0 of the reference makes, number by number.

testdata/golden_stacking.json has the configurations of the recorded conversions
(lib/core/testdata/golden), each on one line, without their inputs and outputs:
the specs, the calls that stack them, and what the calls resolved to.
"""

from __future__ import annotations

import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan

_CASES = json.loads(
    (
        pathlib.Path(__file__).parent / "testdata" / "golden_stacking.json"
    ).read_text()
)
_CALLS = {
    "embedding.prepare_feature_specs_for_training": (
        _plan.prepare_feature_specs_for_training
    ),
    "embedding.auto_stack_tables": _plan.auto_stack_tables,
    "table_stacking.auto_stack_tables": table_stacking.auto_stack_tables,
    "table_stacking.stack_tables": table_stacking.stack_tables,
}


def _features(case):
  """The features of a case, in its order."""
  tables = {}
  for table in case["tables"]:
    optimizer = table.pop("optimizer")
    optimizer_class = getattr(embedding_spec, optimizer["class"])
    tables[table["name"]] = embedding_spec.TableSpec(
        optimizer=optimizer_class(**optimizer["kwargs"]), **table
    )
  return [
      embedding_spec.FeatureSpec(
          name=feature["name"],
          table_spec=tables[feature["table"]],
          input_shape=tuple(feature["input_shape"]),
          output_shape=tuple(feature["output_shape"]),
      )
      for feature in case["features"]
  ]


def _run(step, specs, topology):
  arguments = dict(step)
  call = _CALLS[arguments.pop("call")]
  for key, limit in (
      ("max_ids", "stack_to_max_ids_per_partition"),
      ("max_unique", "stack_to_max_unique_ids_per_partition"),
  ):
    if key in arguments:
      value = arguments.pop(key)
      arguments[limit] = lambda name, samples, value=value: value
  call(specs, **topology, **arguments)


def _resolved(features):
  """What stacking made of the features, in the words of the file."""
  result = {"features": {}, "tables": {}, "stacks": {}}
  for feature in features:
    table = feature.table_spec
    stack = table.stacked_table_spec
    setting = table.setting_in_stack
    result["features"][feature.name] = {
        "stack": stack.stack_name,
        "row_offset": feature.id_transformation.row_offset,
        "col_offset": feature.id_transformation.col_offset,
        "col_shift": feature.id_transformation.col_shift,
    }
    result["tables"][table.name] = {
        "stack": setting.stack_name,
        "padded_vocab_size": setting.padded_vocab_size,
        "padded_embedding_dim": setting.padded_embedding_dim,
        "row_offset_in_shard": setting.row_offset_in_shard,
        "shard_rotation": setting.shard_rotation,
    }
    result["stacks"][stack.stack_name] = {
        field: getattr(stack, field)
        for field in (
            "stack_vocab_size",
            "stack_embedding_dim",
            "total_sample_count",
            "combiner",
            "max_ids_per_partition",
            "max_unique_ids_per_partition",
            "suggested_coo_buffer_size_per_device",
        )
    }
  return result


class GoldenStackingTest(parameterized.TestCase):

  @parameterized.named_parameters((name, name) for name in _CASES)
  def test_resolves_to_the_recorded_numbers(self, name):
    case = _CASES[name]
    features = _features(case)
    specs = features
    if case["container"] == "dict":
      specs = {feature.name: feature for feature in features}
    for step in case["stacking"]:
      _run(step, specs, case["topology"])
    self.assertEqual(_resolved(features), case["resolved"])


if __name__ == "__main__":
  absltest.main()
