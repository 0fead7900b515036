# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Folders import from those before them, on few floors."""

import ast
import graphlib
import pathlib

from absl.testing import absltest

_NN = pathlib.Path(__file__).parent
_PACKAGE = "jax_tpu_embedding.sparsecore.lib.nn"
# As README.md lists them.
_ROOMS = ("specs", "plan", "inputs", "step", "limits", "values", "wire")
_MOST_FLOORS = 7


def _modules() -> dict[str, str]:
  """Name below lib/nn, as "plan._plan", -> its source."""
  return {
      ".".join(path.relative_to(_NN).with_suffix("").parts): path.read_text()
      for path in [*_NN.glob("*.py"), *_NN.glob("*/*.py")]
      if path.parent.name != "testing"
      and path.name != "__init__.py"
      and not path.stem.endswith("_test")
  }


def _imports(source: str) -> set[str]:
  """The names below lib/nn that are imported, at any depth of the code."""
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      names.update(f"{node.module}.{alias.name}" for alias in node.names)
  return {
      name.removeprefix(f"{_PACKAGE}.")
      for name in names
      if name.startswith(f"{_PACKAGE}.")
  }


def _room(module: str) -> str:
  return module.rpartition(".")[0]


class RoomsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    sources = _modules()
    self.imports = {
        module: _imports(source) & sources.keys()
        for module, source in sources.items()
    }

  def test_every_folder_is_a_room(self):
    rooms = {_room(module) for module in self.imports} - {""}
    self.assertCountEqual(rooms, _ROOMS)

  def test_rooms_import_from_those_before_them(self):
    for module, imports in self.imports.items():
      if room := _room(module):
        before = _ROOMS[: _ROOMS.index(room) + 1]
        for imported in imports:
          self.assertIn(_room(imported), before, f"{module}: {imported}")

  def test_floors_are_few_and_there_is_no_circle(self):
    floors = {}
    # Raises CycleError if there is one.
    for module in graphlib.TopologicalSorter(self.imports).static_order():
      below = [floors[imported] for imported in self.imports[module]]
      floors[module] = 1 + max(below, default=0)
    highest = max(floors, key=floors.__getitem__)
    self.assertLessEqual(floors[highest], _MOST_FLOORS, highest)


if __name__ == "__main__":
  absltest.main()
