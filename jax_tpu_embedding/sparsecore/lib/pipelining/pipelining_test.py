# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Pipelined steps make the numbers of the plain step, or those of a stale one."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import jax
from jax.experimental import io_callback
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import training_runs
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()


def _is_ref(x):
  return isinstance(getattr(x, "get_value", lambda: x)(), jax.Ref)


class ExactTest(parameterized.TestCase):

  @parameterized.parameters(
      *(("refs", name) for name in training_runs.OPTIMIZERS),
      *(("parameters", name) for name in ("schedule", "adagrad", "adam")),
  )
  def test_bits_are_those_of_the_plain_step(self, form, optimizer):
    optimizer = training_runs.OPTIMIZERS[optimizer]
    plain, pipelined = (training_runs.FORMS[form](optimizer) for _ in range(2))
    batches = training_runs.batches(20)
    self.assertEqual(
        training_runs.train_pipelined(pipelined, batches, mode="exact"),
        training_runs.train(plain, batches),
    )
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  @parameterized.parameters("refs", "parameters")
  def test_one_device(self, form):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    optimizer = training_runs.OPTIMIZERS["adam"]
    with jax.set_mesh(mesh):
      plain, pipelined = training_runs.FORMS[form](
          optimizer
      ), training_runs.FORMS[form](optimizer)
      expected = training_runs.train(plain, training_runs.batches())
      losses = training_runs.train_pipelined(pipelined, training_runs.batches())
    self.assertEqual(losses, expected)
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  @parameterized.named_parameters(
      ("jit", jax.jit),
      ("jit_in_a_jit", lambda step: jax.jit(jax.jit(step))),
      ("a_call_of_one_more_function", lambda step: lambda *args: step(*args)),
  )
  def test_calls_in_the_step(self, wrap):
    plain = training_runs.Refs(training_runs.OPTIMIZERS["adagrad"], wrap)
    pipelined = training_runs.Refs(training_runs.OPTIMIZERS["adagrad"], wrap)
    self.assertEqual(
        training_runs.train_pipelined(pipelined, training_runs.batches()),
        training_runs.train(plain, training_runs.batches()),
    )
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_function_that_was_jitted_and_traced_before(self):
    jitted = []

    def share(step):
      jitted.append(jitted[0] if jitted else jax.jit(step))
      return jitted[0]

    plain = training_runs.Refs(training_runs.OPTIMIZERS["sgd"], share)
    pipelined, after = (
        training_runs.Refs(training_runs.OPTIMIZERS["sgd"], share)
        for _ in range(2)
    )
    expected = training_runs.train(plain, training_runs.batches())
    self.assertEqual(
        training_runs.train_pipelined(pipelined, training_runs.batches()),
        expected,
    )
    # And the plain step does not get the trace of the pipeline.
    self.assertEqual(
        training_runs.train(after, training_runs.batches()), expected
    )
    training_runs.assert_same_bits(self, after.arrays(), plain.arrays())

  @parameterized.parameters("exact", "stale")
  def test_lookups_under_checkpoint_are_one_update_each(self, mode):
    def trained(checkpoint, train):
      run = training_runs.Refs(training_runs.OPTIMIZERS["adagrad"])
      specs = training_runs.specs_with(training_runs.OPTIMIZERS["adagrad"])
      model = training_runs.Model(specs, (("tables", "ref"),))

      def train_step(dense, tables, batch):
        @checkpoint
        def out(dense, ids):
          return model.apply({"params": dense, "embedding": tables}, ids)

        def loss_fn(dense):
          return jnp.mean((out(dense, batch["ids"]) - batch["labels"]) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(dense)
        return jax.tree.map(lambda p, g: p - 0.1 * g, dense, gradients), loss

      run.train_step = train_step
      return train(run, training_runs.batches()), run.arrays()

    train = functools.partial(training_runs.train_pipelined, mode=mode)
    losses, arrays = trained(jax.checkpoint, train)
    if mode == "exact":
      expected, expected_arrays = trained(jax.checkpoint, training_runs.train)
    else:
      expected, expected_arrays = trained(lambda f: f, train)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        arrays,
        expected_arrays,
    )

  @parameterized.parameters("ref", "param")
  def test_nnx_model_as_its_state(self, tables):
    class Model(nnx.Module):

      def __init__(self):
        rngs = nnx.Rngs(0)
        specs = training_runs.specs_with(training_runs.OPTIMIZERS["adam"])
        mesh = jax.sharding.Mesh(jax.devices(), "x")
        self.embed = nnx_embed.SparseCoreEmbed(
            specs, "x", mesh, rngs, tables=tables
        )
        self.dense = nnx.Linear(2 * training_runs.DIM, 1, rngs=rngs)

      def __call__(self, ids):
        return self.dense(jnp.concatenate(list(self.embed(ids).values()), 1))

    def make():
      model = Model()
      optimizer = nnx_embed.PartitionedOptimizer(model, optax.sgd(0.1))
      graph, refs, state = nnx.split(
          (model, optimizer), lambda _, x: _is_ref(x), ...
      )

      def train_step(refs, state, batch):
        model, optimizer = nnx.merge(graph, refs, state)

        def loss_fn(model):
          return jnp.mean((model(batch["ids"]) - batch["labels"]) ** 2)

        loss, gradients = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, gradients)
        _, _, state = nnx.split(
            (model, optimizer), lambda _, x: _is_ref(x), ...
        )
        return state, loss

      return train_step, refs, state

    train_step, refs, state = make()
    jitted, expected = jax.jit(train_step), []
    for batch in training_runs.batches():
      state, loss = jitted(refs, state, batch)
      expected.append(float(loss))
    train_step, other_refs, other = make()
    step = pipelining.pipelined(train_step, 2)
    flight, losses = (
        step.start(other_refs, other, training_runs.batches()[0]),
        [],
    )
    for batch in training_runs.batches()[1:]:
      flight, (other, loss) = step(flight, other_refs, other, batch)
      losses.append(float(loss))
    flight, (other, loss) = step.finish(flight, other_refs, other)
    self.assertEqual([*losses, float(loss)], expected)
    read = lambda x: np.array(x[...])
    training_runs.assert_same_bits(
        self,
        jax.tree.map(read, (other_refs, other)),
        jax.tree.map(read, (refs, state)),
    )

  def test_bfloat16_tables(self):
    make = lambda: training_runs.Refs(
        training_runs.OPTIMIZERS["sgd"], dtype=jnp.bfloat16
    )
    plain, pipelined = make(), make()
    self.assertEqual(
        training_runs.train_pipelined(pipelined, training_runs.batches()),
        training_runs.train(plain, training_runs.batches()),
    )
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_replicated_tables(self):
    make = lambda: training_runs.Refs(
        training_runs.OPTIMIZERS["adam"], placement="tensorcore"
    )
    plain, pipelined = make(), make()
    self.assertEqual(
        training_runs.train_pipelined(pipelined, training_runs.batches()),
        training_runs.train(plain, training_runs.batches()),
    )
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_last_batch_of_another_size(self):
    batches = training_runs.batches(3) + training_runs.batches(1, 8)
    plain, pipelined = (
        training_runs.Refs(training_runs.OPTIMIZERS["adam"]) for _ in range(2)
    )
    self.assertEqual(
        training_runs.train_pipelined(pipelined, batches),
        training_runs.train(plain, batches),
    )
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_writes_that_no_lookup_of_the_step_reads(self):
    def wrap(step):
      def train_step(dense, tables, batch):
        for variables in tables.values():
          for slot in jax.tree.leaves(variables.slot):
            slot[...] = 0.5 * slot[...]
        results = step(dense, tables, batch)
        for variables in tables.values():
          variables.table[...] = jnp.clip(variables.table[...], -0.1, 0.1)
        return results

      return train_step

    plain, pipelined = (
        training_runs.Refs(training_runs.OPTIMIZERS["adagrad"], wrap)
        for _ in range(2)
    )
    batches = training_runs.batches()
    self.assertEqual(
        training_runs.train_pipelined(pipelined, batches),
        training_runs.train(plain, batches),
    )
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_callbacks_that_ids_do_not_depend_on_run_once_a_batch(self):
    seen = []

    def wrap(step):
      @jax.jit
      def note(batch):
        label = batch["labels"][0, 0]
        io_callback(lambda x: seen.append(float(x)), None, label)
        jax.debug.print("{}", label)
        return batch

      return lambda dense, tables, batch: step(dense, tables, note(batch))

    run = training_runs.Refs(training_runs.OPTIMIZERS["sgd"], wrap)
    batches = training_runs.batches()
    training_runs.train_pipelined(run, batches)
    jax.effects_barrier()
    self.assertEqual(seen, [float(x["labels"][0, 0]) for x in batches])

  @parameterized.parameters("exact", "stale", "off")
  def test_one_program_for_all_steps(self, mode):
    run, traces = training_runs.Refs(training_runs.OPTIMIZERS["sgd"]), []

    def train_step(*args):
      traces.append(1)
      return plain_step(*args)

    plain_step = run.train_step
    step = pipelining.pipelined(train_step, 2, mode)
    batches = training_runs.batches(8)
    flight = step.start(*run.arguments(), batches[0])
    for batch in batches[1:4]:
      flight, results = step(flight, *run.arguments(), batch)
      run.take(results)
    traces.clear()
    for batch in batches[4:]:
      flight, results = step(flight, *run.arguments(), batch)
      run.take(results)
    self.assertEmpty(traces)

  def test_state_with_a_place_for_tables_is_found_by_structure(self):
    run = training_runs.Parameters(training_runs.OPTIMIZERS["sgd"])
    plain_step = run.train_step

    def keeps_tables(params, state, batch):
      return jax.tree.map(jnp.sum, plain_step(params, state, batch)[0])

    step = pipelining.pipelined(keeps_tables, 2)
    batch = training_runs.batches(1)[0]
    flight = step.start(*run.arguments(), batch)
    with self.assertRaisesRegex(
        ValueError, "Argument 0 has tables, and 0 results"
    ):
      step(flight, *run.arguments(), batch)


class StaleTest(parameterized.TestCase):

  @parameterized.product(
      form=list(training_runs.FORMS), optimizer=["sgd", "adagrad"]
  )
  def test_activations_miss_one_update(self, form, optimizer):
    run = training_runs.FORMS[form](training_runs.OPTIMIZERS[optimizer])
    expected, tables = _stale_twin(run, optimizer, training_runs.batches())
    losses = training_runs.train_pipelined(
        run, training_runs.batches(), mode="stale"
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    found = training_runs.logical_tables(run)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        found,
        tables,
    )
    exact = training_runs.train_pipelined(
        training_runs.FORMS[form](training_runs.OPTIMIZERS[optimizer]),
        training_runs.batches(),
        mode="exact",
    )
    self.assertEqual(losses[0], exact[0])
    # Nothing is missing yet: the second batch was looked up before the first
    # update, and that is what is late.
    self.assertNotAlmostEqual(losses[1], exact[1], places=5)

  @parameterized.product(
      form=list(training_runs.FORMS), placement=["sparsecore", "tensorcore"]
  )
  def test_batches_of_other_sizes(self, form, placement):
    run = training_runs.FORMS[form](
        training_runs.OPTIMIZERS["sgd"], placement=placement
    )
    batches = [training_runs.batches(1, size)[0] for size in (16, 8, 16, 4, 4)]
    expected, tables = _stale_twin(run, "sgd", batches)
    losses = training_runs.train_pipelined(run, batches, mode="stale")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        training_runs.logical_tables(run),
        tables,
    )

  @parameterized.parameters("refs", "parameters")
  def test_number_of_updates_is_that_of_batches(self, form):
    # Adam's first steps depend on it, and the first call has none pending.
    plain = training_runs.FORMS[form](training_runs.OPTIMIZERS["adam"])
    run = training_runs.FORMS[form](training_runs.OPTIMIZERS["adam"])
    losses = training_runs.train_pipelined(
        run, training_runs.batches(1), mode="stale"
    )
    self.assertEqual(
        losses, training_runs.train(plain, training_runs.batches(1))
    )
    training_runs.assert_same_bits(self, run.arrays(), plain.arrays())

  @parameterized.parameters("refs", "parameters")
  def test_flush_and_start_at_every_step_is_exact(self, form):
    plain, run = (
        training_runs.FORMS[form](training_runs.OPTIMIZERS["adam"])
        for _ in range(2)
    )
    step = pipelining.pipelined(run.train_step, 2, "stale")
    losses = []
    for batch in training_runs.batches():
      flight = step.start(*run.arguments(), batch)
      flight, results = step.finish(flight, *run.arguments())
      losses.append(run.take(results))
      run.flushed(step.flush(flight, *run.arguments()))
    self.assertEqual(
        losses, training_runs.train(plain, training_runs.batches())
    )
    training_runs.assert_same_bits(self, run.arrays(), plain.arrays())

  def test_warmup_steps_are_exact(self):
    make = lambda: training_runs.Refs(training_runs.OPTIMIZERS["adagrad"])
    exact = training_runs.train_pipelined(make(), training_runs.batches())
    warm = training_runs.train_pipelined(
        make(), training_runs.batches(), mode="stale", warmup_steps=3
    )
    stale = training_runs.train_pipelined(
        make(), training_runs.batches(), mode="stale"
    )
    self.assertEqual(warm[:4], exact[:4])
    self.assertNotAlmostEqual(warm[4], exact[4], places=5)
    self.assertNotAlmostEqual(warm[1], stale[1], places=5)

  def test_flight_can_be_saved(self):
    batches = training_runs.batches()
    run, other = (
        training_runs.Refs(training_runs.OPTIMIZERS["adagrad"])
        for _ in range(2)
    )
    expected = training_runs.train_pipelined(other, batches, mode="stale")
    step = pipelining.pipelined(run.train_step, 2, "stale")
    flight = step.start(*run.arguments(), batches[0])
    losses = []
    for batch in batches[1:]:
      flight, results = step(flight, *run.arguments(), batch)
      losses.append(run.take(results))
      # To files and back.
      flight = jax.tree.map(np.array, flight)
    flight, results = step.finish(flight, *run.arguments())
    losses.append(run.take(results))
    step.flush(flight, *run.arguments())
    self.assertEqual(losses, expected)
    training_runs.assert_same_bits(self, run.arrays(), other.arrays())


def _stale_twin(run, optimizer, batches):
  """Losses and tables of a model in plain JAX with stale activations.

  Batch n is looked up after the update of batch n - 2.
  """
  tables = jax.tree.map(jnp.asarray, training_runs.logical_tables(run))
  accumulators = jax.tree.map(lambda t: jnp.full_like(t, 0.1), tables)
  dense = jax.tree.map(jnp.asarray, run.dense_layer())

  # A program each: by themselves, operations would be compiled for every size.
  @jax.jit
  def look_up(tables, ids):
    return {
        name: tables[f"{name}_table"][ids[name]].sum(1) for name in sorted(ids)
    }

  @jax.jit
  @functools.partial(jax.value_and_grad, argnums=(0, 1))
  def loss_and_gradients(dense, activations, labels):
    x = jnp.tanh(jnp.concatenate(list(activations.values()), axis=1))
    out = x @ dense["kernel"] + dense["bias"]
    return jnp.mean((out - labels) ** 2)

  @jax.jit
  def update(tables, accumulators, gradients, ids):
    _, pull_back = jax.vjp(lambda tables: look_up(tables, ids), tables)
    (gradients,) = pull_back(gradients)
    if optimizer == "sgd":
      new = jax.tree.map(lambda t, g: t - 0.1 * g, tables, gradients)
      return new, accumulators
    accumulators = jax.tree.map(lambda a, g: a + g * g, accumulators, gradients)
    new = jax.tree.map(
        lambda t, g, a: t - 0.1 * g / jnp.sqrt(a),
        tables,
        gradients,
        accumulators,
    )
    return new, accumulators

  losses, pending = [], None
  activations = look_up(tables, batches[0]["ids"])
  for batch, following in zip(batches, batches[1:] + batches[-1:]):
    if pending:
      tables, accumulators = update(tables, accumulators, *pending)
    next_activations = look_up(tables, following["ids"])
    loss, (dense_g, gradients) = loss_and_gradients(
        dense, activations, batch["labels"]
    )
    dense = jax.tree.map(lambda p, g: p - 0.1 * g, dense, dense_g)
    losses.append(float(loss))
    pending, activations = (gradients, batch["ids"]), next_activations
  tables, _ = update(tables, accumulators, *pending)
  return losses, tables


class ErrorsTest(parameterized.TestCase):

  def _start(self, train_step, *args, **options):
    options = dict(batch_argnums=1) | options
    return pipelining.pipelined(train_step, **options).start(*args)

  def _layer(self):
    run = training_runs.Refs(training_runs.OPTIMIZERS["sgd"])
    model = training_runs.Model(
        training_runs.specs_with(training_runs.OPTIMIZERS["sgd"]),
        (("tables", "ref"),),
    )

    def loss(dense, ids):
      variables = {"params": dense, "embedding": run.tables}
      return model.apply(variables, ids).sum()

    return run.dense, loss, training_runs.batches(1)[0]["ids"]

  def test_step_without_a_lookup(self):
    with self.assertRaisesRegex(ValueError, "looks no embeddings up"):
      self._start(lambda x, y: x + y, 1.0, 2.0)

  def test_ids_from_the_state(self):
    dense, loss, ids = self._layer()

    def step(state, batch):
      ids = {**batch, "users": batch["users"] + state["offset"]}
      return jax.grad(loss)(state["dense"], ids)

    state = {"dense": dense, "offset": np.int32(1)}
    with self.assertRaisesRegex(
        ValueError, r"depend on argument 0\['offset'\].*arguments \(1\)"
    ):
      self._start(step, state, ids)

  def test_lookup_in_a_loop(self):
    dense, loss, ids = self._layer()

    def step(dense, batch):
      return jax.lax.scan(
          lambda carry, _: (carry + loss(dense, batch), None), 0.0, length=2
      )

    with self.assertRaisesRegex(NotImplementedError, "inside of scan"):
      self._start(step, dense, ids)

  def test_lookup_under_vmap(self):
    dense, loss, ids = self._layer()

    def step(dense, batch):
      twice = jax.tree.map(lambda x: jnp.stack([x, x]), batch)
      return jax.vmap(lambda ids: loss(dense, ids))(twice)

    with self.assertRaisesRegex(NotImplementedError, "vmap"):
      self._start(step, dense, ids)

  def test_tables_that_reach_the_lookup_changed(self):
    run = training_runs.Parameters(training_runs.OPTIMIZERS["sgd"])

    def step(params, batch):
      params = jax.tree.map(lambda x: 2 * x, params)
      return run.train_step(params, run.state, batch)

    with self.assertRaisesRegex(ValueError, "users_table.*reach it changed"):
      self._start(step, run.params, training_runs.batches(1)[0])

  def test_lookup_after_an_update(self):
    run = training_runs.Refs(training_runs.OPTIMIZERS["sgd"])

    def step(dense, tables, batch):
      dense, _ = run.train_step(dense, tables, batch)
      return run.train_step(dense, tables, batch)

    with self.assertRaisesRegex(
        ValueError, r"reads argument 1.* after an update"
    ):
      self._start(
          step, *run.arguments(), training_runs.batches(1)[0], batch_argnums=2
      )

  def test_lookup_after_an_update_of_tables_that_are_closed_over(self):
    dense, loss, ids = self._layer()

    def step(dense, batch):
      jax.grad(loss)(dense, batch)
      return jax.jit(loss)(dense, batch)

    with self.assertRaisesRegex(
        ValueError, r"reads Ref.*which train_step closes over, after an update"
    ):
      self._start(step, dense, ids)

  @parameterized.named_parameters(
      ("assignment", lambda ref: jax.ref.set(ref, (0, 0), 1.0), "swap"),
      ("addition", lambda ref: jax.ref.addupdate(ref, (0, 0), 1.0), "add"),
      ("in_a_jit", jax.jit(lambda ref: jax.ref.set(ref, (0, 0), 1.0)), "swap"),
      (
          "in_a_loop",
          lambda ref: jax.lax.fori_loop(
              0, 2, lambda i, _: jax.ref.set(ref, (i, 0), 1.0), None
          ),
          "scan",
      ),
  )
  def test_table_that_the_step_writes_first(self, write, operation):
    run = training_runs.Refs(training_runs.OPTIMIZERS["sgd"])
    batch = training_runs.batches(1)[0]

    def step(dense, tables, batch):
      write(tables["users_table"].table)
      return run.train_step(dense, tables, batch)

    message = (
        "after the step has written it, by"
        rf" {operation}\w* \(.*pipelining_test.py.*before_lookup="
    )
    with self.assertRaisesRegex(
        ValueError, rf"reads argument 1\['users_table'\]\.table {message}"
    ):
      self._start(step, *run.arguments(), batch, batch_argnums=2)
    with self.assertRaisesRegex(
        ValueError, f"reads Ref.*, which train_step closes over, {message}"
    ):
      self._start(
          lambda dense, batch: step(dense, run.tables, batch), run.dense, batch
      )

  @parameterized.named_parameters(
      ("callback", lambda ids, call, ref: ids + call(), "io_callback"),
      (
          "callback_in_a_jit",
          lambda ids, call, ref: jax.jit(lambda ids: ids + call())(ids),
          "io_callback",
      ),
      ("closed_over_ref", lambda ids, call, ref: ids + ref[...], "get"),
      ("own_ref", lambda ids, call, ref: jax.freeze(jax.new_ref(ids)), ""),
  )
  def test_ids_of_what_would_run_twice(self, change, operation):
    dense, loss, ids = self._layer()
    ref = jax.new_ref(np.int32(1))
    call = lambda: io_callback(
        lambda: np.int32(1), jax.ShapeDtypeStruct((), np.int32)
    )

    def step(dense, batch):
      ids = {**batch, "users": change(batch["users"], call, ref)}
      return jax.grad(loss)(dense, ids)

    with self.assertRaisesRegex(
        ValueError,
        rf"depend on {operation}.* \(.*pipelining_test.py.* run it once to look"
        r" them up and again .* arguments \(1\)",
    ):
      self._start(step, dense, ids)

  @parameterized.parameters(
      (dict(batch_argnums=()), "batch_argnums is empty"),
      (dict(batch_argnums=-1), "from 0, each once; got"),
      (dict(mode="fast"), "must be one of .*exact.*, got 'fast'"),
      (dict(warmup_steps=3), "mode is 'exact'"),
      (dict(mode="stale", warmup_steps=-1), "not be negative, got -1"),
      (dict(donate_argnums=(0, 1)), r"donate_argnums has the arguments \[1\]"),
      (dict(static_argnums=1), r"static_argnums has the arguments \[1\]"),
  )
  def test_options(self, options, message):
    options = dict(batch_argnums=1) | options
    with self.assertRaisesRegex(ValueError, message):
      pipelining.pipelined(lambda x, y: x, **options)

  def test_flights(self):
    run, batch = (
        training_runs.Refs(training_runs.OPTIMIZERS["sgd"]),
        training_runs.batches(1)[0],
    )
    exact = pipelining.pipelined(run.train_step, 2)
    stale = pipelining.pipelined(run.train_step, 2, "stale")
    flight = exact.start(*run.arguments(), batch)
    with self.assertRaisesRegex(ValueError, "mode 'exact', .* of 'stale'"):
      stale(flight, *run.arguments(), batch)
    with self.assertRaisesRegex(TypeError, "must be a Flight.*got dict"):
      exact(*run.arguments(), batch)
    with self.assertRaisesRegex(ValueError, "Got 2 arguments .* at .2,."):
      exact(flight, *run.arguments())
    flight, _ = exact.finish(flight, *run.arguments())
    with self.assertRaisesRegex(ValueError, "flight is finished"):
      exact(flight, *run.arguments(), batch)

  @parameterized.parameters("exact", "stale")
  def test_a_flight_is_used_once(self, mode):
    run = training_runs.Refs(training_runs.OPTIMIZERS["sgd"])
    batches = training_runs.batches()
    step = pipelining.pipelined(run.train_step, 2, mode)
    first = step.start(*run.arguments(), batches[0])
    used, results = step(first, *run.arguments(), batches[1])
    run.take(results)
    flight, results = step(used, *run.arguments(), batches[2])
    run.take(results)
    tables = jax.tree.map(np.array, run.arrays())
    calls = [
        lambda: step(used, *run.arguments(), batches[2]),
        lambda: step.finish(used, *run.arguments()),
    ]
    if mode == "stale":  # else there is nothing to flush
      calls.append(lambda: step.flush(used, *run.arguments()))
    for call in calls:
      with self.assertRaisesRegex(RuntimeError, "The flight was used"):
        call()
    training_runs.assert_same_bits(self, run.arrays(), tables)
    step.finish(flight, *run.arguments())


if __name__ == "__main__":
  absltest.main()
