# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the code of the documentation and compares what it prints."""

import doctest
import importlib.util
import os
import pathlib
import re
import subprocess

from absl.testing import absltest
from absl.testing import parameterized

ROOT = pathlib.Path(__file__).parent.parent
# Made by benchmarks/lookup/install_peers.sh; for the first block also
# `bin/pip install torchrec` there. No part of the build: PyTorch is large.
_PYTORCH = pathlib.Path(
    "~/.cache/jax_tpu_embedding/lookup_peers/torch/bin/python"
).expanduser()


class DocumentationTest(parameterized.TestCase):

  @parameterized.parameters(
      "design/path_of_an_id.md",
      "how_to/layers.md",
      "how_to/migrate.md",
      "how_to/optimizers.md",
      "how_to/plan.md",
      "how_to/preprocess.md",
      "how_to/sparse_gradients.md",
  )
  def test_pages_print_what_they_say(self, page):
    self.check_page(page)

  @absltest.skipIf(
      importlib.util.find_spec("libtpu") is None,
      "libtpu is not installed: pip install 'jax[tpu]'.",
  )
  def test_page_on_tpu_prints_what_it_says(self):
    self.check_page("how_to/compile_for_tpu.md")

  @absltest.skipIf(
      importlib.util.find_spec("keras_rs") is None,
      "keras-rs is not installed: pip install keras-rs==0.4.0 'keras<3.14'.",
  )
  def test_page_on_clients_prints_what_it_says(self):
    # Keras reads ~/.keras/keras.json, and writes it where there is none.
    os.environ["KERAS_HOME"] = self.create_tempdir().full_path
    self.check_page("how_to/clients.md")

  @parameterized.parameters((0, "torchrec"), (1, "fbgemm_gpu"), (2, "torch"))
  def test_pytorch_prints_what_the_page_says(self, number, module):
    if not _PYTORCH.exists():
      self.skipTest(f"{_PYTORCH} is not there: run install_peers.sh.")
    if subprocess.run([_PYTORCH, "-c", f"import {module}"]).returncode:
      self.skipTest(f"{_PYTORCH} lacks {module}.")
    page = (ROOT / "docs/how_to/migrate.md").read_text()
    block = re.findall("^```python\n(.*?)^```", page, re.M | re.S)[number]
    self.assertIn(f" {module}", block)
    *_, expected = re.findall("^# (.*)$", block, re.M)
    printed = subprocess.run(
        [_PYTORCH, "-c", block], check=True, capture_output=True, text=True
    ).stdout
    self.assertEqual(printed.strip(), expected)
    # The same as what the page says of this package.
    self.assertIn(f"    {expected}\n", page)

  def check_page(self, page):
    failures, tests = doctest.testfile(
        str(ROOT / "docs" / page),
        module_relative=False,
        optionflags=doctest.ELLIPSIS,
    )
    self.assertGreater(tests, 0)
    self.assertEqual(failures, 0)

  def test_readme_program_runs(self):
    (program,) = re.findall(
        "^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    exec(compile(program, "README.md", "exec"), {})  # pylint: disable=exec-used


if __name__ == "__main__":
  absltest.main()
