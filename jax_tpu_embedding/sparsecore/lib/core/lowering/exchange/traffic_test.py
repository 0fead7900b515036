# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What compiled programs for several devices send, and what they copy."""

import functools
import math
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import compiled_text
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_DEVICES, _DIM, _BATCH = 4, 64, 16  # samples of a device
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=16)
_COO = random_coo.random_coo(
    num_sc_per_device=_DEVICES,
    rows_per_shard=16,
    batch_size_per_sc=_BATCH,
    ids_per_sample=2,
)
_BYTES = {"f32": 4, "s32": 4, "u32": 4}


def _look_up(coo, table):
  return lookup.lookup_p.bind(*coo, table, device_batch_size=_BATCH, **_LIMITS)


def _shared_memory(coo, table):
  """A lookup, and an update that ignores it."""
  activations = _look_up(coo, table)
  gradient = jnp.ones((_BATCH, _DIM))
  return activations, update.UPDATE_PRIMITIVES["sgd"].bind(
      *coo, table, gradient, np.float32(1), **_LIMITS
  )


def _messages(coo, table):
  """The same as between processes, by sending rows."""
  return _shared_memory(coo, table)


def _batches(coo, table):
  """The same by sending batches."""
  return _shared_memory(coo, table)


def _custom(coo, table):
  """A lookup, and an update by messages and plain rules."""
  activations = _look_up(coo, table)
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
  table = jax.ShapeDtypeStruct((_DEVICES * rows_per_device, _DIM), jnp.float32)
  return _compiled_for(program.__name__.lstrip("_"), program, table)


def _compiled_for(way, program, tables):
  """`program` of buffers and tables, which are donated, sent in one of _WAYS."""
  axis = jax.sharding.PartitionSpec("x")
  specs = (*[axis] * 4, jax.sharding.PartitionSpec())
  run = jax.jit(
      jax.shard_map(
          program,
          mesh=jax.sharding.Mesh(jax.devices(), ("x",)),
          in_specs=(specs, axis),
          out_specs=axis,
          check_vma=False,
      ),
      donate_argnums=1,
  )
  is_in_one_process = way not in ("messages", "batches")
  with (
      mock.patch.object(
          mesh_axis, "_is_in_one_process", lambda unused_mesh: is_in_one_process
      ),
      mock.patch.object(by_batches, "are_smaller", lambda *_: way == "batches"),
  ):
    return run.lower(_COO.operands, tables).compile()


def _step_of_stacks(primitive, params, coo, tables):
  """A lookup in each table, and an update that depends on it."""
  lookups = [
      of_stacks.OfStack(
          f"t{k}",
          lookup.lookup_p,
          (*coo, table),
          dict(device_batch_size=_BATCH, **_LIMITS),
      )
      for k, table in enumerate(tables)
  ]
  activations = of_stacks.bind(
      of_stacks.lookup_of_stacks_p, lookups, num_devices=_DEVICES
  )
  updates = [
      of_stacks.OfStack(
          f"t{k}",
          primitive,
          (*coo, table, jnp.tanh(gradient), np.float32(1)),
          params | _LIMITS,
      )
      for k, (table, (gradient,)) in enumerate(zip(tables, activations))
  ]
  if params:  # a custom update has the gradient before the table
    updates = [
        x._replace(operands=(*coo, x.operands[6], x.operands[5]))
        for x in updates
    ]
  return of_stacks.bind(
      of_stacks.update_of_stacks_p, updates, num_devices=_DEVICES
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


_PROGRAMS = [
    ("shared_memory", _shared_memory),
    ("messages", _messages),
    ("batches", _batches),
    ("custom", _custom),
]


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

  def test_batches_are_buffers_and_samples(self):
    sizes = _collectives(_compiled(_batches, 512))
    numbers = sum(np.asarray(x).size * 4 for x in _COO.operands[:4])
    samples = _BATCH * _DIM * 4
    # Buffers once, for the lookup and the update, activations in seven rounds,
    # and no gradients, since these are constant.
    self.assertEqual(
        sum(sizes.values()), numbers + (2 * _DEVICES - 1) * samples
    )

  def test_shared_memory_needs_addresses_only(self):
    sizes = _collectives(_compiled(_shared_memory, 512))
    # Records of 256 bytes, and one number to say that all have read.
    self.assertEqual(sum(sizes.values()), 2 * _DEVICES * (256 + 4))

  def test_shared_memory_copies_no_activations(self):
    compiled = _compiled(_shared_memory, 512)
    self.assertEmpty(
        compiled_text.copies(compiled.as_text(), rf"f32\[{_BATCH},{_DIM}\]")
    )

  def test_blocks_go_from_call_to_call(self):
    # Between native steps and collectives: nothing has all blocks of a message,
    # which would be put together or taken apart by copying them.
    text = _compiled(_messages, 512).as_text()
    block_size = _LIMITS["max_unique_ids_per_partition"]
    self.assertRegex(text, rf"f32\[{block_size},{_DIM}\].* all-to-all\(")
    self.assertNotRegex(text, rf"f32\[{_DEVICES},{block_size},{_DIM}\]")
    self.assertNotRegex(text, rf"f32\[{_DEVICES * block_size},{_DIM}\]")

  # A lookup and an update in shared memory have two each. By messages there are
  # requests, rows and gradients; batches have their buffers once, activations in
  # seven rounds, and gradients. A custom update checks buffers, and sends requests
  # and gradients.
  @parameterized.parameters(
      ("shared_memory", 4), ("messages", 3), ("batches", 9), ("custom", 5)
  )
  def test_stacks_share_messages(self, way, num_collectives):
    primitive, params = update.UPDATE_PRIMITIVES["sgd"], {}
    if way == "custom":
      primitive = custom_update.custom_update_p
      params = dict(
          num_hyperparameters=0,
          custom_computation_fn=lambda gradient, row: row - gradient,
      )
    for num_stacks in (1, 4, 12):
      tables = [
          jax.ShapeDtypeStruct((_DEVICES * 512, 8 + k), jnp.float32)
          for k in range(num_stacks)
      ]
      compiled = _compiled_for(
          way, functools.partial(_step_of_stacks, primitive, params), tables
      )
      with self.subTest(num_stacks=num_stacks):
        self.assertLen(_collectives(compiled), num_collectives)
        self.assertEmpty(
            compiled_text.copies(compiled.as_text(), r"f32\[512,\d+\]")
        )

  @parameterized.named_parameters(_PROGRAMS)
  def test_donated_table_is_not_copied(self, program):
    rows = 65536
    compiled = _compiled(program, rows)
    self.assertEmpty(
        compiled_text.copies(compiled.as_text(), rf"f32\[{rows},{_DIM}\]")
    )
    memory = compiled.memory_analysis()
    self.assertEqual(memory.alias_size_in_bytes, rows * _DIM * 4)
    self.assertLess(memory.temp_size_in_bytes, rows * _DIM * 4 // 8)


if __name__ == "__main__":
  absltest.main()
