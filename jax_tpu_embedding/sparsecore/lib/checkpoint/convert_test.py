# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import errno
import io
import os
import pathlib
import tarfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _host_stacks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _path_lock
from jax_tpu_embedding.sparsecore.lib.checkpoint import _stacked_checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint import convert
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import stacked_checkpoints
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.plan import _places
import numpy as np

jax.config.update("jax_num_cpu_devices", 6)

Topology = any_tables.Topology

_WRITER = Topology(4, 2, "auto")
_READER = Topology(2, 2, "auto")


def _stacks(tree):
  return tree["embed"]["embedding_table"]["value"]


def _read(path, topology, tables=any_tables.TABLES, of="adagrad"):
  """The tables of a stacked checkpoint, by the definition of the layout."""
  specs = any_tables.feature_specs(topology, tables, of=of)
  optimizer = any_tables.optimizer(of).slot_variables_initializers()
  variables = {
      name: embedding.EmbeddingVariables(
          stack["table"], type(optimizer)(**stack.get("slot", {}))
      )
      for name, stack in _stacks(stacked_checkpoints.load(path)).items()
  }
  return any_tables.read(variables, specs, topology)


class ConvertTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path)

  def assert_same(self, found, expected):
    self.assertEqual(found.keys(), expected.keys())
    for name, slots in expected.items():
      self.assertEqual(found[name].keys(), slots.keys())
      for slot, rows in slots.items():
        np.testing.assert_array_equal(found[name][slot], rows, strict=True)

  def assert_has(self, path, values):
    self.assertEqual(checkpoint.describe(path).tables.keys(), values.keys())
    for name, slots in values.items():
      for slot, rows in slots.items():
        np.testing.assert_array_equal(
            checkpoint.read_table(path, name, slot), rows, strict=True
        )

  @parameterized.parameters(
      ("adagrad", Topology(4, 2, "auto")),
      ("sgd", Topology(3, 1, "rotated")),
      ("rowwise_adagrad", Topology(1, 4, "alone")),
  )
  def test_stacked_to_logical_to_stacked(self, of, writer):
    values = any_tables.values(of=of)
    source = stacked_checkpoints.save(self.path / "a", writer, values, of=of)
    logical, back = self.path / "b", self.path / "c"

    convert.convert(source, logical)
    self.assert_has(logical, values)
    checkpoint.verify(logical)
    # Any devices restore it.
    topology = Topology(2, 3, "alone")
    specs = any_tables.feature_specs(topology, of=of)
    restored = checkpoint.restore(
        logical, specs, any_tables.sharding(topology), num_sc_per_device=3
    )
    self.assert_same(any_tables.read(restored, specs, topology), values)

    target = any_tables.feature_specs(writer, of=of)
    convert.convert(
        logical,
        back,
        layout="stacked",
        num_devices=writer.num_devices,
        num_sc_per_device=writer.num_sc_per_device,
        feature_specs=target,
    )
    self.assert_same(_read(back, writer, of=of), values)
    # The way back ends where it began, message and other leaves included.
    before, after = map(stacked_checkpoints.load, (source, back))
    self.assertEqual(jax.tree.structure(before), jax.tree.structure(after))
    self.assertEqual(
        _stacked_checkpoint.read_message(str(back), "embedding_spec"),
        _stacked_checkpoint.read_message(str(source), "embedding_spec"),
    )

  def test_ragged_features_have_no_number_of_ids(self):
    specs = any_tables.feature_specs(_WRITER)
    for feature in specs.values():
      feature.input_shape = (48, None)
    values = any_tables.values()
    variables = any_tables.random_variables(_WRITER, specs, values)
    checkpoint.save(self.path / "a", variables, specs)
    devices = dict(layout="stacked", num_devices=2, num_sc_per_device=2)
    for name, fields in (
        ("planned anew", dict(batch_size=32)),
        ("by specs", dict(feature_specs=any_tables.feature_specs(_READER))),
    ):
      target = self.path / name
      convert.convert(self.path / "a", target, **devices, **fields)
      # No layer of NNX wrote it.
      stacks = stacked_checkpoints.load(target)["embedding_table"]
      self.assertNotEmpty(stacks)
      convert.convert(target, self.path / f"{name}, back")
      self.assert_has(self.path / f"{name}, back", values)
    message = _stacked_checkpoint.read_message(
        str(self.path / "planned anew"), "embedding_spec"
    )
    shapes = {
        tuple(feature.input_shape)
        for stack in message.stacked_table_specs
        for table in stack.table_specs
        for feature in table.feature_specs
    }
    self.assertEqual(shapes, {(32, -1)})

  @parameterized.parameters(((1,),), ((1, 3),), ((3, 1),))
  def test_tables_of_one_column(self, columns):
    tables = [(f"table{i}", 40, size) for i, size in enumerate(columns)]
    values = any_tables.values(tables)
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, values, tables=tables
    )
    logical, back = self.path / "b", self.path / "c"
    convert.convert(source, logical)
    self.assert_has(logical, values)
    convert.convert(
        logical,
        back,
        layout="stacked",
        num_devices=_WRITER.num_devices,
        num_sc_per_device=_WRITER.num_sc_per_device,
        feature_specs=any_tables.feature_specs(_WRITER, tables),
    )
    self.assert_same(_read(back, _WRITER, tables), values)
    before, after = map(stacked_checkpoints.load, (source, back))
    jax.tree.map(
        lambda x, y: self.assertEqual(x.shape, y.shape),
        _stacks(before),
        _stacks(after),
    )

  @parameterized.parameters(False, True)
  def test_stacked_to_stacked(self, shards_first):
    values = any_tables.values()
    source = stacked_checkpoints.save(self.path / "a", _WRITER, values)
    target = self.path / "b"
    convert.convert(
        source,
        target,
        layout="stacked",
        num_devices=2,
        num_sc_per_device=2,
        shards_first=shards_first,
    )
    self.assert_same(_read(target, _READER), values)
    for stack in _stacks(stacked_checkpoints.load(target)).values():
      self.assertEqual(stack["table"].ndim, 3 if shards_first else 2)
      self.assertFalse(np.isnan(stack["table"]).any())
    # What was converted is converted again.
    again = self.path / "c"
    convert.convert(target, again)
    self.assert_has(again, values)

  def test_unstacked(self):
    values = any_tables.values()
    source = stacked_checkpoints.save(self.path / "a", _WRITER, values)
    target = self.path / "b"
    convert.convert(source, target, layout="unstacked")
    found = _stacks(stacked_checkpoints.load(target))
    self.assert_same(
        {n: {None: t["table"], **t["slot"]} for n, t in found.items()}, values
    )
    # Its message says how tables were stacked, and they are not any more.
    with self.assertRaisesRegex(ValueError, "tables that were unstacked"):
      convert.convert(target, self.path / "c")

  @parameterized.parameters("logical", "stacked", "unstacked")
  def test_all_else_is_copied(self, layout):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    target = self.path / "b"
    devices = dict(num_devices=2, num_sc_per_device=2)
    convert.convert(
        source, target, layout=layout, **devices if layout == "stacked" else {}
    )
    found = stacked_checkpoints.load(target)
    expected = stacked_checkpoints.load(source)
    found.pop("embed", None)
    del expected["embed"]
    self.assertEqual(found["name"], "model")
    self.assertEqual(jax.tree.structure(found), jax.tree.structure(expected))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
      self.assertEqual(getattr(a, "dtype", str), getattr(b, "dtype", str))
      np.testing.assert_array_equal(a, b)
    for file in (source / "optimizer").rglob("*"):
      if file.is_file():
        copy = target / "optimizer" / file.relative_to(source / "optimizer")
        self.assertEqual(copy.read_bytes(), file.read_bytes())

  def test_an_item_may_have_the_name_that_orbax_gives_to_trees(self):
    name = "state"
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    (source / "optimizer").rename(source / name)
    convert.convert(source, self.path / "b")
    self.assertCountEqual(
        os.listdir(self.path / "b" / name), os.listdir(source / name)
    )
    # Also the one that has the rest of the model.
    (source / name).rename(source / "optimizer")
    (source / "model").rename(source / name)
    convert.convert(source, self.path / "c", model_key=name)

  def test_an_item_with_the_name_of_the_message_is_not_left_out(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    logical, target = self.path / "b", self.path / "c"
    convert.convert(source, logical)
    (logical / "optimizer").rename(logical / "embedding_spec")
    two = dict(layout="stacked", num_devices=2, num_sc_per_device=2)
    with self.assertRaisesRegex(
        ValueError, "b has an item 'embedding_spec' beside its tables.* Rename"
    ):
      convert.convert(logical, target, **two)
    self.assertFalse(target.exists())
    convert.convert(logical, target, embedding_spec_key="spec", **two)
    self.assertCountEqual(
        os.listdir(target / "embedding_spec"),
        os.listdir(logical / "embedding_spec"),
    )

  def test_an_item_that_is_no_tree_is_not_left_out(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    logical, target = self.path / "b", self.path / "c"
    convert.convert(source, logical)
    (logical / "model" / "_METADATA").unlink()
    two = dict(layout="stacked", num_devices=2, num_sc_per_device=2)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, "b/model/_METADATA .* no such file.*--model"
    ):
      convert.convert(logical, target, **two)
    self.assertFalse(target.exists())
    # The other item has the tables, and this one is copied as it is.
    convert.convert(logical, target, model_key="other", **two)
    for item in ("model", "optimizer"):
      self.assertCountEqual(
          os.listdir(target / item), os.listdir(logical / item)
      )

  @parameterized.parameters(
      dict(model={"deep": {"layer": {"embedding_table": "tables"}}}),
      dict(model={"embedding_table": {"value": "tables"}}),
  )
  def test_tables_are_found_wherever_they_are(self, model):
    values = any_tables.values()
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, values, model=model
    )
    convert.convert(source, self.path / "b")
    self.assert_has(self.path / "b", values)
    # And are there again on the way back.
    convert.convert(
        self.path / "b",
        self.path / "c",
        layout="stacked",
        num_devices=4,
        num_sc_per_device=2,
    )
    self.assertEqual(
        jax.tree.structure(stacked_checkpoints.load(self.path / "c")),
        jax.tree.structure(stacked_checkpoints.load(source)),
    )

  def test_a_stack_may_be_called_value(self):
    tables = (("value", 40, 8),)
    values = any_tables.values(tables)
    source = stacked_checkpoints.save(
        self.path / "a",
        Topology(1, 2, "alone"),
        values,
        tables=tables,
        model={"embedding_table": "tables"},
    )
    convert.convert(source, self.path / "b")
    self.assert_has(self.path / "b", values)

  def test_seals_say_where_tables_are(self):
    # As layers with parameters have it: 70,000 updates.
    seal = np.array([1, 2, 4, 3, 9, 70000 % 2**16, 1, 5, 6], np.float32)
    source = stacked_checkpoints.save(
        self.path / "a",
        _WRITER,
        any_tables.values(),
        model={
            "embed": {
                "embedding_table": {"value": "tables"},
                "update_seal": {"value": seal},
            }
        },
    )
    convert.convert(source, self.path / "logical")
    items = checkpoint.describe(self.path / "logical").tables["items"]
    self.assertEqual(items.updates, 70000)
    for path in (source, self.path / "logical"):
      target = self.path / f"from {path.name}"
      convert.convert(
          path, target, layout="stacked", num_devices=2, num_sc_per_device=2
      )
      found = stacked_checkpoints.load(target)["embed"]["update_seal"]["value"]
      np.testing.assert_array_equal(found[:7], seal[:7])
      places = _places.places_by_stack(any_tables.feature_specs(_READER), 4)
      self.assertCountEqual(
          found[7:], [n for stack in places.values() for n in stack.values()]
      )

  def test_arguments_that_contradict_each_other(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    target = self.path / "b"
    other = any_tables.feature_specs(
        _READER, (("items", 1003, 16), *any_tables.TABLES[1:])
    )
    two = dict(layout="stacked", num_devices=2, num_sc_per_device=2)
    for arguments, error in (
        (dict(layout="flat"), "layout must be one of .*'logical'.*'flat'"),
        (dict(layout="stacked"), "pass num_devices and num_sc_per_device"),
        (two | dict(batch_size=0), r"batch_size \(--batch\) must be .*, got 0"),
        (two | dict(num_devices=-2), r"num_devices \(--devices\) .*, got -2"),
        (
            two | dict(num_sc_per_device=0),
            r"num_sc_per_device \(--sparsecores\) must be positive, got 0",
        ),
        (
            dict(feature_specs=other, **two),
            "'items': 1003 x 12 in the checkpoint, 1003 x 16 in the specs",
        ),
        (dict(model_key="zzz"), 'No "zzz" found'),
    ):
      with self.subTest(error), self.assertRaisesRegex(ValueError, error):
        convert.convert(source, target, **arguments)
      self.assertFalse(target.exists())
    convert.convert(source, target)
    with self.assertRaisesRegex(ValueError, "The checkpoint is logical"):
      convert.convert(target, self.path / "c")
    with self.assertRaisesRegex(ValueError, "already exists"):
      convert.convert(source, target)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, "There is no checkpoint in"
    ):
      convert.convert(self.path / "nowhere", self.path / "c")

  def test_items_of_one_name_do_not_replace_each_other(self):
    values = any_tables.values()
    source = stacked_checkpoints.save(self.path / "a", _WRITER, values)
    target = self.path / "b"
    two = dict(layout="stacked", num_devices=2, num_sc_per_device=2)
    for arguments, error in (
        (
            dict(model_key="embedding_spec", **two),
            "model_key and embedding_spec_key are both 'embedding_spec'",
        ),
        (dict(model_key="a/b", **two), "'a/b' cannot be the name of an item"),
        (dict(embedding_spec_key="..", **two), "'..' cannot be the name"),
    ):
      with self.subTest(error), self.assertRaisesRegex(ValueError, error):
        convert.convert(source, target, **arguments)
      self.assertFalse(target.exists())
    (source / "model").rename(source / "tables")
    with self.assertRaisesRegex(ValueError, "model_key is 'tables', which is"):
      convert.convert(source, target, model_key="tables")
    # No item of a stacked checkpoint has to have another name.
    convert.convert(source, target, model_key="tables", **two)
    (target / "tables").rename(target / "model")
    self.assert_same(_read(target, _READER), values)

  def test_an_item_with_the_name_of_tables_is_not_left_out(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    (source / "tables").mkdir()
    (source / "tables" / "legs.txt").write_text("four")
    with self.assertRaisesRegex(ValueError, "has an item 'tables' beside its"):
      convert.convert(source, self.path / "b")
    self.assertFalse((self.path / "b").exists())
    convert.convert(
        source,
        self.path / "b",
        layout="stacked",
        num_devices=2,
        num_sc_per_device=2,
    )
    copied = self.path / "b" / "tables" / "legs.txt"
    self.assertEqual(copied.read_text(), "four")

  def test_a_target_that_is_being_written_or_cannot_be(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    with _path_lock.locked(str(self.path / "b")):
      with self.assertRaisesRegex(ValueError, "b is being saved to by process"):
        convert.convert(source, self.path / "b")
    (self.path / "file").touch()
    for target in (self.path / "file" / "b", self.path / ("x" * 240)):
      with self.assertRaisesRegex(
          checkpoint.CheckpointError, f"Cannot write .*{target}"
      ):
        convert.convert(source, target)

  def test_types_and_slots_are_those_of_the_specs(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    target = self.path / "b"
    two = dict(layout="stacked", num_devices=2, num_sc_per_device=2)
    for fields, error in (
        (
            dict(dtype="bfloat16"),
            r"'items': float32, slots accumulator \(12 columns\) in the"
            r" checkpoint, bfloat16, slots accumulator \(12 columns\) in the"
            " specs.*convert to the logical layout",
        ),
        (
            dict(of="rowwise_adagrad"),
            r"'users': float32, slots accumulator \(9 columns\) in the"
            r" checkpoint, float32, slots accumulator \(1 columns\) in the"
            " specs.*slots='reset'",
        ),
        (dict(of="sgd"), r"'hours': .* float32, slots none in the specs"),
    ):
      specs = any_tables.feature_specs(_READER, **fields)
      with self.subTest(error), self.assertRaisesRegex(ValueError, error):
        convert.convert(source, target, feature_specs=specs, **two)
      self.assertFalse(target.exists())

  @parameterized.parameters(
      (("adagrad", "bfloat16"), r"'a': bfloat16, slots acc.*'b': float32, slo"),
      (("rowwise_adagrad", "float32"), r"'a': .*\(1 columns\).*\(8 columns\)"),
      (("sgd", "float32"), r"'a': float32, slots none; 'b'.*\(8 columns\)"),
  )
  def test_tables_of_different_kinds_are_not_stacked(self, kind, error):
    of, dtype = kind
    values = {}
    for name, kinds in (("a", dict(of=of, dtype=dtype)), ("b", dict())):
      values |= any_tables.values(((name, 40, 8),), **kinds)
    any_tables.save_rows(self.path / "logical", values)
    with self.assertRaisesRegex(ValueError, f"'a_b'.*types or slots .*{error}"):
      convert.convert(
          self.path / "logical",
          self.path / "stacked",
          layout="stacked",
          num_devices=2,
          num_sc_per_device=2,
          feature_specs=any_tables.feature_specs(
              _READER, (("a", 40, 8), ("b", 40, 8))
          ),
      )

  def test_what_is_copied_is_on_the_disk_before_the_target_is_there(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    synced = set()
    sync = os.fsync

    def note(descriptor):
      synced.add(os.path.realpath(f"/proc/self/fd/{descriptor}"))
      self.assertFalse((self.path / "b").exists())
      sync(descriptor)

    with mock.patch.object(os, "fsync", note):
      convert.convert(source, self.path / "b")
    item = self.path / "b" / "optimizer"
    copied = [item, *item.rglob("*")]
    self.assertGreater(len(copied), 3)
    for path in copied:
      name = str(path.relative_to(self.path / "b"))
      self.assertTrue(any(found.endswith(f"/{name}") for found in synced), name)

  def test_trees_that_contradict_their_message(self):
    values = any_tables.values()
    message = embedding.create_proto_from_feature_specs(
        any_tables.feature_specs(Topology(4, 4, "auto")), 4, 4
    )
    wrong = stacked_checkpoints.save(
        self.path / "a", _WRITER, values, message=message
    )
    with self.assertRaisesRegex(
        checkpoint.CheckpointError,
        r"stack 'hours_items_users', table: has .*embedding_spec says",
    ):
      convert.convert(wrong, self.path / "b")
    message.stacked_table_specs.pop()
    wrong = stacked_checkpoints.save(
        self.path / "c", Topology(4, 4, "auto"), values, message=message
    )
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, "which its embedding_spec does not name"
    ):
      convert.convert(wrong, self.path / "b")
    without = stacked_checkpoints.save(
        self.path / "d", _WRITER, values, model={"dense": np.ones(3)}
    )
    with self.assertRaisesRegex(ValueError, "has no 'embedding_table'.*dense"):
      convert.convert(without, self.path / "b")
    twice = {name: {"embedding_table": "tables"} for name in ("a", "b")}
    several = stacked_checkpoints.save(
        self.path / "e", _WRITER, values, model=twice
    )
    with self.assertRaisesRegex(
        ValueError, "of several layers, 'a.embedding_.*restore_checkpoint of"
    ):
      convert.convert(several, self.path / "b")
    self.assertFalse((self.path / "b").exists())

  def test_damage_is_noticed_and_leaves_no_target(self):
    source = stacked_checkpoints.save(
        self.path / "a", _WRITER, any_tables.values()
    )
    for file in (source / "model" / "ocdbt.process_0").glob("d/*"):
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, "is damaged: .*|Cannot copy"
    ):
      convert.convert(source, self.path / "b")
    self.assertFalse((self.path / "b").exists())

  def test_program(self):
    values = any_tables.values()
    source = stacked_checkpoints.save(self.path / "a", _WRITER, values)
    with contextlib.redirect_stdout(io.StringIO()) as output:
      status = convert.main([f"--from={source}", f"--to={self.path}/b"])
    self.assertEqual(status, 0)
    self.assertIn("layout logical", output.getvalue())
    self.assert_has(self.path / "b", values)
    with contextlib.redirect_stderr(io.StringIO()) as output:
      status = convert.main(
          [f"--from={source}", f"--to={self.path}/c", "--layout=stacked"]
      )
    self.assertEqual(status, 1)
    self.assertRegex(output.getvalue(), r"\Aconvert: .*--devices")


class ReferenceTest(absltest.TestCase):
  """What jax-tpu-embedding 0.2.0 wrote (testdata/write_with_reference.py).

  4 devices x 2 SparseCores, tables with an accumulator each in one stack.
  """

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path)
    testdata = pathlib.Path(__file__).parent / "testdata"
    with tarfile.open(testdata / "reference_4x2.tgz") as archive:
      archive.extractall(self.path, filter="data")
    # As it unstacked them itself.
    self.expected = np.load(testdata / "reference_unstacked.npz")

  def test_its_tables_have_the_bits_that_it_finds_in_them(self):
    convert.convert(self.path / "3", self.path / "logical")
    saved = checkpoint.verify(self.path / "logical")
    self.assertLen(self.expected.files, 6)
    self.assertLen(list(saved.variables()), 6)
    for variable in saved.variables():
      np.testing.assert_array_equal(
          checkpoint.read_table(
              self.path / "logical", variable.table, variable.slot
          ),
          self.expected[".".join(variable.keys)],
          strict=True,
      )

  def test_all_layouts_lead_to_the_same_tables_and_back(self):
    devices = dict(layout="stacked", num_sc_per_device=2)
    convert.convert(
        self.path / "3", self.path / "two", num_devices=2, **devices
    )
    convert.convert(self.path / "two", self.path / "logical")
    convert.convert(
        self.path / "logical", self.path / "four", num_devices=4, **devices
    )
    before, after = (
        stacked_checkpoints.load(self.path / name) for name in ("3", "four")
    )
    # The way back ends where it began, but for what it had in padding.
    self.assertEqual(jax.tree.structure(before), jax.tree.structure(after))
    jax.tree.map(np.testing.assert_array_equal, before["dense"], after["dense"])
    self.assertEqual(
        _stacked_checkpoint.read_message(
            str(self.path / "3"), "embedding_spec"
        ),
        _stacked_checkpoint.read_message(
            str(self.path / "four"), "embedding_spec"
        ),
    )
    for a, b in zip(
        jax.tree.leaves(before["embedding_layer"]),
        jax.tree.leaves(after["embedding_layer"]),
    ):
      self.assertEqual(np.count_nonzero(b), 103 * 6 + 30 * 4 + 5 * 6)
      np.testing.assert_array_equal(b[b != 0], a[b != 0])


class HostStacksTest(parameterized.TestCase):

  def test_a_disk_without_room_is_an_error_and_not_a_signal(self):
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(os, "posix_fallocate", side_effect=full) as asked:
      with self.assertRaisesRegex(
          checkpoint.CheckpointError,
          "stack of 240 bytes in /tmp: No space left on device. Pass scratch",
      ):
        _host_stacks.scratch_array((20, 3), np.float32, "/tmp")
    self.assertEqual(asked.call_args.args[1:], (0, 240))

  @parameterized.parameters((0, 7), (3, 4), (5, 31), (0, 31))
  def test_writes_what_it_reads(self, first, end):
    specs = any_tables.feature_specs(
        Topology(3, 1, "rotated"), (("a", 10, 3), ("b", 31, 5))
    )
    message = embedding.create_proto_from_feature_specs(specs, 3, 1)
    placement = convert._placement.from_proto(message.stacked_table_specs[0])
    stack = _host_stacks.scratch_array(
        (placement.num_rows, placement.embedding_dim), np.float32, None
    )
    rows = _host_stacks.HostStackRows(stack, placement, placement.tables[1])
    values = np.random.default_rng(0).normal(size=(end - first, 5))
    values = values.astype(np.float32)
    rows.write(first, values)
    ((_, found),) = rows.blocks([(first, end)])
    np.testing.assert_array_equal(found, values)
    # Nothing else was written.
    self.assertEqual(np.count_nonzero(stack), values.size)


if __name__ == "__main__":
  absltest.main()
