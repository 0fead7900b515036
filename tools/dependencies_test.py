# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The wheel's metadata declares what the package imports, and nothing else."""

import ast
import functools
import importlib.metadata
import pathlib
import re
import sys
import tomllib

from absl.testing import absltest

_WORKSPACE = pathlib.Path(__file__).parent.parent
_FILES = _WORKSPACE / "jax_tpu_embedding/sparsecore/wheel_files"
_PACKAGE = _FILES / "jax_tpu_embedding/sparsecore"
# Code that may also import what an extra declares.
_EXTRAS = {
    "checkpoint": ("lib/checkpoint/", "lib/flax/nnx/checkpoint_utils"),
    "examples": "examples/",
    "export": "lib/export/",
    "flax": "lib/flax/",
    "grain": "lib/input/grain_input",
    "multihost": "lib/core/all_reduce/",
    "plots": (
        "lib/core/tpu/_overlap",
        "lib/metrics/hot_rows",
        "lib/nn/limits/_history",
        "lib/nn/plan/_report",
        "lib/planning/_cost_picture",
    ),
}
# What JAX imports where it is there, and code here asks for.
_IMPORTED_BY_JAX = {"flatbuffers"}


def distribution_name(requirement: str) -> str:
  """The name in `flax>=0.12`, in the spelling that compares equal."""
  name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
  return re.sub(r"[-_.]+", "-", name).lower()


def imported_modules(source: str) -> set[str]:
  """Dotted names of the absolute imports, at any depth of the code."""
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      names.add(node.module)
  return names


@functools.cache
def providers() -> dict[str, list[str]]:
  """Top-level module -> distributions that install it."""
  # "google" is a namespace that several distributions share.
  return importlib.metadata.packages_distributions() | {"google": ["protobuf"]}


def third_party_distributions(source: str) -> set[str]:
  """Names of the distributions that a module's source imports."""
  tops = {name.split(".")[0] for name in imported_modules(source)}
  tops -= sys.stdlib_module_names | {"jax_tpu_embedding"}
  # What is not installed here has the name of its module.
  return {distribution_name(providers().get(top, [top])[0]) for top in tops}


class DependenciesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    project = tomllib.loads((_WORKSPACE / "pyproject.toml").read_text())[
        "project"
    ]
    cls.requires_python = project["requires-python"]
    cls.pythons = [
        classifier.rpartition(" ")[2]
        for classifier in project["classifiers"]
        if re.search(r"Python :: 3\.", classifier)
    ]
    cls.dependencies = project["dependencies"]
    cls.base = set(map(distribution_name, project["dependencies"]))
    cls.extras = {
        extra: set(map(distribution_name, requirements))
        for extra, requirements in project["optional-dependencies"].items()
    }
    cls.imports = {
        str(path.relative_to(_PACKAGE)): third_party_distributions(
            path.read_text()
        )
        for path in _PACKAGE.rglob("*.py")
    }

  def test_every_import_is_declared(self):
    self.assertNotEmpty(self.imports)
    for path, imported in self.imports.items():
      declared = set(self.base)
      for extra, directory in _EXTRAS.items():
        if path.startswith(directory):
          declared |= self.extras[extra]
      with self.subTest(path):
        self.assertContainsSubset(imported, declared)

  def test_every_declared_dependency_is_imported(self):
    imported = set().union(*self.imports.values())
    declared = self.base.union(*(self.extras[extra] for extra in _EXTRAS))
    self.assertContainsSubset(declared, imported | _IMPORTED_BY_JAX)

  def test_two_modules_import_private_names_of_jax(self):
    # lib/pallas is below lib/core, and has its own.
    importing = [
        str(path.relative_to(_PACKAGE))
        for path in _PACKAGE.rglob("*.py")
        if any(
            f"{name}.".startswith("jax._src.")
            for name in imported_modules(path.read_text())
        )
    ]
    self.assertCountEqual(
        [path for path in importing if not path.endswith("_test.py")],
        ["lib/core/jax_private.py", "lib/pallas/jax_versions.py"],
    )

  def test_handlers_are_compiled_for_the_oldest_jax(self):
    (jax,) = (line for line in self.dependencies if line.startswith("jax>"))
    lock = (_WORKSPACE / "third_party/py/xla_ffi_lock.txt").read_text()
    self.assertStartsWith(
        jax, lock.split()[0].replace("jaxlib==", "jax>=") + ","
    )

  def test_every_python_of_the_metadata_is_locked_and_its_wheel_tried(self):
    wheel_test = (_WORKSPACE / "tools/wheel_test.sh").read_text()
    tried = re.search(r"jax_versions=\((.*?)^\)", wheel_test, re.M | re.S)[1]
    self.assertEqual(re.findall(r"\[(.*)\]=", tried), self.pythons)
    locks = (_WORKSPACE / "third_party/py").glob("requirements_lock_*.txt")
    self.assertCountEqual(
        [
            re.search(r"(3_\d+)", lock.name)[0].replace("_", ".")
            for lock in locks
        ],
        self.pythons,
    )
    newest = int(self.pythons[-1].removeprefix("3."))
    self.assertEqual(
        self.requires_python, f">={self.pythons[0]},<3.{newest + 1}"
    )


if __name__ == "__main__":
  absltest.main()
