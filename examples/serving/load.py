# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Asks a server of server.py as fast as it answers.

    python load.py --port=8000 --feature=clicked --rows=1000000

Prints requests per second, and the time that half and 99% of them took at most.
"""

import argparse
import http.client
import json
import random
import threading
import time


def ask(port: int, bodies: list[bytes], seconds: float, out: list[float]):
  """Sends bodies in turn over one connection; adds each one's seconds."""
  connection = http.client.HTTPConnection("127.0.0.1", port)
  end = time.perf_counter() + seconds
  i = 0
  while (begin := time.perf_counter()) < end:
    connection.request("POST", "/", bodies[i % len(bodies)])
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
      raise RuntimeError(f"The server answered {answer!r:.200}.")
    out.append(time.perf_counter() - begin)
    i += 1
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
  bodies = []
  for _ in range(100):
    ids = [random.randrange(args.rows) for _ in range(args.ids)]
    body = {name: [ids, [0, args.ids]] for name in args.feature}
    bodies.append(json.dumps(body).encode())
  latencies: list[float] = []
  threads = [
      threading.Thread(
          target=ask, args=(args.port, bodies, args.seconds, latencies)
      )
      for _ in range(args.connections)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  latencies.sort()
  p50, p99 = (1e3 * latencies[int(q * len(latencies))] for q in (0.5, 0.99))
  print(
      f"{len(latencies) / args.seconds:.0f} requests/s, p50 {p50:.2f} ms,"
      f" p99 {p99:.2f} ms"
  )


if __name__ == "__main__":
  main()
