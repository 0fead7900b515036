# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the code of the documentation and compares what it prints."""

import doctest
import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized

ROOT = pathlib.Path(__file__).parent.parent


class DocumentationTest(parameterized.TestCase):

  @parameterized.parameters(
      "design/path_of_an_id.md", "how_to/plan.md", "how_to/preprocess.md"
  )
  def test_pages_print_what_they_say(self, page):
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
