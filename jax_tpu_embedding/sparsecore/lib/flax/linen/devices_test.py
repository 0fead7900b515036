# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The layer over meshes of every kind, against one device.

The number of SparseCores is the same everywhere, 8.
"""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)
quick_compiles.use()

_NUM_SCS = 8
_BOTH = ("data", "model")


def _mesh(*sizes, explicit=False):
  names = ("x",) if len(sizes) == 1 else _BOTH
  devices = np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes)
  kind = jax.sharding.AxisType.Explicit if explicit else None
  return jax.sharding.Mesh(
      devices, names, axis_types=None if kind is None else (kind,) * len(sizes)
  )


def _options(mesh, axis):
  axes = (axis,) if isinstance(axis, str) else axis
  num_devices = np.prod([mesh.shape[name] for name in axes])
  return dict(
      mesh=mesh,
      sharding_axis=axis,
      num_sc_per_device=int(_NUM_SCS // num_devices),
  )


def _features():
  return two_feature_model.make_features(
      embedding_spec.AdagradOptimizerSpec(learning_rate=0.1)
  )


def _gradient(layer, params, ids, tables):
  """Of a loss in which nothing is summed over samples but the loss itself.

  Sums over devices are made in another order than sums on one.
  """

  def loss(params):
    variables = {"params": params}
    if tables is not None:
      variables["embedding"] = tables
    out = layer.apply(variables, ids)
    return sum((x**2).sum() for x in jax.tree.leaves(out))

  return jax.grad(loss)(params)


def _train_refs(mesh, axis):
  """Tables and slots after three steps that update them in place."""
  specs, options = _features(), _options(mesh, axis)
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0), **options
  )
  layer = embed.SparseCoreEmbed(specs, **options, tables="ref")
  params = layer.init(jax.random.key(1), two_feature_model.make_ids())["params"]
  step = jax.jit(functools.partial(_gradient, layer))
  for seed in range(3):
    step(params, two_feature_model.make_ids(seed), tables)
  return two_feature_model.values(tables)


def _train_parameters(mesh, axis):
  """Tables and slots after three steps that return them."""
  layer = embed.SparseCoreEmbed(_features(), **_options(mesh, axis))
  params = layer.init(jax.random.key(1), two_feature_model.make_ids())["params"]
  step = jax.jit(functools.partial(_gradient, layer))
  for seed in range(3):
    params = step(params, two_feature_model.make_ids(seed), None)
  return jax.tree.map(np.asarray, params["sc_embedding_variables"].value)


_TRAIN = dict(refs=_train_refs, parameters=_train_parameters)


class DevicesTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.expected = {
        name: train(_mesh(1), "x") for name, train in _TRAIN.items()
    }

  def assert_same_as_one_device(self, form, mesh, axis):
    # Lookups and updates have the same bits (several_devices_test). Gradients of
    # dense layers are XLA's, which rounds them otherwise for other devices.
    actual = _TRAIN[form](mesh, axis)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7),
        actual,
        dict(self.expected[form]),
    )

  @parameterized.product(form=list(_TRAIN), num_devices=[2, 4, 8])
  def test_one_axis(self, form, num_devices):
    self.assert_same_as_one_device(form, _mesh(num_devices), "x")

  @parameterized.product(
      form=list(_TRAIN),
      axis=["model", "data", _BOTH, ("model", "data"), ("data",)],
  )
  def test_some_axes_of_two(self, form, axis):
    self.assert_same_as_one_device(form, _mesh(2, 4), axis)

  @parameterized.product(
      form=list(_TRAIN), sizes_and_axis=[((4,), "x"), ((2, 2), _BOTH)]
  )
  def test_explicit_axes(self, form, sizes_and_axis):
    sizes, axis = sizes_and_axis
    mesh = _mesh(*sizes, explicit=True)
    with jax.set_mesh(mesh):
      self.assert_same_as_one_device(form, mesh, axis)

  def test_the_mesh_that_is_set_is_used(self):
    devices = np.array(jax.devices())[[5, 2]]
    mesh = jax.sharding.Mesh(devices, ("data",))
    with jax.set_mesh(mesh):
      model, params, tables = two_feature_model.with_refs()
      out = jax.jit(model.apply)(
          {"params": params, "embedding": tables}, two_feature_model.make_ids()
      )
    self.assertEqual(out.devices(), set(devices.tolist()))
    self.assertEqual(
        tables["words"].table.sharding.spec,
        jax.sharding.PartitionSpec("data", None),
    )

  def test_without_a_mesh_all_devices_are_used(self):
    _, _, tables = two_feature_model.with_refs()
    self.assertLen(tables["words"].table.sharding.device_set, 8)

  @parameterized.parameters("z", (("x", "z"),), ((),), (("x", "x"),))
  def test_an_axis_that_the_mesh_lacks_raises(self, axis):
    with self.assertRaisesRegex(
        ValueError, r"sharding_axis is .*, and the mesh has the axes \{'x': 4\}"
    ):
      two_feature_model.with_refs(
          options=dict(mesh=_mesh(4), sharding_axis=axis)
      )

  @parameterized.parameters(
      ("mesh", (), r"must be a jax.sharding.Mesh or None, got \(\)"),
      ("sharding_axis", None, "must be the name of a mesh axis .* got None"),
      ("sharding_axis", (0,), r"must be the name of a mesh axis .* got \(0,\)"),
      ("num_sc_per_device", "4", "must be an integer, got '4'"),
  )
  def test_arguments_of_another_kind_raise(self, name, value, message):
    with self.assertRaisesRegex(TypeError, f"{name} {message}"):
      two_feature_model.with_refs(options=dict(mesh=_mesh(2)) | {name: value})

  def test_tables_are_no_features(self):
    tables = {name: f.table_spec for name, f in _features().items()}
    with self.assertRaisesRegex(
        TypeError, r"feature_specs\['tags'\] must be a FeatureSpec, got TableSp"
    ):
      two_feature_model.with_refs(tables, options=dict(mesh=_mesh(2)))

  def test_a_layer_without_features_raises(self):
    with self.assertRaisesRegex(ValueError, r"must have a feature.*got \{\}"):
      embed.SparseCoreEmbed.create_embedding_variables({}, jax.random.key(0))

  def test_a_layer_inside_of_shard_map_raises(self):
    mesh = _mesh(2, 4)
    model, params, tables = two_feature_model.with_refs(
        options=_options(mesh, "model")
    )
    variables = {"params": params, "embedding": tables}
    spec = jax.sharding.PartitionSpec("model")
    apply = jax.shard_map(
        functools.partial(model.apply, variables),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        axis_names={"model"},
    )
    with self.assertRaisesRegex(
        NotImplementedError, r"axes \['model'\], .* tpu_sparse_dense_matmul and"
    ):
      jax.jit(apply)(two_feature_model.make_ids())

  def test_a_batch_that_devices_cannot_share_raises(self):
    model, params, tables = two_feature_model.with_refs(
        options=_options(_mesh(4), "x")
    )
    ids = {k: x[:15] for k, x in two_feature_model.make_ids().items()}
    with self.assertRaisesRegex(
        ValueError,
        r"Feature 'tags': ids have shape \(15, 2\), whose first axis must be"
        " divisible by 4",
    ):
      model.apply({"params": params, "embedding": tables}, ids)


if __name__ == "__main__":
  absltest.main()
