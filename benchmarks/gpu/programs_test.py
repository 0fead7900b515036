# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""random_rows says why it does not run where there is no GPU."""

import pathlib
import subprocess

from absl.testing import absltest

_PROGRAM = pathlib.Path(__file__).parent / "random_rows"


@absltest.skipIf(not _PROGRAM.exists(), "Built without CUDA.")
class RandomRowsTest(absltest.TestCase):

  def test_without_a_gpu_it_says_so(self):
    done = subprocess.run(
        [_PROGRAM],
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
