# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Steps by the interface of version 0.1, against the order in NumPy."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.auto_pipelining import auto_pipelining as ap
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

_BATCH, _DIM, _ROWS, _RATE = 16, 8, 32, 4.0


class _Model:
  """One table with SGD, and a matrix that is trained too."""

  def __init__(self):
    table = embedding_spec.TableSpec(
        name="table",
        vocabulary_size=_ROWS,
        embedding_dim=_DIM,
        optimizer=embedding_spec.SGDOptimizerSpec(_RATE),
        initializer=lambda key, shape, dtype=jnp.float32: (
            jax.random.normal(key, shape, dtype)
        ),
    )
    feature = embedding_spec.FeatureSpec(
        name="feature",
        table_spec=table,
        input_shape=(_BATCH, 1),
        output_shape=(_BATCH, _DIM),
    )
    self.layer = embed.SparseCoreEmbed({"feature": feature}, tables="param")
    ids = {"feature": np.zeros((_BATCH, 1), np.int32)}
    variables = self.layer.init(jax.random.key(0), ids)["params"]
    self.carry = {
        "table": variables,
        "matrix": jnp.linspace(-1, 1, _DIM).reshape(_DIM, 1),
    }
    self.rows = self.rows_of(self.carry)
    self.matrix = np.array(self.carry["matrix"])

  def rows_of(self, carry):
    """The table, by a lookup of each row."""
    rows = [
        self.layer.apply(
            {"params": carry["table"]},
            {"feature": np.arange(i, i + _BATCH, dtype=np.int32)[:, None]},
        )["feature"]
        for i in range(0, _ROWS, _BATCH)
    ]
    return np.concatenate(rows)

  def train_step(self, carry, ids, labels, has_offset=False):
    def loss_fn(carry):
      out = self.layer.apply({"params": carry["table"]}, {"feature": ids})
      out = out["feature"] @ carry["matrix"]
      return jnp.mean((out + 0.5 * has_offset - labels) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(carry)
    new = {
        "table": embed_optimizer.apply_updates_for_sc_model(
            carry["table"], gradients["table"]
        ),
        "matrix": carry["matrix"] - 0.1 * gradients["matrix"],
    }
    return new, loss, {"loss": loss}

  def twin(self, batches, is_late):
    """Losses, rows and matrix in NumPy, by the order of the pipeline."""
    rows, matrix = self.rows.copy(), self.matrix
    losses, pending = [], None
    activations = rows[batches[0][0][:, 0]]
    for i, (ids, labels) in enumerate(batches):
      if not is_late:
        activations = rows[ids[:, 0]]
      else:
        # Update i - 1, then lookup i + 1, then dense i.
        if pending:
          np.add.at(rows, *pending)
        following = batches[min(i + 1, len(batches) - 1)][0]
        looked_up = rows[following[:, 0]]
      error = activations @ matrix - labels
      losses.append(np.mean(error**2))
      error = 2 * error / _BATCH
      pending = ids[:, 0], -_RATE * error * matrix.T
      matrix = matrix - 0.1 * activations.T @ error
      if is_late:
        activations = looked_up
      else:
        np.add.at(rows, *pending)
    if is_late:
      np.add.at(rows, *pending)
    return losses, rows, matrix


def _batches(num=4):
  rng = np.random.default_rng(1)
  return [
      (
          rng.integers(0, 8, (_BATCH, 1), np.int32),
          rng.normal(size=(_BATCH, 1)).astype(np.float32),
      )
      for _ in range(num)
  ]


class AutoPipeliningTest(parameterized.TestCase):

  def _step(self, model, **options):
    return ap.auto_pipelining(model.train_step, (None, None, None), **options)

  def test_losses_are_those_of_the_batch_before_an_update_late(self):
    model = _Model()
    expected, rows, matrix = model.twin(_batches(), is_late=True)
    step, state, carry = self._step(model), ap.init_state(), model.carry
    self.assertEqual(state, (None, None, None))
    losses = []
    for batch in _batches():
      state, (carry, loss, others) = step(state, carry, *batch)
      losses.append(loss)
      self.assertEqual(jax.tree.structure(others).num_leaves, loss is not None)
    self.assertIsInstance(state, ap.EmbeddingPipeliningState)
    state, (carry, loss, others) = ap.finalize_pipelining(step, state, carry)
    self.assertEqual(state, ap.init_state())
    self.assertEqual(others, {"loss": loss})
    self.assertIsNone(losses[0])
    np.testing.assert_allclose([*losses[1:], loss], expected, rtol=1e-4)
    np.testing.assert_allclose(model.rows_of(carry), rows, atol=1e-4)
    np.testing.assert_allclose(carry["matrix"], matrix, rtol=1e-4)
    # Of the first batch nothing is missing; the second misses its update.
    sequential = model.twin(_batches(), is_late=False)[0]
    self.assertAlmostEqual(losses[1], sequential[0], places=4)
    self.assertNotAlmostEqual(losses[2], sequential[1], places=3)

  def test_batch_in_numpy_arrays_that_are_filled_again(self):
    def trained(batches):
      model = _Model()
      step, state, carry = self._step(model), ap.init_state(), model.carry
      losses = []
      for batch in batches:
        state, (carry, loss, _) = step(state, carry, *batch)
        losses.append(loss)
        jax.block_until_ready((state, carry))
      _, (carry, loss, _) = ap.finalize_pipelining(step, state, carry)
      return [*map(float, losses[1:]), float(loss)], model.rows_of(carry)

    def filled():
      batch = jax.tree.map(np.empty_like, _batches()[0])
      for following in _batches():
        jax.tree.map(np.copyto, batch, following)
        yield batch

    (losses, rows), (expected, expected_rows) = map(
        trained, (filled(), _batches())
    )
    self.assertEqual(losses, expected)
    np.testing.assert_array_equal(rows, expected_rows)

  def test_carry_is_donated(self):
    model = _Model()
    step, (one, two, *_) = self._step(model), _batches()
    state, (carry, *_) = step(ap.init_state(), model.carry, *one)
    state, (new, *_) = step(state, carry, *two)
    self.assertTrue(carry["matrix"].is_deleted())
    ap.finalize_pipelining(step, state, new)
    self.assertTrue(new["matrix"].is_deleted())

  @parameterized.parameters([3], [(3,)])
  def test_static_arguments(self, static_argnums):
    model, losses = _Model(), []
    step = self._step(model, static_argnums=static_argnums)
    batch = _batches()[0]
    for has_offset in (False, True):
      state, (carry, *_) = step(
          ap.init_state(),
          jax.tree.map(jnp.copy, model.carry),
          *batch,
          has_offset,
      )
      _, (_, loss, _) = ap.finalize_pipelining(step, state, carry)
      losses.append(float(loss))
    error = model.rows[batch[0][:, 0]] @ model.matrix - batch[1]
    np.testing.assert_allclose(
        losses, [np.mean(error**2), np.mean((error + 0.5) ** 2)], rtol=1e-5
    )

  @parameterized.parameters(
      ((), [False], [], "has 2 arguments of data.*which had 3"),
      ((), [], [False], "has 3 arguments of data.*which had 2"),
      (3, [False], [True], r"static arguments \[True\].*which had \[False\]"),
      (3, [], [True], "has 3 arguments of data.*which had 2"),
  )
  def test_a_batch_is_not_trained_with_arguments_of_the_next(
      self, static_argnums, first, second, message
  ):
    model, (one, two, *_) = _Model(), _batches()
    step = self._step(model, static_argnums=static_argnums)
    state, (carry, *_) = step(ap.init_state(), model.carry, *one, *first)
    with self.assertRaisesRegex(ValueError, message):
      step(state, carry, *two, *second)
    # Nothing was donated.
    ap.finalize_pipelining(step, state, carry)

  def test_programs_are_dumped_where_tests_have_outputs(self):
    model, directory = _Model(), self.create_tempdir().full_path
    programs = lambda: {x.name: x for x in pathlib.Path(directory).iterdir()}
    with absltest.mock.patch.dict(
        "os.environ", TEST_UNDECLARED_OUTPUTS_DIR=directory
    ):
      self._step(model)(ap.init_state(), model.carry, *_batches()[0])
    texts = {k: v.read_text() for k, v in programs().items()}
    self.assertSameElements(
        texts,
        [
            f"jaxpr_{name}.txt"
            for name in (
                "original",
                "lookup",
                "dense",
                "update",
                "update_lookup",
            )
        ],
    )
    for name, has_lookup, has_update in (
        ("original", True, True),
        ("lookup", True, False),
        ("dense", False, False),
        ("update", False, True),
        ("update_lookup", True, True),
    ):
      text = texts[f"jaxpr_{name}.txt"]
      self.assertEqual("sparse_dense_matmul_csr" in text, has_lookup, name)
      self.assertEqual("sparse_dense_matmul_grad" in text, has_update, name)

  def test_errors(self):
    model, batch = _Model(), _batches()[0]

    def call(fn):
      step = ap.auto_pipelining(fn, (None, None))
      step(ap.init_state(), model.carry, *batch)

    with self.assertRaisesRegex(AssertionError, "return a tuple .*got dict"):
      call(lambda *args: model.train_step(*args)[0])
    with self.assertRaisesRegex(AssertionError, "structure of its carry"):
      call(lambda *args: model.train_step(*args)[::-1])
    with self.assertRaisesRegex(AssertionError, "got function"):
      ap.finalize_pipelining(lambda *args: args, ap.init_state(), model.carry)
    with self.assertRaisesRegex(AssertionError, "Nothing is in the pipeline"):
      ap.finalize_pipelining(self._step(model), ap.init_state(), model.carry)
    with self.assertRaisesRegex(ValueError, "looks no embeddings up"):
      call(lambda carry, ids, labels: (carry, ids))
    step = self._step(model)
    for state in (None, model.carry):
      error = f"init_state\\(\\) or the call .*got a {type(state).__name__}"
      with self.assertRaisesRegex(TypeError, error):
        step(state, model.carry, *batch)
      with self.assertRaisesRegex(TypeError, error):
        ap.finalize_pipelining(step, state, model.carry)


if __name__ == "__main__":
  absltest.main()
