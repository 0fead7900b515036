# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The server answers, refreshes meanwhile, and needs no JAX."""

import http.client
import json
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

_HERE = pathlib.Path(__file__).parent
# A program without the modules of JAX.
_WITHOUT_JAX = """
import runpy, sys
sys.modules.update(dict.fromkeys(["jax", "jaxlib", "flax"]))
program = sys.argv.pop(1)
sys.argv[0] = program
runpy.run_path(program, run_name="__main__")
"""


class ServingTest(absltest.TestCase):

  def _start(self, program, *args, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-c", _WITHOUT_JAX, str(_HERE / program), *args],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        **kwargs,
    )

  def _ask(self, port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/", json.dumps(body))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer

  def test_answers_while_versions_change(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    table = written_tables.WrittenTable(
        np.arange(30, dtype=np.float32).reshape(10, 3)
    )
    features = {"clicked": "items", "seen": "items"}

    def write(number):
      written_tables.write_full(
          directory, {"items": table}, number, features=features
      )

    write(0)
    server = self._start(
        "server.py", str(directory), "--port=0", "--refresh_seconds=0.05"
    )
    self.addCleanup(server.wait)
    self.addCleanup(server.terminate)
    self.addCleanup(server.stdout.close)
    port = int(server.stdout.readline().split()[1])
    status, answer = self._ask(
        port, {"clicked": [1, 2], "seen": [[1, 2], [0, 2]]}
    )
    self.assertEqual(status, 200)
    self.assertEqual(
        answer, {"clicked": [[3, 4, 5], [6, 7, 8]], "seen": [[9, 11, 13]]}
    )
    status, answer = self._ask(port, {"clicked": [10]})
    self.assertEqual(status, 400)
    self.assertRegex(answer["error"], "'items': id 10 at position 0")
    self.assertEqual(self._ask(port, [1])[0], 400)
    self.assertEqual(self._ask(port, {"other": [1]})[0], 400)

    load = self._start(
        "load.py",
        f"--port={port}",
        "--feature=clicked",
        "--feature=seen",
        "--rows=10",
        "--seconds=0.5",
        "--connections=2",
    )
    table.values += 1
    write(1)
    self.assertEqual(server.stdout.readline(), "version 1\n")
    report, _ = load.communicate()
    self.assertEqual(load.returncode, 0)
    self.assertRegex(
        report, r"[1-9]\d* requests/s, p50 \d+\.\d+ ms, p99 \d+\.\d+ ms"
    )
    _, answer = self._ask(port, {"clicked": [1]})
    self.assertEqual(answer, {"clicked": [[4, 5, 6]]})

    (directory / "CURRENT").write_text("no version\n")
    self.assertRegex(server.stdout.readline(), "^not refreshed: .*CURRENT")
    _, answer = self._ask(port, {"clicked": [1]})
    self.assertEqual(answer, {"clicked": [[4, 5, 6]]})

  def test_a_program_in_cpp_answers_while_versions_change(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    values = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    tables = {"ïtems/1": written_tables.WrittenTable(values, "int8", "mean", 2)}
    features = {"clicked": "ïtems/1"}
    checksum = written_tables.write_full(directory, tables, features=features)
    reader = embedding_tables.open(directory)
    program = subprocess.Popen(
        [_HERE / "lookup", directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(line):
      print(line, file=program.stdin, flush=True)
      return program.stdout.readline()

    def check(version):
      number, *found = ask("clicked 3 3 9").split()
      self.assertEqual(number, f"{version}:")
      [expected] = reader.activations({"clicked": [[3, 3, 9]]})["clicked"]
      np.testing.assert_allclose(
          np.array(found, np.float32), expected, rtol=1e-5
      )

    check(0)
    self.assertRegex(ask("clicked 10"), "'ïtems/1': id 10 at position 0")
    self.assertRegex(ask("liked 1"), "no feature 'liked'.*'clicked'")
    change = written_tables.WrittenChange([3, 9], values[:2], num_files=2)
    written_tables.write_delta(
        directory, tables, {"ïtems/1": change}, 1, (0, checksum), features
    )
    reader.refresh()
    check(1)
    program.communicate()
    self.assertEqual(program.returncode, 0)


if __name__ == "__main__":
  absltest.main()
