# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A wrong batch gives NaN and changes no table; what is wrong can be raised."""

import contextlib
import functools
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_batch
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_csr
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

_NUM_SCS = 4  # of all devices
# Of 48 words and 12 for each of 4 devices: the fifth of the third device.
_WRONG_WORD = (9, 1)


def _as_processes():
  """Devices exchange messages, as if each had a process of its own."""
  return mock.patch.object(mesh_axis, "_is_in_one_process", lambda _: False)


@contextlib.contextmanager
def _as_on_any_platform():
  """All that a layer calls is plain jnp."""
  as_on = functools.partial(every_lowering.as_on, None)
  rule = as_on("update_adagrad", update.UPDATE_PRIMITIVES["adagrad"])
  with contextlib.ExitStack() as stack:
    for owner, name, value in (
        (
            convert_ids,
            "convert_ids_p",
            as_on("convert_ids", convert_ids.convert_ids_p),
        ),
        (
            check_batch,
            "check_batch_p",
            as_on("check_batch", check_batch.check_batch_p),
        ),
        (
            check_batch,
            "nan_if_failed_p",
            as_on("nan_if_failed", check_batch.nan_if_failed_p),
        ),
        (
            sparse_dense_matmul_csr,
            "tpu_sparse_dense_matmul_csr_primitive",
            as_on("lookup", lookup.lookup_p),
        ),
        (
            embedding_spec.AdagradOptimizerSpec,
            "get_optimizer_primitive",
            lambda unused_self: rule,
        ),
    ):
      stack.enter_context(mock.patch.object(owner, name, value))
    yield


# Name -> devices, and how they run.
_WAYS = {
    "one_device": (1, contextlib.nullcontext),
    "shared_memory": (4, contextlib.nullcontext),
    "messages": (4, _as_processes),
    "plain": (1, _as_on_any_platform),
    "plain_messages": (4, _as_on_any_platform),
}


class _Training:
  """A model with two stacks, over devices."""

  def __init__(self, num_devices, form):
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
    options = dict(
        mesh=mesh,
        sharding_axis="x",
        num_sc_per_device=_NUM_SCS // num_devices,
    )
    specs = two_feature_model.make_features(
        embedding_spec.AdagradOptimizerSpec(learning_rate=0.1)
    )
    if form == "refs":
      self._model, self._params, self._refs = two_feature_model.with_refs(
          specs, options=options
      )
    else:
      self._model, self._params = two_feature_model.with_parameters(
          specs, options=options
      )
      self._refs = None
    self.layer = embed.SparseCoreEmbed(specs, **options)
    self.apply = functools.partial(self._model.apply, self._variables())
    self._gradient = jax.value_and_grad(
        functools.partial(two_feature_model.loss, self._model)
    )
    self._jitted = jax.jit(self._gradient)

  def _variables(self):
    variables = {"params": self._params}
    return variables | ({"embedding": self._refs} if self._refs else {})

  def step(self, inputs, *, jitted=True):
    """The loss; updates the tables."""
    gradient = self._jitted if jitted else self._gradient
    loss, gradients = gradient(self._params, inputs, self._refs)
    if self._refs is None:
      # What apply_updates_for_sc_model does.
      self._params = self._params | {"emb": gradients["emb"]}
    return loss

  def tables(self):
    if self._refs is None:
      return jax.tree.map(
          np.asarray, self._params["emb"]["sc_embedding_variables"].value
      )
    return two_feature_model.values(self._refs)

  def corrupt(self, ids):
    """Preprocessed, with the words of the first samples' device corrupt."""
    inputs = self.layer.preprocess_inputs(0, ids, None)
    words = np.array(inputs.lhs_embedding_ids["words"])
    words[0] = 1 << 20
    arrays = inputs.sparse_dense_matmul_input
    return inputs.replace(
        sparse_dense_matmul_input=arrays._replace(
            lhs_embedding_ids=arrays.lhs_embedding_ids | {"words": words}
        )
    )


def _wrong_ids():
  ids = two_feature_model.make_ids()
  ids["words"][_WRONG_WORD] = 1000
  return ids


class WrongBatchesTest(parameterized.TestCase):

  def tearDown(self):
    super().tearDown()
    embedding.raise_errors()

  def assert_changes_nothing(self, training, inputs, **options):
    before = training.tables()
    self.assertTrue(np.isnan(training.step(inputs, **options)))
    jax.tree.map(np.testing.assert_array_equal, training.tables(), before)

  def assert_learns(self, training, **options):
    before = training.tables()
    loss = training.step(two_feature_model.make_ids(), **options)
    self.assertTrue(np.isfinite(loss))
    for old, new in zip(*map(jax.tree.leaves, (before, training.tables()))):
      # Beside tables and slots, there is what they carry with them.
      self.assertTrue(new.ndim == 1 or (old != new).any())
      self.assertTrue(np.isfinite(new).all())

  @parameterized.product(
      (
          *(dict(way=way, form="refs") for way in _WAYS),
          dict(way="one_device", form="parameters"),
          dict(way="shared_memory", form="parameters"),
      ),
      is_preprocessed=[False, True],
  )
  def test_a_wrong_batch_changes_no_table(self, way, form, is_preprocessed):
    num_devices, run_as = _WAYS[way]
    with run_as():
      training = _Training(num_devices, form)
      wrong = _wrong_ids()
      message = "Feature 'words': sample .* has id 1000"
      if is_preprocessed:
        wrong = training.corrupt(two_feature_model.make_ids())
        message = r"embedding_ids\[0\] is 1048576, expected 0 to 7"
      self.assert_changes_nothing(training, wrong)
      if run_as is not _as_on_any_platform:
        with self.assertRaisesRegex(ValueError, message):
          embedding.raise_errors()
      self.assert_learns(training)

  @parameterized.parameters(1, 4)
  def test_also_outside_of_jit(self, num_devices):
    training = _Training(num_devices, "refs")
    self.assert_changes_nothing(training, _wrong_ids(), jitted=False)
    with self.assertRaisesRegex(ValueError, "sample .* has id 1000"):
      embedding.raise_errors()
    self.assert_learns(training, jitted=False)

  @parameterized.parameters("one_device", "shared_memory", "messages")
  def test_evaluation_gives_nan_on_the_device_concerned(self, way):
    num_devices, run_as = _WAYS[way]
    with run_as():
      training = _Training(num_devices, "refs")
      out = jax.jit(training.apply)(_wrong_ids())
      device = np.arange(two_feature_model.BATCH) * num_devices // len(out)
      np.testing.assert_array_equal(
          np.isnan(out).all(axis=1), device == 9 * num_devices // len(out)
      )
      with self.assertRaisesRegex(
          ValueError,
          "^Device 2 of the axis: Feature 'words': sample 4 has id 1000"
          if num_devices > 1
          else "^Feature 'words': sample 28 has id 1000",
      ):
        embedding.raise_errors(out)
      out = jax.jit(training.apply)(two_feature_model.make_ids())
      self.assertTrue(np.isfinite(out).all())

  def test_the_message_is_that_of_preprocessing(self):
    training = _Training(1, "refs")
    jax.block_until_ready(training.apply(_wrong_ids()))
    with self.assertRaises(ValueError) as of_layer:
      embedding.raise_errors()
    with self.assertRaises(ValueError) as of_preprocessing:
      training.layer.preprocess_inputs(0, _wrong_ids(), None)
    self.assertEqual(str(of_layer.exception), str(of_preprocessing.exception))

  def test_the_first_of_many_is_logged(self):
    training = _Training(4, "refs")
    for _ in range(2):
      with self.assertLogs("absl", "WARNING") as logs:
        for _ in range(3):
          jax.block_until_ready(training.step(_wrong_ids()))
      self.assertLen(logs.output, 1)
      self.assertRegex(
          logs.output[0], "has id 1000 .* The activations are NaN, and the"
      )
      with self.assertRaisesRegex(ValueError, "The first of 3 errors"):
        embedding.raise_errors()

  def test_it_is_logged_whatever_python_does(self):
    # The main thread, which logs it, runs code without built-ins, as it does
    # for a moment where a namedtuple is made.
    training, done = _Training(1, "refs"), []

    def apply():
      try:
        jax.block_until_ready(training.apply(_wrong_ids()))
      finally:
        done.append(True)

    thread = threading.Thread(target=apply)
    with self.assertLogs("absl", "WARNING") as logs:
      thread.start()
      exec("while not done: pass", {"__builtins__": {}, "done": done})
    thread.join()
    self.assertRegex(logs.output[0], "has id 1000 .* The activations are NaN")
    with self.assertRaises(ValueError):
      embedding.raise_errors()


if __name__ == "__main__":
  absltest.main()
