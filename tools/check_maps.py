# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks that READMEs name the files that they are the maps of.

    git ls-files -co --exclude-standard | python3 tools/check_maps.py

A README is the map of its folder, and of those right below. It names a file, or
`a*.py`. Tests, and what only they use, need no name. Prints the files that no
map has; the exit code is 1 if there are any.
"""

import fnmatch
import pathlib
import re
import sys

_SUFFIXES = frozenset({".py", ".cc", ".h", ".bzl", ".sh"})
_UNNAMED = frozenset({"__init__.py", "__main__.py"})
_OF_TESTS = frozenset({"testing", "testdata"})


def is_to_be_named(path: pathlib.Path) -> bool:
  return (
      path.suffix in _SUFFIXES
      and path.name not in _UNNAMED
      and not path.stem.endswith("_test")
      and not _OF_TESTS.intersection(path.parts)
  )


def is_named(path: pathlib.Path) -> bool:
  stem = path.name.partition(".")[0]  # step_rows of step_rows.cu.cc
  for folder in (path.parent, path.parent.parent):
    readme = folder / "README.md"
    text = readme.read_text() if readme.exists() else ""
    if re.search(rf"\b{re.escape(stem)}\b", text):
      return True
    patterns = re.findall(r"[\w.]*\*[\w.*]*", text)
    if any(fnmatch.fnmatch(path.name, p) for p in patterns if len(p) > 4):
      return True
  return False


def main() -> int:
  if len(sys.argv) > 1:
    sys.exit(__doc__)
  paths = [pathlib.Path(line) for line in sys.stdin.read().splitlines()]
  missing = [
      path
      for path in paths
      if is_to_be_named(path) and path.exists() and not is_named(path)
  ]
  for path in missing:
    print(f"{path}: no README of its folder, or of the one above, names it.")
  return int(bool(missing))


if __name__ == "__main__":
  sys.exit(main())
