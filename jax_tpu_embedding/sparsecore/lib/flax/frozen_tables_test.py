# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables that a layer looks up and never updates, in every form of layers."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen_embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

from flax import nnx

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

_BATCH, _ROWS, _DIM = 16, 32, 8
_IDS = {
    "word": np.arange(_BATCH, dtype=np.int32)[:, None],
    "tag": np.arange(_BATCH, dtype=np.int32)[:, None] % 5,
}


# What is called for each update in the text of a program.
_UPDATE = "@jte_update_cpu"


def _specs(optimizer=None, tag_optimizer=None):
  optimizer = optimizer or embedding_spec.AdagradOptimizerSpec(0.5)
  table = lambda name, optimizer: embedding_spec.TableSpec(
      name=name,
      vocabulary_size=_ROWS,
      embedding_dim=_DIM,
      optimizer=optimizer,
  )
  tables = {
      "word": table("words", optimizer),
      "tag": table("tags", tag_optimizer or optimizer),
  }
  return {
      name: embedding_spec.FeatureSpec(
          name=name,
          table_spec=table,
          input_shape=(_BATCH, 1),
          output_shape=(_BATCH, _DIM),
      )
      for name, table in tables.items()
  }


def _loss(activations):
  return sum(jnp.sum(x * x) for x in jax.tree.leaves(activations))


def _values(tree):
  return jax.tree.map(
      lambda x: np.array(x[...] if isinstance(x, jax.Ref) else x), tree
  )


class _Refs:
  """Linen, with tables in jax.Refs but for stacks in `arrays`."""

  def __init__(self, specs, mesh, frozen=(), arrays=(), slots=True):
    self.layer = linen_embed.SparseCoreEmbed(
        specs, mesh=mesh, tables="ref", frozen=frozen
    )
    self.tables = linen_embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0), mesh=mesh
    )
    self.params = self.layer.init(jax.random.key(1), _IDS)["params"]
    for name in arrays:
      self.tables[name] = jax.tree.map(lambda r: r[...], self.tables[name])
    if not slots:
      self.tables = {n: v._replace(slot=()) for n, v in self.tables.items()}

    def step(params, tables):
      variables = {"params": params, "embedding": tables}
      return jax.grad(
          lambda p: _loss(self.layer.apply(variables | {"params": p}, _IDS))
      )(params)

    self.jitted = jax.jit(step)

  def lower(self):
    return self.jitted.lower(self.params, self.tables)

  def step(self):
    self.jitted(self.params, self.tables)

  @property
  def variables(self):
    return _values(self.tables)


class _Parameters:
  """Linen, with tables among the parameters."""

  def __init__(self, specs, mesh, frozen=()):
    self.layer = linen_embed.SparseCoreEmbed(
        specs, mesh=mesh, tables="param", frozen=frozen
    )
    self.params = self.layer.init(jax.random.key(0), _IDS)["params"]
    optimizer = embed_optimizer.create_optimizer_for_sc_model(
        self.params, optax.sgd(0.1)
    )
    self.state = optimizer.init(self.params)

    def step(params, state):
      gradients = jax.grad(
          lambda p: _loss(self.layer.apply({"params": p}, _IDS))
      )(params)
      updates, state = optimizer.update(gradients, state, params)
      return embed_optimizer.apply_updates_for_sc_model(params, updates), state

    self.jitted = jax.jit(step, donate_argnums=(0, 1))

  def lower(self):
    return self.jitted.lower(self.params, self.state)

  def step(self):
    self.params, self.state = self.jitted(self.params, self.state)

  @property
  def variables(self):
    return _values(
        dict(self.layer.bind({"params": self.params}).embedding_table)
    )


class _Nnx:
  """NNX, in both forms."""

  def __init__(self, specs, mesh, frozen=(), arrays=(), tables="param"):
    axis = mesh.axis_names[0]
    self.layer = nnx_embed.SparseCoreEmbed(
        specs, axis, mesh, nnx.Rngs(0), frozen=frozen, tables=tables
    )
    for name in arrays:
      self.layer.embedding_table[name] = jax.tree.map(
          lambda ref: ref[...], self.layer.embedding_table[name]
      )
    self.optimizer = nnx_embed.PartitionedOptimizer(self.layer, optax.sgd(0.1))

    def step(layer, optimizer):
      gradients = nnx.grad(lambda layer: _loss(layer(_IDS)))(layer)
      optimizer.update(layer, gradients)

    donated = (0, 1) if tables == "param" else ()
    self.jitted = nnx.jit(step, donate_argnums=donated)

  def lower(self):
    return self.jitted.lower(self.layer, self.optimizer)

  def step(self):
    self.jitted(self.layer, self.optimizer)

  @property
  def variables(self):
    table = self.layer.embedding_table
    return _values(table if isinstance(table, dict) else table.get_value())


def _nnx_refs(*args, **kwargs):
  return _Nnx(*args, tables="ref", **kwargs)


# How to freeze the table "tags".
_FORMS = (
    ("linen_ref", _Refs, dict(frozen=("tags",))),
    ("linen_arrays", _Refs, dict(arrays=("tags",))),
    ("linen_param", _Parameters, dict(frozen=("tags",))),
    ("nnx_ref", _nnx_refs, dict(frozen=("tags",))),
    ("nnx_arrays", _nnx_refs, dict(arrays=("tags",))),
    ("nnx_param", _Nnx, dict(frozen=("tags",))),
)


def _mesh(num_devices):
  return jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))


class FrozenTablesTest(parameterized.TestCase):

  @parameterized.product(form=_FORMS, num_devices=(1, 4))
  def test_others_are_updated_as_if_all_were(self, form, num_devices):
    _, make, freeze = form
    mesh = _mesh(num_devices)
    frozen, trained = make(_specs(), mesh, **freeze), make(_specs(), mesh)
    before = frozen.variables
    for _ in range(2):
      frozen.step()
      trained.step()
    after, expected = frozen.variables, trained.variables
    jax.tree.map(np.testing.assert_array_equal, after["tags"], before["tags"])
    jax.tree.map(
        np.testing.assert_array_equal, after["words"], expected["words"]
    )
    self.assertFalse(np.array_equal(after["words"][0], before["words"][0]))
    self.assertFalse(np.array_equal(after["tags"][0], expected["tags"][0]))

  @parameterized.product(form=_FORMS, num_devices=(1, 4))
  def test_there_is_no_update_in_the_program(self, form, num_devices):
    _, make, freeze = form
    mesh = _mesh(num_devices)
    updates = lambda model: model.lower().as_text().count(_UPDATE)
    self.assertEqual(updates(make(_specs(), mesh)), 2)
    self.assertEqual(updates(make(_specs(), mesh, **freeze)), 1)

  @parameterized.parameters("linen_ref", "nnx_ref")
  def test_updates_of_frozen_stacks_are_not_counted(self, name):
    (form,) = [form for form in _FORMS if form[0] == name]
    specs = _specs(embedding_spec.AdamOptimizerSpec())
    model = form[1](specs, _mesh(1), **form[2])
    model.step()
    counts = {name: v.state[0] for name, v in model.variables.items()}
    self.assertEqual(counts, {"words": 1, "tags": 0})

  @parameterized.parameters("linen_arrays", "nnx_param")
  def test_all_tables_may_be_frozen(self, name):
    (form,) = [form for form in _FORMS if form[0] == name]
    (key,) = form[2]
    model = form[1](_specs(), _mesh(4), **{key: ("words", "tags")})
    before = model.variables
    self.assertNotIn(_UPDATE, model.lower().as_text())
    for _ in range(2):  # the seal is that of an update
      model.step()
    jax.tree.map(np.testing.assert_array_equal, model.variables, before)

  @parameterized.parameters(1, 4)
  def test_a_stack_of_several_tables_is_frozen_as_a_whole(self, num_devices):
    specs = _specs()
    embedding.auto_stack_tables(specs, num_devices, num_sc_per_device=4)
    model = _Parameters(specs, _mesh(num_devices), frozen=("words", "tags"))
    self.assertNotIn(_UPDATE, model.lower().as_text())
    model = _Parameters(specs, _mesh(num_devices))
    self.assertEqual(model.lower().as_text().count(_UPDATE), 1)
    with self.assertRaisesRegex(
        ValueError,
        r"(?s)tables \['tags'\] are frozen, and \['words'\] are not.*optimizer of"
        " their own",
    ):
      _Parameters(specs, _mesh(num_devices), frozen=("tags",))

  def test_an_optimizer_of_their_own_stacks_frozen_tables_apart(self):
    # The remedy of the message.
    specs = _specs(tag_optimizer=embedding_spec.SGDOptimizerSpec(0.0))
    embedding.auto_stack_tables(specs, 1, num_sc_per_device=4)
    model = _Refs(specs, _mesh(1), frozen=("tags",))
    self.assertEmpty(model.variables["tags"].slot)
    before = model.variables
    model.step()
    np.testing.assert_array_equal(
        model.variables["tags"].table, before["tags"].table
    )

  def test_frozen_tables_need_no_slots_and_no_step(self):
    # Tables without a state have no count, so that Adam needs step=.
    optimizers = dict(tag_optimizer=embedding_spec.AdamOptimizerSpec(0.1))
    model = _Refs(_specs(**optimizers), _mesh(1), frozen=("tags",))
    table = model.tables["tags"].table
    model.tables["tags"] = embedding.EmbeddingVariables(table, ())
    model.step()
    # That of "words".
    self.assertEqual(model.lower().as_text().count(_UPDATE), 1)

  def test_a_differentiated_table_without_slots_says_so(self):
    model = _Refs(_specs(), _mesh(1), slots=False)
    with self.assertRaisesRegex(
        ValueError,
        r"Stack 'tags'.*AdagradOptimizerSpec needs 1 slots \(accumulator\)"
        r" beside the table, and there are 0.*`frozen`",
    ):
      model.step()

  def test_refs_and_arrays_in_one_stack_raise(self):
    model = _Refs(_specs(), _mesh(1))
    tags = model.tables["tags"]
    model.tables["tags"] = tags._replace(table=tags.table[...])
    with self.assertRaisesRegex(
        ValueError, "Stack 'tags': arrays \\(table\\) are mixed with jax.Refs"
    ):
      model.step()

  @parameterized.parameters(
      (("tag",), ValueError, r"\['tag'\], and there are \['tags', 'words'\]"),
      ("tags", TypeError, r"must be a tuple.*got 'tags'. Of one table, pass"),
  )
  def test_wrong_names_raise(self, frozen, error, message):
    for make in (_Refs, _Nnx):
      with self.assertRaisesRegex(error, message):
        make(_specs(), _mesh(1), frozen=frozen)

  def test_tables_of_an_nnx_layer_can_be_frozen_later_and_thawed(self):
    model = _Nnx(_specs(), _mesh(4))
    is_changed = []
    for frozen in ((), ("tags",), ()):
      model.layer.frozen = frozen
      before = model.variables["tags"].table
      model.step()
      after = model.variables["tags"].table
      is_changed.append(not np.array_equal(after, before))
    self.assertEqual(is_changed, [True, False, True])

  def test_a_wrong_batch_of_a_frozen_table_updates_nothing(self):
    model = _Refs(_specs(), _mesh(1), frozen=("tags",))
    before = model.variables
    wrong = _IDS | {"tag": np.full((_BATCH, 1), _ROWS, np.int32)}
    gradients = jax.grad(
        lambda p: _loss(
            model.layer.apply({"params": p, "embedding": model.tables}, wrong)
        )
    )(model.params)
    jax.tree.map(np.testing.assert_array_equal, model.variables, before)
    with self.assertRaisesRegex(ValueError, "'tag': sample 0 has id 32"):
      embedding.raise_errors(gradients)


if __name__ == "__main__":
  absltest.main()
