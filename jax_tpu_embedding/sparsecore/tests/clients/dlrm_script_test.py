# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs like RecML's DLRM script, which was written for an older layout.

They import lib.flax.embed and lib.flax.embed_optimizer, take preprocessed input
apart by iterating over it, and preprocess in 16 threads.
"""

from concurrent import futures
import sys
import threading
import time
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.flax import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.tests.clients import plain_model
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)

_BATCH = 32
_NUM_SC = 4  # as the script passes, whatever the device has
_VOCABULARY_SIZES = {"0": 100, "1": 30, "2": 7}
_LEARNING_RATE = 0.2
_TOLERANCE = dict(rtol=1e-4, atol=1e-5)


class _Model(nn.Module):
  feature_specs: embed.Nested[embedding_spec.FeatureSpec]
  mesh: jax.sharding.Mesh
  sharding_axis: str

  @nn.compact
  def __call__(self, dense, lookups: embed.EmbeddingLookupInput):
    activations = embed.SparseCoreEmbed(
        feature_specs=self.feature_specs,
        mesh=self.mesh,
        sharding_axis=self.sharding_axis,
    )(lookups)
    return nn.Dense(1)(jnp.concatenate([dense, *activations.values()], axis=1))


def _specs(num_devices, batch=_BATCH):
  specs = {}
  for name, vocabulary_size in _VOCABULARY_SIZES.items():
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=vocabulary_size,
        embedding_dim=8,
        initializer=jax.nn.initializers.normal(0.5),
        optimizer=embedding_spec.AdagradOptimizerSpec(_LEARNING_RATE),
        combiner="sum",
    )
    specs[name] = embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(batch, 2),
        output_shape=(batch, 8),
    )
  embedding.auto_stack_tables(specs, num_devices, _NUM_SC)
  embedding.prepare_feature_specs_for_training(specs, num_devices, _NUM_SC)
  return specs


def _batch(seed, batch=_BATCH):
  rng = np.random.default_rng(seed)
  ids = {
      name: rng.integers(vocabulary_size, size=(batch, 2), dtype=np.int32)
      for name, vocabulary_size in _VOCABULARY_SIZES.items()
  }
  dense = rng.normal(size=(batch, 3)).astype(np.float32)
  return ids, dense, rng.normal(size=(batch, 1)).astype(np.float32)


def _preprocess(specs, ids, num_devices, batch_number=0):
  processed, _ = embedding.preprocess_sparse_dense_matmul_input(
      ids,
      None,
      specs,
      num_devices,
      num_devices,
      num_sc_per_device=_NUM_SC,
      allow_id_dropping=True,
      batch_number=batch_number,
  )
  return processed


class DlrmScriptTest(parameterized.TestCase):

  @parameterized.parameters(1, 4)
  def test_training_is_algebra(self, num_devices):
    specs = _specs(num_devices)
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("device",))
    sharding = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec("device")
    )

    def load(seed):
      ids, dense, labels = _batch(seed)
      processed = _preprocess(specs, ids, num_devices)
      with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        buffers = map(
            lambda by_stack: jax.device_put(by_stack, sharding), processed
        )
        lookups = embedding.SparseDenseMatmulInput(*buffers)
      self.assertIn("Iterating over", str(caught[0].message))
      return ids, lookups, dense, labels

    model = _Model(specs, mesh, "device")
    _, lookups, dense, labels = load(0)
    params = nn.unbox(model.init(jax.random.key(0), dense, lookups))["params"]
    optimizer = embed_optimizer.create_optimizer_for_sc_model(
        params, optax.sgd(_LEARNING_RATE)
    )

    @jax.jit
    def step(params, state, dense, lookups, labels):
      def loss(params):
        predictions = model.apply({"params": params}, dense, lookups)
        return jnp.mean((predictions - labels) ** 2)

      value, gradients = jax.value_and_grad(loss, allow_int=True)(params)
      updates, state = optimizer.update(gradients, state, params)
      new = embed_optimizer.apply_updates_for_sc_model(params, updates)
      return value, new, state

    plain = self._plain(specs, params, num_devices)
    state = optimizer.init(params)
    for seed in range(3):
      ids, lookups, dense, labels = load(seed)
      loss, params, state = step(params, state, dense, lookups, labels)
      np.testing.assert_allclose(
          loss, _train(plain, ids, dense, labels), **_TOLERANCE
      )
    for name, table in _tables(specs, params, num_devices).items():
      np.testing.assert_allclose(
          table, plain.tables[name].values, err_msg=name, **_TOLERANCE
      )
    np.testing.assert_allclose(
        params["Dense_0"]["kernel"], plain.kernel, **_TOLERANCE
    )

  def _plain(self, specs, params, num_devices):
    tables = {
        name: np.asarray(table, np.float64)
        for name, table in _tables(specs, params, num_devices).items()
    }
    # The dense inputs are a feature, too: of a table that is never trained.
    tables["dense"] = np.eye(3)
    return plain_model.LinearModel(
        tables={
            name: plain_model.Table(
                values,
                plain_model.adagrad,
                0.0 if name == "dense" else _LEARNING_RATE,
                [np.full(values.shape, 0.1)],
            )
            for name, values in tables.items()
        },
        # In the order of the model: dense inputs come first.
        table_of={" dense": "dense"} | {name: name for name in specs},
        kernel=np.asarray(params["Dense_0"]["kernel"], np.float64),
        learning_rate=_LEARNING_RATE,
    )

  @parameterized.parameters(1, 4)
  def test_sixteen_threads_preprocess_as_one(self, num_devices):
    specs = _specs(num_devices)
    batches = [_batch(seed)[0] for seed in range(64)]
    expected = [_preprocess(specs, ids, num_devices) for ids in batches]
    with futures.ThreadPoolExecutor(16) as pool:
      got = list(
          pool.map(
              lambda number: _preprocess(
                  specs, batches[number], num_devices, number
              ),
              range(len(batches)),
          )
      )
    jax.tree.map(np.testing.assert_array_equal, got, expected)

  def test_other_threads_run_while_ids_are_converted(self):
    specs = _specs(1, batch=1 << 19)
    ids, *_ = _batch(0, batch=1 << 19)
    count = 0
    is_done = threading.Event()

    def count_up():
      nonlocal count
      while not is_done.is_set():
        count += 1
        time.sleep(0)

    # Python takes the lock away from nobody now: it has to be given up.
    self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=count_up)
    thread.start()
    self.addCleanup(thread.join)
    self.addCleanup(is_done.set)  # Before the join.
    counted = 0
    deadline = time.monotonic() + 60
    # NumPy gives the lock up now and then, for one count each. The system may
    # have no time for the other thread: more than one attempt.
    while counted < 100 and time.monotonic() < deadline:
      before = count
      _preprocess(specs, ids, 1)
      counted = count - before
    self.assertGreaterEqual(counted, 100)


def _tables(specs, params, num_devices):
  (variables,) = [
      layer["sc_embedding_variables"]
      for layer in params.values()
      if "sc_embedding_variables" in layer
  ]
  return table_stacking.unshard_and_unstack_tables(
      embedding.get_table_specs(specs),
      {name: stack.table for name, stack in variables.items()},
      num_devices * _NUM_SC,
  )


def _train(plain, ids, dense, labels):
  matrices = {
      name: plain_model.gains(rows, None, "sum", _VOCABULARY_SIZES[name])
      for name, rows in ids.items()
  }
  return plain.train(matrices | {" dense": dense}, labels)


if __name__ == "__main__":
  absltest.main()
