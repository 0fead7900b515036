# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""TPUs without SparseCores compile lookup and update, in place."""

import functools
import importlib.util
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import table_format
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology

P = jax.sharding.PartitionSpec
_ROWS = 2**18  # of one device


@functools.cache
def _mesh(name):
  return topology.topology_mesh(name)


def _compile(name, rule_name, dtype, width):
  """Lookup and update of a donated table and its slots: a report."""
  mesh = _mesh(name)
  rule = update_rules.UPDATE_RULES[rule_name]
  sizes = tpu_operands.Sizes(
      num_devices=mesh.size,
      num_sc_per_device=hardware.num_sparsecores_per_device(
          mesh.devices.flat[0]
      ),
      num_rows=_ROWS,
      embedding_dim=width,
      table_dtype=dtype,
  )

  def step(coo, tables, numbers):
    activations = lookup.lookup_p.bind(
        *coo,
        tables[0],
        device_batch_size=sizes.batch_size,
        enable_minibatching=False,
        **tpu_operands.LIMITS,
    )
    return update.UPDATE_PRIMITIVES[rule_name].bind(
        *coo,
        *tables,
        jnp.tanh(activations),
        *numbers,
        row_options=(),
        computation_name=rule_name,
        enable_minibatching=False,
        **tpu_operands.LIMITS,
        **tpu_operands.static_params(rule),
    )

  def shape_of(x, is_table=False):
    spec = P("x") if x.shape else P()
    sharding = jax.sharding.NamedSharding(mesh, spec)
    shape = (mesh.size * x.shape[0], *x.shape[1:]) if x.shape else ()
    if is_table:
      sharding = table_layouts.embedding_table_format_with_sharding(
          sharding, shape
      )
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

  tables = [shape_of(x, True) for x in (sizes.table, *sizes.slots(rule))]
  coo = [shape_of(x) for x in sizes.coo()]
  numbers = [shape_of(x) for x in tpu_operands.hyperparameters(rule)]
  jitted = jax.jit(
      jax.shard_map(
          step,
          mesh=mesh,
          in_specs=([x.sharding.spec for x in coo], P("x"), P()),
          out_specs=P("x"),
          check_vma=False,
      ),
      donate_argnums=1,
      out_shardings=[_format_of(x) for x in tables],
  )
  compiled = kept_programs.compile_for(mesh, jitted.lower(coo, tables, numbers))
  return memory_report.memory_report(compiled, min_move_bytes=_ROWS * width)


def _format_of(x):
  """What was said of a shape: a sharding, and perhaps a layout."""
  return x.sharding if x.format.layout is None else x.format


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class WithoutSparsecoresTest(parameterized.TestCase):

  def test_the_check_sees_copies(self):
    with mock.patch.object(
        table_format, "tensor_core_layout", return_value=None
    ):
      report = _compile("v5e:2x2", "adagrad", jnp.float32, 32)
    self.assertGreater(report.temporary_bytes, _ROWS * 32 * 4)

  @parameterized.parameters(
      ("v5e:2x2", "adagrad", jnp.float32, 128),
      ("v5e:2x2", "adam", jnp.bfloat16, 128),
      ("v4:2x2x1", "rowwise_adagrad", jnp.float32, 128),
      # Four times the memory, and no copy.
      ("v5e:2x2", "adagrad", jnp.float32, 32),
  )
  def test_update_is_in_place(self, name, rule, dtype, width):
    report = _compile(name, rule, dtype, width)
    table_bytes = _ROWS * width * jnp.dtype(dtype).itemsize
    # A scatter into the table is a fusion whose result is the table.
    moves = [move for move in report.moves if move.operation != "fusion"]
    self.assertEmpty(moves, str(report))
    self.assertGreaterEqual(report.aliased_bytes, table_bytes)
    self.assertLess(report.temporary_bytes, table_bytes // 4, str(report))


if __name__ == "__main__":
  absltest.main()
