# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Converts checkpoints of NNX models for other devices, on a machine without.

    bazel run //jax_tpu_embedding/sparsecore/lib/flax/nnx:offline_converter -- \
        --input_checkpoint=/old --output_checkpoint=/new --target_num_devices=8

With the names and flags of jax_tpu_embedding 0.1. The program for checkpoints
that any devices restore is lib/checkpoint:convert.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import os
import pathlib

from absl import app
from absl import flags
from absl import logging
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import standard_output
from jax_tpu_embedding.sparsecore.lib.flax.nnx import checkpoint_utils

_OUTPUTS = "TEST_UNDECLARED_OUTPUTS_DIR"

_INPUT_CHECKPOINT = flags.DEFINE_string(
    "input_checkpoint", None, "A directory with checkpoints, or a .tgz of one."
)
_OUTPUT_CHECKPOINT = flags.DEFINE_string(
    "output_checkpoint", None, "A directory for the converted checkpoint."
)
_TARGET_NUM_DEVICES = flags.DEFINE_integer(
    "target_num_devices",
    None,
    "Devices of the job that is to read it. Default: tables are not stacked.",
)
_TARGET_DEVICE_KIND = flags.DEFINE_string(
    "target_device_kind",
    "TPU v5",
    "Their kind, which says how many SparseCores each has; _ stands for space.",
)
_TARGET_GLOBAL_BATCH_SIZE = flags.DEFINE_integer(
    "target_global_batch_size",
    None,
    "Of that job. Default: as it was. How tables are stacked may depend on it.",
)


class FakeDevice:
  """A device that is not there."""

  def __init__(self, device_id: int, device_kind: str = "TPU v5"):
    self.id = device_id
    self.device_kind = device_kind
    self.process_index = 0
    self.slice_index = 0
    self.platform = "tpu"
    self.memory_kind = "tpu_hbm"


def expand_directory_path(path: str | None) -> str | None:
  """An absolute path, of what a flag says.

  Args:
    path: as it is if it is None, absolute or a URL. The name of the environment
      variable TEST_UNDECLARED_OUTPUTS_DIR, with or without a path below it,
      stands for its value; such directories are made.

  Raises:
    ValueError: that variable is not set.
  """
  if path is None or os.path.isabs(path) or "://" in path:
    return path
  first, *below = pathlib.Path(path).parts or (".",)
  if first != _OUTPUTS:
    return str(pathlib.Path(path).resolve())
  outputs = os.environ.get(_OUTPUTS)
  if not outputs:
    raise ValueError(
        f"The path {path!r} needs the environment variable {_OUTPUTS}, which is"
        " not set."
    )
  target = pathlib.Path(outputs, *below)
  target.mkdir(parents=True, exist_ok=True)
  return str(target)


def run_conversion() -> None:
  """Converts as the flags say.

  Raises:
    ValueError: the device kind is unknown, or as
      convert_cross_topology_checkpoint.
    CheckpointError: the input is damaged, or the output cannot be written.
  """
  source = expand_directory_path(_INPUT_CHECKPOINT.value)
  target = expand_directory_path(_OUTPUT_CHECKPOINT.value)
  topology = None
  if _TARGET_NUM_DEVICES.value is not None:
    kind = _TARGET_DEVICE_KIND.value.replace("_", " ")
    topology = checkpoint_utils.TargetTopology(
        num_global_devices=_TARGET_NUM_DEVICES.value,
        num_sc_per_device=hardware.num_sparsecores_per_device(
            FakeDevice(0, kind)
        ),
        device_kind=kind,
    )
  if source.endswith(".tgz"):
    source = checkpoint_utils.decompress_checkpoint(source)
  checkpoint_utils.convert_cross_topology_checkpoint(
      input_checkpoint_path=source,
      output_checkpoint_path=target,
      target_topology=topology,
      target_batch_size=_TARGET_GLOBAL_BATCH_SIZE.value,
  )


def main(argv: Sequence[str]) -> None:
  del argv
  # A job on this machine may have the accelerators.
  jax.config.update("jax_platforms", "cpu")
  run_conversion()
  logging.info("Converted to %s.", _OUTPUT_CHECKPOINT.value)


if __name__ == "__main__":
  flags.mark_flags_as_required(["input_checkpoint", "output_checkpoint"])
  # What --help prints may have no reader.
  standard_output.run(functools.partial(app.run, main))
