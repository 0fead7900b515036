# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Bytes of the report are those of a program that the TPU's compiler made."""

import importlib.util

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.planning import cost_report
from jax_tpu_embedding.sparsecore.lib.planning import workload
from jax_tpu_embedding.sparsecore.lib.planning.testing import models

P = jax.sharding.PartitionSpec


def _feature(name, rows, dim, optimizer):
  return models.feature(name, rows, dim, 8192, 8, optimizer)


_MODELS = {
    "one wide": lambda: [_feature("a", 1_000_000, 128, models.ADAGRAD)],
    "two apart": lambda: [
        _feature("a", 500_000, 64, models.ADAGRAD),
        _feature("b", 30_000, 128, models.SGD),
    ],
    "one stack": lambda: [
        _feature("a", 500_000, 32, models.ADAGRAD),
        _feature("b", 300_000, 32, models.ADAGRAD),
    ],
}


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class ArgumentSizesTest(parameterized.TestCase):

  @parameterized.product(
      model=list(_MODELS), name=["v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"]
  )
  def test_bytes(self, model, name):
    mesh = topology.topology_mesh(name)
    specs = _MODELS[model]()
    num_sc = {"v5p": 4}.get(name.partition(":")[0], 2)
    embedding.auto_stack_tables(specs, mesh.size, num_sc)
    embedding.prepare_feature_specs_for_training(
        specs, mesh.size, num_sc_per_device=num_sc
    )
    report = cost_report.estimate(
        specs, name, workload=workload.Zipf(1.05), batches=1
    )
    report.limits.set_on(specs, num_sc)
    rows = table_layouts.embedding_table_format(mesh, P("x", None))
    split = jax.sharding.NamedSharding(mesh, P("x"))
    tables = {
        name: [
            jax.ShapeDtypeStruct(
                (stack.stack_vocab_size, stack.stack_embedding_dim),
                jnp.float32,
                sharding=rows,
            )
        ]
        * (1 + stack.optimizer.slot_variables_count())
        for name, stack in embedding.get_stacked_table_specs(specs).items()
    }
    inputs = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
        specs, mesh.size, mesh.size, num_sc_per_device=num_sc
    )
    inputs = jax.tree.map(
        lambda x: x.update(sharding=split if x.ndim else None), inputs
    )
    size = lambda *args: (
        jax.jit(lambda *args: jnp.zeros(()), keep_unused=True)
        .lower(*args)
        .compile()
        .memory_analysis()
        .argument_size_in_bytes
    )
    at_rest = sum(stack.bytes_at_rest for stack in report.stacks)
    self.assertAlmostEqual(at_rest / size(tables), 1, delta=0.001)
    buffers = sum(stack.buffer_bytes for stack in report.stacks)
    self.assertAlmostEqual(buffers / size(inputs), 1, delta=0.02)

  def test_dense_part_of_a_compiled_step(self):
    everywhere = jax.sharding.NamedSharding(
        topology.topology_mesh("v5p:2x2x1"), P()
    )
    array = lambda *shape: jax.ShapeDtypeStruct(
        shape, jnp.bfloat16, sharding=everywhere
    )
    lowered = jax.jit(jnp.dot).lower(array(4096, 2048), array(2048, 2048))
    report = cost_report.estimate(
        _MODELS["two apart"](), "v5p:2x2x1", batches=1, dense=lowered
    )
    least = 2 * 4096 * 2048 * 2048 / report.topology.chip.flops_per_second
    self.assertBetween(report.dense_seconds, least, 2 * least)
    self.assertEqual(report.weight_gradient_seconds, 0)
    with self.assertRaisesRegex(ValueError, "on TPU only, not on h100"):
      cost_report.estimate(
          _MODELS["two apart"](), "h100:4", batches=1, dense=lowered
      )


if __name__ == "__main__":
  absltest.main()
