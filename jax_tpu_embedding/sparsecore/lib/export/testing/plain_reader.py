# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Served tables as NumPy, read as docs/reference/served_tables.md says.

For tests: written from that page, not with the code under test.
"""

from __future__ import annotations

import json
import pathlib
import urllib.parse
import zlib

import numpy as np

_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1", "I64": "<i8"}


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
  content = path.read_bytes()
  begin = 8 + int.from_bytes(content[:8], "little")
  assert begin % 64 == 0, path
  tensors, end = {}, 0
  for name, tensor in json.loads(content[8:begin]).items():
    first, end_of_tensor = tensor["data_offsets"]
    assert first == end, path  # no gaps
    end = end_of_tensor
    tensors[name] = np.frombuffer(
        content[begin + first : begin + end], _TYPES[tensor["dtype"]]
    ).reshape(tensor["shape"])
  assert begin + end == len(content), path
  return tensors


def checksum(path: pathlib.Path) -> str:
  return f"{zlib.crc32(path.read_bytes()):08x}"


def versions(served: pathlib.Path) -> list[dict]:
  """The manifests from the last full version to the current one."""
  number, name, checksum = (served / "CURRENT").read_text().split()
  chain = []
  while True:
    content = (served / name / "manifest.json").read_bytes()
    assert f"{zlib.crc32(content):08x}" == checksum, name
    manifest = json.loads(content)
    assert manifest["version"] == int(number) == int(name[1:]), name
    chain.append(manifest)
    if manifest["kind"] == "full":
      return chain[::-1]
    number = manifest["base"]["version"]
    name = f"v{number:06}"
    checksum = manifest["base"]["manifest_crc32"]


def read(served: pathlib.Path) -> dict[str, np.ndarray]:
  """Encoded rows u8[rows, row_bytes] of each table, all checksums checked."""
  tables = {}
  for manifest in versions(served):
    for name, entry in manifest["tables"].items():
      rows = tables.setdefault(
          name, np.zeros((entry["rows"], entry["row_bytes"]), np.uint8)
      )
      changes = []
      for i, file in enumerate(entry["files"]):
        path = served / f"v{manifest['version']:06}" / file["name"]
        assert file["name"].startswith(urllib.parse.quote(name, safe=""))
        content = path.read_bytes()
        assert len(content) == file["bytes"]
        parts = range(0, len(content), 4 * 2**20)
        sums = [f"{zlib.crc32(content[i : i + 4 * 2**20]):08x}" for i in parts]
        assert sums == file["crc32"], path
        tensors = read_safetensors(path)
        is_delta = manifest["kind"] == "delta"
        values = tensors[f"{name}.values" if is_delta else name]
        values = values.reshape(len(values), -1).view(np.uint8)
        at = file["offset"]
        assert content[at : at + values.size] == values.tobytes(), path
        if is_delta:
          changed = tensors[f"{name}.rows"]
          assert len(changed) == file["rows"] > 0, path
          deleted = 0 if i else entry["deleted_rows"]
          assert tensors[f"{name}.deleted"].shape == (deleted,), path
          changes.extend(changed)
        else:
          changed = file["first_row"] + np.arange(file["rows"])
          assert len(values) == file["rows"], path
        rows[changed] = values
      assert (np.diff(changes) > 0).all(), name
      assert len(changes) == entry.get("changed_rows", 0), name
  return tables
