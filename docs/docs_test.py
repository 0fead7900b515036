# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the code of the documentation and compares what it prints."""

import doctest
import importlib.util
import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized

ROOT = pathlib.Path(__file__).parent.parent


class DocumentationTest(parameterized.TestCase):

  @parameterized.parameters(
      "design/path_of_an_id.md",
      "how_to/optimizers.md",
      "how_to/plan.md",
      "how_to/preprocess.md",
  )
  def test_pages_print_what_they_say(self, page):
    self.check_page(page)

  @absltest.skipIf(
      importlib.util.find_spec("libtpu") is None,
      "libtpu is not installed: pip install 'jax[tpu]'.",
  )
  def test_page_on_tpu_prints_what_it_says(self):
    self.check_page("how_to/compile_for_tpu.md")

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
