# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib


class ConfigTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("the_defaults", {}),
      ("the_smallest", {"vocabulary_size": 16, "context_length": 2}),
      ("no_dropout", {"dropout": 0.0}),
      ("several_devices", {"num_devices": 4}),
      ("resume_with_output_dir", {"resume": True, "output_dir": "/o"}),
      ("resume_with_checkpoint_dir", {"resume": True, "checkpoint_dir": "/c"}),
  )
  def test_accepts(self, values):
    config_lib.Config(**values)

  @parameterized.parameters(
      (
          {"num_devices": 3},
          "batch_size must be a multiple of --num_devices=3 .* got 256",
      ),
      ({"num_devices": 0}, "num_devices must be at least 1, got 0"),
      ({"vocabulary_size": 15}, "vocabulary_size must be at least 16, got 15"),
      ({"context_length": 1}, "context_length must be at least 2, got 1"),
      ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
      ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
      ({"embedding_dim": -1}, "embedding_dim must be at least 1, got -1"),
      ({"pair_table_rows": 0}, "pair_table_rows must be at least 1, got 0"),
      (
          {"pair_table_rows": 2**31},
          "pair_table_rows must be at most 2147483647",
      ),
      ({"hidden_dim": 0}, "hidden_dim must be at least 1, got 0"),
      (
          {"batch_size": 2**24, "num_devices": 1},
          "--batch_size x --context_length must be at most 67108863 .*67108864",
      ),
      ({"seed": -1}, "seed must be at least 0, got -1"),
      ({"evaluate_every": 0}, "evaluate_every must be at least 1, got 0"),
      ({"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
      ({"generated_words": -1}, "generated_words must be at least 0, got -1"),
      ({"learning_rate": 0.0}, "learning_rate must be positive .* got 0.0"),
      ({"learning_rate": float("nan")}, "learning_rate must .* got nan"),
      ({"dense_learning_rate": float("inf")}, "dense_learning_rate .* got inf"),
      ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
      ({"resume": True}, "resume needs the --output_dir or the --checkpoint_d"),
  )
  def test_refuses(self, values, message):
    with self.assertRaisesRegex(config_lib.UsageError, message):
      config_lib.Config(**values)

  def test_flags_become_a_config(self):
    with flagsaver.flagsaver():
      flags.FLAGS(
          [
              "shakespeare",
              "--num_steps=7",
              "--resume",
              "--dropout=0.25",
              "--output_dir=/out",
          ]
      )
      self.assertEqual(
          command_line.from_flags(config_lib.Config),
          config_lib.Config(
              num_steps=7, resume=True, dropout=0.25, output_dir="/out"
          ),
      )

  @parameterized.parameters(
      ("vocab_size", "vocabulary_size"),
      ("sequence_length", "context_length"),
      ("embedding_size", "embedding_dim"),
      ("log_frequency", "evaluate_every"),
      ("checkpoint_interval", "checkpoint_every"),
  )
  def test_older_names_are_understood(self, older, name):
    with flagsaver.flagsaver():
      flags.FLAGS(["shakespeare", f"--{older}=77"])
      self.assertEqual(
          command_line.from_flags(config_lib.Config),
          config_lib.Config(**{name: 77}),
      )

  def test_every_flag_is_explained(self):
    for name in config_lib.Config.__dataclass_fields__:
      self.assertRegex(flags.FLAGS[name].help, r"^[A-Z].*\.$", name)

  def test_paths_start_where_the_command_was_typed(self):
    names = ("output_dir", "text_file", "checkpoint_dir")
    with (
        flagsaver.flagsaver(**dict.fromkeys(names, "x")),
        mock.patch.dict(os.environ, {"BUILD_WORKING_DIRECTORY": "/typed"}),
    ):
      config = command_line.from_flags(config_lib.Config)
    self.assertEqual({getattr(config, name) for name in names}, {"/typed/x"})

  def test_a_longer_run_on_other_devices_has_the_same_result_shaping_settings(
      self,
  ):
    short = config_lib.Config(num_steps=1, output_dir="/a", checkpoint_every=1)
    long = config_lib.Config(
        num_steps=2, output_dir="/b", resume=True, num_devices=2
    )
    self.assertEqual(short.result_shaping(), long.result_shaping())

  @parameterized.parameters(
      "batch_size",
      "context_length",
      "vocabulary_size",
      "embedding_dim",
      "pair_table_rows",
      "hidden_dim",
      "seed",
  )
  def test_settings_that_change_the_model_or_the_batches_shape_results(
      self, name
  ):
    other = config_lib.Config(**{name: 32})
    self.assertNotEqual(
        config_lib.Config().result_shaping(), other.result_shaping()
    )


if __name__ == "__main__":
  command_line.define_flags(config_lib.Config)
  absltest.main()
