# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""When programs for GPUs call our kernels. None is run here."""

import subprocess
import sys
from unittest import mock
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import export
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cuda_library
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)  # as the tests beside this one

_COO = random_coo.random_coo(
    num_sc_per_device=1,
    rows_per_shard=16,
    batch_size_per_sc=8,
    ids_per_sample=2,
)
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
_TABLE = jax.ShapeDtypeStruct((16, 8), jnp.float32)
_CALLS = [
    "jte_group_by_sample_cuda",
    "jte_pool_samples_cuda",
    "jte_group_by_row_cuda",
    "jte_step_rows_cuda",
]


def _step(table):
  activations = lookup.lookup_p.bind(
      *_COO.operands, table, device_batch_size=8, **_LIMITS
  )
  return update.UPDATE_PRIMITIVES["sgd"].bind(
      *_COO.operands, table, activations, np.float32(0.5), **_LIMITS
  )


def _lowered(platform="cuda"):
  step = jax.jit(lambda table: _step(table))  # JAX keeps what it has lowered
  return step.trace(_TABLE).lower(lowering_platforms=(platform,)).as_text()


def _library(driver_version, oldest_gpu=0):
  """As if the library were here, with such a driver and GPU."""
  library = mock.Mock(OLDEST_DRIVER=13000, OLDEST_GPU=80)
  library.driver_version.return_value = driver_version
  library.oldest_gpu.return_value = oldest_gpu
  return library


class CudaLibraryTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    cuda_library.is_usable.cache_clear()
    self.addCleanup(cuda_library.is_usable.cache_clear)

  def with_library(self, library):
    self.enter_context(mock.patch.object(cuda_library, "ffi_cuda", library))

  @parameterized.parameters((0, 0), (13000, 80), (13020, 120), (13000, 0))
  def test_it_is_used_with_a_new_driver_and_without_one(self, version, gpu):
    self.with_library(_library(version, gpu))
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      self.assertTrue(cuda_library.is_usable())

  @parameterized.named_parameters(
      ("not_built", None, "ffi_cuda.so was left out .*--//tools:cuda=false"),
      (
          "old_driver",
          _library(12080),
          r"the driver is for CUDA 12\.8 at most, and they need 13\.0\.",
      ),
      (
          "old_gpu",
          _library(13000, 75),
          r"a GPU has compute capability 7\.5, and they need 8\.0 ",
      ),
  )
  def test_plain_operations_without_it_and_one_warning(self, library, message):
    self.with_library(library)
    with self.assertWarnsRegex(UserWarning, f"plain JAX.*{message}"):
      text = _lowered()
    self.assertNotIn("@jte_", text)
    # Of integers; that of floats is for no GPU (gpu_test.py).
    self.assertIn("stablehlo.scatter", text)
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      self.assertEqual(_lowered(), text)

  @mock.patch.dict("os.environ", JAX_TPU_EMBEDDING_GPU="plain")
  def test_plain_operations_where_they_are_asked_for(self):
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      self.assertNotIn("@jte_", _lowered())

  @mock.patch.dict("os.environ", JAX_TPU_EMBEDDING_GPU="calls")
  def test_another_way_raises(self):
    with self.assertRaisesRegex(
        ValueError, "JAX_TPU_EMBEDDING_GPU: there is no way 'calls'.*'plain'"
    ):
      cuda_library.is_usable()

  def test_other_gpus_run_plain_operations(self):
    self.assertNotIn("@jte_", _lowered("rocm"))


@absltest.skipIf(cuda_library.ffi_cuda is None, "Built without CUDA.")
class LoweredForGpuTest(absltest.TestCase):

  def test_programs_have_our_calls_and_no_scatter(self):
    text = _lowered()
    for call in _CALLS:
      self.assertEqual(text.count(f"custom_call @{call}("), 1, call)
    self.assertNotIn("stablehlo.scatter", text)

  def test_an_exported_program_comes_back(self):
    exported = export.export(
        jax.jit(_step),
        platforms=["cuda"],
        disabled_checks=[
            export.DisabledSafetyCheck.custom_call(call) for call in _CALLS
        ],
    )(_TABLE)
    loaded = export.deserialize(exported.serialize())
    self.assertEqual(loaded.platforms, ("cuda",))
    self.assertIn("@jte_step_rows_cuda", loaded.mlir_module())

  def test_every_call_has_a_handler(self):
    self.assertContainsSubset(
        _CALLS, cuda_library.ffi_cuda.registrations().keys()
    )

  def test_importing_loads_no_driver(self):
    program = (
        "import importlib, sys\n"
        "importlib.import_module(sys.argv[1])\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'ffi_cuda.so' in maps\n"
        "print([name for name in ('libcuda.', 'libcudart', 'xla_cuda')"
        " if name in maps])"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", program, cuda_library.__name__],
        env={"PYTHONPATH": ":".join(sys.path)},
        text=True,
    )
    self.assertEqual(output, "[]\n")


if __name__ == "__main__":
  absltest.main()
