# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What compiled programs for several devices send, and what they copy."""

import math
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import random_coo
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_DEVICES, _DIM, _BATCH = 4, 64, 16  # samples of a device
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=16)
_BYTES = {"f32": 4, "s32": 4, "u32": 4}

_messages_p = core.Primitive("messages")
_messages_p.def_abstract_eval(
    lambda *operands, device_batch_size, **params: jax.core.ShapedArray(
        (device_batch_size, _DIM), jnp.float32
    )
)
mlir.register_lowering(_messages_p, exchange.lookup(cpu.lookup))


def _look_up(primitive, coo, table):
  return primitive.bind(*coo, table, device_batch_size=_BATCH, **_LIMITS)


def _shared_memory(coo, table):
  """One step of Adagrad-like cost: a lookup, and an update that ignores it."""
  activations = _look_up(lookup.lookup_p, coo, table)
  gradient = jnp.ones((_BATCH, _DIM))
  return activations, update.UPDATE_PRIMITIVES["sgd"].bind(
      *coo, table, gradient, np.float32(1), **_LIMITS
  )


def _messages(coo, table):
  activations = _look_up(_messages_p, coo, table)
  (table,) = custom_update.custom_update_p.bind(
      *coo,
      activations,
      table,
      num_hyperparameters=0,
      custom_computation_fn=lambda gradient, row: row - gradient,
      **_LIMITS,
  )
  return activations, table


def _compiled(program, rows_per_device):
  axis = jax.sharding.PartitionSpec("x")
  coo = random_coo.random_coo(
      num_sc_per_device=_DEVICES,
      rows_per_shard=16,
      batch_size_per_sc=_BATCH,
      ids_per_sample=2,
  )
  specs = (*[axis] * 4, jax.sharding.PartitionSpec())
  table = jax.ShapeDtypeStruct((_DEVICES * rows_per_device, _DIM), jnp.float32)
  return (
      jax.jit(
          jax.shard_map(
              program,
              mesh=jax.sharding.Mesh(jax.devices(), ("x",)),
              in_specs=(specs, axis),
              out_specs=axis,
              check_vma=False,
          ),
          donate_argnums=1,
      )
      .lower(coo.operands, table)
      .compile()
  )


def _collectives(compiled) -> dict[str, int]:
  """Name of each collective -> bytes of its results, of one device."""
  sizes = {}
  pattern = r"%?(\S+) = (.*?) (?:all-to-all|all-gather|all-reduce|reduce-scatter|collective-\S+)\("
  for name, shapes in re.findall(pattern, compiled.as_text()):
    sizes[name] = sum(
        _BYTES[dtype] * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    )
  return sizes


_PROGRAMS = [("shared_memory", _shared_memory), ("messages", _messages)]


class TrafficTest(parameterized.TestCase):

  @parameterized.named_parameters(_PROGRAMS)
  def test_bytes_do_not_depend_on_the_table(self, program):
    small, large = (
        _collectives(_compiled(program, rows)) for rows in (512, 65536)
    )
    self.assertNotEmpty(small)
    self.assertEqual(sum(small.values()), sum(large.values()))

  def test_messages_are_rows_and_their_numbers(self):
    sizes = _collectives(_compiled(_messages, 512))
    # To and from each device 16 rows at most, forward and backward.
    rows = _DEVICES * _LIMITS["max_unique_ids_per_partition"]
    numbers, values = rows * 4, rows * _DIM * 4
    self.assertContainsSubset({values}, sizes.values())
    self.assertLessEqual(sum(sizes.values()), 2 * (numbers + values))

  def test_shared_memory_needs_addresses_only(self):
    sizes = _collectives(_compiled(_shared_memory, 512))
    # Records of 256 bytes, and one number to say that all have read.
    self.assertEqual(sum(sizes.values()), 2 * _DEVICES * (256 + 4))

  def test_shared_memory_copies_no_activations(self):
    compiled = _compiled(_shared_memory, 512)
    copies = re.findall(
        rf".*= f32\[{_BATCH},{_DIM}\]\S* copy\(.*", compiled.as_text()
    )
    self.assertEmpty(copies)

  @parameterized.named_parameters(_PROGRAMS)
  def test_donated_table_is_not_copied(self, program):
    rows = 65536
    compiled = _compiled(program, rows)
    copies = re.findall(
        rf".*= f32\[{rows},{_DIM}\]\S* (?:copy|copy-start)\(.*",
        compiled.as_text(),
    )
    self.assertEmpty(copies)
    memory = compiled.memory_analysis()
    self.assertEqual(memory.alias_size_in_bytes, rows * _DIM * 4)
    self.assertLess(memory.temp_size_in_bytes, rows * _DIM * 4 // 8)


if __name__ == "__main__":
  absltest.main()
