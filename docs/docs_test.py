# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the code of the documentation and compares what it prints."""

import contextlib
import doctest
import importlib.util
import io
import math
import os
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cuda_library

ROOT = pathlib.Path(__file__).parent.parent
# Made by benchmarks/lookup/install_peers.sh; for the first block also
# `bin/pip install torchrec` there. No part of the build: PyTorch is large.
_PYTORCH = pathlib.Path(
    "~/.cache/jax_tpu_embedding/lookup_peers/torch/bin/python"
).expanduser()

# Where a checkout has the folder beside it, the guide whose programs users were
# promised is there.
_GUIDE = (
    pathlib.Path(__file__).resolve().parents[2]
    / "shared"
    / "pallas_core_programming.md"
)

_NEEDS_KERAS_RS = absltest.skipIf(
    importlib.util.find_spec("keras_rs") is None,
    "keras-rs is not installed: pip install keras-rs==0.4.0 'keras<3.14'.",
)


def _page(path):
  return (ROOT / "docs" / path).read_text()


def _python_blocks(path):
  return re.findall("^```python\n(.*?)^```", _page(path), re.M | re.S)


def _other_libraries():
  """The code of other libraries on a page, and what it is said to print."""
  blocks = _python_blocks("how_to/migrate.md")
  return [(code, re.findall("^# (.*)$", code, re.M)[-1]) for code in blocks]


class DocumentationTest(parameterized.TestCase):

  @parameterized.parameters(
      "design/path_of_an_id.md",
      "how_to/checkpoint.md",
      "how_to/cost_report.md",
      "how_to/fdo.md",
      "how_to/input.md",
      "how_to/layers.md",
      "how_to/limits.md",
      "how_to/look_up.md",
      "how_to/migrate.md",
      "how_to/optimizers.md",
      "how_to/pipelining.md",
      "how_to/plan.md",
      "how_to/preprocess.md",
      "how_to/profile.md",
      "how_to/serve.md",
      "how_to/sparse_gradients.md",
      "reference/served_tables.md",
  )
  def test_pages_print_what_they_say(self, page):
    self.check_page(page)

  @absltest.skipIf(
      importlib.util.find_spec("libtpu") is None,
      "libtpu is not installed: pip install 'jax[tpu]'.",
  )
  def test_page_on_tpu_prints_what_it_says(self):
    self.check_page("how_to/compile_for_tpu.md")

  @absltest.skipIf(cuda_library.ffi_cuda is None, "Built without CUDA.")
  def test_page_on_gpus_prints_what_it_says(self):
    self.check_page("how_to/compile_for_gpu.md")

  @_NEEDS_KERAS_RS
  def test_page_on_clients_prints_what_it_says(self):
    # Keras reads ~/.keras/keras.json, and writes it where there is none.
    os.environ["KERAS_HOME"] = self.create_tempdir().full_path
    self.check_page("how_to/clients.md")

  def test_page_on_kernels_runs_on_four_devices(self):
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(_python_blocks("how_to/pallas.md"))],
        env=os.environ
        | {
            "JAX_NUM_CPU_DEVICES": "4",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(result.returncode, 0, result.stderr)

  def test_page_on_kernels_has_the_programs_of_the_guide(self):
    if not _GUIDE.exists():
      self.skipTest("There is no guide beside the checkout.")
    blocks = re.findall(
        "^```python\n(.*?)^```", _GUIDE.read_text(), re.M | re.S
    )
    # Without the set-up, and the definition of kernel(), which is ours.
    programs = "\n".join(blocks[2:4] + blocks[5:])
    page = "\n".join(_python_blocks("how_to/pallas.md")).splitlines()
    changed = [line for line in programs.splitlines() if line not in page]
    # Two names that JAX 0.11 moved, shard_map for a chip, and four lines on the
    # SparseCores of a chip that is not there, with the two that print it.
    self.assertLessEqual(len(changed), 3 + 8, changed)

  def test_other_libraries_print_the_same_as_this_one(self):
    self.assertLen(_other_libraries(), 4)
    for code, expected in _other_libraries():
      compile(code, "migrate.md", "exec")
      # Indented: what a doctest of this package prints.
      self.assertIn(f"    {expected}\n", _page("how_to/migrate.md"))

  @parameterized.parameters((0, "torchrec"), (1, "fbgemm_gpu"), (2, "torch"))
  def test_pytorch_prints_what_the_page_says(self, number, module):
    if not _PYTORCH.exists():
      self.skipTest(f"{_PYTORCH} is not there: run install_peers.sh.")
    if subprocess.run([_PYTORCH, "-c", f"import {module}"]).returncode:
      self.skipTest(f"{_PYTORCH} lacks {module}.")
    self.check_other_library(number, module, _PYTORCH)

  @_NEEDS_KERAS_RS
  def test_keras_rs_prints_what_the_page_says(self):
    self.check_other_library(
        3,
        "keras_rs",
        sys.executable,
        PYTHONPATH=os.pathsep.join(sys.path),
        # Keras reads ~/.keras/keras.json, and writes it where there is none.
        KERAS_HOME=self.create_tempdir().full_path,
    )

  def check_other_library(self, number, module, python, **environment):
    code, expected = _other_libraries()[number]
    self.assertIn(f" {module}", code)
    printed = subprocess.run(
        [python, "-c", code],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    self.assertEqual(printed.strip(), expected)

  @parameterized.parameters((0, "grain"), (1, "torch"))
  def test_sources_print_what_the_page_says(self, number, module):
    programs = re.findall(
        "^```python\n(.*?)^```", _page("how_to/input.md"), re.M | re.S
    )
    self.assertLen(programs, 2)
    code = programs[number]
    compile(code, "input.md", "exec")
    self.assertIn(f"import {module}", code)
    if importlib.util.find_spec(module) is None:
      self.skipTest(f"{module} is not installed: pip install {module}.")
    # A file, which processes that they spawn import.
    file = self.create_tempfile("program.py", code).full_path
    printed = subprocess.run(
        [sys.executable, file],
        env=os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path)),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    self.assertEqual(printed.strip(), re.findall("^# (.*)$", code, re.M)[-1])

  def check_page(self, page):
    failures, tests = doctest.testfile(
        str(ROOT / "docs" / page),
        module_relative=False,
        optionflags=doctest.ELLIPSIS,
    )
    self.assertGreater(tests, 0)
    self.assertEqual(failures, 0)

  def test_readme_program_learns(self):
    (program,) = re.findall(
        "^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    printed, events = io.StringIO(), []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, fun_name="", **__: events.append((event, fun_name))
    )
    with contextlib.redirect_stdout(printed):
      exec(compile(program, "README.md", "exec"), {})  # pylint: disable=exec-used
    losses = re.findall(r"^step \d+: loss (\S+)$", printed.getvalue(), re.M)
    self.assertLen(losses, 3)
    # At first all of the 1,024 words are about as likely.
    self.assertAlmostEqual(float(losses[0]), math.log(1024), delta=0.1)
    self.assertLess(float(losses[-1]), 0.5)
    of_step = [event for event, name in events if "train_step" in name]
    self.assertEqual(of_step.count("/jax/core/compile/jaxpr_trace_duration"), 1)
    self.assertEqual(
        of_step.count("/jax/core/compile/backend_compile_duration"), 1
    )


if __name__ == "__main__":
  absltest.main()
