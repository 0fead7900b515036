# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A train step by kernels, compiled for a TPU: tables are updated in place.

Nothing runs. CHIP names another chip than v6e, RULE another optimizer, DTYPE another
type of the table.
"""

from __future__ import annotations

import importlib.util
import os

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import table_format
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology

P = jax.sharding.PartitionSpec

_CHIP = os.environ.get("CHIP", "v6e")
_DTYPE = os.environ.get("DTYPE", "bfloat16")
_RULE = update_rules.UPDATE_RULES[os.environ.get("RULE", "adagrad")]
_NUM_DEVICES = int(os.environ.get("DEVICES", "1"))
_ROWS, _DIM, _BATCH = 2**18, 128, 256
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)


def _compile():
  """Memory of a step on one device: lookup, tanh for a model, and update."""
  mesh = topology.topology_mesh(pallas.CHIPS[_CHIP].topology)
  mesh = jax.sharding.Mesh(mesh.devices.flat[:_NUM_DEVICES], ("x",))
  num_scs = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  sizes = tpu_operands.Sizes(
      num_devices=_NUM_DEVICES, num_sc_per_device=num_scs
  )
  static = {"multiply_linear_by_learning_rate": False, "embedding_dim": _DIM}
  static = {name: static[name] for name in _RULE.static_params}
  is_rounded = _DTYPE != "float32"

  def step(coo, tables, numbers, seed):
    table, *slots = tables
    activations = lookup.lookup_p.bind(
        *coo, table, device_batch_size=_BATCH, **_LIMITS
    )
    return update.UPDATE_PRIMITIVES[_RULE.name].bind(
        *coo,
        table,
        *slots,
        jnp.tanh(activations),
        *numbers,
        *([seed] if is_rounded else []),
        stochastic_rounding=is_rounded,
        **static,
        **_LIMITS,
    )

  def arg(shape, dtype, spec):
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
    )

  def table(dtype, shape=(_ROWS * _NUM_DEVICES, _DIM)):
    x = arg(shape, dtype, P("x"))
    return x.update(
        sharding=table_format.table_format(x.sharding, shape, dtype)
    )

  coo = [
      arg((_NUM_DEVICES * x.size,), x.dtype, P("x"))
      if x.shape
      else arg((), x.dtype, P())
      for x in sizes.coo()
  ]
  tables = [table(_DTYPE)]
  tables += [
      table("float32", _RULE.slot_shape(name, tables[0].shape))
      for name in _RULE.slots
  ]
  numbers = [
      arg((), bool if name in _RULE.bool_hyperparameters else "float32", P())
      for name in _RULE.hyperparameters
  ]
  with choice.lower_by("kernels"):
    compiled = (
        jax.jit(
            jax.shard_map(
                step,
                mesh=mesh,
                in_specs=([x.sharding.spec for x in coo], P("x"), P(), P()),
                out_specs=P("x"),
                check_vma=False,
            ),
            donate_argnums=1,
            out_shardings=[x.format for x in tables],
        )
        .lower(coo, tables, numbers, arg((), "uint32", P()))
        .compile()
    )
  sizes = [x.size * x.dtype.itemsize // _NUM_DEVICES for x in tables]
  return memory_report.memory_report(
      compiled, min_move_bytes=sizes[0] // 8
  ), sum(sizes)


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CompileTest(absltest.TestCase):

  def test_tables_stay_where_they_are(self):
    report, table_bytes = _compile()
    print(_CHIP, _RULE.name, _DTYPE, report)
    self.assertGreaterEqual(report.aliased_bytes, table_bytes)
    moves = [move for move in report.moves if move.operation != "fusion"]
    self.assertEmpty(moves, str(report))


if __name__ == "__main__":
  absltest.main()
