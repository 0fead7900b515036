# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What lanes.py says before it compiles, which takes libtpu and minutes."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples import lanes


class LanesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._mesh = self.enter_context(
        mock.patch.object(lanes.topology, "topology_mesh")
    )

  @parameterized.parameters(
      ((), "usage: lanes DIR, a folder to write to; got 0 arguments."),
      (("a", "b"), "usage: lanes DIR, a folder to write to; got 2 arguments."),
      (("/no/such",), "usage: lanes DIR; there is no folder /no/such."),
      (("/dev/null",), "usage: lanes DIR; there is no folder /dev/null."),
  )
  def test_a_mistake_is_one_line_before_anything_is_compiled(
      self, arguments, message
  ):
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
      with self.assertRaises(SystemExit) as caught:
        lanes.main(["/bin/lanes.py", *arguments])
    self.assertEqual(caught.exception.code, 2)
    self.assertEqual(stderr.getvalue(), f"lanes: {message}\n")
    self._mesh.assert_not_called()

  def test_the_folder_is_where_the_command_was_typed(self):
    typed = self.create_tempdir()
    typed.mkdir("out")
    with (
        mock.patch.dict(
            os.environ, {"BUILD_WORKING_DIRECTORY": typed.full_path}
        ),
        mock.patch.object(lanes, "shakespeare"),
        mock.patch.object(lanes, "dlrm"),
        mock.patch.object(lanes.overlap_report, "overlap_report") as report,
        contextlib.redirect_stdout(io.StringIO()),
    ):
      lanes.main(["lanes", "out"])
    out = pathlib.Path(typed.full_path, "out")
    self.assertEqual(
        [call.args for call in report.return_value.plot.call_args_list],
        [(out / "shakespeare.png",), (out / "dlrm.png",)],
    )


if __name__ == "__main__":
  absltest.main()
