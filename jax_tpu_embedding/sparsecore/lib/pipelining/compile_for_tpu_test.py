# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What overlaps in pipelined steps that are compiled for a TPU."""

import dataclasses
import functools
import importlib.util

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import overlap_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining

P = jax.sharding.PartitionSpec
_BATCH, _DIM, _ROWS, _WIDTH = 4096, 128, 80_000, 2048
_TABLE_BYTES = _ROWS // 4 * _DIM * 4  # on each of four devices


def _specs():
  def feature(name):
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=_ROWS,
        embedding_dim=_DIM,
        optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
        combiner="sum",
        max_ids_per_partition=1024,
        max_unique_ids_per_partition=1024,
    )
    return embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(_BATCH, 8),
        output_shape=(_BATCH, _DIM),
    )

  return {"users": feature("users"), "items": feature("items")}


def _compiled(mode, topology_name="v5p:2x2x1"):
  """A step with two tables and an MLP of two layers, and its batch."""
  mesh = topology.topology_mesh(topology_name)
  num_devices = mesh.size
  num_scs = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  everywhere = jax.sharding.NamedSharding(mesh, P())
  split = jax.sharding.NamedSharding(mesh, P("x"))
  layer = embed.SparseCoreEmbed(
      _specs(), mesh=mesh, sharding_axis="x", tables="param"
  )
  embedding.prepare_feature_specs_for_training(
      layer.feature_specs, num_devices, num_sc_per_device=num_scs
  )

  def lay_out(x):
    return x.update(sharding=split if x.ndim else everywhere)

  def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=everywhere)

  inputs = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
      layer.feature_specs,
      num_devices,
      num_devices,
      num_sc_per_device=num_scs,
  )
  labels = jax.ShapeDtypeStruct((_BATCH, 1), jnp.float32)
  batch = jax.tree.map(lay_out, (inputs, labels))
  weights = (array(2 * _DIM, _WIDTH), array(_WIDTH, _WIDTH), array(_WIDTH, 1))
  params = _table_parameters(layer, mesh, array(5)), weights

  def train_step(params, batch):
    def loss_fn(params):
      out = layer.apply({"params": params[0]}, batch[0])
      x = jnp.concatenate(list(out.values()), axis=1)
      first, second, last = params[1]
      x = jax.nn.relu(jax.nn.relu(x @ first) @ second) @ last
      return jnp.mean((x - batch[1]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    tables = embed_optimizer.apply_updates_for_sc_model(params[0], gradients[0])
    weights = jax.tree.map(lambda p, g: p - 0.1 * g, params[1], gradients[1])
    return (tables, weights), loss

  step = pipelining.pipelined(
      train_step,
      batch_argnums=1,
      mode=mode,
      donate_argnums=0,
      out_shardings=(jax.tree.map(lambda x: x.format, params), None),
  )
  # Shapes alone do not say on which devices the activations are.
  flight = jax.tree.map(lay_out, jax.eval_shape(step.start, params, batch))
  flight = dataclasses.replace(flight, batch=(batch,))
  if mode == "stale":
    # The first call has nothing pending.
    flight, _ = jax.eval_shape(step, flight, params, batch)
    flight = jax.tree.map(lay_out, flight)
    flight = dataclasses.replace(flight, batch=(batch,))
  return step.lower(flight, params, batch).compile()


def _table_parameters(layer, mesh, seal):
  tables = {}
  partition = tuple(layer.embedding_table_partition)
  box = embed.WithSparseCoreLayout(None, partition, mesh)
  for stack in embedding.get_stacked_table_specs(layer.feature_specs).values():
    table = jax.ShapeDtypeStruct(
        (stack.stack_vocab_size, stack.stack_embedding_dim),
        jnp.float32,
        sharding=box.get_sharding(mesh),
    )
    variables = embedding.EmbeddingVariables(table, (table,))
    tables[stack.stack_name] = variables
  return {
      "sc_embedding_variables": box.replace(value=tables),
      "update_seal": {"sc_embedding_variables": seal},
  }


@functools.cache
def _on_v5p(mode):
  compiled = _compiled(mode)
  return (
      overlap_report.overlap_report(compiled),
      memory_report.memory_report(compiled, min_move_bytes=_TABLE_BYTES),
  )


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CompileForTpuTest(parameterized.TestCase):

  @parameterized.parameters("v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
  def test_exact_step_has_one_call_beside_the_weight_gradients(self, name):
    if name == "v5p:2x2x1":
      report, _ = _on_v5p("exact")
    else:
      report = overlap_report.overlap_report(_compiled("exact", name))
    self.assertLen(report.calls, 1, str(report))
    self.assertEmpty(report.exposed_calls, str(report))
    # The products that come after the gradients of activations are those of
    # weights: the call has the time of all of them.
    (call,) = report.calls
    after = [
        x for x in report.instructions if x.is_matmul and x.start >= call.start
    ]
    self.assertEqual(call.matmul_cycles, sum(x.cycles for x in after))
    self.assertGreater(call.matmul_cycles, 0.2 * report.matmul_cycles)

  def test_stale_step_has_one_call_beside_all_products(self):
    report, _ = _on_v5p("stale")
    self.assertLen(report.calls, 1, str(report))
    self.assertGreaterEqual(
        report.overlapped_matmul_cycles, 0.99 * report.matmul_cycles
    )

  def test_lookup_of_the_plain_step_is_exposed(self):
    report, _ = _on_v5p("off")
    self.assertLen(report.calls, 2, str(report))
    self.assertLen(report.exposed_calls, 1, str(report))
    self.assertIn("csr", report.exposed_calls[0].operation)

  def test_memory_is_that_of_the_plain_step_and_of_what_is_in_flight(self):
    memory = {mode: _on_v5p(mode)[1] for mode in ("off", "exact")}
    in_flight = memory["exact"].argument_bytes - memory["off"].argument_bytes
    # On each of four devices: activations of two tables, and buffers of them.
    activations = 2 * _BATCH // 4 * _DIM * 4
    self.assertBetween(in_flight, activations, 3 * activations)
    self.assertLessEqual(
        memory["exact"].total_bytes,
        1.05 * memory["off"].total_bytes + in_flight,
    )

  @parameterized.parameters("exact", "stale")
  def test_tables_and_slots_are_updated_in_place(self, mode):
    _, memory = _on_v5p(mode)
    self.assertGreaterEqual(memory.aliased_bytes, 2 * 2 * _TABLE_BYTES)
    # What weights move is as large.
    rows = f"[{_ROWS // 4},{_DIM}]"
    moves = [x for x in memory.moves or () if rows in x.result]
    self.assertEmpty(moves, str(memory))


if __name__ == "__main__":
  absltest.main()
