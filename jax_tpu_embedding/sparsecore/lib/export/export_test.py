# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables in files: of variables on any devices, and of checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import re
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _served_directory
from jax_tpu_embedding.sparsecore.lib.export import export
from jax_tpu_embedding.sparsecore.lib.export.testing import plain_reader
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.serving import embedding_tables
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_TOPOLOGY = any_tables.Topology(1, 2, "auto")


def _decoded(served: pathlib.Path, encoding: str) -> dict[str, np.ndarray]:
  columns = {name: size for name, _, size in any_tables.TABLES}
  return {
      name: _encodings.ENCODINGS[encoding].decode(rows, columns[name])
      for name, rows in plain_reader.read(served).items()
  }


class ExportTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(self.create_tempdir().full_path)
    self.served = self.directory / "served"
    self.values = any_tables.values()

  def variables(self, topology=_TOPOLOGY, **options):
    specs = any_tables.feature_specs(topology)
    return specs, any_tables.random_variables(
        topology, specs, self.values, **options
    )

  @parameterized.parameters(
      any_tables.Topology(1, 1, "alone"),
      any_tables.Topology(4, 2, "rotated"),
      any_tables.Topology(3, 1, "auto"),
      any_tables.Topology(4, 1, "mixed"),
  )
  def test_files_are_the_same_of_variables_anywhere_and_of_checkpoints(
      self, topology
  ):
    checkpoint = self.directory / "100"
    any_tables.save_rows(checkpoint, self.values)
    specs, variables = self.variables(topology)
    for encoding in _encodings.ENCODINGS:
      files = []
      for source in (
          variables,
          jax.tree.map(jax.new_ref, variables),
          checkpoint,
      ):
        served = self.directory / f"{encoding}_{len(files)}"
        version = export.export_tables(served, source, specs, encoding=encoding)
        files.append(
            {
                path.name: path.read_bytes()
                for path in (served / "v000000").glob("*.safetensors")
            }
        )
        self.assertEqual((version.number, version.kind), (0, "full"))
      self.assertLen(files[0], 3)
      self.assertEqual(files[0], files[1])
      self.assertEqual(files[0], files[2])
      for name, rows in _decoded(served, encoding).items():
        lost = np.abs(rows - self.values[name][None]).max()
        self.assertEqual(lost, version.tables[name].max_error)
        self.assertLessEqual(version.tables[name].rms_error, lost)
        self.assertEqual(lost == 0, encoding == "float32")

  def test_manifest_says_what_is_there(self):
    specs, variables = self.variables()
    version = export.export_tables(
        self.served, variables, specs, encoding={"items": "int8", "hours": "float16"},
        tables=["hours", "items"], max_file_bytes=8000,
    )  # fmt: skip
    (manifest,) = plain_reader.versions(self.served)
    self.assertEqual(
        manifest["features"],
        {"items": {"table": "items"}, "hours": {"table": "hours"}},
    )
    self.assertEqual(manifest["format"], "jax_tpu_embedding.tables")
    self.assertIsNone(manifest["step"])
    items = manifest["tables"]["items"]
    self.assertEqual(items["combiner"], "sum")
    self.assertEqual(items["row_bytes"], 12 + 8)
    # 8000 bytes have 400 rows of 20 bytes.
    self.assertEqual(
        [(f["name"], f["first_row"], f["rows"]) for f in items["files"]],
        [
            ("items-00001-of-00003.safetensors", 0, 400),
            ("items-00002-of-00003.safetensors", 400, 400),
            ("items-00003-of-00003.safetensors", 800, 203),
        ],
    )
    self.assertEqual(set(plain_reader.read(self.served)), {"items", "hours"})
    self.assertRegex(
        str(version), r"version 0, full, [\d,]+ bytes\n(.*\n)+items +1,003 x 12"
    )
    self.assertEqual((self.served / "LOCK").read_text(), "")

  def test_features_are_served_with_the_columns_of_training(self):
    specs, variables = self.variables()
    specs["items"].output_shape = (48, 5)
    export.export_tables(self.served, variables, specs)
    (manifest,) = plain_reader.versions(self.served)
    self.assertEqual(
        manifest["features"],
        {
            "items": {"table": "items", "columns": 5},
            "users": {"table": "users"},
            "hours": {"table": "hours"},
        },
    )
    rng = np.random.default_rng(0)
    ids = {
        name: rng.integers(rows, size=(6, 2))
        for name, rows, _ in any_tables.TABLES
    }
    tables = embedding_tables.open(self.served)
    self.assertEqual(tables.features["items"], "items")
    found = tables.activations(ids)
    expected = embedding.lookup_ids(
        ids,
        None,
        variables,
        specs,
        layout.Topology(
            local_device_count=1, global_device_count=1, num_sc_per_device=2
        ),
    )
    for name in ids:
      np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    self.assertEqual(found["items"].shape, (6, 5))

  def test_names_of_tables_may_have_any_character(self):
    tables = (("a/b c%", 20, 4), ("ü.", 9, 4))
    specs = any_tables.feature_specs(_TOPOLOGY, tables)
    variables = any_tables.random_variables(
        _TOPOLOGY, specs, any_tables.values(tables)
    )
    export.export_tables(self.served, variables, specs)
    self.assertEqual(set(plain_reader.read(self.served)), {"a/b c%", "ü."})

  def test_a_checkpoint_needs_no_device_and_no_specs(self):
    checkpoint = self.directory / "100"
    specs, variables = self.variables()
    any_tables.save(checkpoint, variables, specs, step=100)
    program = (
        "import sys; from jax_tpu_embedding.sparsecore.lib.export import export;"
        "export.export_tables(sys.argv[1], sys.argv[2], encoding='int4')"
    )
    subprocess.run(
        [sys.executable, "-c", program, self.served, checkpoint],
        # Whoever asks for a device gets an error.
        env=os.environ
        | {"JAX_PLATFORMS": "none", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    (manifest,) = plain_reader.versions(self.served)
    self.assertEqual(manifest["step"], 100)
    self.assertNotIn("features", manifest)
    export.export_tables(
        self.directory / "same", variables, specs, encoding="int4"
    )
    for name, rows in plain_reader.read(self.directory / "same").items():
      np.testing.assert_array_equal(plain_reader.read(self.served)[name], rows)

  @parameterized.parameters("float32", "float16", "int8")
  def test_npy_is_one_array_to_map(self, encoding):
    specs, variables = self.variables()
    version = export.export_tables(
        self.served, variables, specs, file_format="npy", encoding=encoding,
        max_file_bytes=1000,
    )  # fmt: skip
    array = np.load(pathlib.Path(version.path) / "items.npy", mmap_mode="r")
    rows = np.ascontiguousarray(array).view(np.uint8)
    np.testing.assert_allclose(
        _encodings.ENCODINGS[encoding].decode(rows, 12),
        self.values["items"][None],
        atol=0.02,
    )
    (manifest,) = plain_reader.versions(self.served)
    self.assertEqual(manifest["file_format"], "npy")
    (file,) = manifest["tables"]["items"]["files"]
    self.assertEqual(file["offset"] % 64, 0)

  def test_parquet_has_ids_and_lists(self):
    try:
      from pyarrow import parquet
    except ImportError:
      self.skipTest("pyarrow is not installed: pip install pyarrow.")
    specs, variables = self.variables()
    version = export.export_tables(
        self.served, variables, specs, file_format="parquet",
        max_file_bytes=30_000, encoding={"items": "float32", "users": "float16",
                                         "hours": "float32"},
    )  # fmt: skip
    found = parquet.read_table(
        [
            pathlib.Path(version.path) / f"items-0000{i}-of-00002.parquet"
            for i in (1, 2)
        ]
    )
    self.assertEqual(found["id"].to_pylist(), list(range(1003)))
    self.assertEqual(
        found["embedding"].to_pylist(), self.values["items"][None].tolist()
    )
    self.assertEqual(
        str(found.schema.field("embedding").type),
        "fixed_size_list<element: float>[12]",
    )

  def test_overwrite_is_the_next_version_of_the_directory(self):
    specs, variables = self.variables()
    export.export_tables(self.served, variables, specs)
    with self.assertRaisesRegex(
        ValueError, "already has tables.*overwrite=True"
    ):
      export.export_tables(self.served, variables, specs)
    again = export.export_tables(
        self.served, variables, specs, encoding="int8", overwrite=True
    )
    self.assertEqual(again.number, 1)
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000001"]
    )
    # A number is not used again where CURRENT cannot be read.
    (self.served / "CURRENT").write_text("1 v00")
    again = export.export_tables(self.served, variables, specs, overwrite=True)
    self.assertEqual(again.number, 2)

  def test_rows_that_cannot_be_encoded_are_counted_and_nothing_is_left(self):
    specs, variables = self.variables()
    export.export_tables(self.served, variables, specs)
    before = (self.served / "CURRENT").read_text()
    self.values["items"][None][[700, 20, 900], 3] = [np.nan, np.inf, 7e4]
    specs, variables = self.variables()
    for encoding, count in ("int4", 3), ("int8", 2), ("float32", 2):
      with self.assertRaisesRegex(
          ValueError,
          rf"Table 'items': {count} of 1003 rows cannot be encoded as"
          rf" {encoding}. The first is row 20: inf in column 3",
      ):
        export.export_tables(
            self.served, variables, specs, encoding=encoding, overwrite=True
        )
    self.assertEqual((self.served / "CURRENT").read_text(), before)
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000000"]
    )

  @parameterized.parameters(
      (dict(), None),
      (dict(encoding="int7"), "Table 'items': the encoding must be one of"
       " float32, bfloat16, float16, int8, int4, got 'int7'"),
      (dict(tables=["itmes"]), r"'itmes' is not known; there are \['hours'"),
      (dict(tables=[]), "no tables to export"),
      (dict(encoding={"items": "int8"}), "'users' has no encoding"),
      (dict(tables=["users"], encoding={"items": "int8", "users": "int8"}),
       "'items' has an encoding, but is not in tables"),
      (dict(file_format="csv"), "one of safetensors, npy, parquet, got 'csv'"),
      (dict(file_format="npy", encoding="bfloat16"),
       "'hours': files of npy have the encodings float32, float16, int8, int4,"
       " not bfloat16"),
      (dict(file_format="parquet", encoding="int8"), "not int8"),
      (dict(max_file_bytes=0), "max_file_bytes must be positive, got 0"),
      (dict(feature_specs=None), "Variables need feature_specs"),
      (dict(num_sc_per_device=3), "prepared for 2 SparseCores in all, and is used"
       " with 3"),
  )  # fmt: skip
  def test_errors_come_before_any_file(self, changes, message):
    specs, variables = self.variables()
    arguments = dict(feature_specs=specs) | changes
    if message is None:
      export.export_tables(self.served, variables, **arguments)
      return
    with self.assertRaisesRegex(ValueError, message):
      export.export_tables(self.served, variables, **arguments)
    self.assertFalse(self.served.exists())

  @parameterized.parameters(
      (dict(tables=3), "tables must be a sequence of names, got 3"),
      (dict(encoding=3), "encoding must be a name, or .* got 3"),
      (
          dict(encoding={"items": ["int8"]}, tables=["items"]),
          r"Table 'items': the encoding must be one of .* got \['int8'\]",
      ),
      (dict(file_format=["npy"]), r"file_format must be .* got \['npy'\]"),
  )
  def test_arguments_of_another_kind_are_named(self, changes, message):
    specs, variables = self.variables()
    with self.assertRaisesRegex((TypeError, ValueError), message):
      export.export_tables(self.served, variables, specs, **changes)
    self.assertFalse(self.served.exists())

  @parameterized.parameters(1e9, "4096", None)
  def test_bytes_of_a_file_are_an_integer(self, number):
    specs, variables = self.variables()
    with self.assertRaisesRegex(
        TypeError, f"max_file_bytes must be an integer, got {number!r}"
    ):
      export.export_tables(self.served, variables, specs, max_file_bytes=number)
    self.assertFalse(self.served.exists())
    export.export_tables(
        self.served, variables, specs, max_file_bytes=np.int64(4096)
    )

  def test_rows_that_lookups_round_are_not_exported(self):
    checkpoint = self.directory / "100"
    any_tables.save_rows(checkpoint, self.values)
    table = embedding_spec.TableSpec(
        name="items",
        vocabulary_size=1003,
        embedding_dim=12,
        optimizer=embedding_spec.SGDOptimizerSpec(),
        quantization_config=embedding_spec.QuantizationConfig(
            min_value=-1, max_value=1, num_buckets=9
        ),
    )
    feature = embedding_spec.FeatureSpec(
        name="item", table_spec=table, input_shape=(8, 1), output_shape=(8, 12)
    )
    with self.assertRaisesRegex(ValueError, r"\['items'\] round the rows"):
      export.export_tables(self.served, checkpoint, feature)
    with self.assertRaisesRegex(ValueError, r"\['items'\] round the rows"):
      export.export_lookup(self.served, feature)
    self.assertFalse(self.served.exists())

  def test_checkpoints_of_rounded_rows_are_not_exported(self):
    checkpoint = self.directory / "100"
    features = []
    for name, config in (
        ("items", embedding_spec.QuantizationConfig(
            min_value=-1, max_value=1, num_buckets=9
        )),
        ("users", None),
    ):  # fmt: skip
      table = embedding_spec.TableSpec(
          name=name,
          vocabulary_size=20,
          embedding_dim=8,
          optimizer=embedding_spec.SGDOptimizerSpec(),
          combiner="sum",
          quantization_config=config,
      )
      features.append(
          embedding_spec.FeatureSpec(
              name=name,
              table_spec=table,
              input_shape=(8, 1),
              output_shape=(8, 8),
          )
      )
    embedding.prepare_feature_specs_for_training(features, 1, 2)
    variables = any_tables.new_variables(_TOPOLOGY, features)
    any_tables.save(checkpoint, variables, features)
    with self.assertRaisesRegex(ValueError, r"\['items'\] round the rows"):
      export.export_tables(self.served, checkpoint)
    self.assertFalse(self.served.exists())
    export.export_tables(self.served, checkpoint, tables=["users"])
    as_they_are = dataclasses.replace(
        features[0],
        table_spec=dataclasses.replace(
            features[0].table_spec,
            quantization_config=None,
            _stacked_table_spec=None,
            _setting_in_stack=None,
        ),
    )
    export.export_tables(self.served, checkpoint, as_they_are, overwrite=True)

  def test_checkpoints_that_do_not_fit(self):
    checkpoint = self.directory / "100"
    any_tables.save_rows(checkpoint, self.values)
    with self.assertRaisesRegex(ValueError, "does not say the combiners of"):
      export.export_tables(self.served, checkpoint)
    tables = (("items", 1003, 8), ("days", 7, 4))
    specs = any_tables.feature_specs(_TOPOLOGY, tables)
    with self.assertRaisesRegex(
        ValueError,
        r"(?s)'days': the checkpoint has none of this name, only \['hours'.*"
        "'items': the checkpoint has 1003 x 12, the spec 1003 x 8",
    ):
      export.export_tables(self.served, checkpoint, specs)
    self.assertFalse(self.served.exists())

  @parameterized.parameters(-1, 2**60 + 1, 1.5, "7", True)
  def test_checkpoints_with_a_step_that_readers_refuse(self, step):
    checkpoint = self.directory / "100"
    with mock.patch.object(_tables_json, "as_step", lambda step: step):
      specs, variables = self.variables()
      any_tables.save(checkpoint, variables, specs, step=step)
    export.export_tables(self.served, variables, specs)
    with self.assertRaisesRegex(
        ValueError,
        f"{checkpoint} cannot be exported: step must be an integer from 0 to"
        f" .*, got {step!r}. Restore it, and save it with another step",
    ):
      export.export_tables(self.served, checkpoint, overwrite=True)
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000000"]
    )

  @parameterized.parameters(None, 8, (("int8",),))
  def test_encodings_are_names(self, encoding):
    specs, variables = self.variables()
    with self.assertRaisesRegex(
        TypeError, "encoding must be a name, or the names by table, got"
    ):
      export.export_tables(self.served, variables, specs, encoding=encoding)
    self.assertFalse(self.served.exists())

  def test_a_url_is_not_taken_for_the_name_of_a_directory(self):
    specs, variables = self.variables()
    self.enter_context(contextlib.chdir(self.create_tempdir().full_path))
    with self.assertRaisesRegex(ValueError, "not to gs://bucket/tables"):
      export.export_tables("gs://bucket/tables", variables, specs)
    self.assertEmpty(os.listdir())

  @parameterized.parameters("a\0b", "a\ud800")
  def test_a_name_that_no_directory_can_have_is_an_error(self, name):
    specs, variables = self.variables()
    path = self.directory / name
    with self.assertRaisesRegex(
        ValueError, f"^{re.escape(repr(str(path)))} is no name of a directory"
    ):
      export.export_tables(path, variables, specs)

  def test_leaves_directories_of_others_alone(self):
    specs, variables = self.variables()
    self.served.mkdir()
    (self.served / "notes.txt").write_text("mine")
    with self.assertRaisesRegex(ValueError, r"not of served tables: \['notes"):
      export.export_tables(self.served, variables, specs, overwrite=True)
    with self.assertRaisesRegex(ValueError, "is a file, not a directory"):
      export.export_tables(self.served / "notes.txt", variables, specs)
    self.assertEqual(os.listdir(self.served), ["notes.txt"])

  def test_directories_that_are_called_as_versions_are_left_alone(self):
    specs, variables = self.variables()
    mine = self.served / "v202406" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for write in (
        lambda: export.export_tables(
            self.served, variables, specs, overwrite=True
        ),
        lambda: export.Publisher(self.served, specs),
    ):
      with self.assertRaisesRegex(
          ValueError, r"not of served tables: \['v202406'\].*new or empty"
      ):
        write()
    self.assertEqual(os.listdir(self.served), ["v202406"])
    self.assertEqual(mine.read_text(), "mine")
    # Seven digits that are six: no version has this name.
    served = self.directory / "other"
    export.export_tables(served, variables, specs)
    (served / "v0000003").mkdir()
    with self.assertRaisesRegex(ValueError, r"served tables: \['v0000003'\]"):
      export.export_tables(served, variables, specs, overwrite=True)

  def test_old_versions_that_cannot_be_removed_stay(self):
    specs, variables = self.variables()
    export.export_tables(self.served, variables, specs)
    with mock.patch("shutil.rmtree", side_effect=OSError("busy")):
      with self.assertLogs(level="WARNING") as logs:
        version = export.export_tables(
            self.served, variables, specs, overwrite=True
        )
    self.assertRegex(
        logs.output[0], f"Old versions stay in {self.served}: busy"
    )
    self.assertEqual(version.number, 1)
    export.export_tables(self.served, variables, specs, overwrite=True)
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000002"]
    )

  def test_versions_are_left_alone_though_current_is_lost(self):
    specs, variables = self.variables()
    export.export_tables(self.served, variables, specs)
    (self.served / "CURRENT").unlink()
    with self.assertRaisesRegex(ValueError, "already has tables.*overwrite"):
      export.export_tables(self.served, variables, specs)
    self.assertCountEqual(os.listdir(self.served), ["LOCK", "v000000"])
    version = export.export_tables(
        self.served, variables, specs, overwrite=True
    )
    self.assertEqual(version.number, 1)

  def test_one_writer_at_a_time(self):
    specs, variables = self.variables()
    with _served_directory.ServedDirectory(self.served).locked():
      with self.assertRaisesRegex(
          RuntimeError,
          rf"is being written by process {os.getpid()} on host .*If that"
          r" process has ended, remove .*LOCK",
      ):
        export.export_tables(self.served, variables, specs)
    # Of a process on this host that died: nobody holds the lock.
    host = os.uname().nodename
    (self.served / "LOCK").write_text(f"{host} 12345\n")
    export.export_tables(self.served, variables, specs)
    # Of another host, whose lock may not be seen here.
    (self.served / "LOCK").write_text("elsewhere 12345\n")
    with self.assertRaisesRegex(
        RuntimeError, "process 12345 on host elsewhere"
    ):
      export.export_tables(self.served, variables, specs, overwrite=True)

  def test_a_process_that_was_forked_keeps_nobody_out(self):
    with _served_directory.ServedDirectory(self.served).locked():
      lock = os.fspath(self.served / "LOCK")
      (descriptor,) = (
          int(name)
          for name in os.listdir("/proc/self/fd")
          if os.path.realpath(f"/proc/self/fd/{name}") == lock
      )
      # Of the same open file, as those of a forked process are.
      self.addCleanup(os.close, os.dup(descriptor))
    with _served_directory.ServedDirectory(self.served).locked():
      pass

  def test_who_has_the_directory_may_be_unreadable(self):
    specs, variables = self.variables()
    export.export_tables(self.served, variables, specs)
    (self.served / "LOCK").write_bytes(b"h\xffst 12345\n")
    with self.assertRaisesRegex(
        RuntimeError, "process 12345 on host h.*has ended, remove .*LOCK"
    ):
      export.export_tables(self.served, variables, specs, overwrite=True)

  @parameterized.parameters(errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
  def test_one_writer_at_a_time_where_there_are_no_locks(self, code):
    specs, variables = self.variables()
    no_locks = OSError(code, os.strerror(code))
    self.enter_context(mock.patch.object(fcntl, "flock", side_effect=no_locks))
    with _served_directory.ServedDirectory(self.served).locked():
      # Nothing but the name tells that this one still writes.
      with self.assertRaisesRegex(
          RuntimeError,
          rf"is being written by process {os.getpid()} on host"
          rf" {os.uname().nodename}.*has ended, remove {self.served}/LOCK",
      ):
        export.export_tables(self.served, variables, specs)
    export.export_tables(self.served, variables, specs)
    (self.served / "LOCK").write_text("elsewhere 12345\n")
    with self.assertRaisesRegex(RuntimeError, "12345 on host elsewhere"):
      export.export_tables(self.served, variables, specs, overwrite=True)
    (self.served / "LOCK").unlink()
    export.export_tables(self.served, variables, specs, overwrite=True)

  def test_other_formats_of_the_directory_are_not_written_over(self):
    specs, variables = self.variables()
    version = export.export_tables(self.served, variables, specs)
    path = pathlib.Path(version.path) / "manifest.json"
    path.write_text(
        json.dumps({"format": "jax_tpu_embedding.tables", "format_version": 2})
    )
    (self.served / "CURRENT").write_text(
        f"0 v000000 {plain_reader.checksum(path)}\n"
    )
    with self.assertRaisesRegex(
        ValueError, "its format has version 2, expected 1"
    ):
      export.export_tables(self.served, variables, specs, overwrite=True)


if __name__ == "__main__":
  absltest.main()
