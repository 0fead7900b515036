# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import tarfile
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint import convert
from jax_tpu_embedding.sparsecore.lib.core.testing import unread_output
from jax_tpu_embedding.sparsecore.lib.flax.nnx import checkpoint_utils
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.flax.nnx import offline_converter
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np
import optax
import orbax.checkpoint as ocp

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

# "a" and "b" may share a stack; 50 rows are padded otherwise for 8 shards than
# for 4, and 64 rows alike, in another order.
_TABLES = (("a", 64, 8), ("b", 50, 6), ("c", 40, 20))
_BATCH = 16


def _specs(num_devices, num_sc, tables=_TABLES, alone=False, of=None):
  optimizer = of or embedding_spec.AdagradOptimizerSpec(learning_rate=0.1)
  specs = []
  for name, rows, columns in tables:
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=rows,
        embedding_dim=columns,
        optimizer=optimizer,
        combiner="sum",
    )
    specs.append(
        embedding_spec.FeatureSpec(
            name=f"of_{name}",
            table_spec=table,
            input_shape=(_BATCH, 1),
            output_shape=(_BATCH, columns),
        )
    )
  if not alone:
    embedding.auto_stack_tables(specs, num_devices, num_sc)
  embedding.prepare_feature_specs_for_training(specs, num_devices, num_sc)
  return specs


def _ids():
  rng = np.random.default_rng(0)
  return [rng.integers(0, 40, (_BATCH, 1), np.int32) for _ in _TABLES]


class _Model(nnx.Module):

  def __init__(self, specs, num_devices, num_sc, tables="param", seed=0):
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
    rngs = nnx.Rngs(seed)
    self.embed = embed.SparseCoreEmbed(
        specs, "x", mesh, rngs, num_sc_per_device=num_sc, tables=tables
    )
    self.dense = nnx.Linear(34, 1, rngs=rngs)
    self.dropout = nnx.Dropout(0.1, rngs=nnx.Rngs(seed))

  def __call__(self, ids):
    x = jax.numpy.concatenate(self.embed(ids), axis=1)
    return self.dense(x)


class _Job:
  """A model, its optimizer, and what they were made for."""

  def __init__(
      self,
      num_devices=4,
      num_sc=2,
      tables="param",
      seed=0,
      specs=None,
      **fields,
  ):
    self.num_devices, self.num_sc = num_devices, num_sc
    self.specs = specs or _specs(num_devices, num_sc, **fields)
    self.model = _Model(self.specs, num_devices, num_sc, tables, seed)
    self.optimizer = embed.PartitionedOptimizer(self.model, optax.adam(1e-2))

  def step(self):
    ids = _ids()

    def loss_fn(model):
      return jax.numpy.mean(model(ids) ** 2)

    loss, grads = nnx.value_and_grad(loss_fn, allow_int=True)(self.model)
    self.optimizer.update(self.model, grads)
    return float(loss)

  def tables(self):
    """Tables and slots as their user declared them."""
    table = self.model.embed.embedding_table
    variables = table.get_value() if hasattr(table, "get_value") else table
    arrays = {
        name: embedding.EmbeddingVariables(
            np.asarray(v.table[...]),
            jax.tree.map(lambda x: np.asarray(x[...]), v.slot),
        )
        for name, v in variables.items()
    }
    specs = embedding.get_table_specs(self.specs)
    return jax.tree.map(
        np.asarray,
        table_stacking.unshard_and_unstack_tables(
            specs, arrays, self.num_devices * self.num_sc
        ),
    )

  def dense(self):
    state = nnx.state(self.model, embed.is_non_embedding_variables)
    raw = lambda x: (
        jax.random.key_data(x)
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        else x
    )
    return [
        np.asarray(raw(x))
        for x in jax.tree.leaves((state, nnx.state(self.optimizer)))
        if not isinstance(x, jax.Ref)
    ]

  def save(self, manager, step=3, **keys):
    checkpoint_utils.save_checkpoint(
        cp_manager=manager,
        step=step,
        model=self.model,
        optimizer=self.optimizer,
        feature_specs=self.specs,
        num_global_devices=self.num_devices,
        num_sc_per_device=self.num_sc,
        **keys,
    )
    manager.wait_until_finished()

  def restore_from_other(self, path, **options):
    checkpoint_utils.restore_cross_topology_checkpoint(
        cross_topology_checkpoint_restore_path=path,
        model=self.model,
        optimizer=self.optimizer,
        target_feature_specs=self.specs,
        num_global_devices=self.num_devices,
        num_sc_per_device=self.num_sc,
        **options,
    )

  def restore(self, **options):
    checkpoint_utils.restore_checkpoint(
        model=self.model, optimizer=self.optimizer, **options
    )


def _manager(path, **keys):
  return checkpoint_utils.create_checkpoint_manager(
      cp_path=path, cp_options=ocp.CheckpointManagerOptions(), **keys
  )


class _TestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path) / "checkpoints"

  def assert_equal(self, one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)

  def assert_differ(self, one, other):
    with self.assertRaises(AssertionError):
      self.assert_equal(one, other)

  def saved(self, step=3, **fields):
    """A job that took a step and saved it."""
    job = _Job(**fields)
    job.step()
    job.save(_manager(self.path), step)
    return job


class CheckpointTest(_TestCase):

  @parameterized.parameters("param", "ref")
  def test_a_job_goes_on_as_if_it_had_not_stopped(self, tables):
    manager = _manager(self.path)
    straight = _Job(tables=tables)
    straight.step()
    straight.save(manager)
    resumed = _Job(tables=tables, seed=1)
    self.assert_differ(resumed.tables(), straight.tables())

    resumed.restore(cp_manager=manager)

    self.assert_equal(resumed.tables(), straight.tables())
    self.assert_equal(resumed.dense(), straight.dense())
    self.assertEqual(resumed.step(), straight.step())
    self.assert_equal(resumed.tables(), straight.tables())

  @parameterized.parameters(
      (2, 2, "param", False),
      (1, 4, "ref", True),
      (4, 2, "param", True),
  )
  def test_restores_to_any_devices_stacks_and_forms(
      self, num_devices, num_sc, tables, alone
  ):
    source = self.saved()
    for restore in (
        lambda job: job.restore(input_checkpoint_path=self.path),
        lambda job: job.restore_from_other(self.path),
    ):
      job = _Job(num_devices, num_sc, tables, seed=1, alone=alone)
      restore(job)
      self.assert_equal(job.tables(), source.tables())
      kernel = np.asarray(job.model.dense.kernel[...])
      np.testing.assert_array_equal(kernel, source.model.dense.kernel[...])
      # A seal of another layout would be refused.
      self.assertTrue(np.isfinite(job.step()))

  def test_keys_of_items_are_those_of_the_caller(self):
    keys = dict(model_key="m", optimizer_key="o", embedding_spec_key="e")
    source, target = _Job(), _Job(seed=1)
    source.step()
    source.save(_manager(self.path, **keys), **keys)
    target.restore(input_checkpoint_path=self.path, **keys)
    self.assert_equal(target.tables(), source.tables())
    converted = self.path.parent / "converted"
    checkpoint_utils.convert_cross_topology_checkpoint(
        input_checkpoint_path=self.path,
        output_checkpoint_path=converted,
        **keys,
    )
    names = {path.name for path in (converted / "3").iterdir() if path.is_dir()}
    self.assertEqual(names, {"m", "o", "e"})

  def test_nothing_is_done_without_a_path(self):
    job = _Job()
    before = job.tables()
    job.restore()
    job.restore_from_other(None)
    for paths in ((None, "x"), ("x", None)):
      checkpoint_utils.convert_cross_topology_checkpoint(
          input_checkpoint_path=paths[0], output_checkpoint_path=paths[1]
      )
    self.assert_equal(job.tables(), before)

  def test_the_newest_step_is_restored_unless_another_is_named(self):
    job = self.saved()
    first = job.tables()
    job.step()
    job.save(_manager(self.path), 10)
    other = _Job(seed=1)
    other.restore(input_checkpoint_path=self.path)
    self.assert_equal(other.tables(), job.tables())
    other.restore(input_checkpoint_path=self.path, step=3)
    self.assert_equal(other.tables(), first)

  @parameterized.parameters(
      dict(step_prefix="ckpt"), dict(step_format_fixed_length=8)
  )
  def test_steps_have_the_names_of_their_manager(self, **options):
    def new_manager():
      return checkpoint_utils.create_checkpoint_manager(
          cp_path=self.path, cp_options=ocp.CheckpointManagerOptions(**options)
      )

    reader = new_manager()
    job, other = _Job(), _Job(seed=1)
    with self.assertRaisesRegex(ValueError, "No checkpoints found in"):
      other.restore(cp_manager=reader)
    writer = new_manager()
    job.save(writer)
    first = job.tables()
    job.step()
    job.save(writer, 10)
    other.restore(cp_manager=reader)
    self.assert_equal(other.tables(), job.tables())
    other.restore(cp_manager=reader, step=3)
    self.assert_equal(other.tables(), first)
    with self.assertRaisesRegex(ValueError, r"Step 4 not found in .*\[3, 10\]"):
      other.restore(cp_manager=reader, step=4)

  @parameterized.parameters("param", "ref")
  def test_layers_that_take_sizes_from_ids_have_no_plan(self, tables):
    def new_job(num_devices, num_sc, seed):
      specs = [
          embedding_spec.FeatureSpec(
              name=f"of_{name}",
              table_spec=embedding_spec.TableSpec(
                  name=name,
                  vocabulary_size=rows,
                  embedding_dim=columns,
                  optimizer=embedding_spec.AdagradOptimizerSpec(),
              ),
              input_shape=(None, None),
              output_shape=(None, columns),
          )
          for name, rows, columns in _TABLES
      ]
      return _Job(num_devices, num_sc, tables, seed, specs)

    def read(job, path):
      checkpoint.save(
          path,
          job.model.embed.table_variables(),
          job.model.embed.feature_specs,
          num_sc_per_device=job.num_sc,
      )
      return {name: checkpoint.read_table(path, name) for name, *_ in _TABLES}

    job = new_job(4, 2, seed=0)
    job.step()
    job.save(_manager(self.path))
    logical = self.path.parent / "logical"
    expected = read(job, logical)
    self.assertFalse(job.specs[0].table_spec.is_stacked())
    for i, restore in enumerate(
        (
            lambda job: job.restore(input_checkpoint_path=self.path),
            lambda job: job.restore_from_other(self.path),
            lambda job: job.model.embed.set_table_variables(
                checkpoint.restore_into(
                    job.model.embed.table_variables(),
                    logical,
                    job.model.embed.feature_specs,
                    num_sc_per_device=job.num_sc,
                )
            ),
        )
    ):
      other = new_job(2, 4, seed=1)
      restore(other)
      self.assert_equal(read(other, self.path.parent / f"{i}"), expected)
      self.assertTrue(np.isfinite(other.step()))
    other = new_job(2, 2, seed=1)
    layer = other.model.embed
    stacked = self.path.parent / "stacked"
    convert.convert(
        logical,
        stacked,
        layout="stacked",
        num_devices=2,
        num_sc_per_device=2,
        feature_specs=layer.feature_specs,
    )
    convert.convert(stacked, self.path.parent / "back")
    for name, rows in expected.items():
      found = checkpoint.read_table(self.path.parent / "back", name)
      np.testing.assert_array_equal(found, rows)
    variables = checkpoint.restore(
        logical,
        layer.feature_specs,
        jax.sharding.NamedSharding(
            jax.sharding.Mesh(jax.devices()[:2], ("x",)),
            jax.sharding.PartitionSpec("x", None),
        ),
        num_sc_per_device=2,
    )
    shapes = jax.tree.map(jax.numpy.shape, variables)
    for name, of_layer in layer.table_variables().items():
      self.assertEqual(shapes[name].table, of_layer.table.shape)
    # Another number of SparseCores has rows elsewhere.
    with self.assertRaisesRegex(ValueError, "number of SparseCores"):
      checkpoint.save(
          self.path.parent / "wrong",
          job.model.embed.table_variables(),
          job.model.embed.feature_specs,
          num_sc_per_device=1,
      )

  def test_errors_of_restoring(self):
    job = _Job()
    self.path.mkdir()
    with self.assertRaisesRegex(ValueError, "No checkpoints found in"):
      job.restore(input_checkpoint_path=self.path)
    self.saved(step=5)
    for options, error in (
        (dict(step=3), r"Step 3 not found in .*\[5\]"),
        (dict(model_key="zzz"), 'No "zzz" found'),
        (dict(optimizer_key="zzz"), 'No "zzz" found'),
        (dict(embedding_spec_key="zzz"), 'No "zzz" found'),
    ):
      with self.subTest(error), self.assertRaisesRegex(ValueError, error):
        job.restore(input_checkpoint_path=self.path, **options)
    for name, error in (
        ("nothing", "_Model has no attribute 'nothing'.*'embed'"),
        ("dense", "_Model.dense is a Linear, not a SparseCoreEmbed"),
    ):
      with self.subTest(error), self.assertRaisesRegex(ValueError, error):
        job.restore_from_other(self.path, embedding_layer_name=name)
    del job.model.embed
    with self.assertRaisesRegex(
        ValueError, "has 0 attributes that are a Sparse"
    ):
      job.restore_from_other(self.path)

  @parameterized.parameters(
      (
          dict(tables=(("a", 60, 8), *_TABLES[1:])),
          "'a': the checkpoint has 64 r",
      ),
      (
          dict(of=embedding_spec.AdamOptimizerSpec(learning_rate=0.1)),
          "'a': the checkpoint has slots accumulator",
      ),
  )
  def test_tables_of_another_model_are_refused(self, fields, error):
    self.saved()
    job = _Job(specs=_specs(4, 2, **fields))
    before = job.tables(), job.dense()
    with self.assertRaisesRegex(ValueError, error):
      job.restore(input_checkpoint_path=self.path)
    self.assert_equal((job.tables(), job.dense()), before)

  def test_dense_parameters_of_another_model_are_refused(self):
    self.saved()
    job = _Job()
    job.model.dense = nnx.Linear(34, 2, rngs=nnx.Rngs(0))
    job.model.more = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    del job.model.dropout
    with self.assertRaisesRegex(
        ValueError,
        "lacks more.bias.*has dropout.rngs.count.*not in this program.*"
        r"dense.kernel.* is float32\[34, 1\], and float32\[34, 2\] in this",
    ):
      job.restore(input_checkpoint_path=self.path)

  def test_specs_of_other_devices_are_refused(self):
    self.saved()
    job = _Job()
    job.num_sc = 4
    with self.assertRaisesRegex(
        ValueError, "'a' was prepared for 8 SparseCores in all, not for 16"
    ):
      job.restore_from_other(self.path)

  def test_table_specs_by_name(self):
    self.assertEqual(
        list(checkpoint_utils._get_table_specs(_specs(1, 1))), ["a", "b", "c"]
    )

  def test_a_step_has_one_save_at_a_time_of_all_processes(self):
    job = _Job()
    manager = mock.Mock(directory=self.path)
    is_waited_for, is_written = threading.Event(), threading.Event()

    def wait_until_finished():
      is_waited_for.set()
      is_written.wait(60)

    manager.wait_until_finished.side_effect = wait_until_finished

    def save():
      checkpoint_utils.save_checkpoint(
          cp_manager=manager,
          step=3,
          model=job.model,
          optimizer=job.optimizer,
          feature_specs=job.specs,
          num_global_devices=4,
          num_sc_per_device=2,
      )

    save()
    self.assertTrue(is_waited_for.wait(60))
    # The lock of a file that is open is not that of another open file.
    with self.assertRaisesRegex(
        ValueError, f"{self.path}/3 is being saved to by process {os.getpid()}"
    ):
      save()
    manager.save.assert_called_once()
    is_written.set()
    deadline = time.monotonic() + 60
    while os.listdir(self.path):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.01)
    save()


class ConvertTest(_TestCase):

  def convert(self, **options):
    target = self.path.parent / "converted"
    checkpoint_utils.convert_cross_topology_checkpoint(
        input_checkpoint_path=self.path,
        output_checkpoint_path=target,
        **options,
    )
    return target

  @parameterized.parameters(False, True)
  def test_what_is_converted_is_restored(self, with_specs):
    source = self.saved()
    topology = checkpoint_utils.TargetTopology(2, 2, "TPU v6e")
    job = _Job(2, 2, seed=1, alone=with_specs)
    path = self.convert(
        target_topology=topology,
        target_feature_specs=job.specs if with_specs else None,
        save_step=7,
    )
    # Stacks are [num_shards, rows, D], and nothing is NaN.
    stacked = ocp.StandardCheckpointer().restore(path / "7" / "model")
    stacks = stacked["embed"]["embedding_table"]["value"]
    for stack in stacks.values():
      self.assertEqual(stack["table"].shape[0], 4)
      self.assertFalse(np.isnan(stack["table"]).any())
    job.restore(input_checkpoint_path=path, step=7)
    self.assert_equal(job.tables(), source.tables())
    self.assertEqual(job.optimizer.step[...], 1)

  def test_unstacked_tables_are_by_name(self):
    source = self.saved()
    path = self.convert()
    found = ocp.StandardCheckpointer().restore(path / "3" / "model")
    tables = found["embed"]["embedding_table"]["value"]
    for name, of_table in source.tables().items():
      np.testing.assert_array_equal(tables[name]["table"], of_table.table)
      np.testing.assert_array_equal(
          tables[name]["slot"]["accumulator"], of_table.slot.accumulator
      )
    self.assertEqual(
        (path / "3/embedding_spec/proto.pbtxt").read_text(),
        (self.path / "3/embedding_spec/proto.pbtxt").read_text(),
    )

  @parameterized.parameters("param", "ref")
  def test_the_other_converter_reads_and_writes_them(self, tables):
    source = self.saved(tables=tables)
    logical = self.path.parent / "logical"
    convert.convert(self.path / "3", logical)
    for name, of_table in source.tables().items():
      np.testing.assert_array_equal(
          checkpoint.read_table(logical, name), of_table.table
      )
    updates = checkpoint.describe(logical).tables["a"].updates
    # In refs only updates by which an optimizer is another one count.
    self.assertEqual(updates, 1 if tables == "param" else 0)
    back = self.path.parent / "back"
    convert.convert(
        logical,
        back / "3",
        layout="stacked",
        num_devices=2,
        num_sc_per_device=2,
    )
    job = _Job(2, 2, tables, seed=1)
    job.restore(input_checkpoint_path=back)
    self.assert_equal(job.tables(), source.tables())
    # orbax restores it, too, into what has these shapes.
    if tables == "param":
      plain = _Job(2, 2, seed=1)
      with ocp.CheckpointManager(back) as manager:
        found = manager.restore(
            3,
            args=ocp.args.Composite(
                model=ocp.args.StandardRestore(nnx.state(plain.model))
            ),
        )["model"]
      nnx.update(plain.model, found)
      self.assert_equal(plain.tables(), source.tables())
      plain.model.embed(_ids())

  def test_models_without_tables_are_refused(self):
    source = self.saved()
    with ocp.CheckpointManager(self.path) as manager:
      manager.save(
          9,
          args=ocp.args.Composite(
              model=ocp.args.StandardSave({"dense": np.ones(2)}),
              embedding_spec=ocp.args.ProtoSave(
                  embedding.create_proto_from_feature_specs(source.specs, 4, 2)
              ),
          ),
      )
    with self.assertRaisesRegex(ValueError, "has no 'embedding_table'"):
      self.convert()


class OfflineConverterTest(_TestCase):

  def run_with(self, **values):
    with flagsaver.flagsaver(**values):
      offline_converter.main([])

  def test_converts_archives_for_a_kind_of_device(self):
    source = self.saved()
    archive = self.path.parent / "old.tgz"
    with tarfile.open(archive, "w:gz") as file:
      file.add(self.path, "old")
    outputs = self.create_tempdir().full_path
    with mock.patch.dict(os.environ, TEST_UNDECLARED_OUTPUTS_DIR=outputs):
      self.run_with(
          input_checkpoint=str(archive),
          output_checkpoint="TEST_UNDECLARED_OUTPUTS_DIR/new",
          target_num_devices=2,
          target_device_kind="TPU_v6e",
      )
    job = _Job(2, 2, seed=1)
    job.restore(input_checkpoint_path=pathlib.Path(outputs, "new"))
    self.assert_equal(job.tables(), source.tables())

  def test_unknown_kinds_of_device_are_refused(self):
    with self.assertRaisesRegex(ValueError, "device kind 'TPU v99'.*TPU v5p"):
      self.run_with(
          input_checkpoint=str(self.path),
          output_checkpoint=str(self.path),
          target_num_devices=2,
          target_device_kind="TPU_v99",
      )

  def test_paths(self):
    expand = offline_converter.expand_directory_path
    self.assertIsNone(expand(None))
    self.assertEqual(expand("/a/b"), "/a/b")
    self.assertEqual(expand("gs://a/b"), "gs://a/b")
    self.assertEqual(expand("a/b"), os.path.abspath("a/b"))
    name = "TEST_UNDECLARED_OUTPUTS_DIR"
    with mock.patch.dict(os.environ, {name: "/tmp"}):
      self.assertEqual(expand(name), "/tmp")
    with mock.patch.dict(os.environ):
      os.environ.pop(name, None)
      with self.assertRaisesRegex(ValueError, f"{name}/x.*{name}.* not set"):
        expand(f"{name}/x")
      with self.assertRaisesRegex(ValueError, f"{name} is not set"):
        checkpoint_utils.decompress_checkpoint("a.tgz")

  def test_help_that_nobody_reads_ends_quietly(self):
    self.assertEqual(
        unread_output.run(offline_converter.__name__, "--help"), (141, "")
    )

  def test_devices_that_are_not_there(self):
    device = offline_converter.FakeDevice(3)
    self.assertEqual((device.id, device.device_kind), (3, "TPU v5"))
    self.assertEqual((device.process_index, device.slice_index), (0, 0))
    self.assertEqual((device.platform, device.memory_kind), ("tpu", "tpu_hbm"))


if __name__ == "__main__":
  absltest.main()
