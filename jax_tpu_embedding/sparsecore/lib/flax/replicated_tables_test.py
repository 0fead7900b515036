# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables with placement "tensorcore" in every form of the layers."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen_embed
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import every_form
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _places
import numpy as np
import optax

from flax import nnx
import flax.linen as nn

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

P = jax.sharding.PartitionSpec
_BATCH = 16
_IDS = {
    "word": np.arange(2 * _BATCH, dtype=np.int32).reshape(_BATCH, 2) % 40,
    "day": np.arange(_BATCH, dtype=np.int32)[:, None] % 5,
}


def _mesh(num_devices):
  return jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))


# Four devices: axes of the mesh, those that split tables, and their type.
_MESHES = {
    "explicit": ((4, 1), "x", jax.sharding.AxisType.Explicit),
    "over_both_axes": ((2, 2), ("y", "x"), jax.sharding.AxisType.Auto),
    "over_one_of_two": ((2, 2), "y", jax.sharding.AxisType.Auto),
}


def _specs(placement):
  """A table that is split, and one of seven rows with the placement."""

  def feature(name, rows, valency, **of_table):
    table = embedding_spec.TableSpec(
        name=f"{name}s",
        vocabulary_size=rows,
        embedding_dim=8,
        optimizer=embedding_spec.AdamOptimizerSpec(0.1),
        **of_table,
    )
    return embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(_BATCH, valency),
        output_shape=(_BATCH, 8),
    )

  return {
      "word": feature("word", 40, 2),
      "day": feature("day", 7, 1, placement=placement),
  }


class _Refs:
  """Linen, with tables in mutable arrays."""

  def __init__(self, placement, num_devices, frozen=(), num_sc=1):
    self.num_devices = num_devices
    self.specs = _specs(placement)
    embedding.prepare_feature_specs_for_training(
        self.specs, num_devices, num_sc
    )
    mesh = _mesh(num_devices)
    self.layer = linen_embed.SparseCoreEmbed(
        self.specs, mesh=mesh, tables="ref", frozen=frozen
    )
    self.tables = self.layer.create_embedding_variables(
        self.specs, jax.random.key(0), mesh=mesh
    )
    self.params = self.layer.init(jax.random.key(1), _IDS)["params"]

    def step(params, tables, inputs):
      def loss(params):
        out = self.layer.apply({"params": params, "embedding": tables}, inputs)
        return sum(jnp.sum(jnp.sin(x)) for x in out.values()), out

      (_, out), _ = jax.value_and_grad(loss, has_aux=True)(params)
      return out

    self.jitted = jax.jit(step)

  def step(self, inputs=_IDS):
    return self.jitted(self.params, self.tables, inputs)

  def logical(self):
    return jax.tree.map(
        np.asarray,
        table_stacking.unshard_and_unstack_tables(
            embedding.get_table_specs(self.specs),
            {
                name: jax.tree.map(lambda ref: ref[...], of_stack)
                for name, of_stack in self.tables.items()
            },
            self.num_devices,
        ),
    )


def _assert_close(a, b):
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-6), a, b
  )


class ReplicatedTablesTest(parameterized.TestCase):

  @parameterized.product(form=list(every_form.FORMS), num_devices=[1, 4])
  def test_every_form_trains_as_with_split_tables(self, form, num_devices):
    found = []
    for placement in ("sparsecore", "tensorcore"):
      specs = every_form.make_specs(
          embedding_spec.AdamOptimizerSpec(0.1), placement=placement
      )
      run = every_form.FORMS[form](specs, mesh=_mesh(num_devices))
      for _ in range(3):
        run.step()
      table = table_stacking.unshard_and_unstack_tables(
          embedding.get_table_specs(specs),
          {"t": run.table},
          num_devices * embedding.get_table_specs(specs)["t"].num_shards_of(1),
      )["t"]
      found.append((np.asarray(table), np.asarray(run.look_up()), run.traces))
    _assert_close(*found)

  @parameterized.product(num_devices=[1, 2, 4], is_preprocessed=[False, True])
  def test_beside_split_tables(self, num_devices, is_preprocessed):
    found = []
    for placement in ("sparsecore", "tensorcore"):
      run = _Refs(placement, num_devices)
      inputs = _IDS
      if is_preprocessed:
        inputs = run.layer.preprocess_inputs(0, _IDS, None)
      out = [jax.tree.map(np.asarray, run.step(inputs)) for _ in range(3)]
      found.append((out, run.logical()))
    _assert_close(*found)
    table = run.tables["days"].table[...]
    self.assertEqual(table.shape, (8, 8))
    for shard in table.addressable_shards:
      np.testing.assert_array_equal(shard.data, table)

  @parameterized.product(
      feature=["word", "day"], num_devices=[1, 4], trains=[False, True]
  )
  def test_wrong_id_gives_nan_and_no_update(self, feature, num_devices, trains):
    run = _Refs("tensorcore", num_devices)
    run.step()
    embedding.raise_errors()
    before = run.logical()
    ids = dict(_IDS, **{feature: _IDS[feature].copy()})
    ids[feature][0, 0] = 1000
    if trains:
      out = run.step(ids)
    else:
      out = run.layer.apply(
          {"params": run.params, "embedding": run.tables}, ids
      )
    is_nan = np.isnan(out[feature]).all(axis=1)
    # The samples of the first device.
    np.testing.assert_array_equal(
        is_nan, np.arange(_BATCH) < _BATCH // num_devices
    )
    jax.tree.map(np.testing.assert_array_equal, before, run.logical())
    with self.assertRaisesRegex(ValueError, f"'{feature}': sample 0 has id"):
      embedding.raise_errors(out)
    run.step()
    embedding.raise_errors()

  @parameterized.product(is_ragged=[False, True], num_sc=[1, 2])
  def test_error_says_on_which_device_the_sample_is(self, is_ragged, num_sc):
    run = _Refs("tensorcore", 4, num_sc=num_sc)
    ids = _IDS["day"].copy()
    ids[9] = 1000  # The second one of the third device.
    if is_ragged:
      splits = np.tile(np.arange(5, dtype=np.int32), 4)
      ids = (ids.reshape(-1), splits)
    out = run.step(dict(_IDS, day=ids))
    with self.assertRaisesRegex(
        ValueError, "^Device 2 of the axis: Feature 'day': sample 1 has id 1000"
    ):
      embedding.raise_errors(out)
    run.step()
    embedding.raise_errors()

  @parameterized.product(
      name=list(_MESHES), form=["linen_ref", "linen_param", "nnx_ref"]
  )
  def test_meshes(self, name, form):
    shape, axis, axis_type = _MESHES[name]
    mesh = jax.make_mesh(
        shape, ("x", "y"), axis_types=(axis_type,) * 2, devices=jax.devices()
    )
    found = []
    for options in (
        dict(mesh=_mesh(1)),
        dict(mesh=mesh, sharding_axis=axis),
    ):
      specs = every_form.make_specs(
          embedding_spec.AdagradOptimizerSpec(0.1), placement="tensorcore"
      )
      run = every_form.FORMS[form](specs, **options)
      for _ in range(2):
        run.step()
      found.append(run.table)
    _assert_close(*found)

  def test_tables_of_16_bits_stay_equal_on_all_devices(self):
    specs = every_form.make_specs(
        embedding_spec.SGDOptimizerSpec(0.01),
        placement="tensorcore",
        dtype="bfloat16",
    )
    run = every_form.FORMS["linen_ref"](specs, mesh=_mesh(4))
    before = run.table
    for _ in range(3):
      run.step()
    table = run.tables["t"].table[...]
    self.assertFalse(np.array_equal(before, table))
    for shard in table.addressable_shards:
      np.testing.assert_array_equal(shard.data, table)

  def test_frozen_tables_stay(self):
    run = _Refs("tensorcore", 4, frozen=("days",))
    before = run.logical()
    run.step()
    after = run.logical()
    jax.tree.map(np.testing.assert_array_equal, before["days"], after["days"])
    self.assertTrue((before["words"].table != after["words"].table).any())

  def test_broken_seal_is_an_error(self):
    specs = every_form.make_specs(
        embedding_spec.SGDOptimizerSpec(0.1), placement="tensorcore"
    )
    run = every_form.FORMS["linen_param"](specs, mesh=_mesh(1))
    run.step()
    run.look_up()
    seal = run.params["embed"]["update_seal"]
    run.params["embed"]["update_seal"] = jax.tree.map(lambda x: 2 * x, seal)
    for use in (run.look_up, run.step):
      with self.assertRaisesRegex(
          (ValueError, jax.errors.JaxRuntimeError),
          "not the result of one update",
      ):
        jax.block_until_ready(use() or run.params)

  def test_hash_of_a_batch_depends_on_ids_of_replicated_tables(self):
    run = _Refs("tensorcore", 1)
    hashes = set()
    for day in range(3):
      ids = dict(_IDS, day=_IDS["day"].copy())
      ids["day"][0, 0] = day
      inputs = run.layer.preprocess_inputs(0, ids, None)
      hashes.add(int(_seal.hash_of_batch(inputs)))
    self.assertLen(hashes, 3)

  def test_where_they_are_does_not_depend_on_devices(self):
    places = []
    for num_devices in (1, 4):
      specs = _specs("tensorcore")
      embedding.prepare_feature_specs_for_training(specs, num_devices, 2)
      places.append(_places.places_by_stack(specs, 2 * num_devices))
    self.assertEqual(places[0]["days"], places[1]["days"])
    self.assertNotEqual(places[0]["words"], places[1]["words"])

  def test_sparsecores_are_those_of_tables_that_are_split(self):
    specs = _specs("tensorcore")
    self.assertEqual(min(specs), "day")  # which a layer sees first
    embedding.prepare_feature_specs_for_training(specs, 2, 2)
    layer = linen_embed.SparseCoreEmbed(specs, mesh=_mesh(2), tables="ref")
    self.assertEqual(layer.lookup_config.num_sc_per_device, 2)

  def test_parameters_say_how_they_are_split(self):
    mesh = _mesh(4)
    specs = _specs("tensorcore")
    layer = linen_embed.SparseCoreEmbed(specs, mesh=mesh, tables="param")
    params = layer.init(jax.random.key(0), _IDS)["params"]
    by_stack = nn.get_partition_spec(params)["sc_embedding_variables"]
    self.assertEqual(by_stack, {"words": P("x", None), "days": P()})
    shardings = nn.get_sharding(params, mesh)["sc_embedding_variables"]
    self.assertEqual(shardings["days"].spec, P())
    self.assertEqual(shardings["words"].spec, P("x", None))

  def test_nnx_shardings_are_those_that_tables_have(self):
    mesh = _mesh(4)
    everywhere = jax.sharding.NamedSharding(mesh, P())

    def loss(layer):
      return sum(jnp.sum(jnp.sin(x)) for x in layer(_IDS).values())

    def step(layer, optimizer):
      optimizer.update(layer, nnx.grad(loss, allow_int=True)(layer))

    results = []
    for with_shardings in (False, True):
      layer = nnx_embed.SparseCoreEmbed(
          _specs("tensorcore"), mesh=mesh, rngs=nnx.Rngs(0), tables="param"
      )
      optimizer = nnx_embed.PartitionedOptimizer(layer, optax.sgd(0.1))
      options = {}
      if with_shardings:
        of_layer, of_optimizer = (
            nnx_embed.get_named_sharding(x, mesh) for x in (layer, optimizer)
        )
        # Of words and days together there is no one sharding.
        self.assertCountEqual(of_layer.shardings, (None, everywhere))
        options = dict(in_shardings=(of_layer, of_optimizer))
      train = nnx.jit(step, donate_argnums=(0, 1), **options)
      for _ in range(2):
        train(layer, optimizer)
      results.append(layer.embedding_table.get_value())
    jax.tree.map(np.testing.assert_array_equal, *results)
    self.assertTrue(results[1]["days"].table.sharding.is_fully_replicated)
    self.assertFalse(results[1]["words"].table.sharding.is_fully_replicated)

  def test_nnx_sharding_of_replicated_tables_alone(self):
    mesh = _mesh(4)
    specs = {"day": _specs("tensorcore")["day"]}
    layer = nnx_embed.SparseCoreEmbed(
        specs, mesh=mesh, rngs=nnx.Rngs(0), tables="param"
    )
    self.assertEqual(
        nnx_embed.get_named_sharding(layer, mesh).shardings,
        (jax.sharding.NamedSharding(mesh, P()),),
    )


if __name__ == "__main__":
  absltest.main()
