# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is locked is for every machine, and what extras ask for is the same."""

import collections
import pathlib
import re
import tomllib

from absl.testing import absltest

_FOLDER = pathlib.Path(__file__).parent
# Packages that have wheels for x86-64 alone.
_X86_ONLY = ("libtpu",)


class RequirementsLocksTest(absltest.TestCase):

  def test_what_is_for_one_processor_is_left_out_on_others(self):
    locks = sorted(_FOLDER.glob("requirements_lock_*.txt"))
    self.assertNotEmpty(locks)
    for lock in locks:
      for package in _X86_ONLY:
        with self.subTest(f"{package} in {lock.name}"):
          self.assertRegex(
              lock.read_text(),
              re.compile(
                  rf"^{package}==\S+ ; platform_machine == 'x86_64' \\$", re.M
              ),
          )

  def test_extras_that_share_a_package_ask_for_the_same_versions(self):
    project = tomllib.loads((_FOLDER.parents[1] / "pyproject.toml").read_text())
    asked = collections.defaultdict(dict)
    for extra, packages in project["project"]["optional-dependencies"].items():
      for package in packages:
        asked[re.match("[A-Za-z0-9_.-]+", package)[0]][extra] = package
    self.assertContainsSubset({"checkpoint", "examples"}, asked["tensorstore"])
    for package, by_extra in asked.items():
      with self.subTest(package):
        self.assertLen(set(by_extra.values()), 1, by_extra)


if __name__ == "__main__":
  absltest.main()
