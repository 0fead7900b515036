# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Answers with activations over HTTP, and takes new versions over meanwhile.

    python server.py /served --port=8000

A request is JSON, feature -> ids or [values, row_splits]. It needs no JAX.
"""

import argparse
import http.server
import json
import signal
import sys
import threading

from jax_tpu_embedding.sparsecore.serving import embedding_tables


class Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"  # One connection for many requests.
  log_message = lambda *_: None  # Not a line for each request.

  def do_POST(self):  # pylint: disable=invalid-name
    length = self.headers.get("Content-Length", "")
    if not length.isdecimal() or "Transfer-Encoding" in self.headers:
      return self.send_error(411)  # It closes the connection, too.
    if len(length) > 8:  # More than 100 MB.
      return self.send_error(413)
    try:
      request = json.loads(self.rfile.read(int(length)))
      for name, ids in request.items() if isinstance(request, dict) else ():
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
          request[name] = tuple(ids)
      rows = self.tables.activations(request)
      code, data = 200, json.dumps(rows, default=lambda x: x.tolist()).encode()
    except (KeyError, MemoryError, RecursionError, TypeError, ValueError) as e:
      code = 503 if isinstance(e, MemoryError) else 400
      data = json.dumps({"error": str(e) or "There is no memory."}).encode()
      self.close_connection |= code == 503  # Some of the body may be left.
    self.send_response(code)
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)


class Server(http.server.ThreadingHTTPServer):
  request_queue_size = 128  # Clients that come at the same moment.

  def handle_error(self, request, client_address):
    if not isinstance(sys.exception(), ConnectionError):  # The client left.
      super().handle_error(request, client_address)


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("directory")
  parser.add_argument("--port", type=int, default=8000)
  parser.add_argument("--refresh_seconds", type=float, default=1.0)
  args = parser.parse_args()
  if not 0 < args.refresh_seconds < 1e6:
    parser.error(f"--refresh_seconds={args.refresh_seconds} is not in (0, 1e6)")
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word.
  try:
    Handler.tables = embedding_tables.open(args.directory)
    server = Server(("127.0.0.1", args.port), Handler)
  except (MemoryError, OSError, OverflowError, ValueError) as error:
    sys.exit(f"server.py: {args.directory} on port {args.port}: {error}")
  print(f"port {server.server_port}", flush=True)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  while not threading.Event().wait(args.refresh_seconds):
    try:
      if Handler.tables.refresh():
        print(f"version {Handler.tables.version}", flush=True)
    except (MemoryError, OSError, ValueError) as error:  # The tables stay.
      print(f"not refreshed: {error}", flush=True)


if __name__ == "__main__":
  main()
