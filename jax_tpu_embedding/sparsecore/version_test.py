# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import subprocess
import sys

from absl.testing import absltest
import jax_tpu_embedding
import jax_tpu_embedding.sparsecore as sc


class VersionTest(absltest.TestCase):

  def test_package_has_the_version_of_its_module(self):
    self.assertEqual(sc.__version__, sc.version.__version__)
    self.assertEqual(jax_tpu_embedding.__version__, sc.__version__)

  def test_version_is_base_and_suffix(self):
    self.assertRegex(sc.version._base_version, r"^\d+\.\d+\.\d+$")
    self.assertEqual(
        sc.__version__, sc.version._base_version + sc.version._version_suffix
    )

  def test_importing_the_package_imports_no_jax(self):
    code = (
        "import sys, jax_tpu_embedding.sparsecore;"
        "sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


if __name__ == "__main__":
  absltest.main()
