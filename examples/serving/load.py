# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Asks a server of server.py as fast as it answers.

    python load.py --port=8000 --feature=clicked --rows=1000000

Prints requests per second, and the time that half and 99% of them took at most.
If a request fails, that is all it prints, and the exit code is 1.
"""

import argparse
from concurrent import futures
import http.client
import itertools
import json
import random
import signal
import sys
import time


class RequestError(Exception):
  """A request that has no answer, or another one than activations."""


def ask(port: int, bodies: list[bytes], seconds: float) -> list[float]:
  """Sends bodies in turn over one connection; the seconds that each one took.

  Raises:
    RequestError: the server does not answer, or answers with an error.
  """
  connection = http.client.HTTPConnection("127.0.0.1", port)
  took = []
  begin = time.perf_counter()
  end = begin + seconds
  try:
    for body in itertools.cycle(bodies):
      connection.request("POST", "/", body)
      response = connection.getresponse()
      answer = response.read()
      if response.status != 200:
        text = " ".join(answer.decode(errors="replace").split())[:300]
        raise RequestError(f"the server answered {response.status}: {text}")
      took.append(time.perf_counter() - begin)
      begin = time.perf_counter()
      if begin >= end:
        return took
  except (OSError, http.client.HTTPException) as error:
    raise RequestError(f"port {port} of 127.0.0.1: {error}") from error
  finally:
    connection.close()


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--port", type=int, default=8000)
  parser.add_argument("--feature", action="append", required=True)
  parser.add_argument("--rows", type=int, required=True)
  parser.add_argument("--ids", type=int, default=20)
  parser.add_argument("--connections", type=int, default=4)
  parser.add_argument("--seconds", type=float, default=5.0)
  args = parser.parse_args()
  for name in ("rows", "ids", "connections", "seconds"):
    value = getattr(args, name)
    if not 0 < value < float("inf"):
      parser.error(f"--{name} must be positive and finite, got {value}.")
  if not 0 < args.port < 2**16:
    parser.error(f"--port must be from 1 to 65535, got {args.port}.")
  # Ctrl-C ends it at once, and does not wait for the threads that ask.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  bodies = []
  for _ in range(100):
    ids = [random.randrange(args.rows) for _ in range(args.ids)]
    body = {name: [ids, [0, args.ids]] for name in args.feature}
    bodies.append(json.dumps(body).encode())
  with futures.ThreadPoolExecutor(args.connections) as pool:
    asking = [
        pool.submit(ask, args.port, bodies, args.seconds)
        for _ in range(args.connections)
    ]
  try:
    latencies = sorted(itertools.chain(*(each.result() for each in asking)))
  except RequestError as error:
    sys.exit(f"load.py: {error}")
  p50, p99 = (1e3 * latencies[int(q * len(latencies))] for q in (0.5, 0.99))
  print(
      f"{len(latencies) / args.seconds:.0f} requests/s, p50 {p50:.2f} ms,"
      f" p99 {p99:.2f} ms"
  )


if __name__ == "__main__":
  main()
