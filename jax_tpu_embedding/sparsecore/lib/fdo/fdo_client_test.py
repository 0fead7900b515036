# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every client in the same tests."""

import dataclasses
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.lib.fdo import csv_file_fdo_client
from jax_tpu_embedding.sparsecore.lib.fdo import fdo_client
from jax_tpu_embedding.sparsecore.lib.fdo import file_fdo_client
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

NPZ = file_fdo_client.NPZFileFDOClient
CSV = csv_file_fdo_client.CSVFileFDOClient

FIELDS = dataclasses.fields(embedding.SparseDenseMatmulInputStats)

# Among them names that end like a statistic, and that CSV must quote.
table_names = st.sampled_from(
    [
        "t",
        "a_max_unique_ids",
        "_max_ids",
        "a_id_drop_counters",
        'a, "b"\r\n',
        "Ü",
    ]
)


def stats(**fields):
  baseline = dict(max_ids_per_partition={}, max_unique_ids_per_partition={})
  return embedding.SparseDenseMatmulInputStats(**(baseline | fields))


def max_ids(*values):
  return stats(max_ids_per_partition={"t": np.array(values, np.int32)})


@st.composite
def batches(draw):
  """Statistics of one to four batches of a job."""
  lengths = {
      (field.name, table): draw(st.integers(0, 3))
      for field in FIELDS
      for table in draw(st.sets(table_names, max_size=3))
  }

  def batch():
    fields = {field.name: {} for field in FIELDS}
    for (field, table), length in lengths.items():
      # A number for length 0, as drop counters are.
      value = draw(
          st.integers(0, 2**40)
          if length == 0
          else st.lists(
              st.integers(0, 2**31 - 1), min_size=length, max_size=length
          )
      )
      fields[field][table] = value if length == 0 else np.array(value)
    return embedding.SparseDenseMatmulInputStats(**fields)

  return [batch() for _ in range(draw(st.integers(1, 4)))]


class FDOClientTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.dir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def publish(self, client, process, *records):
    for record in records:
      client.record(record)
    with mock.patch("jax.process_index", return_value=process):
      client.publish()

  def file_of(self, client_class, name, *records):
    """Publishes records under a name that the test chooses."""
    with tempfile.TemporaryDirectory() as other:
      self.publish(client_class(other), 0, *records)
      (path,) = pathlib.Path(other).iterdir()
      return path.rename(self.dir / f"{name}.{client_class.extension}")

  @parameterized.parameters(NPZ, CSV)
  def test_a_directory_that_is_not_there_is_an_error_at_once(
      self, client_class
  ):
    with self.assertRaisesRegex(NotADirectoryError, "missing is no directory"):
      client_class(self.dir / "missing")

  @parameterized.parameters(NPZ, CSV)
  def test_is_a_client(self, client_class):
    self.assertIsInstance(client_class(str(self.dir)), fdo_client.FDOClient)

  @parameterized.parameters(NPZ, CSV)
  @hypothesis.settings(derandomize=True, deadline=None, max_examples=30)
  @hypothesis.given(records=batches())
  def test_round_trip_of_every_field(self, client_class, records):
    with tempfile.TemporaryDirectory() as directory:
      self.publish(client_class(directory), 0, *records)
      loaded = client_class(directory).load()
    for field in FIELDS:
      got = getattr(loaded, field.name)
      self.assertEqual(set(got), set(getattr(records[0], field.name)))
      for table, values in got.items():
        self.assertEqual(values.dtype, np.int64)
        expected = [getattr(record, field.name)[table] for record in records]
        np.testing.assert_array_equal(
            np.atleast_2d(values), np.vstack(expected)
        )

  @parameterized.parameters(NPZ, CSV)
  @hypothesis.settings(derandomize=True, deadline=None, max_examples=30)
  @hypothesis.given(first=batches())
  def test_processes_combine_to_the_largest(self, client_class, first):
    second = first[::-1] + first[:1]
    with tempfile.TemporaryDirectory() as directory:
      self.publish(client_class(directory), 0, *first)
      self.publish(client_class(directory), 1, *second)
      loaded = client_class(directory).load()
    for field in FIELDS:
      got = getattr(loaded, field.name)
      self.assertEqual(set(got), set(getattr(first[0], field.name)))
      for table, values in got.items():
        rows = [getattr(record, field.name)[table] for record in first + second]
        np.testing.assert_array_equal(values, np.max(np.vstack(rows), axis=0))

  @parameterized.parameters(NPZ, CSV)
  def test_one_process_loads_its_history(self, client_class):
    self.publish(client_class(self.dir), 0, max_ids(1, 5), max_ids(4, 2))
    np.testing.assert_array_equal(
        client_class(self.dir).load().max_ids_per_partition["t"],
        [[1, 5], [4, 2]],
    )

  @parameterized.parameters(NPZ, CSV)
  def test_without_history_only_the_largest_is_kept(self, client_class):
    client = client_class(self.dir, retain_history=False)
    self.publish(client, 0, max_ids(1, 5), max_ids(4, 2))
    for retain_history in (False, True):
      np.testing.assert_array_equal(
          client_class(self.dir, retain_history)
          .load()
          .max_ids_per_partition["t"],
          [4, 5],
      )

  @parameterized.parameters(NPZ, CSV)
  def test_without_history_a_history_loads_as_its_largest(self, client_class):
    self.publish(client_class(self.dir), 0, max_ids(1, 5), max_ids(4, 2))
    loaded = client_class(self.dir, retain_history=False).load()
    np.testing.assert_array_equal(loaded.max_ids_per_partition["t"], [4, 5])

  @parameterized.parameters(NPZ, CSV)
  def test_minibatching_may_begin_later(self, client_class):
    sizes = lambda *values: dict(
        max_ids_per_partition={"t": np.array(values)},
        max_unique_ids_per_partition={"t": np.array(values)},
        required_buffer_size_per_sc={"t": np.array(values)},
    )
    aligned = dict(minibatch_alignment_per_sc={"t": np.array([4, 0])})
    self.publish(
        client_class(self.dir),
        0,
        stats(**sizes(8, 16)),
        stats(**sizes(16, 8)),
        stats(**sizes(8, 8), **aligned),
    )
    client = client_class(self.dir)
    loaded = client.load()
    np.testing.assert_array_equal(
        loaded.minibatch_alignment_per_sc["t"], [[0, 0], [0, 0], [4, 0]]
    )
    # Of two SparseCores, as much as the one with most.
    self.assertEqual(loaded.get_required_buffer_size_per_device("t", 2), 32)
    self.publish(client, 0, stats(**sizes(8, 8)))  # and may end
    loaded = client_class(self.dir).load()
    self.assertEqual(loaded.get_required_buffer_size_per_device("t", 2), 32)

  @parameterized.parameters(NPZ, CSV)
  def test_latest_file_of_each_process_counts(self, client_class):
    for name, values in (
        ("fdo_stats_0_5", (100, 100)),
        ("fdo_stats_0_40", (1, 9)),
        ("fdo_stats_0_4", (100, 100)),
        ("fdo_stats_1_3", (7, 2)),
        ("fdo_stats_10_3", (0, 20)),
        # Not names of published files.
        ("fdo_stats_x_9", (100, 100)),
        ("my_fdo_stats_2_9", (100, 100)),
        (".fdo_stats_2_9", (100, 100)),
    ):
      self.file_of(client_class, name, max_ids(*values))
    loaded = client_class(self.dir).load()
    np.testing.assert_array_equal(loaded.max_ids_per_partition["t"], [7, 20])

  @parameterized.parameters(NPZ, CSV)
  def test_a_clock_that_is_set_back_hides_nothing(self, client_class):
    client = client_class(self.dir)
    for time_ns, number in ((10**18, 1), (5, 2), (5, 3)):
      with mock.patch("time.time_ns", return_value=time_ns):
        self.publish(client, 0, max_ids(number))
    loaded = client_class(self.dir).load().max_ids_per_partition["t"]
    self.assertEqual(loaded.tolist(), [[1], [2], [3]])

  @parameterized.parameters(NPZ, CSV)
  def test_only_the_last_files_of_a_client_stay(self, client_class):
    earlier = [
        self.file_of(client_class, f"fdo_stats_{name}", max_ids(number))
        for name, number in (("0_1", 1), ("0_2", 2), ("1_1", 3))
    ]
    client = client_class(self.dir)
    for number in range(5):
      self.publish(client, 0, max_ids(number))
    self.assertTrue(all(path.exists() for path in earlier))
    self.assertLen(os.listdir(self.dir), len(earlier) + 3)
    loaded = client_class(self.dir).load().max_ids_per_partition["t"]
    self.assertEqual(loaded.tolist(), [4])

  @parameterized.parameters(NPZ, CSV)
  def test_a_file_that_is_replaced_while_it_is_read(self, client_class):
    replaced = self.file_of(client_class, "fdo_stats_0_1", max_ids(1))
    read_bytes = pathlib.Path.read_bytes

    def replace_and_read(path):
      if path == replaced:
        self.publish(client_class(self.dir), 0, max_ids(2))
        replaced.unlink()
      return read_bytes(path)

    with mock.patch.object(pathlib.Path, "read_bytes", replace_and_read):
      loaded = client_class(self.dir).load().max_ids_per_partition["t"]
    self.assertEqual(loaded.tolist(), [2])
    # Not an error that says that nothing was published.
    with (
        mock.patch.object(
            pathlib.Path, "read_bytes", side_effect=FileNotFoundError
        ),
        self.assertRaisesRegex(OSError, "lists what is not there") as caught,
    ):
      client_class(self.dir).load()
    self.assertNotIsInstance(caught.exception, FileNotFoundError)

  def test_a_file_that_cannot_be_deleted_ends_no_run(self):
    unlink = pathlib.Path.unlink

    def refuse(path, missing_ok=False):
      if not path.name.endswith(".unfinished"):
        raise PermissionError(f"{path} is locked")
      unlink(path, missing_ok)

    client = NPZ(self.dir)
    with (
        mock.patch.object(pathlib.Path, "unlink", refuse),
        self.assertLogs(level="WARNING") as logs,
    ):
      for number in range(4):
        self.publish(client, 0, max_ids(number))
    self.assertRegex(logs.output[0], r"fdo_stats_0_\d+.npz stays.*is locked")
    self.assertLen(os.listdir(self.dir), 4)

  @parameterized.parameters(NPZ, CSV)
  def test_loaded_statistics_replace_the_recorded_ones(self, client_class):
    self.publish(client_class(self.dir), 0, max_ids(1, 5))
    client = client_class(self.dir)
    client.record(max_ids(9, 9))
    client.load()
    self.publish(client, 0, max_ids(2, 2))
    np.testing.assert_array_equal(
        client.load().max_ids_per_partition["t"], [[1, 5], [2, 2]]
    )

  @parameterized.parameters(NPZ, CSV)
  def test_nothing_recorded_loads_as_nothing(self, client_class):
    self.publish(client_class(self.dir), 0)
    self.assertEqual(client_class(self.dir).load(), stats())

  @parameterized.parameters(NPZ, CSV)
  def test_nothing_published_is_an_error(self, client_class):
    with self.assertRaisesRegex(FileNotFoundError, f"in {self.dir}. Publish"):
      client_class(self.dir).load()

  @parameterized.parameters(NPZ, CSV)
  def test_fractions_are_rounded_up(self, client_class):
    # 161 cells on 4 SparseCores need 41 each.
    needed = stats()
    needed.set_required_buffer_size_per_device("t", 161, 4)
    self.publish(client_class(self.dir), 0, needed)
    loaded = client_class(self.dir).load()
    self.assertEqual(loaded.get_required_buffer_size_per_device("t"), 164)

  @parameterized.parameters(
      ([1, 2, 3], "t_max_ids has 3 values in this record, and 2 before"),
      ([float("nan"), 1], "t_max_ids must be numbers in"),
      ([float("inf"), 1], "t_max_ids must be numbers in"),
      (["a", "b"], "t_max_ids must be numbers in"),
      ([-1, 1], "t_max_ids must be numbers in"),
      ([2.0**63, 1], "t_max_ids must be numbers in"),
      ([[[1, 2]]], "t_max_ids must be .* at most 2-D"),
  )
  def test_bad_records_change_nothing(self, values, message):
    client = NPZ(self.dir)
    client.record(max_ids(1, 2))
    bad = stats(
        max_ids_per_partition={"new": np.array([1]), "t": np.array(values)}
    )
    with self.assertRaisesRegex(ValueError, message):
      client.record(bad)
    self.publish(client, 0)
    self.assertEqual(client.load().max_ids_per_partition.keys(), {"t"})

  @parameterized.parameters(NPZ, CSV)
  def test_processes_of_different_lengths_are_named(self, client_class):
    self.publish(client_class(self.dir), 0, max_ids(1, 2))
    self.publish(client_class(self.dir), 1, max_ids(1, 2, 3, 4))
    with self.assertRaisesRegex(
        ValueError,
        "t_max_ids has 4 values in .*fdo_stats_1_.* and 2 before.*another"
        " directory",
    ):
      client_class(self.dir).load()

  @parameterized.named_parameters(
      ("npz_empty", NPZ, b"", ""),
      ("npz_garbage", NPZ, b"garbage", ""),
      ("npz_zip_of_nothing_known", NPZ, b"PK\3\4garbage", ""),
      ("csv_empty", CSV, b"", "first line is not 'key,values'"),
      ("csv_header", CSV, b"a,b\n", "first line is not 'key,values'"),
      ("csv_columns", CSV, b"key,values\nt_max_ids\n", ""),
      ("csv_number", CSV, b"key,values\nt_max_ids,1 x\n", "'x'"),
      ("csv_cut", CSV, b"key,values\nt_max_ids,1", "line is incomplete"),
      (
          "csv_negative",
          CSV,
          b"key,values\nt_max_ids,-1\n",
          "_max_ids .*below 0",
      ),
      ("csv_nothing", CSV, b"key,values\nt_max_ids,\n", "record without"),
      ("csv_bytes", CSV, b"key,values\n\xff\n", ""),
      ("csv_key", CSV, b"key,values\nt_nothing,1\n", "'t_nothing'.*_max_ids"),
      (
          "csv_lengths",
          CSV,
          b"key,values\nt_max_ids,1\nt_max_ids,1 2\n",
          "has 2 values in a record, and 1 before",
      ),
  )
  def test_foreign_files_are_named(self, client_class, content, reason):
    path = self.dir / f"fdo_stats_0_1.{client_class.extension}"
    path.write_bytes(content)
    with self.assertRaisesRegex(
        ValueError,
        f"(?s){path} is not a file of statistics: .*{reason}.*Remove it",
    ):
      client_class(self.dir).load()

  @parameterized.named_parameters(
      ("key", {"t_nothing": np.array([1])}, "'t_nothing'"),
      ("floats", {"t_max_ids": np.array([1.0])}, "float64"),
      ("objects", {"t_max_ids": np.array([{}])}, "allow_pickle"),
      ("no_records", {"t_max_ids": np.zeros((0, 2), int)}, "not a list"),
      ("three_axes", {"t_max_ids": np.zeros((2, 2, 2), int)}, "not a list"),
  )
  def test_foreign_archives_are_named(self, arrays, reason):
    path = self.dir / "fdo_stats_0_1.npz"
    np.savez(path, **arrays)
    with self.assertRaisesRegex(ValueError, f"{path} is not .*{reason}"):
      NPZ(self.dir).load()

  def test_changed_bytes_of_archives_are_found(self):
    self.publish(NPZ(self.dir), 0, max_ids(1, 5), max_ids(4, 2))
    (path,) = self.dir.iterdir()
    content = path.read_bytes()
    path.write_bytes(b" " + content)  # zipfile takes it
    with self.assertRaisesRegex(ValueError, f"{path} is not .*SHA-256"):
      NPZ(self.dir).load()
    # An archive of another writer has no such comment.
    np.savez(path, t_max_ids=[[1, 5], [4, 2]])
    content = path.read_bytes()
    for old, new in ((b"(2, 2)", b"(1, 2)"), (b"<i8", b"<u4")):
      self.assertIn(old, content)
      path.write_bytes(content.replace(old, new))
      with self.assertRaisesRegex(ValueError, f"{path} is not .*CRC-32"):
        NPZ(self.dir).load()

  @parameterized.parameters(NPZ, CSV)
  def test_a_file_appears_when_it_is_complete(self, client_class):
    seen_while_writing = []

    class Watched(client_class):

      def _write(self, file, history):
        super()._write(file, history)
        seen_while_writing.extend(self._latest_paths())

    self.publish(Watched(self.dir), 0, max_ids(1, 2))
    self.assertEmpty(seen_while_writing)
    self.assertLen(os.listdir(self.dir), 1)

  @parameterized.parameters(NPZ, CSV)
  def test_what_a_killed_process_left_is_removed_a_day_later(
      self, client_class
  ):
    old, new = (
        self.dir / f".fdo_stats_7_{i}.{client_class.extension}.unfinished"
        for i in range(2)
    )
    for path, age_seconds in ((old, 100_000), (new, 3600)):
      path.write_bytes(b"x")
      written_at = path.stat().st_mtime - age_seconds
      os.utime(path, (written_at, written_at))
    self.publish(client_class(self.dir), 0, max_ids(1))
    self.assertFalse(old.exists())
    self.assertTrue(new.exists(), "somebody may still write it")

  @parameterized.parameters(NPZ, CSV)
  def test_names_that_only_look_abandoned_stay(self, client_class):
    others = self.dir / f".fdo_stats_mine.{client_class.extension}.unfinished"
    others.write_bytes(b"x")
    os.utime(others, (1, 1))
    self.publish(client_class(self.dir), 0, max_ids(1))
    self.assertTrue(others.exists())

  @parameterized.parameters(NPZ, CSV)
  def test_clients_with_one_number_and_time_take_different_names(
      self, client_class
  ):
    # Those of two jobs, after a clock was set back: both want the next number.
    class Slow(client_class):

      def _write(self, file, history):
        client = client_class(directory)
        client.record(max_ids(2))
        client.publish()
        super()._write(file, history)

    directory = self.dir
    with mock.patch("time.time_ns", return_value=5):
      self.publish(Slow(self.dir), 0, max_ids(1))
      self.publish(client_class(self.dir), 0, max_ids(3))
    self.assertCountEqual(
        os.listdir(self.dir),
        [f"fdo_stats_0_{i}.{client_class.extension}" for i in (5, 6, 7)],
    )

  def test_a_name_that_was_taken_meanwhile_is_not_replaced(self):
    taken = self.file_of(NPZ, "fdo_stats_0_5", max_ids(9))
    client = NPZ(self.dir)
    with (
        mock.patch("time.time_ns", return_value=5),
        mock.patch.object(client, "_files", return_value={}),
    ):
      self.publish(client, 0, max_ids(1))
    archive = taken.read_bytes()
    self.publish(client, 0, max_ids(2))
    self.assertLen(os.listdir(self.dir), 3)
    self.assertEqual(taken.read_bytes(), archive)
    np.testing.assert_array_equal(np.load(taken)["t_max_ids"], [9])

  @parameterized.parameters(NPZ, CSV)
  def test_a_pipe_is_named_and_not_waited_for(self, client_class):
    os.mkfifo(self.dir / f"fdo_stats_0_5.{client_class.extension}")
    with self.assertRaisesRegex(ValueError, "fdo_stats_0_5.* is no file"):
      client_class(self.dir).load()

  @parameterized.parameters(NPZ, CSV)
  def test_a_directory_given_by_a_relative_path_stays_the_same(
      self, client_class
  ):
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(self.dir.parent)
    client = client_class(self.dir.name)
    os.chdir("/")
    self.publish(client, 0, max_ids(1))
    self.assertLen(os.listdir(self.dir), 1)

  @parameterized.product(client_class=(NPZ, CSV), name=("a\0b", "a\ud800", 5))
  def test_names_that_files_cannot_have_are_refused_when_recorded(
      self, client_class, name
  ):
    client = client_class(self.dir)
    with self.assertRaisesRegex(ValueError, "cannot be the name of a table"):
      client.record(stats(max_ids_per_partition={name: np.array([1])}))

  @parameterized.parameters(NPZ, CSV)
  def test_what_is_no_statistics_is_refused(self, client_class):
    client = client_class(self.dir)
    with self.assertRaisesRegex(TypeError, "SparseDenseMatmulInputStats.*None"):
      client.record(None)
    with self.assertRaisesRegex(TypeError, "max_ids_per_partition.*list"):
      client.record(stats(max_ids_per_partition=[1]))

  @parameterized.parameters(NPZ, CSV)
  def test_a_write_that_fails_leaves_no_file(self, client_class):

    class FullDisk(client_class):

      def _write(self, file, history):
        raise OSError("disk full")

    with self.assertRaisesRegex(OSError, "disk full"):
      FullDisk(self.dir).publish()
    self.assertEmpty(os.listdir(self.dir))

  def test_csv_is_what_the_format_says(self):
    record = stats(
        max_ids_per_partition={"t": np.array([1, 5])}, id_drop_counters={"t": 3}
    )
    self.publish(CSV(self.dir), 0, record, max_ids(4, 2))
    (path,) = self.dir.iterdir()
    self.assertRegex(path.name, r"^fdo_stats_0_\d{19}\.csv$")
    self.assertEqual(
        path.read_text().splitlines(),
        [
            "key,values",
            "t_max_ids,1 5",
            "t_max_ids,4 2",
            "t_id_drop_counters,3",
        ],
    )

  def test_archive_is_what_the_format_says(self):
    record = stats(
        max_ids_per_partition={"t": np.array([1, 5])}, id_drop_counters={"t": 3}
    )
    self.publish(NPZ(self.dir), 0, record, max_ids(4, 2))
    (path,) = self.dir.iterdir()
    self.assertRegex(path.name, r"^fdo_stats_0_\d{19}\.npz$")
    with np.load(path) as arrays:
      arrays = dict(arrays)
    np.testing.assert_equal(
        arrays, {"t_max_ids": [[1, 5], [4, 2]], "t_id_drop_counters": 3}
    )


if __name__ == "__main__":
  absltest.main()
