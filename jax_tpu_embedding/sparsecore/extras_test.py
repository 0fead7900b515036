# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore import extras

# Makes imports fail as if the packages were not installed.
_WITHOUT = "import sys; sys.modules['{}'] = None; import {}"


class ExtrasTest(parameterized.TestCase):

  def test_what_is_there_is_fine(self):
    extras.require("flax", "flax", "optax")

  def test_the_missing_ones_are_named(self):
    with self.assertRaisesRegex(
        ModuleNotFoundError,
        r"needs absent, gone\. .*pip install 'jax_tpu_embedding\[some\]'",
    ) as caught:
      extras.require("some", "absent", "sys", "gone")
    self.assertEqual(caught.exception.name, "absent")

  @parameterized.parameters(
      ("optax", "lib.flax.embed", "flax"),
      ("flax", "lib.flax.nnx.embed", "flax"),
      ("orbax", "examples.dlrm.dlrm", "examples"),
      ("orbax", "lib.export.export", "export"),
      ("grain", "lib.input.grain_input", "grain"),
  )
  def test_a_part_says_which_extra_it_needs(self, absent, module, extra):
    module = f"jax_tpu_embedding.sparsecore.{module}"
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(absent, module)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    self.assertRegex(
        done.stderr,
        rf"ModuleNotFoundError: .* needs {absent}\. Install with: pip install"
        rf" 'jax_tpu_embedding\[{extra}\]'\n\Z",
    )


if __name__ == "__main__":
  absltest.main()
