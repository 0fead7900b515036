# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A donated table is updated where it is: no compiled program copies it."""

import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import compiled_text
from jax_tpu_embedding.sparsecore.lib.core.testing import device_buffers
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_ROWS, _DIM, _BATCH = 4096, 64, 8
_TABLE_BYTES = _ROWS * _DIM * 4
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)

_COO = random_coo.random_coo(
    num_sc_per_device=1,
    rows_per_shard=_ROWS,
    batch_size_per_sc=_BATCH,
    ids_per_sample=4,
)
_GRADIENT = np.ones((_BATCH, _DIM), np.float32)
_LEARNING_RATE = np.float32(0.5)


def _lookup(table):
  return lookup.lookup_p.bind(
      *_COO.operands, table, device_batch_size=_BATCH, **_LIMITS
  )


def _sgd(table, gradient=_GRADIENT):
  return update.UPDATE_PRIMITIVES["sgd"].bind(
      *_COO.operands, table, gradient, _LEARNING_RATE, **_LIMITS
  )


def _lookup_and_update(table, depends=False):
  activations = _lookup(table)
  gradient = activations if depends else _GRADIENT
  return activations, _sgd(table, gradient)


# Programs that take a table and return it, beside something smaller. The
# gradient does not depend on the activations, but for the first: that is what
# makes XLA copy a table that is not tied to its lookup.
def _dependent(table):
  return _lookup_and_update(table, depends=True)


def _two_updates(table):
  return _lookup(table), _sgd(_sgd(table))


def _two_steps(table):
  first, table = _lookup_and_update(table)
  second, table = _lookup_and_update(table)
  return (first, second), table


def _activations_unused(table):
  _, table = _lookup_and_update(table)
  return (), table


def _scan(table):
  def body(table, _):
    activations, table = _lookup_and_update(table)
    return table, activations

  table, activations = jax.lax.scan(body, table, None, length=3)
  return activations, table


def _fori_loop(table):
  def body(_, carry):
    activations, table = _lookup_and_update(carry[1])
    return carry[0] + activations, table

  zeros = jnp.zeros((_BATCH, _DIM))
  return jax.lax.fori_loop(0, 3, body, (zeros, table))


def _lookup_in_nested_jit(table):
  return jax.jit(_lookup)(table), _sgd(table)


def _lookup_in_a_branch(table):
  def doubled(table):
    return 2 * _lookup(table)

  activations = jax.lax.cond(table[0, 0] > 0, _lookup, doubled, table)
  return activations, _sgd(table)


def _lookup_rematerialized(table):
  return jax.checkpoint(_lookup)(table), _sgd(table)


def _read_by_other_operations(table):
  return (table[:5], table[jnp.arange(3) * 7], table.sum()), _sgd(table)


def _read_in_another_shape(table):
  return table.reshape(-1)[3:9], _sgd(table)


def _shard_map(table):
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  axis = jax.sharding.PartitionSpec("x")
  return jax.shard_map(
      _lookup_and_update,
      mesh=mesh,
      in_specs=axis,
      out_specs=axis,
      check_vma=False,
  )(table)


_PROGRAMS = [
    (program.__name__.lstrip("_"), program)
    for program in (
        _dependent,
        _lookup_and_update,
        _two_updates,
        _two_steps,
        _activations_unused,
        _scan,
        _fori_loop,
        _lookup_in_nested_jit,
        _lookup_in_a_branch,
        _lookup_rematerialized,
        _read_by_other_operations,
        _read_in_another_shape,
        _shard_map,
    )
]


def _table_copies(compiled) -> list[str]:
  """Instructions that copy something of the table's shape."""
  shape = re.escape(f"f32[{_ROWS},{_DIM}]")
  return compiled_text.copies(compiled.as_text(), shape)


class InPlaceTest(parameterized.TestCase):

  def assert_in_place(self, compiled, num_tables=1):
    self.assertEmpty(_table_copies(compiled))
    memory = compiled.memory_analysis()
    self.assertEqual(memory.alias_size_in_bytes, num_tables * _TABLE_BYTES)
    self.assertLess(memory.temp_size_in_bytes, _TABLE_BYTES // 2)

  @parameterized.named_parameters(_PROGRAMS)
  def test_program_does_not_copy_a_donated_table(self, program):
    table = jax.ShapeDtypeStruct((_ROWS, _DIM), jnp.float32)
    jitted = jax.jit(program, donate_argnums=0)
    self.assert_in_place(jitted.lower(table).compile())

  @parameterized.named_parameters(_PROGRAMS)
  def test_program_reads_the_table_before_the_update(self, program):
    # Without donation nothing is done in place, and no order is wrong.
    table = jnp.asarray(
        np.random.default_rng(0).normal(size=(_ROWS, _DIM)), jnp.float32
    )
    expected = jax.jit(program)(table)
    donated = jax.jit(program, donate_argnums=0)(table)
    jax.tree.map(np.testing.assert_array_equal, donated, expected)

  def test_the_check_sees_a_copy(self):
    # Not donated: the result needs memory of its own.
    table = jax.ShapeDtypeStruct((_ROWS, _DIM), jnp.float32)
    compiled = jax.jit(_lookup_and_update).lower(table).compile()
    self.assertNotEmpty(_table_copies(compiled))

  def test_copies_that_others_run_beside_are_seen(self):
    # As compilers for GPUs and TPUs write them.
    start = (
        "  %copy-start.1 = (f32[8,4]{1,0}, f32[8,4]{1,0}, u32[])"
        " copy-start(%table)"
    )
    done = "  %copy-done.1 = f32[8,4]{1,0} copy-done(%copy-start.1)"
    text = f"{start}\n{done}\n"
    self.assertEqual(compiled_text.copies(text, r"f32\[8,4\]"), [start])
    self.assertEmpty(compiled_text.copies(text, r"f32\[9,4\]"))

  @parameterized.parameters("shared_memory", "messages")
  def test_several_devices_do_not_copy_a_donated_table(self, way):
    coo = random_coo.random_coo(
        num_sc_per_device=2,
        rows_per_shard=_ROWS,
        batch_size_per_sc=_BATCH,
        ids_per_sample=4,
    )
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    axis = jax.sharding.PartitionSpec("x")

    def on_device(table, *buffers):
      coo_operands = (*buffers, coo.num_minibatches)
      activations = lookup.lookup_p.bind(
          *coo_operands, table, device_batch_size=_BATCH, **_LIMITS
      )
      return activations, update.UPDATE_PRIMITIVES["sgd"].bind(
          *coo_operands, table, _GRADIENT, _LEARNING_RATE, **_LIMITS
      )

    run = jax.shard_map(
        on_device, mesh=mesh, in_specs=axis, out_specs=axis, check_vma=False
    )
    table = jax.ShapeDtypeStruct(
        (2 * _ROWS, _DIM),
        jnp.float32,
        sharding=jax.sharding.NamedSharding(mesh, axis),
    )
    buffers = device_buffers.spread(coo, 2, 2)
    with mock.patch.object(
        mesh_axis, "_is_in_one_process", lambda _: way == "shared_memory"
    ):
      lowered = jax.jit(run, donate_argnums=0).lower(table, *buffers)
    self.assert_in_place(lowered.compile())

  def test_an_update_waits_for_one_result_of_a_lookup_of_stacks(self):
    # Each for those of all would be as many as stacks times stacks.
    num_stacks = 5
    coo = random_coo.random_coo(
        num_sc_per_device=2,
        rows_per_shard=_ROWS,
        batch_size_per_sc=_BATCH,
        ids_per_sample=4,
    )

    def on_device(tables, *buffers):
      coo_operands = (*buffers, coo.num_minibatches)
      activations = of_stacks.bind(
          of_stacks.lookup_of_stacks_p,
          [
              of_stacks.OfStack(
                  f"t{k}",
                  lookup.lookup_p,
                  (*coo_operands, table),
                  dict(device_batch_size=_BATCH, **_LIMITS),
              )
              for k, table in enumerate(tables)
          ],
          num_devices=2,
      )
      return activations, of_stacks.bind(
          of_stacks.update_of_stacks_p,
          [
              of_stacks.OfStack(
                  f"t{k}",
                  update.UPDATE_PRIMITIVES["sgd"],
                  (*coo_operands, table, _GRADIENT, _LEARNING_RATE),
                  _LIMITS,
              )
              for k, table in enumerate(tables)
          ],
          num_devices=2,
      )

    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    axis = jax.sharding.PartitionSpec("x")
    run = jax.shard_map(
        on_device, mesh=mesh, in_specs=axis, out_specs=axis, check_vma=False
    )
    table = jax.ShapeDtypeStruct(
        (2 * _ROWS, _DIM),
        jnp.float32,
        sharding=jax.sharding.NamedSharding(mesh, axis),
    )
    buffers = device_buffers.spread(coo, 2, 2)
    lowered = jax.jit(run, donate_argnums=0).lower(
        [table] * num_stacks, *buffers
    )
    calls = re.findall(
        r"custom_call @jte_update_cpu\((.*?)\)", lowered.as_text()
    )
    self.assertLen(calls, num_stacks)
    for operands in calls:
      # Buffers, gradient, table, rate, records, device; and what it waits for.
      self.assertLen(operands.split(", "), 5 + 5 + 1)
    self.assert_in_place(lowered.compile(), num_stacks)

  @parameterized.parameters(list(cpu.FUSED_UPDATE_RULES))
  def test_slots_are_updated_in_place(self, name):
    rule = update_rules.UPDATE_RULES[name]
    hyperparameters = [
        np.bool_(True) if n in rule.bool_hyperparameters else _LEARNING_RATE
        for n in rule.hyperparameters
    ]
    static_params = tpu_operands.static_params(rule)

    def program(*tables):
      return _lookup(tables[0]), update.UPDATE_PRIMITIVES[name].bind(
          *_COO.operands,
          *tables,
          _GRADIENT,
          *hyperparameters,
          **static_params,
          **_LIMITS,
      )

    shape = (_ROWS, _DIM)
    tables = [
        jax.ShapeDtypeStruct(s, jnp.float32)
        for s in (shape, *(rule.slot_shape(n, shape) for n in rule.slots))
    ]
    jitted = jax.jit(program, donate_argnums=tuple(range(len(tables))))
    num_full_slots = len(rule.slots) - len(rule.row_slots)
    self.assert_in_place(
        jitted.lower(*tables).compile(),
        num_tables=1 + num_full_slots + len(rule.row_slots) / _DIM,
    )

  def test_activations_may_be_larger_than_a_slot(self):
    # Row-wise Adagrad has one number per row, and here activations for each.
    batch_size = _ROWS // _DIM
    coo = random_coo.random_coo(
        num_sc_per_device=1,
        rows_per_shard=_ROWS,
        batch_size_per_sc=batch_size,
        ids_per_sample=4,
    )
    limits = dict.fromkeys(_LIMITS, 8 * batch_size)

    def program(table, accumulator):
      activations = lookup.lookup_p.bind(
          *coo.operands, table, device_batch_size=batch_size, **limits
      )
      return activations, update.UPDATE_PRIMITIVES["rowwise_adagrad"].bind(
          *coo.operands,
          table,
          accumulator,
          np.ones((batch_size, _DIM), np.float32),
          _LEARNING_RATE,
          np.float32(1e-8),
          embedding_dim=_DIM,
          **limits,
      )

    jitted = jax.jit(program, donate_argnums=(0, 1))
    lowered = jitted.lower(
        jax.ShapeDtypeStruct((_ROWS, _DIM), jnp.float32),
        jax.ShapeDtypeStruct((_ROWS, 1), jnp.float32),
    )
    self.assertEmpty(_table_copies(lowered.compile()))

  @parameterized.parameters(True, False)
  def test_ref_is_updated_in_place(self, depends):
    @jax.jit
    def step(ref):
      activations, new = _lookup_and_update(ref[...], depends)
      ref[...] = new
      return activations

    ref = jax.new_ref(jnp.ones((_ROWS, _DIM)))
    address = ref.unsafe_buffer_pointer()
    self.assert_in_place(step.lower(ref).compile())
    before = np.array(ref[...])
    activations = step(ref)
    np.testing.assert_allclose(activations, _COO.weights @ before, rtol=1e-5)
    np.testing.assert_array_equal(
        np.any(ref[...] != before, axis=1), _COO.touched
    )
    self.assertEqual(ref.unsafe_buffer_pointer(), address)

  def test_donated_table_stays_where_it_is(self):
    step = jax.jit(_lookup_and_update, donate_argnums=0)
    table = jnp.ones((_ROWS, _DIM))
    address = table.unsafe_buffer_pointer()
    for _ in range(3):
      _, table = step(table)
      self.assertEqual(table.unsafe_buffer_pointer(), address)

  def test_reference_updates_in_place_after_a_lookup_that_it_needs(self):
    rule = update_rules.UPDATE_RULES["sgd"]

    def program(table):
      activations = lookup_and_update.lookup(
          *_COO.operands,
          table,
          device_batch_size=_BATCH,
          num_sc_per_device=1,
      )
      operands = (*_COO.operands, table, activations, _LEARNING_RATE)
      (table,) = lookup_and_update.update(
          rule, rule.group_operands(operands), num_sc_per_device=1
      )
      return activations, table

    table = jax.ShapeDtypeStruct((_ROWS, _DIM), jnp.float32)
    jitted = jax.jit(program, donate_argnums=0)
    self.assert_in_place(jitted.lower(table).compile())


if __name__ == "__main__":
  absltest.main()
