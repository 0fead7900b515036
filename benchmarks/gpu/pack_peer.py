# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Packs FBGEMM's training for one kind of GPU, small enough to be carried.

    python3 benchmarks/gpu/pack_peer.py --output=fbgemm.tar.xz [--wheel=FILE]

Without --wheel, pip downloads it. The wheel has 2.5 GB of libraries, with the
code of every optimizer for three architectures. What peers.py runs is kept: the
libraries of training, and of their device code that of one architecture and of
the optimizers in _KEPT_KERNELS. What is left out of a library is zeros, which
are holes in the archive and take no room; so no offset in it changes. Needs
pip, tar, xz and zstd.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import dataclasses
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

# The release that is made for PyTorch 2.11 and CUDA 13.
_PACKAGE = "fbgemm-gpu==1.6.0"
_ARCHITECTURE = 90  # Hopper: H100 and H200

# The names of kernels to keep, for libraries whose objects are one optimizer
# or one kind of lookup each. Other libraries keep all their objects, and small
# objects are kept everywhere: they hold what the others share.
_NO_KERNELS = r"(?!)"
_KEPT_KERNELS = {
    "fbgemm_gpu_tbe_training_forward.so": (
        r"split_embedding_codegen_forward_unweighted(_v2)?_kernel"
    ),
    "fbgemm_gpu_tbe_training_backward.so": (
        r"split_embedding_backward_codegen_(adagrad|adam|rowwise_adagrad|sgd)"
        r"_unweighted_kernel_(cta|warp)_per_row_1"
    ),
    # Batches of several sizes, and global weight decay. They define operators
    # that the libraries beside them look up by name.
    "fbgemm_gpu_tbe_training_backward_gwd.so": _NO_KERNELS,
    "fbgemm_gpu_tbe_training_backward_vbe.so": _NO_KERNELS,
}
_SHARED_OBJECT_BYTES = 400_000

# Libraries that no step of peers.py calls, and that no kept one links.
_UNLOADED_LIBRARY = "fbgemm_gpu_embedding_inplace_ops"  # not by __init__.py
_DROPPED_LIBRARIES = (
    _UNLOADED_LIBRARY,
    "fbgemm_gpu_tbe_index_select",
    "fbgemm_gpu_tbe_inference",
    "fbgemm_gpu_tbe_optimizers",
    "fbgemm_gpu_tbe_training_backward_dense",
)

# --- Fat binaries ---

# Source: the layout that `fatbinary` of CUDA 13.0 writes; it has no document.
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, header bytes, bytes
_MAGIC = 0xBA55ED50
_CUBIN = 2
_IS_ZSTD = 0x8000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """The code of one object for one architecture."""

  start: int  # of its header
  header_bytes: int
  padded_bytes: int  # of its code, which follows the header
  compressed_bytes: int  # before padding; 0 if the code is not compressed
  kind: int
  architecture: int
  is_zstd: bool

  @property
  def end(self) -> int:
    return self.start + self.header_bytes + self.padded_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Container:
  """The entries of one object."""

  start: int
  header_bytes: int
  entries: tuple[Entry, ...]


def containers(data: bytes | bytearray) -> Iterator[Container]:
  """The containers of a library."""
  magic = struct.pack("<I", _MAGIC)
  start = data.find(magic)
  while start >= 0:
    _, _, header_bytes, num_bytes = _CONTAINER.unpack_from(data, start)
    position = start + header_bytes
    end = position + num_bytes
    entries = []
    while position < end:
      entries.append(_entry(data, position))
      position = entries[-1].end
    yield Container(
        start=start, header_bytes=header_bytes, entries=tuple(entries)
    )
    start = data.find(magic, end)


def _entry(data: bytes | bytearray, start: int) -> Entry:
  kind, _, header_bytes, padded_bytes = struct.unpack_from("<HHIQ", data, start)
  (compressed_bytes,) = struct.unpack_from("<I", data, start + 16)
  (architecture,) = struct.unpack_from("<I", data, start + 28)
  (flags,) = struct.unpack_from("<Q", data, start + 40)
  return Entry(
      start=start,
      header_bytes=header_bytes,
      padded_bytes=padded_bytes,
      compressed_bytes=compressed_bytes,
      kind=kind,
      architecture=architecture,
      is_zstd=bool(flags & _IS_ZSTD),
  )


def kernel_names(data: bytes | bytearray, entry: Entry) -> str:
  """The mangled names of an entry's kernels, as the ELF file's strings."""
  start = entry.start + entry.header_bytes
  code = bytes(data[start : entry.end])
  if entry.is_zstd:
    code = subprocess.run(
        ["zstd", "--decompress", "--quiet", "--stdout"],
        input=code[: entry.compressed_bytes],
        check=True,
        capture_output=True,
    ).stdout
  # Section headers: where the names of sections are, .text.KERNEL among them.
  (offset,) = struct.unpack_from("<Q", code, 0x28)
  size, _, names = struct.unpack_from("<HHH", code, 0x3A)
  start, num_bytes = struct.unpack_from("<QQ", code, offset + size * names + 24)
  return code[start : start + num_bytes].decode()


def strip(data: bytearray, architecture: int, kernels: str) -> tuple[int, int]:
  """Leaves one architecture's code in a library, of some kernels.

  A kept object looks as if it had been compiled for that architecture alone. An
  object that is left out looks as if it had been compiled for another one
  alone, which the driver accepts until one of its kernels is launched. (Of the
  other one there is a header and no code.)

  Args:
    data: the library; changed.
    architecture: such as 90.
    kernels: a pattern of names; objects without them are left out, but for
      small ones. Empty keeps all.

  Returns:
    The number of objects, and of those that are kept.

  Raises:
    ValueError: if an object has no code for the architecture.
  """
  num_objects = num_kept = 0
  # A list, since the loop changes the headers that make up the iteration.
  for container in list(containers(data)):
    num_objects += 1
    of_architecture = [
        x
        for x in container.entries
        if (x.kind, x.architecture) == (_CUBIN, architecture)
    ]
    if len(of_architecture) != 1:
      raise ValueError(
          f"The object at byte {container.start} has"
          f" {len(of_architecture)} entries for sm_{architecture}, not one."
      )
    (entry,) = of_architecture
    is_kept = (
        not kernels
        or entry.padded_bytes < _SHARED_OBJECT_BYTES
        # The digits of its length come before a mangled name.
        or re.search(rf"\d{kernels}", kernel_names(data, entry)) is not None
    )
    num_kept += is_kept
    if is_kept:
      kept = bytes(data[entry.start : entry.end])
    else:
      other = next(x for x in container.entries if x is not entry)
      header = data[other.start : other.start + other.header_bytes]
      kept = bytes(header) + bytes(other.padded_bytes)
    start = container.start + container.header_bytes
    end = container.entries[-1].end
    data[start:end] = kept + bytes(end - start - len(kept))
    struct.pack_into("<Q", data, container.start + 8, len(kept))
  return num_objects, num_kept


# --- The archive ---


def _without_dropped(source: str) -> str:
  """FBGEMM's __init__.py without the libraries that are not there.

  Raises:
    ValueError: if one is not in its list.
  """
  for name in _DROPPED_LIBRARIES:
    line = f'    "{name}",\n'
    if name != _UNLOADED_LIBRARY and line not in source:
      raise ValueError(f"fbgemm_gpu/__init__.py does not load {name}.")
    source = source.replace(line, "")
  return source


def _write_sparse(path: pathlib.Path, data: bytes | bytearray) -> None:
  """Writes a file whose pages of zeros are holes."""
  page = 4096
  zeros = bytes(page)
  with path.open("wb") as file:
    for start in range(0, len(data), page):
      part = data[start : start + page]
      if part == zeros[: len(part)]:
        file.seek(len(part), 1)
      else:
        file.write(part)
    file.truncate(len(data))


def _unpack(wheel: pathlib.Path, directory: pathlib.Path) -> None:
  """Writes what is kept of a wheel."""
  with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
      path = pathlib.PurePosixPath(name)
      if path.parts[0] != "fbgemm_gpu" or path.stem in _DROPPED_LIBRARIES:
        continue
      if path.suffix not in (".py", ".so"):
        continue
      data = bytearray(archive.read(name))
      if name == "fbgemm_gpu/__init__.py":
        data = _without_dropped(data.decode()).encode()
      elif path.suffix == ".so":
        kernels = _KEPT_KERNELS.get(path.name, "")
        num_objects, num_kept = strip(data, _ARCHITECTURE, kernels)
        print(f"{path.name}: {num_kept} of {num_objects} objects", flush=True)
      target = directory / path
      target.parent.mkdir(parents=True, exist_ok=True)
      _write_sparse(target, data)


def _pack(directory: pathlib.Path, output: pathlib.Path) -> None:
  """Writes an archive whose extraction restores the holes."""
  tar = subprocess.Popen(
      ["tar", "--sparse", "--sort=name", "--owner=0", "--group=0"]
      + ["--mtime=@0", "-cf", "-", "-C", str(directory), "fbgemm_gpu"],
      stdout=subprocess.PIPE,
  )
  with output.open("wb") as file:
    # Objects of one optimizer are much like those of another, 40 MiB away.
    subprocess.run(
        ["xz", "--x86", "--lzma2=preset=9e,dict=256MiB", "--stdout"],
        stdin=tar.stdout,
        stdout=file,
        check=True,
    )
  if tar.wait():
    raise RuntimeError(f"tar of {directory} ended with {tar.returncode}.")


def _download(directory: pathlib.Path) -> pathlib.Path:
  """The wheel, from PyPI."""
  subprocess.run(
      [sys.executable, "-m", "pip", "download", _PACKAGE, "--no-deps"]
      + ["--only-binary=:all:", "--python-version=3.12"]
      + ["--platform=manylinux_2_28_x86_64", f"--dest={directory}"],
      check=True,
  )
  (wheel,) = directory.glob("*.whl")
  return wheel


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--output", type=pathlib.Path, required=True)
  parser.add_argument("--wheel", type=pathlib.Path)
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as directory:
    directory = pathlib.Path(directory)
    unpacked = directory / "unpacked"
    unpacked.mkdir()
    _unpack(arguments.wheel or _download(directory), unpacked)
    _pack(unpacked, arguments.output)
  mebibytes = arguments.output.stat().st_size / 2**20
  print(f"{arguments.output}: {mebibytes:.1f} MiB")


if __name__ == "__main__":
  main()
