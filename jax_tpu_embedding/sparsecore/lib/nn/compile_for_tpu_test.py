# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The public lookup and update compile for a TPU slice."""

import importlib.util

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.values import _fills
from jax_tpu_embedding.sparsecore.utils import utils
import numpy as np

P = jax.sharding.PartitionSpec

_DEVICES, _SCS, _BATCH = 4, 4, 2048
_SGD = embedding_spec.SGDOptimizerSpec(learning_rate=0.1)


def _feature(name, rows, dim, optimizer):
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=embedding_spec.TableSpec(
          name=name,
          vocabulary_size=rows,
          embedding_dim=dim,
          optimizer=optimizer,
      ),
      input_shape=(_BATCH, 4),
      output_shape=(_BATCH, dim),
  )


def _feature_specs():
  """Two stacks of two tables each, with an optimizer each."""
  adagrad = embedding_spec.AdagradOptimizerSpec(
      learning_rate=lambda step: 0.1 / (1 + step)
  )
  specs = {
      "items": _feature("items", 2_000_000, 32, adagrad),
      "users": _feature("users", 1_000_000, 30, adagrad),
      "words": _feature("words", 1_500_000, 16, _SGD),
      "tags": _feature("tags", 500_000, 16, _SGD),
  }
  embedding.auto_stack_tables(specs, _DEVICES, _SCS)
  return specs


def _in_one_call(gradients, inputs, variables, specs, *, step, **keywords):
  return embedding.tpu_sparse_dense_matmul_grad(
      gradients, inputs, variables, specs, step=step, **keywords
  )


def _in_two_calls(gradients, inputs, variables, specs, *, step, **_):
  gradients = embedding.sparse_gradients(gradients, inputs, specs)
  return embedding.apply_sparse_gradients(
      gradients, variables, specs, step=step
  )


def _step_and_arguments(mesh, specs, update, enable_minibatching):
  """Lookup, a loss and the update; shapes of inputs, variables and step."""
  keywords = dict(
      global_device_count=_DEVICES,
      num_sc_per_device=_SCS,
      enable_minibatching=enable_minibatching,
  )

  def step(inputs, variables, number):
    activations = embedding.tpu_sparse_dense_matmul(
        inputs, variables, specs, **keywords
    )
    loss, gradients = jax.value_and_grad(
        lambda x: sum(jnp.mean(jnp.tanh(a) ** 2) for a in x.values())
    )(activations)
    variables = update(
        gradients, inputs, variables, specs, step=number, **keywords
    )
    return variables, jax.lax.pmean(loss, "x")

  inputs = jax.tree.map(
      lambda x: x.update(sharding=jax.sharding.NamedSharding(mesh, P("x"))),
      embedding.eval_preprocess_sparse_dense_matmul_input_shape(
          specs,
          _DEVICES,
          _DEVICES,
          num_sc_per_device=_SCS,
          enable_minibatching=enable_minibatching,
      ),
  )
  tables = utils.embedding_table_format(mesh, P("x"))
  variables = _variables(specs, tables)
  jitted = jax.jit(
      jax.shard_map(
          step,
          mesh=mesh,
          in_specs=(P("x"), P("x"), P()),
          out_specs=(P("x"), P()),
          check_vma=False,
      ),
      donate_argnums=1,
      out_shardings=(jax.tree.map(lambda x: tables, variables), None),
  )
  number = jax.ShapeDtypeStruct((), jnp.int32)
  return jitted, (inputs, variables, number)


def _variables(specs, table_format):
  """The shapes of tables and slots."""
  variables = {}
  for name, stack in embedding.get_stacked_table_specs(specs).items():
    table = jax.ShapeDtypeStruct(
        (stack.stack_vocab_size, stack.stack_embedding_dim),
        jnp.float32,
        sharding=table_format,
    )
    num_slots = stack.optimizer.slot_variables_count()
    variables[name] = embedding.EmbeddingVariables(table, (table,) * num_slots)
  return variables


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CompileForTpuTest(parameterized.TestCase):

  @parameterized.parameters(
      (_in_one_call, False), (_in_one_call, True), (_in_two_calls, False)
  )
  def test_training_step_updates_two_stacks_in_place(
      self, update, enable_minibatching
  ):
    specs = _feature_specs()
    stacks = embedding.get_stacked_table_specs(specs)
    self.assertLen(stacks, 2)
    mesh = topology.topology_mesh("v5p:2x2x1")
    jitted, args = _step_and_arguments(mesh, specs, update, enable_minibatching)
    smallest = min(
        stack.stack_vocab_size * stack.stack_embedding_dim * 4 // _DEVICES
        for stack in stacks.values()
    )
    lowered = jitted.lower(*args)
    report = memory_report.memory_report(
        kept_programs.compile_for(mesh, lowered), min_move_bytes=smallest // 4
    )
    self.assertIn(report.moves, ((), None), str(report))
    self.assertLess(report.temporary_bytes, smallest, str(report))
    variables = jax.tree.leaves(args[1])
    self.assertLen(variables, 3)  # two tables, and one accumulator
    self.assertEqual(
        report.aliased_bytes, sum(x.size * 4 // _DEVICES for x in variables)
    )
    for name in stacks:
      self.assertRegex(lowered.as_text(), f'@"(adagrad|sgd)-{name}"')

  def test_many_rows_are_applied_in_minibatches(self):
    specs = {"tags": _feature("tags", 500_000, 16, _SGD)}
    embedding.auto_stack_tables(specs, _DEVICES, _SCS)
    mesh = topology.topology_mesh("v5p:2x2x1")
    tables = utils.embedding_table_format(mesh, P("x"))
    variables = _variables(specs, tables)
    by_device = jax.sharding.NamedSharding(mesh, P("x"))
    num_rows = _DEVICES * _SCS * 16384
    gradients = {
        "tags": embedding.SparseGradient(
            jax.ShapeDtypeStruct((num_rows,), jnp.int32, sharding=by_device),
            jax.ShapeDtypeStruct(
                (num_rows, 16), jnp.float32, sharding=by_device
            ),
        )
    }

    def compile_step(enable_minibatching):
      def step(gradients, variables):
        return embedding.apply_sparse_gradients(
            gradients, variables, specs, enable_minibatching=enable_minibatching
        )

      jitted = jax.jit(
          jax.shard_map(
              step,
              mesh=mesh,
              in_specs=P("x"),
              out_specs=P("x"),
              check_vma=False,
          ),
          donate_argnums=1,
          out_shardings=jax.tree.map(lambda x: tables, variables),
      )
      return kept_programs.compile_for(mesh, jitted.lower(gradients, variables))

    # As docs/how_to/sparse_gradients.md says.
    with self.assertRaisesRegex(
        jax.errors.JaxRuntimeError, "No viable logical replica count"
    ):
      compile_step(enable_minibatching=False)
    report = memory_report.memory_report(compile_step(enable_minibatching=True))
    (table,) = jax.tree.leaves(variables)
    # In place, with what pads the table.
    self.assertGreaterEqual(
        report.aliased_bytes, table.size * 4 // _DEVICES, str(report)
    )

  @parameterized.parameters(
      ("v5e:2x2", False), ("v6e:2x2", False), ("v6e:2x2", True)
  )
  def test_replicated_tables_neither_sort_nor_exchange(self, name, is_ragged):
    mesh = topology.topology_mesh(name)
    num_sc = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
    small = embedding_spec.TableSpec(
        name="small",
        vocabulary_size=2000,
        embedding_dim=32,
        optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
        combiner="mean",
        placement="tensorcore",
    )
    specs = {
        "small": embedding_spec.FeatureSpec(
            name="small",
            table_spec=small,
            input_shape=(_BATCH, 4),
            output_shape=(_BATCH, 32),
        )
    }
    embedding.prepare_feature_specs_for_training(specs, mesh.size, num_sc)
    layout_of_devices = layout.Topology(
        local_device_count=1,
        global_device_count=mesh.size,
        num_sc_per_device=num_sc,
    )

    def step(ids, variables):
      inputs = embedding.convert_ids(ids, None, specs, layout_of_devices)
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      return embedding.tpu_sparse_dense_matmul_grad(
          activations, inputs, variables, specs
      )

    whole = jax.sharding.NamedSharding(mesh, P())
    # Not the layout of SparseCores.
    as_made = whole.update(spec=P(None, None))
    self.assertEqual(_fills.layout_of(as_made, jnp.float32), as_made)
    table = jax.ShapeDtypeStruct((2000, 32), jnp.float32, sharding=whole)
    by_device = jax.sharding.NamedSharding(mesh, P("x"))
    integers = lambda *shape: jax.ShapeDtypeStruct(
        shape, jnp.int32, sharding=by_device
    )
    ids = integers(_BATCH, 4)
    if is_ragged:
      ids = integers(4 * _BATCH), integers(_BATCH + mesh.size)
    lowered = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(P("x"), P()),
            out_specs=P(),
            check_vma=False,
        ),
        donate_argnums=1,
    ).lower({"small": ids}, {"small": (table, (table,))})
    compiled = kept_programs.compile_for(mesh, lowered)
    text = compiled.as_text()
    for word in ("all-to-all", "all-gather"):
      self.assertNotIn(word, text)
    if not is_ragged:
      for word in (" sort(", " scatter(", "offload"):
        self.assertNotIn(word, text)
    # Of gradients, and of which rows have an id.
    self.assertRegex(text, "all-reduce")
    report = memory_report.memory_report(compiled)
    self.assertGreaterEqual(report.aliased_bytes, 2 * 2000 * 32 * 4)
    # Of 512 samples by 2000 rows: the counts once, not by ids.
    self.assertLess(report.temporary_bytes, 3 * 512 * 2000 * 4, str(report))

  def test_limits_stop_where_no_program_compiles(self):
    spec = embedding_spec.FeatureSpec(
        name="items",
        table_spec=embedding_spec.TableSpec(
            name="items",
            vocabulary_size=4_000_000,
            embedding_dim=128,
            optimizer=_SGD,
        ),
        input_shape=(32768, 16),
        output_shape=(32768, 128),
    )
    specs = {"items": spec}
    mesh = topology.topology_mesh("v6e:2x2")
    num_sc = 2
    embedding.prepare_feature_specs_for_training(specs, mesh.size, num_sc)
    asked = []
    compiles = embedding.compile_check(specs, mesh, "x")
    self.enter_context(kept_programs.all_for(mesh))

    def counted(name, limits):
      asked.append(limits.max_unique_ids_per_partition)
      return compiles(name, limits)

    limits = embedding.AdaptiveLimits(
        specs,
        mesh.size,
        mesh.size,
        num_sc_per_device=num_sc,
        ceiling=counted,
        enable_minibatching=True,
        growth=2.0,
        headroom=1.0,
    )
    # 8,192 distinct rows from each SparseCore to each.
    ids = np.random.default_rng(0).permutation(4_000_000)[: 32768 * 16]
    inputs, stats = limits.preprocess({"items": ids.reshape(32768, 16)})
    self.assertEqual(stats.id_drop_counters["items"], 0)
    self.assertGreater(stats.max_unique_ids_per_partition["items"].max(), 8000)
    self.assertGreater(inputs.num_minibatches[0], 1)
    found = limits.limits["items"]
    self.assertBetween(found.max_unique_ids_per_partition, 4096, 8000)
    self.assertLessEqual(len(asked), 6)
    self.assertTrue(compiles("items", found))


if __name__ == "__main__":
  absltest.main()
