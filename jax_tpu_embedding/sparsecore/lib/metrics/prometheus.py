# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Numbers about the input as Prometheus reads them.

Source: https://prometheus.io/docs/instrumenting/exposition_formats, the text
format, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Mapping
import http.server
import re
import socket
import threading

from jax_tpu_embedding.sparsecore.lib.metrics import input_metrics

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
  """Serves the latest numbers at http://<host>:<port>/metrics.

      with prometheus.Exporter(9000) as exporter:
        ... InputPipeline(..., on_batch=input_metrics.Every(100, exporter))

  What is counted is added up from the start of the program on.
  """

  def __init__(self, port: int, host: str = "0.0.0.0"):
    """Starts to serve.

    Args:
      port: 0 for any that is free, which `port` then says.
      host: the address to listen at; by default all of this machine.

    Raises:
      OSError: if the port is taken.
    """
    self._lock = threading.Lock()
    self._scalars: dict[str, float] = {}
    exporter = self

    class Handler(http.server.BaseHTTPRequestHandler):

      def do_GET(self):
        # Scrapes may have parameters, of which there are none here.
        if self.path.partition("?")[0] != "/metrics":
          self.send_error(404, "The numbers are at /metrics.")
          return
        body = exporter.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

      def log_message(self, *unused_args):
        pass

    class Server(http.server.ThreadingHTTPServer):
      address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    self._server = Server((host, port), Handler)
    self._thread = threading.Thread(
        target=self._server.serve_forever, daemon=True, name="prometheus"
    )
    self._thread.start()

  @property
  def port(self) -> int:
    return self._server.server_address[1]

  def __call__(self, number: int, scalars: Mapping[str, float]) -> None:
    """Takes numbers, as the sink of input_metrics.Every.

    Raises:
      ValueError: for a name that input_metrics.NUMBERS does not have. It takes
        none of the numbers then.
    """
    del number
    for name in scalars:
      _split(name)
    with self._lock:
      for name, value in scalars.items():
        if input_metrics.is_counted(name.rsplit("/", 1)[1]):
          value += self._scalars.get(name, 0.0)
        self._scalars[name] = value

  def text(self) -> str:
    """What is served."""
    with self._lock:
      return text(self._scalars)

  def close(self) -> None:
    """Stops to serve."""
    self._server.shutdown()
    self._server.server_close()
    self._thread.join()

  def __enter__(self) -> Exporter:
    return self

  def __exit__(self, *unused_exception: object) -> None:
    self.close()


def text(scalars: Mapping[str, float]) -> str:
  """Named numbers as text: embedding_stack_entries_total{stack="items"} 3.

  Raises:
    ValueError: for a name that input_metrics.NUMBERS does not have.
  """
  metrics: dict[str, list[str]] = {}
  for name, value in sorted(scalars.items()):
    prefix, kind, *owner, number = _split(name)
    metric = "_".join(re.sub("[^a-zA-Z0-9_]", "_", x) for x in (prefix, kind))
    metric = f"{metric}_{number}".lstrip("_")
    if metric[0].isdigit():
      metric = f"_{metric}"
    is_counted = input_metrics.is_counted(number)
    metric += "_total" if is_counted else ""
    labels = ""
    if owner:
      escaped = (
          owner[0].replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
      )
      labels = f'{{{kind}="{escaped}"}}'
    lines = metrics.setdefault(
        metric,
        [
            f"# HELP {metric} {input_metrics.NUMBERS[f'{kind}/{number}']}",
            f"# TYPE {metric} {'counter' if is_counted else 'gauge'}",
        ],
    )
    lines.append(f"{metric}{labels} {float(value)!r}")
  return "".join(f"{line}\n" for lines in metrics.values() for line in lines)


def _split(name: str) -> tuple[str, ...]:
  """Prefix, kind, owner if it has one, number. Owners may contain slashes."""
  number = name.rpartition("/")[2]
  for kind in ("stack", "feature", "input"):
    if f"{kind}/{number}" not in input_metrics.NUMBERS:
      continue
    owner = "" if kind == "input" else "/(.+)"
    # As a whole word first: a prefix may end with a kind, like "haystack/". Then
    # as the end of one: a prefix may have no slash at its end.
    for prefix in ("(?:(.*?)/)?", "(.*?)"):
      match = re.fullmatch(f"(?s){prefix}{kind}{owner}/{number}", name)
      if match:
        return match[1] or "", kind, *match.groups()[1:], number
  raise ValueError(
      f"{name!r} is no number of input_metrics.NUMBERS, with a prefix."
  )
