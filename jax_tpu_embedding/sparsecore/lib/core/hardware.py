# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How many SparseCores a device has, and how many CPUs this process."""

from __future__ import annotations

import os
from typing import Protocol

import jax
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter

# Device kind -> SparseCores per device. Read at call time: a caller may add the
# kind of a new chip.
NUM_SC_PER_DEVICE_MAP = {
    "TPU v5": 4,
    "TPU v5p": 4,
    "TPU v6e": 2,
    "TPU v6 lite": 2,
    "TPU7x": 2,
}

# SparseCores that devices without any are divided into; see below.
NUM_SC_ENV = "JAX_TPU_EMBEDDING_NUM_SC_PER_DEVICE"

# Kinds of TPUs without SparseCores that programs can use.
TPU_KINDS_WITHOUT_SPARSECORES = (
    "TPU v2",
    "TPU v3",
    "TPU v4",
    "TPU v4 lite",
    "TPU v5 lite",
    "TPU v5e",
)

# Platforms that have no SparseCores and run the same programs without them.
_EMULATING_PLATFORMS = ("cpu", "gpu", "cuda", "rocm")


class DeviceLike(Protocol):
  """What is asked of a device: real, described by a topology, or a test's."""

  @property
  def device_kind(self) -> str:
    ...


def num_sparsecores_per_device(device: DeviceLike | None = None) -> int:
  """The number of SparseCores of `device` (default: the first JAX device).

  CPUs, GPUs, and TPUs v5e, v4 and older have none. There the number is free: it only says into how many
  shards a device's part of the tables is divided. It is the value of the
  environment variable JAX_TPU_EMBEDDING_NUM_SC_PER_DEVICE, or 1.

  Raises:
    ValueError: if the device has no device kind, or a kind that is not in
      NUM_SC_PER_DEVICE_MAP, or the environment variable is not a positive
      integer.
  """
  if device is None:
    device = jax.devices()[0]
  kind = getattr(device, "device_kind", None)
  if kind is None:
    raise ValueError(
        f"{device!r} has no device_kind, so its number of SparseCores is"
        " unknown. Pass a JAX device or num_sc_per_device."
    )
  if kind in NUM_SC_PER_DEVICE_MAP:
    return NUM_SC_PER_DEVICE_MAP[kind]
  if emulates_sparsecores(device):
    return _num_emulated_sparsecores()
  raise ValueError(
      f"Unknown sparsecore count for device kind {kind!r}. Known kinds:"
      f" {', '.join(sorted(NUM_SC_PER_DEVICE_MAP))}; without SparseCores:"
      f" {', '.join(TPU_KINDS_WITHOUT_SPARSECORES)}. Pass num_sc_per_device."
  )


def emulates_sparsecores(device: DeviceLike) -> bool:
  """Whether `device` runs the programs without having SparseCores."""
  if is_tpu_without_sparsecores(device):
    return True
  # What a GPU calls its kind is a product name; its platform tells.
  return getattr(device, "platform", device.device_kind) in _EMULATING_PLATFORMS


def is_tpu_without_sparsecores(device: DeviceLike) -> bool:
  """Whether `device` is a TPU that runs the programs in plain JAX."""
  return (
      device.device_kind in TPU_KINDS_WITHOUT_SPARSECORES
      and device.device_kind not in NUM_SC_PER_DEVICE_MAP
  )


def resolve_num_sc_per_device(num_sc_per_device: int | None) -> int:
  """`num_sc_per_device` if given, else that of the first JAX device.

  Raises:
    ValueError: if the number is not positive, or not given and unknown.
  """
  if num_sc_per_device is None:
    return num_sparsecores_per_device()
  if num_sc_per_device <= 0:
    raise ValueError(
        f"Invalid num_sc_per_device: {num_sc_per_device}. It must be positive."
    )
  return num_sc_per_device


def num_schedulable_cpus() -> int:
  """CPUs that this process may use, by its affinity and its control groups."""
  return converter.num_schedulable_cpus()


def _num_emulated_sparsecores() -> int:
  value = os.environ.get(NUM_SC_ENV, "1")
  if not value.isdecimal() or int(value) == 0:
    raise ValueError(
        f"The environment variable {NUM_SC_ENV} must be a positive integer,"
        f" got {value!r}."
    )
  return int(value)
