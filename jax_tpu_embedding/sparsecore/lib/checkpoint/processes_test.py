# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Two processes that save and restore together."""

from __future__ import annotations

import json
import pathlib
import socket

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import one_run


def _free_port() -> int:
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return listener.getsockname()[1]


class ProcessesTest(absltest.TestCase):

  def test_two_processes_write_the_files_of_one_and_restore_them(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    port = _free_port()
    children = [
        one_run.start("one_of_two", directory, i, port) for i in range(2)
    ]
    for child in children:
      output, _ = child.communicate()
      # What is wrong: nothing.
      self.assertEqual(json.loads(output.splitlines()[-1]), [])

    topology = any_tables.Topology(1, 1, "alone")
    specs = any_tables.feature_specs(topology)
    variables = any_tables.random_variables(
        topology, specs, any_tables.values()
    )
    any_tables.save(directory / "one process", variables, specs)
    chunks = sorted((directory / "one process").rglob("c.*"))
    self.assertGreater(len(chunks), 12)
    for chunk in chunks:
      name = chunk.relative_to(directory / "one process")
      for stacking in ("alone", "rotated"):
        self.assertEqual(
            (directory / stacking / name).read_bytes(), chunk.read_bytes(), name
        )

  def test_one_of_two_that_cannot_write_fails_both_and_leaves_nothing(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    port = _free_port()
    children = [
        one_run.start("fails_to_write", directory, i, port) for i in range(2)
    ]
    waiting, failing = (
        json.loads(child.communicate()[0].splitlines()[-1])
        for child in children
    )
    self.assertRegex(failing, "^Cannot write table 'items'.*c.1.0")
    self.assertRegex(
        waiting, "^Process 1 could not write its part: Cannot write .*'items'"
    )
    self.assertFalse((directory / "saved").exists())


if __name__ == "__main__":
  jax.config.update("jax_num_cpu_devices", 1)
  absltest.main()
