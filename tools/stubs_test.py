# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Each extension module has a stub, with the same names and parameters."""

import ast
import importlib
import inspect
import pathlib
import re
import sys
import types

from absl.testing import absltest

_FILES = (
    pathlib.Path(__file__).parent.parent
    / "jax_tpu_embedding/sparsecore/wheel_files"
)


def _is_public(name: str) -> bool:
  return not name.startswith("_")


def names_in_stub(body: list[ast.stmt]) -> set[str]:
  """Public names that a module's or class's statements define."""
  names = set()
  for node in body:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
      names.add(node.name)
    elif isinstance(node, ast.AnnAssign):
      names.add(node.target.id)
    elif isinstance(node, ast.Assign):
      names.update(target.id for target in node.targets)
  return set(filter(_is_public, names))


def names_at_run_time(holder: types.ModuleType | type) -> set[str]:
  names = set(filter(_is_public, vars(holder)))
  # Of every enumeration that pybind11 makes.
  return names - {"name", "value"} if hasattr(holder, "__members__") else names


def parameters_in_stub(function: ast.FunctionDef) -> list[str]:
  arguments = function.args
  return [a.arg for a in arguments.args + arguments.kwonlyargs]


def parameters_at_run_time(function) -> list[str]:
  """Those of the signature that pybind11 puts first in a docstring."""
  signature = inspect.getdoc(function).splitlines()[0]
  return re.findall(r"[(,] ?(\w+):", signature)


class StubsTest(absltest.TestCase):

  def check(self, holder, body, where):
    with self.subTest(where):
      # A name that a module makes when asked is no attribute yet.
      lazy = {n for n in names_in_stub(body) if hasattr(holder, n)}
      self.assertEqual(names_in_stub(body), names_at_run_time(holder) | lazy)
    for node in body:
      if isinstance(node, ast.ClassDef):
        self.check(
            getattr(holder, node.name), node.body, f"{where}.{node.name}"
        )
      elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
        with self.subTest(f"{where}.{node.name}"):
          self.assertEqual(
              parameters_in_stub(node),
              parameters_at_run_time(getattr(holder, node.name)),
          )

  def test_stubs_say_what_the_modules_have(self):
    sys.path.insert(0, str(_FILES))
    libraries = list(_FILES.rglob("*.so"))
    self.assertNotEmpty(libraries)
    for library in libraries:
      name = ".".join(library.relative_to(_FILES).with_suffix("").parts)
      stub = ast.parse(library.with_suffix(".pyi").read_text())
      self.check(importlib.import_module(name), stub.body, name)


if __name__ == "__main__":
  absltest.main()
