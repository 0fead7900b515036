# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Conversions, lookups and updates as XLA compiles them for GPUs. None is run."""

import functools
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.gpu import topology
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cuda_library
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import compiled_text
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report

# Each device's part. The activations are small beside the table, so that what
# moves a table is seen.
_ROWS, _DIM, _BATCH, _CELLS = 1 << 20, 64, 256, 2048
_TABLE_BYTES = _ROWS * _DIM * 4
_CALLS = [
    "jte_group_by_row_cuda",
    "jte_group_by_sample_cuda",
    "jte_pool_samples_cuda",
    "jte_step_rows_cuda",
]
_CALLS_OVER_DEVICES = [
    "jte_group_known_by_sample_cuda",
    "jte_group_rows_cuda",
    "jte_group_rows_cuda",
    "jte_pack_messages_cuda",
    "jte_pool_samples_cuda",
    "jte_read_rows_cuda",
    "jte_step_rows_cuda",
    "jte_sum_rows_cuda",
]
# Numbers of rows to their owners, rows back, and gradients to the owners. The
# update asks for the rows that the lookup asked for, and XLA sees it.
_NUM_ALL_TO_ALLS = 3


_needs_kernels = absltest.skipIf(
    cuda_library.ffi_cuda is None, "Built without CUDA."
)


def _step(rule, coo, tables, depends):
  """A lookup and the update of its table, with a model between them or not."""
  limits = dict(
      max_ids_per_partition=_CELLS, max_unique_ids_per_partition=_CELLS
  )
  activations = lookup.lookup_p.bind(
      *coo, tables[0], device_batch_size=_BATCH, **limits
  )
  gradient = jnp.tanh(activations) if depends else jnp.ones_like(activations)
  hyperparameters = [
      jnp.bool_(True) if name in rule.bool_hyperparameters else jnp.float32(0.1)
      for name in rule.hyperparameters
  ]
  return activations, update.UPDATE_PRIMITIVES[rule.name].bind(
      *coo,
      *tables,
      gradient,
      *hyperparameters,
      **tpu_operands.static_params(rule),
      **limits,
  )


@functools.cache
def _compiled(name, optimizer="adagrad", depends=False):
  """The step, compiled for the GPUs `name`, with its tables donated."""
  mesh = topology.topology_mesh(name)
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
  whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  rule = update_rules.UPDATE_RULES[optimizer]

  def shape(*shape, dtype=jnp.float32):
    shape = (mesh.size * shape[0], *shape[1:])
    return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

  coo = (
      shape(max(mesh.size, 8), dtype=jnp.int32),
      shape(_CELLS, dtype=jnp.int32),
      shape(_CELLS, dtype=jnp.int32),
      shape(_CELLS),
      jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
  )
  shapes = [(_ROWS, _DIM)]
  shapes += [rule.slot_shape(n, shapes[0]) for n in rule.slots]
  step = jax.jit(
      jax.shard_map(
          lambda coo, tables: _step(rule, coo, tables, depends),
          mesh=mesh,
          in_specs=((rows.spec,) * 4 + (whole.spec,), rows.spec),
          out_specs=rows.spec,
          check_vma=False,
      ),
      donate_argnums=1,
  )
  return step.lower(coo, [shape(*s) for s in shapes]).compile()


def _compiled_from_ids(name):
  """Ids of a ragged feature to buffers, a lookup, and an update of its table."""
  mesh = topology.topology_mesh(name)
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
  feature = raw_ids.Feature(
      name="f",
      vocabulary_size=mesh.size * _ROWS,
      is_ragged=True,
      has_weights=True,
  )
  limits = dict(
      max_ids_per_partition=_CELLS, max_unique_ids_per_partition=_CELLS
  )

  def step(ids, splits, weights, table):
    buffers = convert_ids.convert_ids_p.bind(
        ids,
        splits,
        weights,
        combiner="mean",
        global_device_count=mesh.size,
        num_sc_per_device=1,
        features=(feature,),
        feature_stacking_strategy="SPLIT_THEN_STACK",
    )
    coo = (*buffers, jnp.int32(1))
    activations = lookup.lookup_p.bind(
        *coo, table, device_batch_size=_BATCH, **limits
    )
    return update.UPDATE_PRIMITIVES["sgd"].bind(
        *coo, table, jnp.tanh(activations), jnp.float32(0.1), **limits
    )

  def shape(*shape, dtype=jnp.float32):
    shape = (mesh.size * shape[0], *shape[1:])
    return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

  on_devices = jax.shard_map(
      step, mesh=mesh, in_specs=rows.spec, out_specs=rows.spec, check_vma=False
  )
  return (
      jax.jit(on_devices, donate_argnums=3)
      .lower(
          shape(_CELLS, dtype=jnp.int32),
          shape(_BATCH + 1, dtype=jnp.int32),
          shape(_CELLS),
          shape(_ROWS, _DIM),
      )
      .compile()
  )


def _compiled_of_stacks(name, num_stacks):
  """A lookup in each of some stacks, and updates that depend on them."""
  mesh = topology.topology_mesh(name)
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
  limits = dict(
      max_ids_per_partition=_CELLS, max_unique_ids_per_partition=_CELLS
  )

  def step(batches, tables):
    batches = [(*coo, jnp.int32(1)) for coo in batches]
    activations = of_stacks.bind(
        of_stacks.lookup_of_stacks_p,
        [
            of_stacks.OfStack(
                f"t{k}",
                lookup.lookup_p,
                (*coo, table),
                dict(device_batch_size=_BATCH, **limits),
            )
            for k, (coo, table) in enumerate(zip(batches, tables))
        ],
        num_devices=mesh.size,
    )
    return of_stacks.bind(
        of_stacks.update_of_stacks_p,
        [
            of_stacks.OfStack(
                f"t{k}",
                update.UPDATE_PRIMITIVES["sgd"],
                (*coo, table, jnp.tanh(gradient), jnp.float32(0.1)),
                limits,
            )
            for k, (coo, table, (gradient,)) in enumerate(
                zip(batches, tables, activations)
            )
        ],
        num_devices=mesh.size,
    )

  def shape(num_rows, *columns, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(
        (mesh.size * num_rows, *columns), dtype, sharding=rows
    )

  cells = [shape(_CELLS, dtype=x) for x in (jnp.int32, jnp.int32, jnp.float32)]
  coo = (shape(max(mesh.size, 8), dtype=jnp.int32), *cells)
  tables = [
      # Of 16 and 32 bits, in one message.
      shape(1 << 16, 8 * (k + 1), dtype=jnp.bfloat16 if k % 2 else jnp.float32)
      for k in range(num_stacks)
  ]
  on_devices = jax.shard_map(
      step, mesh=mesh, in_specs=rows.spec, out_specs=rows.spec, check_vma=False
  )
  step = jax.jit(on_devices, donate_argnums=1)
  return step.lower([coo] * num_stacks, tables).compile()


def _calls(text):
  """The targets of the program's calls of ours, in the order of names."""
  return sorted(re.findall(r'custom_call_target="(jte_\w+)"', text))


def _table_copies(text):
  shape = re.escape(f"f32[{_ROWS},{_DIM}]")
  return compiled_text.copies(text, shape)


class CompileTest(parameterized.TestCase):

  def assert_in_place(self, compiled, num_tables=2):
    self.assertEmpty(_table_copies(compiled.as_text()))
    report = memory_report.memory_report(compiled)
    self.assertEqual(report.aliased_bytes, num_tables * _TABLE_BYTES)
    self.assertLess(report.temporary_bytes, _TABLE_BYTES // 2)

  def assert_by_kernels(self, compiled):
    text = compiled.as_text()
    self.assertEqual(_calls(text), _CALLS)
    self.assertNotRegex(text, r"\bscatter\(")

  @parameterized.parameters("a100:1", "h100:1", "b200:1")
  @_needs_kernels
  def test_one_gpu_runs_our_kernels_in_place(self, name):
    compiled = _compiled(name)
    self.assert_in_place(compiled)
    self.assert_by_kernels(compiled)

  @_needs_kernels
  def test_a_gradient_that_the_activations_decide_changes_nothing(self):
    compiled = _compiled("h100:1", depends=True)
    self.assert_in_place(compiled)
    self.assert_by_kernels(compiled)

  @parameterized.parameters(
      sorted(set(update_rules.UPDATE_RULES) - {"adagrad"})
  )
  @_needs_kernels
  def test_every_optimizer_is_in_place(self, optimizer):
    rule = update_rules.UPDATE_RULES[optimizer]
    compiled = _compiled("h100:1", optimizer)
    num_row_slots = len(rule.row_slots)
    num_tables = 1 + len(rule.slots) - num_row_slots + num_row_slots / _DIM
    self.assert_in_place(compiled, num_tables)
    self.assert_by_kernels(compiled)

  @parameterized.parameters(("h100:1", _CALLS), ("h100:4", _CALLS_OVER_DEVICES))
  @_needs_kernels
  def test_ids_are_converted_by_our_kernels(self, name, calls):
    compiled = _compiled_from_ids(name)
    self.assert_in_place(compiled, num_tables=1)
    text = compiled.as_text()
    self.assertEqual(_calls(text), sorted(["jte_convert_ids_cuda", *calls]))
    self.assertNotRegex(text, r"\b(scatter|sort)\(|__cub\$")

  @parameterized.parameters("h100:4", "h100:8")
  @_needs_kernels
  def test_several_gpus_send_rows_and_do_not_copy_a_table(self, name):
    compiled = _compiled(name, depends=True)
    self.assert_in_place(compiled)
    text = compiled.as_text()
    self.assertNotRegex(text, r"\bscatter\(")
    self.assertLen(
        re.findall(r" all-to-all(?:-start)?\(", text), _NUM_ALL_TO_ALLS
    )
    self.assertEqual(_calls(text), _CALLS_OVER_DEVICES)

  @parameterized.parameters(1, 4, 12)
  @_needs_kernels
  def test_stacks_share_messages(self, num_stacks):
    compiled = _compiled_of_stacks("h100:4", num_stacks)
    text = compiled.as_text()
    self.assertLen(
        re.findall(r" all-to-all(?:-start)?\(", text), _NUM_ALL_TO_ALLS
    )
    self.assertEmpty(compiled_text.copies(text, r"\w+\[65536,\d+\]"))
    self.assertEqual(_calls(text), sorted(_CALLS_OVER_DEVICES * num_stacks))


if __name__ == "__main__":
  absltest.main()
