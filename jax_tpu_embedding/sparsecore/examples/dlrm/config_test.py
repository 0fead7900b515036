# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import json

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib


class ConfigTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("the_defaults", {}),
      ("the_smallest_tables", {"table_rows": 2, "embedding_dim": 1}),
      ("no_cross_layers", {"cross_layers": 0}),
      ("one_layer", {"bottom_mlp": (1,), "top_mlp": (1,)}),
      ("devices", {"num_devices": 4}),
      ("resume", {"resume": True, "output_dir": "/o"}),
  )
  def test_accepts(self, values):
    config_lib.Config(**values)

  @parameterized.parameters(
      ({"num_samples": -1}, "num_samples must be at least 0, got -1"),
      ({"heldout_samples": 0}, "heldout_samples must be at least 1, got 0"),
      ({"num_steps": -1}, "num_steps must be at least 0, got -1"),
      ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
      ({"table_rows": 1}, "table_rows must be at least 2, got 1"),
      ({"table_rows": 2**31}, "table_rows must be at most 2147483647, got"),
      ({"embedding_dim": 0}, "embedding_dim must be at least 1, got 0"),
      ({"cross_layers": -1}, "cross_layers must be at least 0, got -1"),
      ({"cross_rank": 0}, "cross_rank must be at least 1, got 0"),
      ({"seed": -1}, "seed must be at least 0, got -1"),
      ({"num_devices": 0}, "num_devices must be at least 1, got 0"),
      ({"evaluate_every": 0}, "evaluate_every must be at least 1, got 0"),
      ({"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
      ({"bottom_mlp": ()}, "bottom_mlp must be one or more .* got ''"),
      ({"top_mlp": (8, 0)}, "top_mlp must be one or more .* got '8,0'"),
      ({"learning_rate": 0.0}, "learning_rate must be positive .* got 0.0"),
      ({"dense_learning_rate": float("inf")}, "dense_learning_rate .* got inf"),
      (
          {"batch_size": 10, "num_devices": 4},
          "batch_size must be a multiple of --num_devices=4 .* got 10",
      ),
      (
          {"batch_size": 2**27, "num_devices": 2},
          "batch_size must be at most 134217726 .*=2, got 134217728",
      ),
      ({"pipeline": "on"}, "--pipeline must be off, exact or stale, got 'on'"),
      ({"preprocess": "gpu"}, "preprocess must be 'jit' or 'host', got 'gpu'"),
      (
          {"num_devices": 3, "batch_size": 6, "num_processes": 2},
          "num_devices must be a multiple of --num_processes=2, got 3",
      ),
      (
          {"heartbeat_seconds": 1},
          "--heartbeat_seconds must be at least 2, got 1",
      ),
      ({"num_processes": 0}, "--num_processes=0 needs an --output_dir"),
      ({"resume": True}, "--resume needs the --output_dir"),
  )
  def test_refuses(self, values, message):
    with self.assertRaisesRegex(config_lib.UsageError, message):
      config_lib.Config(**values)

  def test_every_setting_is_explained(self):
    for field in dataclasses.fields(config_lib.Config):
      self.assertRegex(field.metadata["help"], r"^[A-Z].*\.$", field.name)

  def test_a_longer_run_on_other_devices_has_the_same_result_shaping_settings(
      self,
  ):
    short = config_lib.Config(num_steps=1, output_dir="/a", checkpoint_every=1)
    long = config_lib.Config(
        num_steps=2, output_dir="/b", resume=True, num_devices=2
    )
    self.assertEqual(short.result_shaping(), long.result_shaping())

  @parameterized.parameters(
      ({"num_samples": 77},),
      ({"heldout_samples": 77},),
      ({"batch_size": 77},),
      ({"table_rows": 77},),
      ({"top_mlp": (77,)},),
      ({"learning_rate": 0.77},),
      ({"seed": 77},),
  )
  def test_settings_that_change_the_model_or_the_batches_shape_results(
      self, values
  ):
    other = config_lib.Config(**values)
    self.assertNotEqual(
        config_lib.Config().result_shaping(), other.result_shaping()
    )

  def test_result_shaping_settings_survive_json(self):
    settings = config_lib.Config().result_shaping()
    self.assertEqual(json.loads(json.dumps(settings)), settings)


if __name__ == "__main__":
  absltest.main()
