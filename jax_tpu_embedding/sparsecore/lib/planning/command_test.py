# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Reports from the command line."""

import contextlib
import io
import json
import pathlib
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from google.protobuf import json_format
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.planning import __main__ as command
from jax_tpu_embedding.sparsecore.lib.planning.testing import models


class CommandTest(parameterized.TestCase):

  def _run(self, *arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      code = command.main(arguments)
    return code, out.getvalue(), err.getvalue()

  def setUp(self):
    super().setUp()
    self._directory = pathlib.Path(self.create_tempdir().full_path)

  def _program(self):
    path = self._directory / "model.py"
    path.write_text(
        "from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec\n"
        "table = embedding_spec.TableSpec(name='t', vocabulary_size=1000,\n"
        "    embedding_dim=8, optimizer=embedding_spec.SGDOptimizerSpec(0.1))\n"
        "specs = embedding_spec.FeatureSpec(name='f', table_spec=table,\n"
        "    input_shape=(64, 1), output_shape=(64, 8))\n"
        "def make():\n  return specs\n"
    )
    return path

  @parameterized.parameters("specs", "make")
  def test_program(self, attribute):
    path = f"{self._program()}:{attribute}"
    code, out, err = self._run(
        path, "--topology=v5p:2x2x1,v6e:2x2", "--zipf=1.05", "--batch=128"
    )
    self.assertEqual((code, err), (0, ""))
    self.assertRegex(out, r"v5p:2x2x1 .* of +95.9 GiB .*\nv6e:2x2 .* lookup")
    self.assertEqual(out.count("Not calibrated"), 2)
    _, out, _ = self._run(path, "--topology=v6e:2x2", "--json", "--batch=128")
    (numbers,) = json.loads(out)
    self.assertEqual(numbers["stacks"][0]["num_ids"], 32)

  def test_samples_of_any_length(self):
    path = self._program()
    path.write_text(path.read_text().replace("(64, 1)", "(64, None)"))
    code, out, err = self._run(
        f"{path}:specs", "--topology=v6e:1", "--json", "--ids-per-sample=f=3"
    )
    self.assertEqual((code, err), (0, ""))
    (stack,) = json.loads(out)[0]["stacks"]
    self.assertAlmostEqual(stack["num_ids"] / (3 * 64), 1, delta=0.3)

  def test_programs_import_what_is_beside_them(self):
    (self._directory / "sizes_of_this_model.py").write_text("ROWS = 1000\n")
    path = self._program()
    path.write_text(
        "import sizes_of_this_model\n"
        + path.read_text().replace("=1000", "=sizes_of_this_model.ROWS")
    )
    before = list(sys.path)
    code, _, err = self._run(f"{path}:make", "--topology=v6e:1")
    self.assertEqual((code, err), (0, ""))
    self.assertEqual(sys.path, before)

  def test_paths_with_colons(self):
    self._directory /= "of:today"
    self._directory.mkdir()
    path = self._program()
    self.assertEqual(self._run(f"{path}:specs", "--topology=v6e:1")[0], 0)
    path.write_text(path.read_text() + "feature_specs = specs\n")
    self.assertEqual(self._run(str(path), "--topology=v6e:1")[0], 0)

  @parameterized.parameters(
      ("model.pb", b"\xff\xff"),
      ("model.pbtxt", b"tables {"),
      ("model.textproto", b"\xff"),
      ("model.json", b"{"),
      ("model.json", b"\xff"),
  )
  def test_damaged_messages(self, name, data):
    path = self._directory / name
    path.write_bytes(data)
    code, out, err = self._run(str(path), "--topology=v6e:1")
    self.assertEqual((code, out), (1, ""))
    self.assertStartsWith(err, f"{path} is not an EmbeddingSpecProto: ")

  def test_message(self):
    specs = models.feature(batch=64)
    embedding.prepare_feature_specs_for_training(specs, 4, 2)
    message = embedding.create_proto_from_feature_specs(specs, 4, 2)
    files = {
        "model.json": json_format.MessageToJson(message).encode(),
        "model.pb": message.SerializeToString(),
        "model.pbtxt": str(message).encode(),
    }
    for name, data in files.items():
      path = self._directory / name
      path.write_bytes(data)
      code, out, err = self._run(str(path), "--topology=v6e:2x2", "--json")
      self.assertEqual((code, err), (0, ""))
      self.assertEqual(json.loads(out)[0]["stacks"][0]["name"], "f_table")

  def test_the_batch_of_a_message_with_its_plan(self):
    def message_of(batch):
      specs = models.users_and_items(batch=batch, optimizer=models.ADAGRAD) | {
          "days": models.feature("days", 7, batch=batch)
      }
      specs["days"].table_spec.placement = "tensorcore"
      # One stack of two features, and one that every device has.
      table_stacking.stack_tables(
          specs, ["items_table", "users_table"], 4, 2, stack_name="both"
      )
      embedding.prepare_feature_specs_for_training(specs, 4, 2)
      path = self._directory / f"{batch}.pb"
      message = embedding.create_proto_from_feature_specs(specs, 4, 2)
      path.write_bytes(message.SerializeToString())
      return str(path)

    small, large = message_of(4096), message_of(8192)
    expected = self._run(large, "--topology=v6e:2x2", "--json")
    self.assertEqual(expected[0], 0)
    resized = self._run(small, "--topology=v6e:2x2", "--json", "--batch=8192")
    self.assertEqual(resized, expected)
    # A quarter of the samples, of two features with 24 columns and one with 16.
    self.assertEqual(
        {
            stack["name"]: stack["activation_bytes"]
            for stack in json.loads(resized[1])[0]["stacks"]
        },
        {"both": 2 * 2048 * 24 * 4, "days_table": 2048 * 16 * 4},
    )

  def test_plot_and_calibration(self):
    path = self._directory / "cost.png"
    code, out, _ = self._run(
        f"{self._program()}:specs",
        "--topology=v6e:2x2",
        f"--plot={path}",
        "--measured-lookup-ms=3",
    )
    self.assertEqual(code, 0)
    self.assertIn("Lookup: 3.000 ms", out)
    self.assertTrue(path.exists())

  def test_mistakes(self):
    program = self._program()
    for arguments, message in (
        ([f"{program}", "--topology=v6e:2x2"], "which attribute"),
        ([f"{program}:x", "--topology=v6e:2x2"], "no attribute 'x'"),
        (["model.txt", "--topology=v6e:2x2"], "ends with '.txt'"),
        (["model", "--topology=v6e:2x2"], "'model' has no suffix"),
        (["model.pb", "--topology=v6e:2x2"], "No such file"),
        ([f"{program}:specs", "--topology=v9:1"], "no chip 'v9'"),
        (
            [f"{program}:specs", "--topology=v6e:1", "--batch=0"],
            "batch must be at least 1, got 0",
        ),
        (
            [f"{program}:specs", "--topology=v6e:1,v6e:2x1", "--plot=x.png"],
            "there are several",
        ),
        (
            [f"{program}:specs", "--topology=v6e:1", "--ids-per-sample=f"],
            "FEATURE=MEAN, like item=7.5, got 'f'",
        ),
        (
            [f"{program}:specs", "--topology=v6e:1", "--ids-per-sample=3"],
            "FEATURE=MEAN, like item=7.5, got '3'",
        ),
        (
            [f"{program}:specs", "--topology=v6e:1", "--ids-per-sample=f=-1"],
            "ids_per_sample['f'] must be a number from 0 on, got -1.0.",
        ),
        (
            [f"{program}:specs", "--topology=v6e:1", "--ids-per-sample=f=nan"],
            "ids_per_sample['f'] must be a number from 0 on, got nan.",
        ),
    ):
      code, out, err = self._run(*arguments)
      self.assertEqual((code, out), (1, ""))
      self.assertIn(message, err)

  def test_plot_without_matplotlib(self):
    with mock.patch.dict("sys.modules", {"matplotlib.figure": None}):
      code, out, err = self._run(
          f"{self._program()}:specs", "--topology=v6e:1", "--plot=x.png"
      )
    self.assertEqual((code, out), (1, ""))
    self.assertIn("jax_tpu_embedding[plots]", err)


if __name__ == "__main__":
  absltest.main()
