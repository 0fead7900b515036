# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The server answers, refreshes meanwhile, and needs no JAX."""

import contextlib
import http.client
import json
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading

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

  def _serve(self, directory, **kwargs):
    """A server of a directory, and its port."""
    server = self._start(
        *("server.py", str(directory), "--port=0", "--refresh_seconds=0.05"),
        **kwargs,
    )
    self.addCleanup(server.wait)
    self.addCleanup(server.terminate)
    self.addCleanup(server.stdout.close)
    return server, int(server.stdout.readline().split()[1])

  def _directory_of_ten_rows(self):
    """Served tables with a feature `clicked` of ten rows."""
    directory = pathlib.Path(self.create_tempdir().full_path)
    table = written_tables.WrittenTable(np.ones((10, 3), np.float32))
    written_tables.write_full(
        directory, {"items": table}, 0, features={"clicked": "items"}
    )
    return directory

  def _serve_ten_rows(self):
    """A server of a feature `clicked` of ten rows: its directory and port."""
    directory = self._directory_of_ten_rows()
    return directory, self._serve(directory)[1]

  def _assert_fails(self, regex, *command):
    """A program ends with code 1 and one line on stderr, and prints nothing."""
    process = self._start(*command, stderr=subprocess.PIPE)
    stdout, stderr = process.communicate()
    self.assertEqual((process.returncode, stdout), (1, ""), stderr)
    self.assertRegex(stderr, rf"\A{command[0]}: {regex}\n\Z")

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
    server, port = self._serve(directory)
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

    (directory / "CURRENT").write_text("no version\n", encoding="utf-8")
    self.assertRegex(server.stdout.readline(), "^not refreshed: .*CURRENT")
    _, answer = self._ask(port, {"clicked": [1]})
    self.assertEqual(answer, {"clicked": [[4, 5, 6]]})

  def test_every_request_has_an_answer(self):
    _, port = self._serve_ten_rows()
    deep = 100_000 * b"["
    length = b"Content-Length: %d\r\n"
    for header, body, status in (
        (b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n", 411),
        (b"", b"", 411),
        (b"Content-Length: -1\r\n", b"", 411),
        (b"Content-Length: two\r\n", b"{}", 411),
        (length % 10**18, b"", 413),
        (length % len(deep), deep, 400),
        (length % 1, b"{", 400),
        (length % 2, b"{}", 200),
    ):
      with (
          self.subTest(header=header),
          socket.create_connection(
              ("127.0.0.1", port), timeout=20
          ) as connection,
      ):
        connection.sendall(b"POST / HTTP/1.1\r\n" + header + b"\r\n" + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        response.read()
        self.assertEqual(response.status, status)
        # Where the next request begins is not known.
        self.assertEqual(response.will_close, status > 400)

  def test_bodies_of_another_kind_are_named(self):
    _, port = self._serve_ten_rows()
    for body, message in (
        ([1], "features must map names to ids, got a list."),
        (None, "features must map names to ids, got a NoneType."),
        ({"clicked": {"0": 1}}, "ids of feature 'clicked' must be integers"),
        ({"clicked": "12"}, "ids of feature 'clicked' must be integers"),
        ({"clicked": 5}, "Feature 'clicked' has ids of shape"),
    ):
      with self.subTest(body=body):
        status, answer = self._ask(port, body)
        self.assertEqual(status, 400)
        self.assertStartsWith(answer["error"], message)

  def test_the_server_goes_on_where_there_is_no_memory(self):
    directory = self._directory_of_ten_rows()
    server, port = self._serve(directory)
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    most = int(status.split("VmSize:")[1].split()[0]) * 1024 + (200 << 20)
    resource.prlimit(server.pid, resource.RLIMIT_AS, (most, most))
    # A manifest of holes, which take no room on the disk.
    table = written_tables.WrittenTable(np.ones((10, 3), np.float32))
    crc32 = written_tables.write_full(
        directory, {"items": table}, 1, make_current=False
    )
    manifest = directory / "v000001" / "manifest.json"
    os.truncate(manifest, 1 << 29)
    written_tables.write_current(directory, 1, crc32)
    self.assertRegex(
        server.stdout.readline(),
        f"^not refreshed: {manifest}: there is no memory for its 536870912",
    )
    self.assertEqual(
        self._ask(port, {"clicked": [1]}), (200, {"clicked": [[1, 1, 1]]})
    )
    # 60 MB of activations, which are more as numbers of Python.
    splits = [0] * 5_000_000
    status, answer = self._ask(port, {"clicked": [[], splits]})
    self.assertEqual(status, 503)
    self.assertRegex(answer["error"], "memory")
    self.assertEqual(self._ask(port, {})[0], 200)

  def test_clients_may_come_at_once_and_leave_before_the_answer(self):
    server, port = self._serve(
        self._directory_of_ten_rows(), stderr=subprocess.PIPE
    )
    self.addCleanup(server.stderr.close)
    ids = [[1] * 100_000, list(range(100_001))]
    body = json.dumps({"clicked": ids}).encode()
    # One that finds no place in the queue tries again after a second.
    clients = [
        socket.create_connection(("127.0.0.1", port), timeout=0.9)
        for _ in range(100)
    ]
    for client in clients[:3]:
      client.sendall(
          b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
      )
      client.sendall(body)
      # It is reset, and not only closed.
      client.setsockopt(
          socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
      )
      client.close()
    for client in clients[3:]:
      client.settimeout(20)
      client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
      self.assertStartsWith(client.recv(100), b"HTTP/1.1 200 ")
      client.close()
    self.assertEqual(self._ask(port, {"clicked": []}), (200, {"clicked": []}))
    server.send_signal(signal.SIGINT)  # Nor does that leave a traceback.
    self.assertEqual(server.stderr.read(), "")
    self.assertEqual(server.wait(), -signal.SIGINT)

  def test_an_interrupt_ends_a_load_at_once(self):
    listener = socket.create_server(("127.0.0.1", 0))
    self.addCleanup(listener.close)
    listener.settimeout(60)
    load = self._start(
        *("load.py", f"--port={listener.getsockname()[1]}", "--rows=10"),
        *("--feature=clicked", "--connections=1", "--seconds=1000"),
        stderr=subprocess.PIPE,
    )
    with listener.accept()[0]:
      load.send_signal(signal.SIGINT)
      self.assertEqual(load.communicate(timeout=60), ("", ""))
    self.assertEqual(load.returncode, -signal.SIGINT)

  def test_numbers_that_mean_nothing_are_refused(self):
    for command in (
        ("server.py", "/no/such", "--refresh_seconds=nan"),
        ("server.py", "/no/such", "--refresh_seconds=0"),
        ("load.py", "--feature=clicked", "--rows=10", "--seconds=nan"),
        ("load.py", "--feature=clicked", "--rows=10", "--ids=-1"),
        ("load.py", "--feature=clicked", "--rows=10", "--port=70000"),
    ):
      process = self._start(*command, stderr=subprocess.PIPE)
      _, stderr = process.communicate()
      self.assertEqual(process.returncode, 2, stderr)
      name = command[-1].partition("=")[0]
      self.assertRegex(
          stderr, f"error: {name}( must be (positive|from 1)|=.* is not in)"
      )

  def test_a_server_that_cannot_start_says_why_in_a_line(self):
    directory, port = self._serve_ten_rows()
    for folder, number, reason in (
        (directory, port, r".*Address already in use"),
        (directory, 70000, r".*0-65535\."),
        ("/no/such", 0, ".*/no/such.*"),
    ):
      self._assert_fails(
          f"{folder} on port {number}: {reason}",
          *("server.py", str(folder), f"--port={number}"),
      )

  def test_a_load_that_has_no_answers_says_why_in_a_line(self):
    _, port = self._serve_ten_rows()

    def assert_fails(regex, *arguments):
      self._assert_fails(
          regex, "load.py", "--seconds=0.5", "--rows=10", *arguments
      )

    clicked = "--feature=clicked"
    assert_fails(r"port 1 of 127\.0\.0\.1: .*refused.*", "--port=1", clicked)
    assert_fails(
        r"the server answered 400: .*'items': id \d+ at .*",
        *(f"--port={port}", clicked, "--rows=1000000"),
    )
    assert_fails(
        "the server answered 400: .*'other'.*",
        *(f"--port={port}", "--feature=other"),
    )

  def test_a_connection_that_fails_ends_a_load(self):
    # A server that answers one of the connections and closes the other one.
    listener = socket.create_server(("127.0.0.1", 0))
    self.addCleanup(listener.close)
    listener.settimeout(60)

    def answer():
      good, bad = (listener.accept()[0] for _ in range(2))
      bad.close()
      with contextlib.suppress(OSError), good:
        while good.recv(1 << 16):
          good.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    self._assert_fails(
        rf"port {port} of 127\.0\.0\.1: .*",
        *("load.py", f"--port={port}", "--feature=clicked", "--rows=10"),
        *("--connections=2", "--seconds=0.5"),
    )
    thread.join()

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
    for line in ("clicked 3 x", "clicked 3 -", f"clicked 3 {2**63}"):
      self.assertEqual(ask(line), f"Expected a feature and ids, got: {line}\n")
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
