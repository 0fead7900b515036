# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The pipeline in three stages, by hand and with the default stages."""

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_pipelining_utils as pipelining
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
from jax_tpu_embedding.sparsecore.utils import utils
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec


def _look_up(rows, table):
  return table[rows], None


def _dense(activations, scale, num_trained, unused_aux=None):
  gradients = jnp.full_like(activations, scale)
  return gradients, activations.sum(), num_trained + 1, None


def _update(rows, gradients, table, unused_aux=None):
  return table.at[rows].add(-gradients), None


_STAGES = dict(
    sc_fwd_function=_look_up, tc_function=_dense, sc_bwd_function=_update
)


def _batch(i):
  """Looks up rows i and i + 1; the gradient of both is i + 1."""
  return pipelining.CurrentStepInput(
      jnp.array([i, i + 1]), jnp.array(i + 1.0, jnp.float32)
  )


def _initial(**options):
  return pipelining.get_initial_state(
      _batch(0), jnp.array(0), jnp.arange(8.0), _look_up, _dense, **options
  )


class StepTest(parameterized.TestCase):

  def test_trace(self):
    table, num_trained, state = jnp.arange(8.0), jnp.array(0), _initial()
    step = jax.jit(
        functools.partial(pipelining.step, **_STAGES),
        static_argnames="fake_tc_step",
        donate_argnums=(1, 2, 3),
    )
    self.assertEqual(pipelining.get_pipeline_train_steps(3), 5)
    found = []
    for i in range(5):
      is_valid = pipelining.is_output_valid(i, 3)
      self.assertEqual(is_valid, i in (1, 2, 3))
      output, aux, num_trained, table, state = step(
          _batch(min(i, 2)),
          num_trained,
          table,
          state,
          fake_tc_step=not is_valid,
      )
      self.assertIsNone(aux)
      found.append(
          (
              float(output),
              int(num_trained),
              table[:4].tolist(),
              state.last_step_inputs.embedding_activations.tolist(),
          )
      )
      self.assertEqual(int(state.pipeline_step), i + 1)
    self.assertEqual(
        found[:3],
        [
            (0, 0, [0, 1, 2, 3], [0, 1]),
            (1, 1, [0, 1, 2, 3], [1, 2]),
            (3, 2, [-1, 0, 2, 3], [2, 3]),
        ],
    )
    # What the last two steps look up is not used.
    self.assertEqual(
        [x[:3] for x in found[3:]],
        [(5, 3, [-1, -2, 0, 3]), (0, 3, [-1, -2, -3, 0])],
    )

  def test_lookup_is_after_the_update(self):
    # Every batch has the rows 0 and 1.
    table, trained, state = jnp.arange(8.0), jnp.array(0), _initial()
    found = []
    for i in range(4):
      batch = _batch(i).replace(sparse_inputs=jnp.array([0, 1]))
      _, _, trained, table, state = pipelining.step(
          batch, trained, table, state, **_STAGES, fake_tc_step=i == 0
      )
      found.append(state.last_step_inputs.embedding_activations.tolist())
    # The third has the update of the first, whose gradient is 1.
    self.assertEqual(found, [[0, 1], [0, 1], [-1, 0], [-3, -2]])

  def test_numpy_batch_that_is_filled_again_outside_of_jit(self):
    def trained(batches):
      table, trained, state = jnp.arange(8.0), jnp.array(0), _initial()
      outputs = []
      for i, batch in enumerate(batches):
        output, _, trained, table, state = pipelining.step(
            batch, trained, table, state, **_STAGES, fake_tc_step=i == 0
        )
        outputs.append(float(output))
      return outputs, table.tolist()

    def filled():
      batch = jax.tree.map(np.array, _batch(0))
      for i in range(4):
        jax.tree.map(np.copyto, batch, jax.tree.map(np.array, _batch(i)))
        yield batch

    self.assertEqual(trained(filled()), trained(map(_batch, range(4))))

  def test_aux_of_a_stage_goes_to_the_stage_of_its_batch(self):
    def look_up(rows, table):
      return table[rows], rows.sum()

    def dense(activations, scale, num_trained, aux):
      gradients, output, num_trained, _ = _dense(
          activations, scale, num_trained
      )
      return gradients, output, num_trained, aux * 10

    def update(rows, gradients, table, aux):
      return _update(rows, gradients, table)[0], aux

    stages = look_up, dense, update
    table, trained = jnp.arange(8.0), jnp.array(0)
    state = pipelining.get_initial_state(
        _batch(0), trained, table, look_up, dense
    )
    found = []
    for i in range(5):
      _, aux, trained, table, state = pipelining.step(
          _batch(i), trained, table, state, *stages, fake_tc_step=i == 0
      )
      found.append(int(aux))
    self.assertEqual(found, [0, 0, 10, 30, 50])

  def test_stages_have_names_in_the_program(self):
    state = _initial()
    step = functools.partial(pipelining.step, **_STAGES, fake_tc_step=False)
    text = (
        jax.jit(step)
        .lower(_batch(0), jnp.array(0), jnp.arange(8.0), state)
        .compile()
        .as_text()
    )
    for name in ("pipelined_sc_bwd", "pipelined_sc_fwd", "pipelined_tc"):
      self.assertIn(name, text)


class StateTest(parameterized.TestCase):

  def test_initial_state_is_zero_in_buffers_of_their_own(self):
    state = _initial()
    leaves = jax.tree.leaves(state)
    for leaf in leaves:
      self.assertFalse(np.any(leaf))
    pointers = {x.unsafe_buffer_pointer() for x in leaves}
    self.assertLen(pointers, len(leaves))
    self.assertEqual(state.last_step_inputs.sparse_inputs.shape, (2,))
    self.assertEqual(state.last_step_inputs.dense_inputs.dtype, jnp.float32)
    self.assertEqual(state.placeholder_output.shape, ())

  def test_initial_state_of_shapes(self):
    shapes = jax.eval_shape(
        functools.partial(
            pipelining.get_initial_state,
            sc_fwd_function=_look_up,
            tc_function=_dense,
        ),
        _batch(0),
        jnp.array(0),
        jnp.arange(8.0),
    )
    jax.tree.map(
        lambda a, b: self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype)),
        shapes,
        _initial(),
    )

  def test_initial_state_is_where_the_batch_is(self):
    mesh = jax.sharding.Mesh(jax.devices(), "x")
    split = jax.sharding.NamedSharding(mesh, P("x"))
    everywhere = jax.sharding.NamedSharding(mesh, P())
    batch = pipelining.CurrentStepInput(
        {
            "rows": np.arange(8),
            "replicated": jax.device_put(np.arange(4), everywhere),
            "count": np.array(1),
        },
        np.zeros((8, 2), np.float32),
    )

    def look_up(sparse_inputs, table):
      return table[sparse_inputs["rows"]], sparse_inputs["rows"]

    def dense(activations, dense_inputs, train_state, unused_aux):
      output = activations + dense_inputs.sum()
      return activations, output, train_state, None

    state = pipelining.get_initial_state(
        batch, np.array(0), jnp.zeros(16), look_up, dense, split, split
    )
    last = state.last_step_inputs
    before = state.step_before_last_step_inputs
    for x in (
        last.sparse_inputs["rows"],
        last.embedding_activations,
        last.dense_inputs,
        last.sc_fwd_aux,
        before.sparse_inputs["rows"],
        before.embedding_gradients,
        # As the compiled dense work returns it.
        state.placeholder_output,
    ):
      self.assertTrue(x.sharding.is_equivalent_to(split, x.ndim), x.sharding)
    self.assertEqual(last.sparse_inputs["replicated"].sharding, everywhere)
    self.assertLen(last.sparse_inputs["count"].sharding.device_set, 1)

  @parameterized.parameters(
      (pipelining.PipelineState,),
      (pipelining.PipelineState[int, int, int, int, int, int, int],),
  )
  def test_shardings_of_a_state(self, cls):
    mesh = jax.sharding.Mesh(jax.devices(), "x")
    sparse = jax.sharding.NamedSharding(mesh, P("x", None))
    dense = jax.sharding.NamedSharding(mesh, P("x"))
    state = pipelining.get_pipeline_state_sharding(
        cls, dense, sparse, "output", "aux"
    )
    stacked = utils.embedding_table_format_with_sharding(sparse)
    self.assertIsInstance(state, pipelining.PipelineState)
    self.assertIsNone(state.pipeline_step)
    self.assertEqual(
        state.last_step_inputs,
        pipelining.LastStepInput(sparse, stacked, dense, dense),
    )
    self.assertEqual(
        state.step_before_last_step_inputs,
        pipelining.StepBeforeLastStepInput(sparse, stacked, "aux"),
    )
    self.assertEqual(state.placeholder_output, "output")
    self.assertEqual(state.placeholder_tc_aux, "aux")

  def test_fields(self):
    names = lambda cls: [x.name for x in dataclasses.fields(cls)]
    self.assertEqual(
        names(pipelining.CurrentStepInput), ["sparse_inputs", "dense_inputs"]
    )
    batch = pipelining.CurrentStepInput[int, int](
        sparse_inputs=1, dense_inputs=2
    )
    self.assertEqual(batch.replace(dense_inputs=3).dense_inputs, 3)
    self.assertEqual(jax.tree.leaves(batch), [1, 2])
    with self.assertRaises(dataclasses.FrozenInstanceError):
      batch.sparse_inputs = 3

  def test_safe_copy(self):
    for array in (jnp.arange(3), np.arange(3)):
      copy = pipelining._safe_copy(array)
      self.assertIsNot(copy, array)
      self.assertIsInstance(copy, jax.Array)
      np.testing.assert_array_equal(copy, array)
    array = jnp.arange(3)
    self.assertNotEqual(
        pipelining._safe_copy(array).unsafe_buffer_pointer(),
        array.unsafe_buffer_pointer(),
    )
    shape = jax.ShapeDtypeStruct((2,), np.int32)
    self.assertIs(pipelining._safe_copy(shape), shape)


class DefaultStagesTest(parameterized.TestCase):

  @parameterized.parameters(
      ("adam", "sparsecore"),
      ("adagrad", "sparsecore"),
      ("adam", "tensorcore"),
      ("decay", "sparsecore"),
      ("decay", "tensorcore"),
      ("adagrad", "sparsecore", True),
  )
  def test_updates_are_those_of_calls_one_by_one(
      self, optimizer, placement, enable_minibatching=False
  ):
    num_batches, devices = 3, jax.devices()
    mesh = jax.sharding.Mesh(devices, "x")
    table = two_table_model.table(
        optimizer=dict(
            adam=embedding_spec.AdamOptimizerSpec(0.1),
            adagrad=embedding_spec.AdagradOptimizerSpec(0.1),
            # Steps whatever row is named, without a gradient too.
            decay=embedding_spec.SGDOptimizerSpec(
                0.1, decoupled_weight_decay=0.1
            ),
        )[optimizer],
        placement=placement,
    )
    specs = {"f": two_table_model.feature("f", table)}
    embedding.prepare_feature_specs_for_training(specs, len(devices), 1)
    tables = lambda: embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        jax.sharding.NamedSharding(mesh, P("x", None)),
        1,
    )
    rng = np.random.default_rng(0)
    split = jax.sharding.NamedSharding(mesh, P("x"))
    batches = []
    for i in range(num_batches):
      ids = {"f": rng.integers(0, 8, (two_table_model.BATCH, 3), np.int32)}
      inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
          ids,
          None,
          specs,
          len(devices),
          len(devices),
          num_sc_per_device=1,
          enable_minibatching=enable_minibatching,
      )
      inputs = jax.device_put(inputs, split)
      batches.append(pipelining.CurrentStepInput(inputs, np.int32(i)))
    look_up = pipelining.get_default_sc_fwd_function(specs, mesh)
    update = pipelining.get_default_sc_bwd_function(specs, mesh)

    def dense(activations, number, num_trained, unused_aux=None):
      loss, gradients = jax.value_and_grad(
          lambda x: jnp.mean(jnp.tanh(x["f"]) ** 2)
      )(activations)
      return gradients, loss, num_trained + 1, number

    # One by one.
    expected_losses, expected, pending = [], tables(), None
    activations, _ = jax.jit(look_up)(batches[0].sparse_inputs, expected)
    for i, batch in enumerate(batches):
      if pending:
        expected, _ = jax.jit(update)(*pending[:2], expected, pending[2])
      following = batches[min(i + 1, num_batches - 1)]
      looked_up, _ = jax.jit(look_up)(following.sparse_inputs, expected)
      gradients, loss, _, number = jax.jit(dense)(
          activations, batch.dense_inputs, 0
      )
      expected_losses.append(float(loss))
      pending = batch.sparse_inputs, gradients, number
      activations = looked_up
    expected, _ = jax.jit(update)(*pending[:2], expected, pending[2])

    if optimizer == "adam":
      of_step = lambda number: update(*pending[:2], tables(), number)[0]
      rows = [jax.tree.leaves(of_step(i))[0] for i in (None, 0, 5)]
      np.testing.assert_array_equal(rows[0], rows[1])
      self.assertFalse(np.array_equal(rows[1], rows[2]))

    variables, num_trained, losses = tables(), jnp.array(0), []
    state = pipelining.get_initial_state(
        batches[0], num_trained, variables, look_up, dense, None, split
    )
    step = jax.jit(
        functools.partial(
            pipelining.step,
            sc_fwd_function=look_up,
            tc_function=dense,
            sc_bwd_function=update,
        ),
        static_argnames="fake_tc_step",
        donate_argnums=(2, 3),
    )
    for i in range(pipelining.get_pipeline_train_steps(num_batches)):
      is_valid = pipelining.is_output_valid(i, num_batches)
      loss, aux, num_trained, variables, state = step(
          batches[min(i, num_batches - 1)],
          num_trained,
          variables,
          # The batch is donated with the state, and used again at the end.
          jax.tree.map(jnp.copy, state),
          fake_tc_step=not is_valid,
      )
      self.assertIsNone(aux)
      if is_valid:
        losses.append(float(loss))
    self.assertEqual(int(num_trained), num_batches)
    self.assertEqual(losses, expected_losses)
    jax.tree.map(np.testing.assert_array_equal, variables, expected)

  @parameterized.parameters(
      pipelining.get_default_sc_fwd_function,
      pipelining.get_default_sc_bwd_function,
  )
  def test_mesh_of_two_axes(self, make):
    devices = np.array(jax.devices()).reshape(-1, 1)
    with self.assertRaisesRegex(
        ValueError, r"must have one axis, got \('x', 'y'\)"
    ):
      make({}, jax.sharding.Mesh(devices, ("x", "y")))


if __name__ == "__main__":
  absltest.main()
