# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs for a GPU say why they do not run where there is none."""

import pathlib
import subprocess

from absl.testing import absltest
from absl.testing import parameterized

_FOLDER = pathlib.Path(__file__).parent


@absltest.skipIf(not (_FOLDER / "random_rows").exists(), "Built without CUDA.")
class ProgramsTest(parameterized.TestCase):

  @parameterized.parameters("random_rows", "plans_and_moves")
  def test_without_a_gpu_it_says_so(self, program):
    done = subprocess.run(
        [_FOLDER / program],
        capture_output=True,
        text=True,
        env={"CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    self.assertEqual(done.returncode, 1)
    self.assertStartsWith(done.stderr, "CUDA: ")
    self.assertEmpty(done.stdout)


if __name__ == "__main__":
  absltest.main()
