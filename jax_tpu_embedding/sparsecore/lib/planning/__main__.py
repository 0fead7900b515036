# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a model takes of devices, from the command line.

python -m jax_tpu_embedding.sparsecore.lib.planning model.py:feature_specs \
    --topology v5p:2x2x1,v6e:4x4 --zipf 1.05
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import json
import pathlib
import runpy
import sys
from typing import Any

from google.protobuf import json_format
from google.protobuf import text_format
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.planning import cost_report
from jax_tpu_embedding.sparsecore.lib.planning import workload
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a report for each topology; returns the exit status."""
  parser = argparse.ArgumentParser(
      prog="python -m jax_tpu_embedding.sparsecore.lib.planning",
      description="What a model takes of devices that are not there.",
  )
  parser.add_argument(
      "model",
      help="program.py:attribute, which is feature specs or a function that"
      " makes them; or an EmbeddingSpecProto: .pb, .pbtxt, .json",
  )
  parser.add_argument(
      "--topology", required=True, help="v5p:2x2x1, cpu:4, ...; or several: a,b"
  )
  parser.add_argument("--zipf", type=float, help="exponent; default: uniform")
  parser.add_argument("--batch", type=int, help="samples of all devices")
  parser.add_argument("--plot", help="file of the picture; one topology")
  parser.add_argument("--json", action="store_true", help="numbers, not text")
  parser.add_argument(
      "--measured-lookup-ms",
      type=float,
      help="what the lookups of a step took, to calibrate",
  )
  arguments = parser.parse_args(argv)
  names = arguments.topology.split(",")
  try:
    if arguments.plot and len(names) > 1:
      raise ValueError("--plot draws one topology, and there are several.")
    specs = _load(arguments.model)
    if arguments.batch:
      specs = _with_batch(specs, arguments.batch)
    law = workload.Uniform()
    if arguments.zipf is not None:
      law = workload.Zipf(arguments.zipf)
    reports = [
        cost_report.estimate(specs, name, workload=law) for name in names
    ]
    if arguments.measured_lookup_ms is not None:
      seconds = arguments.measured_lookup_ms / 1e3
      reports = [x.with_measured_lookup(seconds) for x in reports]
    if arguments.plot:
      reports[0].plot(arguments.plot)
  except (OSError, TypeError, ValueError) as error:
    print(error, file=sys.stderr)
    return 1
  if arguments.json:
    print(json.dumps([json.loads(x.to_json()) for x in reports], indent=2))
  else:
    if len(reports) > 1:
      print(_rows(reports), end="\n\n")
    print("\n\n".join(x.describe() for x in reports))
  return 0


def _rows(reports: Sequence[cost_report.CostReport]) -> str:
  """A row for each topology."""
  return "\n".join(
      f"{x.topology.name:14} {x.bytes_per_device() / 2**30:8.2f} of"
      f" {x.topology.chip.memory_bytes / 2**30:6.1f} GiB  lookup"
      f" {x.lookup_seconds * 1e3:8.3f} ms  update {x.update_seconds * 1e3:8.3f}"
      " ms"
      for x in reports
  )


def _load(model: str) -> Any:
  path, _, attribute = model.partition(":")
  suffix = pathlib.Path(path).suffix
  if suffix == ".py":
    if not attribute:
      raise ValueError(
          f"{model!r} does not say which attribute of the program has the"
          " feature specs. Write program.py:attribute."
      )
    module = runpy.run_path(path)
    if attribute not in module:
      raise ValueError(f"{path} has no attribute {attribute!r}.")
    specs = module[attribute]
    return specs() if callable(specs) else specs
  message = embedding_spec_pb2.EmbeddingSpecProto()
  if suffix == ".pb":
    message.ParseFromString(pathlib.Path(path).read_bytes())
  elif suffix in (".pbtxt", ".textproto"):
    text_format.Parse(pathlib.Path(path).read_text(), message)
  elif suffix == ".json":
    json_format.Parse(pathlib.Path(path).read_text(), message)
  else:
    raise ValueError(
        f"{path!r} ends with {suffix!r}, and a model is .py:attribute, .pb,"
        " .pbtxt or .json."
    )
  return embedding.feature_specs_from_proto(message)


def _with_batch(specs: Any, batch: int) -> Any:
  def resized(feature):
    return dataclasses.replace(
        feature,
        input_shape=(batch, *feature.input_shape[1:]),
        output_shape=(batch, *feature.output_shape[1:]),
    )

  return jax.tree.map(resized, specs)


if __name__ == "__main__":
  sys.exit(main())
