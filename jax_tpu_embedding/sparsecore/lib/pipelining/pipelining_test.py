# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Pipelined steps make the numbers of the plain step, or those of a stale one."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

_BATCH, _DIM, _ROWS, _STEPS = 16, 8, 64, 6
_OPTIMIZERS = {
    "sgd": embedding_spec.SGDOptimizerSpec(0.1),
    "schedule": embedding_spec.SGDOptimizerSpec(lambda step: 0.1 / (1 + step)),
    "adagrad": embedding_spec.AdagradOptimizerSpec(0.1),
    "adam": embedding_spec.AdamOptimizerSpec(0.1),
    "ftrl": embedding_spec.FTRLOptimizerSpec(0.1),
    "laprop": embedding_spec.LaPropOptimizerSpec(0.1),
}


def _specs(optimizer, **table_fields):
  def feature(name, valency):
    table = embedding_spec.TableSpec(
        name=f"{name}_table",
        vocabulary_size=_ROWS,
        embedding_dim=_DIM,
        optimizer=optimizer,
        combiner="sum",
        **table_fields,
    )
    return embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(_BATCH, valency),
        output_shape=(_BATCH, _DIM),
    )

  return {"users": feature("users", 1), "items": feature("items", 3)}


class _Model(nn.Module):
  specs: object
  options: tuple = ()

  @nn.compact
  def __call__(self, ids, **kwargs):
    out = embed.SparseCoreEmbed(self.specs, name="embed", **dict(self.options))(
        ids, **kwargs
    )
    return nn.Dense(1)(jnp.tanh(jnp.concatenate(list(out.values()), axis=1)))


def _batches(num_batches=_STEPS, batch=_BATCH):
  rng = np.random.default_rng(0)
  return [
      dict(
          # Few rows, so that batches share them.
          ids={
              "users": rng.integers(0, 8, (batch, 1), np.int32),
              "items": rng.integers(0, 8, (batch, 3), np.int32),
          },
          labels=rng.normal(size=(batch, 1)).astype(np.float32),
      )
      for _ in range(num_batches)
  ]


class _Refs:
  """A run of a model with tables in mutable arrays."""

  def __init__(self, optimizer, wrap=lambda step: step, **table_fields):
    specs = _specs(optimizer, **table_fields)
    model = _Model(specs, (("tables", "ref"),))
    self.tables = embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0)
    )
    ids = _batches(1)[0]["ids"]
    self.dense = model.init(jax.random.key(1), ids)["params"]

    def train_step(dense, tables, batch):
      def loss_fn(dense):
        variables = {"params": dense, "embedding": tables}
        out = model.apply(variables, batch["ids"])
        return jnp.mean((out - batch["labels"]) ** 2)

      loss, gradients = jax.value_and_grad(loss_fn)(dense)
      dense = jax.tree.map(lambda p, g: p - 0.1 * g, dense, gradients)
      return dense, loss

    self.train_step = wrap(train_step)

  def arguments(self):
    return self.dense, self.tables

  def take(self, results):
    self.dense, loss = results
    return float(loss)

  def flushed(self, others):
    pass

  def dense_layer(self):
    return self.dense["Dense_0"]

  def stacks(self):
    return {name: v.table[...] for name, v in self.tables.items()}

  def arrays(self):
    values = jax.tree.map(lambda ref: np.array(ref[...]), self.tables)
    return jax.tree.map(np.array, self.dense), values


class _Parameters:
  """The same with tables among the parameters."""

  def __init__(self, optimizer, wrap=lambda step: step, **table_fields):
    specs = _specs(optimizer, **table_fields)
    model = _Model(specs, (("tables", "param"),))
    self.params = model.init(jax.random.key(1), _batches(1)[0]["ids"])["params"]
    optimizer = embed_optimizer.create_optimizer_for_sc_model(
        self.params, optax.sgd(0.1)
    )
    self.state = optimizer.init(self.params)

    def train_step(params, state, batch):
      def loss_fn(params):
        out = model.apply({"params": params}, batch["ids"])
        return jnp.mean((out - batch["labels"]) ** 2)

      loss, gradients = jax.value_and_grad(loss_fn)(params)
      updates, state = optimizer.update(gradients, state, params)
      new = embed_optimizer.apply_updates_for_sc_model(params, updates)
      return new, state, loss

    self.train_step = wrap(train_step)

  def arguments(self):
    return self.params, self.state

  def take(self, results):
    self.params, self.state, loss = results
    return float(loss)

  def flushed(self, others):
    self.params, self.state = others

  def dense_layer(self):
    return self.params["Dense_0"]

  def stacks(self):
    variables = self.params["embed"]["sc_embedding_variables"]
    return {name: v.table for name, v in nn.meta.unbox(variables).items()}

  def arrays(self):
    return jax.tree.map(np.array, (self.params, self.state))


_FORMS = {"refs": _Refs, "parameters": _Parameters}


def _train(run, batches):
  """Losses of the plain step."""
  step = jax.jit(run.train_step)
  return [run.take(step(*run.arguments(), batch)) for batch in batches]


def _train_pipelined(run, batches, **options):
  step = pipelining.pipelined(run.train_step, batch_argnums=2, **options)
  flight = step.start(*run.arguments(), batches[0])
  losses = []
  for batch in batches[1:]:
    flight, results = step(flight, *run.arguments(), batch)
    losses.append(run.take(results))
  flight, results = step.finish(flight, *run.arguments())
  losses.append(run.take(results))
  run.flushed(step.flush(flight, *run.arguments()))
  return losses


def _is_ref(x):
  return isinstance(getattr(x, "get_value", lambda: x)(), jax.Ref)


def _assert_same_bits(test, a, b):
  test.assertEqual(jax.tree.structure(a), jax.tree.structure(b))
  jax.tree.map(np.testing.assert_array_equal, a, b)


class ExactTest(parameterized.TestCase):

  @parameterized.product(form=list(_FORMS), optimizer=list(_OPTIMIZERS))
  def test_bits_are_those_of_the_plain_step(self, form, optimizer):
    make = functools.partial(_FORMS[form], _OPTIMIZERS[optimizer])
    plain, pipelined = make(), make()
    expected = _train(plain, _batches())
    losses = _train_pipelined(pipelined, _batches(), mode="exact")
    self.assertEqual(losses, expected)
    _assert_same_bits(self, pipelined.arrays(), plain.arrays())

  @parameterized.parameters("refs", "parameters")
  def test_one_device(self, form):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    optimizer = _OPTIMIZERS["adam"]
    with jax.set_mesh(mesh):
      plain, pipelined = _FORMS[form](optimizer), _FORMS[form](optimizer)
      expected = _train(plain, _batches())
      losses = _train_pipelined(pipelined, _batches())
    self.assertEqual(losses, expected)
    _assert_same_bits(self, pipelined.arrays(), plain.arrays())

  @parameterized.named_parameters(
      ("jit", jax.jit),
      ("jit_in_a_jit", lambda step: jax.jit(jax.jit(step))),
      ("a_call_of_one_more_function", lambda step: lambda *args: step(*args)),
  )
  def test_calls_in_the_step(self, wrap):
    plain = _Refs(_OPTIMIZERS["adagrad"], wrap)
    pipelined = _Refs(_OPTIMIZERS["adagrad"], wrap)
    self.assertEqual(
        _train_pipelined(pipelined, _batches()), _train(plain, _batches())
    )
    _assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_function_that_was_jitted_and_traced_before(self):
    jitted = []

    def share(step):
      jitted.append(jitted[0] if jitted else jax.jit(step))
      return jitted[0]

    plain = _Refs(_OPTIMIZERS["sgd"], share)
    pipelined, after = (_Refs(_OPTIMIZERS["sgd"], share) for _ in range(2))
    expected = _train(plain, _batches())
    self.assertEqual(_train_pipelined(pipelined, _batches()), expected)
    # And the plain step does not get the trace of the pipeline.
    self.assertEqual(_train(after, _batches()), expected)
    _assert_same_bits(self, after.arrays(), plain.arrays())

  @parameterized.parameters("exact", "stale")
  def test_lookups_under_checkpoint_are_one_update_each(self, mode):
    def trained(checkpoint, train):
      run = _Refs(_OPTIMIZERS["adagrad"])
      specs = _specs(_OPTIMIZERS["adagrad"])
      model = _Model(specs, (("tables", "ref"),))

      def train_step(dense, tables, batch):
        @checkpoint
        def out(dense, ids):
          return model.apply({"params": dense, "embedding": tables}, ids)

        def loss_fn(dense):
          return jnp.mean((out(dense, batch["ids"]) - batch["labels"]) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(dense)
        return jax.tree.map(lambda p, g: p - 0.1 * g, dense, gradients), loss

      run.train_step = train_step
      return train(run, _batches()), run.arrays()

    train = functools.partial(_train_pipelined, mode=mode)
    losses, arrays = trained(jax.checkpoint, train)
    if mode == "exact":
      expected, expected_arrays = trained(jax.checkpoint, _train)
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
        specs = _specs(_OPTIMIZERS["adam"])
        mesh = jax.sharding.Mesh(jax.devices(), "x")
        self.embed = nnx_embed.SparseCoreEmbed(
            specs, "x", mesh, rngs, tables=tables
        )
        self.dense = nnx.Linear(2 * _DIM, 1, rngs=rngs)

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
    for batch in _batches():
      state, loss = jitted(refs, state, batch)
      expected.append(float(loss))
    train_step, other_refs, other = make()
    step = pipelining.pipelined(train_step, 2)
    flight, losses = step.start(other_refs, other, _batches()[0]), []
    for batch in _batches()[1:]:
      flight, (other, loss) = step(flight, other_refs, other, batch)
      losses.append(float(loss))
    flight, (other, loss) = step.finish(flight, other_refs, other)
    self.assertEqual([*losses, float(loss)], expected)
    read = lambda x: np.array(x[...])
    _assert_same_bits(
        self,
        jax.tree.map(read, (other_refs, other)),
        jax.tree.map(read, (refs, state)),
    )

  def test_bfloat16_tables(self):
    make = lambda: _Refs(_OPTIMIZERS["sgd"], dtype=jnp.bfloat16)
    plain, pipelined = make(), make()
    self.assertEqual(
        _train_pipelined(pipelined, _batches()), _train(plain, _batches())
    )
    _assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_last_batch_of_another_size(self):
    batches = _batches(3) + _batches(1, 8)
    plain, pipelined = (_Refs(_OPTIMIZERS["adam"]) for _ in range(2))
    self.assertEqual(
        _train_pipelined(pipelined, batches), _train(plain, batches)
    )
    _assert_same_bits(self, pipelined.arrays(), plain.arrays())

  @parameterized.parameters("exact", "stale", "off")
  def test_one_program_for_all_steps(self, mode):
    run, traces = _Refs(_OPTIMIZERS["sgd"]), []

    def train_step(*args):
      traces.append(1)
      return plain_step(*args)

    plain_step = run.train_step
    step = pipelining.pipelined(train_step, 2, mode)
    batches = _batches(8)
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
    run = _Parameters(_OPTIMIZERS["sgd"])
    plain_step = run.train_step

    def keeps_tables(params, state, batch):
      return jax.tree.map(jnp.sum, plain_step(params, state, batch)[0])

    step = pipelining.pipelined(keeps_tables, 2)
    batch = _batches(1)[0]
    flight = step.start(*run.arguments(), batch)
    with self.assertRaisesRegex(
        ValueError, "Argument 0 has tables, and 0 results"
    ):
      step(flight, *run.arguments(), batch)


class StaleTest(parameterized.TestCase):

  @parameterized.product(form=list(_FORMS), optimizer=["sgd", "adagrad"])
  def test_activations_miss_one_update(self, form, optimizer):
    run = _FORMS[form](_OPTIMIZERS[optimizer])
    expected, tables = _stale_twin(run, optimizer)
    losses = _train_pipelined(run, _batches(), mode="stale")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    found = _logical_tables(run)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        found,
        tables,
    )
    exact = _train_pipelined(
        _FORMS[form](_OPTIMIZERS[optimizer]), _batches(), mode="exact"
    )
    self.assertEqual(losses[0], exact[0])
    # Nothing is missing yet: the second batch was looked up before the first
    # update, and that is what is late.
    self.assertNotAlmostEqual(losses[1], exact[1], places=5)

  @parameterized.parameters("refs", "parameters")
  def test_number_of_updates_is_that_of_batches(self, form):
    # Adam's first steps depend on it, and the first call has none pending.
    plain = _FORMS[form](_OPTIMIZERS["adam"])
    run = _FORMS[form](_OPTIMIZERS["adam"])
    losses = _train_pipelined(run, _batches(1), mode="stale")
    self.assertEqual(losses, _train(plain, _batches(1)))
    _assert_same_bits(self, run.arrays(), plain.arrays())

  @parameterized.parameters("refs", "parameters")
  def test_flush_and_start_at_every_step_is_exact(self, form):
    plain, run = (_FORMS[form](_OPTIMIZERS["adam"]) for _ in range(2))
    step = pipelining.pipelined(run.train_step, 2, "stale")
    losses = []
    for batch in _batches():
      flight = step.start(*run.arguments(), batch)
      flight, results = step.finish(flight, *run.arguments())
      losses.append(run.take(results))
      run.flushed(step.flush(flight, *run.arguments()))
    self.assertEqual(losses, _train(plain, _batches()))
    _assert_same_bits(self, run.arrays(), plain.arrays())

  def test_warmup_steps_are_exact(self):
    make = lambda: _Refs(_OPTIMIZERS["adagrad"])
    exact = _train_pipelined(make(), _batches())
    warm = _train_pipelined(make(), _batches(), mode="stale", warmup_steps=3)
    stale = _train_pipelined(make(), _batches(), mode="stale")
    self.assertEqual(warm[:4], exact[:4])
    self.assertNotAlmostEqual(warm[4], exact[4], places=5)
    self.assertNotAlmostEqual(warm[1], stale[1], places=5)

  def test_flight_can_be_saved(self):
    batches = _batches()
    run, other = (_Refs(_OPTIMIZERS["adagrad"]) for _ in range(2))
    expected = _train_pipelined(other, batches, mode="stale")
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
    _assert_same_bits(self, run.arrays(), other.arrays())


def _logical_tables(run):
  specs = _specs(_OPTIMIZERS["sgd"])
  num_scs = hardware.num_sparsecores_per_device(jax.devices()[0])
  embedding.prepare_feature_specs_for_training(
      specs, jax.device_count(), num_sc_per_device=num_scs
  )
  stacks = run.stacks()
  return table_stacking.unshard_and_unstack_tables(
      embedding.get_table_specs(specs),
      {name: np.array(x) for name, x in stacks.items()},
      jax.device_count() * num_scs,
  )


def _stale_twin(run, optimizer):
  """Losses and tables of a model in plain JAX with stale activations.

  Batch n is looked up after the update of batch n - 2.
  """
  tables = jax.tree.map(jnp.asarray, _logical_tables(run))
  accumulators = jax.tree.map(lambda t: jnp.full_like(t, 0.1), tables)
  dense = jax.tree.map(jnp.asarray, run.dense_layer())

  def look_up(tables, ids):
    return {
        name: tables[f"{name}_table"][ids[name]].sum(1) for name in sorted(ids)
    }

  def loss_fn(dense, activations, labels):
    x = jnp.tanh(jnp.concatenate(list(activations.values()), axis=1))
    out = x @ dense["kernel"] + dense["bias"]
    return jnp.mean((out - labels) ** 2)

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

  losses, pending, batches = [], None, _batches()
  activations = look_up(tables, batches[0]["ids"])
  for batch, following in zip(batches, batches[1:] + batches[-1:]):
    if pending:
      tables, accumulators = update(tables, accumulators, *pending)
    next_activations = look_up(tables, following["ids"])
    loss, (dense_g, gradients) = jax.value_and_grad(loss_fn, argnums=(0, 1))(
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
    run = _Refs(_OPTIMIZERS["sgd"])
    model = _Model(_specs(_OPTIMIZERS["sgd"]), (("tables", "ref"),))

    def loss(dense, ids):
      variables = {"params": dense, "embedding": run.tables}
      return model.apply(variables, ids).sum()

    return run.dense, loss, _batches(1)[0]["ids"]

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
    run = _Parameters(_OPTIMIZERS["sgd"])

    def step(params, batch):
      params = jax.tree.map(lambda x: 2 * x, params)
      return run.train_step(params, run.state, batch)

    with self.assertRaisesRegex(ValueError, "users_table.*reach it changed"):
      self._start(step, run.params, _batches(1)[0])

  def test_lookup_after_an_update(self):
    run = _Refs(_OPTIMIZERS["sgd"])

    def step(dense, tables, batch):
      dense, _ = run.train_step(dense, tables, batch)
      return run.train_step(dense, tables, batch)

    with self.assertRaisesRegex(
        ValueError, r"reads argument 1.* after an update"
    ):
      self._start(step, *run.arguments(), _batches(1)[0], batch_argnums=2)

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
    run, batch = _Refs(_OPTIMIZERS["sgd"]), _batches(1)[0]
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


if __name__ == "__main__":
  absltest.main()
