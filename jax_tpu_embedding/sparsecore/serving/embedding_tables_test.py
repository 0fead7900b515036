# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups, by both implementations, against NumPy and the training lookup."""

import copy
import errno
import faulthandler
import io
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.serving import _numpy_tables
from jax_tpu_embedding.sparsecore.serving import _rows
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving import pybind_embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import row_encodings
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

_ENCODINGS = ("float32", "bfloat16", "float16", "int8", "int4")
_IMPLEMENTATIONS = ("native", "numpy")

_WITHOUT_JAX = """
import os, sys, time
begin = time.perf_counter()
from jax_tpu_embedding.sparsecore.serving import embedding_tables
tables = embedding_tables.open(sys.argv[1])
seconds = time.perf_counter() - begin
assert tables.lookup("items", [0]).shape == (1, 64)
assert not {"jax", "jaxlib", "absl", "google.protobuf"} & set(sys.modules)
status = open("/proc/self/status").read()
anonymous = status.split("RssAnon:")[1].split()[0]
print(seconds, int(anonymous) / 1024)
"""


def _random(rows, columns, seed=0):
  random = np.random.default_rng(seed)
  return random.standard_normal((rows, columns)).astype(np.float32)


def _samples(random, rows, count, most):
  """values, row_splits of samples of 0 to `most` ids, some of which repeat."""
  sizes = random.integers(0, most + 1, count)
  splits = np.concatenate([[0], np.cumsum(sizes)])
  return random.integers(0, rows, splits[-1]), splits


class WithTables(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(self.create_tempdir().full_path)

  def open(self, implementation="native", **kwargs):
    with mock.patch.object(
        embedding_tables,
        "pybind_embedding_tables",
        pybind_embedding_tables if implementation == "native" else None,
    ):
      tables = embedding_tables.open(self.directory, **kwargs)
    is_numpy = isinstance(tables._snapshot.rows, _numpy_tables.Tables)
    self.assertEqual(is_numpy, implementation == "numpy")
    return tables

  def write(self, values=None, encoding="float32", features=None, **kwargs):
    values = _random(50, 6) if values is None else values
    table = written_tables.WrittenTable(values, encoding, **kwargs)
    written_tables.write_full(
        self.directory, {"items": table}, 0, features=features
    )
    return values


class LookupTest(WithTables):

  @parameterized.product(
      encoding=_ENCODINGS,
      implementation=_IMPLEMENTATIONS,
      shape=((1000, 64, 1), (37, 5, 4), (3, 1, 1)),
  )
  def test_rows_are_those_of_the_file(self, encoding, implementation, shape):
    rows, columns, num_files = shape
    values = self.write(_random(rows, columns), encoding, num_files=num_files)
    expected = _numpy_tables.decode(
        encoding, columns, row_encodings.encode(encoding, values)
    )
    if encoding == "float32":
      np.testing.assert_array_equal(expected, values)
    tables = self.open(implementation, verify=True)
    ids = np.random.default_rng(1).integers(0, rows, (7, 3))
    for kind in (np.int64, np.int32, np.uint8, np.uint64):
      got = tables.lookup("items", (ids % 256 % rows).astype(kind))
      np.testing.assert_array_equal(got, expected[ids % 256 % rows])
    np.testing.assert_array_equal(
        tables.lookup("items", rows - 1), expected[-1]
    )
    self.assertEqual(tables.lookup("items", []).shape, (0, columns))

  @parameterized.product(encoding=_ENCODINGS, implementation=_IMPLEMENTATIONS)
  def test_copies_have_the_rows_of_the_files_and_do_not_need_them(
      self, encoding, implementation
  ):
    self.write(_random(2000, 19), encoding, num_files=3)
    copied = self.open(implementation, copy_to_huge_pages=True, num_threads=2)
    ids = np.arange(2000)
    expected = self.open(implementation).lookup("items", ids)
    for path in self.directory.rglob("*.safetensors"):
      os.truncate(path, 0)
    np.testing.assert_array_equal(
        copied.lookup("items", ids).view(np.uint32), expected.view(np.uint32)
    )

  @parameterized.product(
      implementation=_IMPLEMENTATIONS, copy_to_huge_pages=(False, True)
  )
  def test_a_file_that_changes_after_it_was_checked_is_an_error(
      self, implementation, copy_to_huge_pages
  ):
    def cut(file):
      os.truncate(file.path, file.bytes - 1)

    def empty(file):
      os.truncate(file.path, 0)

    def remove(file):
      os.remove(file.path)

    check = _rows.check_full_file
    for change, message in (
        (cut, r"^Table 'items': .*items-\S+ has \d+ bytes, .* cut off"),
        (empty, r"^Table 'items': .*items-\S+ has 0 bytes, .* cut off"),
        (remove, r"^Table 'items': cannot open .*items-\S+: No such file"),
    ):

      def check_and_change(table, file, verify, change=change):
        check(table, file, verify)
        change(file)

      self.write()
      with (
          self.subTest(change.__name__),
          mock.patch.object(_rows, "check_full_file", check_and_change),
          self.assertRaisesRegex(embedding_tables.ServedFileError, message),
      ):
        self.open(implementation, copy_to_huge_pages=copy_to_huge_pages)

  def test_numpy_names_files_that_change_while_they_are_read(self):
    opened = _numpy_tables._open

    def open_and_cut(table, part, row_bytes):
      file = opened(table, part, row_bytes)
      os.truncate(part[0], 140)
      return file

    class Damaged(io.FileIO):

      def readinto(self, buffer):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for copies, replaced, message in (
        (True, open_and_cut, "items-.* cut off at byte 140 while it was read"),
        (False, open_and_cut, "'items': cannot map 1200 bytes of .*items-"),
        (
            True,
            lambda table, part, row_bytes: Damaged(part[0]),
            r"items-.* cannot be read \(Input/output error\), expected rows 0",
        ),
    ):
      self.write()
      with (
          mock.patch.object(_numpy_tables, "_open", replaced),
          self.assertRaisesRegex(embedding_tables.ServedFileError, message),
      ):
        self.open("numpy", copy_to_huge_pages=copies)

  @parameterized.product(
      implementation=_IMPLEMENTATIONS, copy_to_huge_pages=(False, True)
  )
  def test_names_of_directories_need_not_be_utf_8(
      self, implementation, copy_to_huge_pages
  ):
    self.directory = self.directory / os.fsdecode(b"served\xff")
    try:
      self.directory.mkdir()
    except OSError:
      self.skipTest("This file system has no such names.")
    values = self.write()
    tables = self.open(implementation, copy_to_huge_pages=copy_to_huge_pages)
    np.testing.assert_array_equal(tables.lookup("items", 3), values[3])
    with mock.patch.object(_rows, "check_full_file"):
      for path in self.directory.rglob("*.safetensors"):
        path.unlink()
      with self.assertRaisesRegex(
          embedding_tables.ServedFileError, "cannot open .*items-.*: No such"
      ):
        self.open(implementation, copy_to_huge_pages=copy_to_huge_pages)

  def test_copies_are_verified(self):
    values = self.write(num_files=2)
    for implementation in _IMPLEMENTATIONS:
      tables = self.open(implementation, verify=True, copy_to_huge_pages=True)
      np.testing.assert_array_equal(
          tables.lookup("items", np.arange(50)), values
      )
    path = max(self.directory.rglob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for implementation in _IMPLEMENTATIONS:
      self.open(implementation, copy_to_huge_pages=True)
      with self.assertRaisesRegex(
          embedding_tables.ServedFileError, f"{path.name}: the crc32 of"
      ):
        self.open(implementation, verify=True, copy_to_huge_pages=True)

  def test_no_memory_for_a_copy_is_an_error(self):
    self.write()
    message = r"Table 'items': there is no memory for a copy of \d+ bytes of /"
    with mock.patch.object(np, "empty", side_effect=MemoryError):
      with self.assertRaisesRegex(MemoryError, message):
        self.open("numpy", copy_to_huge_pages=True)
    overcommit = pathlib.Path("/proc/sys/vm/overcommit_memory").read_text()
    if overcommit.strip() == "1":
      self.skipTest("This system promises any memory.")
    rows = 15 << 38  # of 4 bytes
    path = self.directory / "sparse"
    path.touch()
    try:
      os.truncate(path, 4 * rows)
    except OSError:
      self.skipTest("This file system has no such files.")
    table = ("items", rows, 1, "float32", "sum", [(str(path), 0, rows, 0)])
    with self.assertRaisesRegex(MemoryError, message):
      pybind_embedding_tables.Tables(
          [table],
          0,
          zero_out_of_range=False,
          copy_to_huge_pages=True,
          num_threads=1,
      )

  @parameterized.product(
      encoding=_ENCODINGS,
      combiner=("sum", "mean", "sqrtn"),
      has_weights=(False, True),
      num_threads=(1, 3),
  )
  def test_native_sums_have_the_bits_of_numpys(
      self, encoding, combiner, has_weights, num_threads
  ):
    self.write(_random(300, 19), encoding, combiner=combiner, num_files=3)
    native = self.open("native", num_threads=num_threads)
    plain = self.open("numpy")
    random = np.random.default_rng(2)
    for count, most in ((1, 1), (40, 4), (500, 20), (3, 400)):
      ids, splits = _samples(random, 300, count, most)
      weights = random.standard_normal(len(ids)) if has_weights else None
      if has_weights and len(ids) > 5:
        weights[:2] = 0
      got = native.lookup_pooled("items", ids, splits, weights)
      expected = plain.lookup_pooled("items", ids, splits, weights)
      self.assertEqual(got.shape, (count, 19))
      np.testing.assert_array_equal(
          got.view(np.uint32), expected.view(np.uint32)
      )

  @parameterized.product(
      combiner=("sum", "mean", "sqrtn"), has_weights=(False, True)
  )
  def test_has_the_bits_of_the_training_lookup(self, combiner, has_weights):
    rows, columns, batch = 200, 8, 32
    table = embedding_spec.TableSpec(
        name="items",
        vocabulary_size=rows,
        embedding_dim=columns,
        combiner=combiner,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
    )
    feature = embedding_spec.FeatureSpec(
        name="bought",
        table_spec=table,
        input_shape=(batch, 5),
        output_shape=(batch, columns),
    )
    embedding.prepare_feature_specs_for_training([feature], 1, 1)
    random = np.random.default_rng(3)
    values = _random(rows, columns)
    ids = random.integers(0, rows, (batch, 5)).astype(np.int32)
    weights = random.random((batch, 5)).astype(np.float32)
    if not has_weights:
      weights[:] = 1
    [(stack, spec)] = embedding.get_stacked_table_specs([feature]).items()
    stacked = np.zeros(
        (spec.stack_vocab_size, spec.stack_embedding_dim), np.float32
    )
    stacked[:rows, :columns] = values
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=1
    )
    expected = embedding.lookup_ids(
        {"bought": ids},
        {"bought": weights} if has_weights else None,
        {stack: (jnp.asarray(stacked),)},
        {"bought": feature},
        topology,
    )["bought"]
    self.write(values, combiner=combiner, features={"bought": "items"})
    for implementation in _IMPLEMENTATIONS:
      tables = self.open(implementation)
      splits = np.arange(batch + 1) * 5
      request = (ids.reshape(-1), splits, weights.reshape(-1))
      got = tables.activations({"bought": request if has_weights else ids})[
          "bought"
      ]
      np.testing.assert_array_equal(
          got.view(np.uint32), np.asarray(expected).view(np.uint32)
      )

  def test_activations_take_all_forms_of_all_features(self):
    values = _random(50, 6)
    users = _random(9, 3, seed=1)
    written_tables.write_full(
        self.directory,
        {
            "items": written_tables.WrittenTable(values, combiner="mean"),
            "users/ä": written_tables.WrittenTable(users),
        },
        features={"clicked": "items", "seen": "items", "user": "users/ä"},
    )
    for implementation in _IMPLEMENTATIONS:
      got = self.open(implementation).activations(
          {
              "clicked": [1, 2],
              "seen": ([3, 3, 4], [0, 1, 1, 3]),
              "user": np.array([[0, 1], [2, 2], [8, 0]]),
          }
      )
      np.testing.assert_array_equal(got["clicked"], values[[1, 2]])
      np.testing.assert_allclose(
          got["seen"], [values[3], 0 * values[0], (values[3] + values[4]) / 2]
      )
      np.testing.assert_allclose(
          got["user"],
          [users[0] + users[1], 2 * users[2], users[8] + users[0]],
          rtol=1e-6,
      )
      empty = self.open(implementation).activations(
          {"seen": np.zeros((2, 0), np.int64), "user": np.zeros(0, np.int64)}
      )
      np.testing.assert_array_equal(empty["seen"], np.zeros((2, 6)))
      self.assertEqual(empty["user"].shape, (0, 3))

  @parameterized.parameters(*_IMPLEMENTATIONS)
  def test_out_of_range_ids_are_errors_or_zeros(self, implementation):
    values = self.write(combiner="mean")
    tables = self.open(implementation)
    for wrong in (-1, 50, 2**40, -(2**62)):
      with self.assertRaisesRegex(
          ValueError, rf"'items': id {wrong} at position 1 .*\[0, 50\)"
      ):
        tables.lookup("items", [3, wrong])
      with self.assertRaisesRegex(ValueError, f"id {wrong} at position 2"):
        tables.lookup_pooled("items", [3, 4, wrong], [0, 1, 3])
    tables = self.open(implementation, out_of_range="zero")
    got = tables.lookup("items", [3, -1, 50])
    np.testing.assert_array_equal(
        got, [values[3], 0 * values[0], 0 * values[0]]
    )
    got = tables.lookup_pooled("items", [3, 2**40, -7, 4], [0, 2, 3, 4])
    np.testing.assert_array_equal(
        got, [values[3] / 2, 0 * values[0], values[4]]
    )

  @parameterized.parameters(copy.copy, copy.deepcopy, pickle.dumps)
  def test_processes_open_tables_themselves(self, function):
    self.write()
    with self.assertRaisesRegex(
        TypeError, f"pickled or copied: open {self.directory} in every process"
    ):
      function(self.open())

  @parameterized.parameters(*_IMPLEMENTATIONS)
  def test_a_table_may_have_no_rows(self, implementation):
    self.write(np.zeros((0, 6), np.float32))
    tables = self.open(implementation, verify=True)
    self.assertEqual(tables.lookup("items", []).shape, (0, 6))
    got = tables.lookup_pooled("items", [], [0, 0])
    np.testing.assert_array_equal(got, np.zeros((1, 6)))
    with self.assertRaisesRegex(ValueError, r"id 0 at .*\[0, 0\)"):
      tables.lookup("items", 0)

  def test_arrays_need_not_be_aligned(self):
    self.write()
    tables = self.open("native")

    def moved(x):
      of_bytes = np.zeros(x.nbytes + 1, np.uint8)
      result = of_bytes[1:].view(x.dtype).reshape(x.shape)
      result[...] = x
      self.assertFalse(result.flags.aligned)
      return result

    ids, splits = np.array([1, 3, 2, 1]), np.array([0, 3, 4])
    weights = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(
        tables.lookup_pooled(
            "items", moved(ids), moved(splits), moved(weights)
        ),
        tables.lookup_pooled("items", ids, splits, weights),
    )
    with self.assertRaisesRegex(ValueError, "out must be .*aligned"):
      out = moved(np.zeros((2, 6), np.float32))
      tables.lookup_pooled("items", ids, splits, out=out)

  @parameterized.parameters(*_IMPLEMENTATIONS)
  def test_wrong_arguments_are_errors(self, implementation):
    self.write(features={"seen": "items"})
    tables = self.open(implementation)
    out = np.zeros((2, 6), np.float32)
    read_only = out.copy()
    read_only.flags.writeable = False
    cases = (
        (KeyError, "no table 'x'.*'items'", "lookup", ("x", [1])),
        (
            TypeError,
            "must be integers, got float64",
            "lookup",
            ("items", [1.5]),
        ),
        (ValueError, "below 2.63", "lookup", ("items", np.uint64([2**63]))),
        (
            ValueError,
            "ids of table 'items' are a masked array.*filled",
            "lookup",
            ("items", np.ma.masked_equal([1, 0], 0)),
        ),
        (
            ValueError,
            "weights of table 'items' are a masked array.*filled",
            "lookup_pooled",
            ("items", [1, 2], [0, 2], np.ma.masked_equal([1.0, 9.0], 9)),
        ),
        (KeyError, "no feature 'x'.*'seen'", "activations", ({"x": [1]},)),
        (TypeError, "features must map names to ids, got a list", "activations")
        + (([1],),),
        (ValueError, "ids of table 'items' .* inhomogeneous", "lookup")
        + (("items", [[1], [2, 3]]),),
        (ValueError, "row_splits of feature 'seen' .* inhomogeneous")
        + ("activations", ({"seen": ([1], [[0], [0, 1]])},)),
        (ValueError, "shape", "activations", ({"seen": [[[1]]]},)),
        (ValueError, "tuple of 1", "activations", ({"seen": ([1],)},)),
        (ValueError, "row_splits", "lookup_pooled", ("items", [1], [0, 2])),
        (ValueError, "row_splits", "lookup_pooled", ("items", [1], [1, 1])),
        (ValueError, "row_splits", "lookup_pooled", ("items", [1], [])),
        (ValueError, "row_splits", "lookup_pooled", ("items", [1], [[0, 1]])),
        (ValueError, "row_splits")
        + ("lookup_pooled", ("items", [1, 2], [0, 2, 1, 2])),
        (ValueError, "row_splits")
        + ("lookup_pooled", ("items", [1, 2], [0, -(2**60), 2])),
        # Their differences are positive in 64 bits.
        (ValueError, "row_splits")
        + ("lookup_pooled", ("items", [1, 2], [0, 2**63 - 1, -2, 2])),
        (ValueError, "weights", "lookup_pooled", ("items", [1], [0, 1], [])),
        (ValueError, "weight nan at position 0 is not finite")
        + ("lookup_pooled", ("items", [1], [0, 1], [np.nan])),
        (ValueError, "'items': sample 1 has weights that .* Scale the weights")
        + (
            "lookup_pooled",
            ("items", [1, 2, 3], [0, 1, 3], [1.0, 3e38, 3e38], "mean"),
        ),
        (ValueError, "'items': sample 0 has weights that .* Scale the weights")
        + ("lookup_pooled", ("items", [1], [0, 1], [1e20], "sqrtn")),
        (
            ValueError,
            "weights of table 'items' .* float32.* 1e.39 at position 1",
        )
        + ("lookup_pooled", ("items", [1, 2], [0, 2], [1.0, 1e39])),
        (TypeError, "weights", "lookup_pooled", ("items", [1], [0, 1], ["a"])),
        (ValueError, "Unknown combiner 'max'")
        + ("lookup_pooled", ("items", [1], [0, 1], None, "max")),
        (ValueError, r"out must be .*float32\[1, 6\], got float32\[2, 6\]")
        + ("lookup_pooled", ("items", [1], [0, 1], None, None, out)),
        (TypeError, r"out must be a NumPy array, float32.1, 6., got list")
        + ("lookup_pooled", ("items", [1], [0, 1], None, None, [1])),
        (ValueError, "out must be")
        + (
            "lookup_pooled",
            ("items", [1, 1], [0, 1, 2], None, None, read_only),
        ),
    )
    for error, message, method, arguments in cases:
      with self.subTest(f"{method}{arguments}"):
        with self.assertRaisesRegex(error, message):
          getattr(tables, method)(*arguments)
    got = tables.lookup_pooled("items", [1, 1], [0, 1, 2], out=out)
    self.assertIs(got, out)
    self.write()
    with self.assertRaisesRegex(KeyError, "names no features"):
      self.open(implementation).activations({"seen": [1]})
    with self.assertRaisesRegex(ValueError, "num_threads must be positive"):
      self.open(num_threads=0)
    with self.assertRaisesRegex(
        ValueError, r"num_threads must be below 2\^31, got 2147483648"
    ):
      self.open(implementation, num_threads=2**31)
    for copies in ("no", 1, None):
      with self.assertRaisesRegex(
          TypeError, f"copy_to_huge_pages must be a bool, got {copies!r}"
      ):
        self.open(implementation, copy_to_huge_pages=copies)
    self.open(implementation, copy_to_huge_pages=np.bool_(True))
    for num_threads in (1.5, "2", None):
      with self.assertRaisesRegex(
          TypeError, f"num_threads must be an integer, got {num_threads!r}"
      ):
        self.open(implementation, num_threads=num_threads)
    for directory in ("a\0b", "a\ud800"):
      with self.assertRaisesRegex(
          ValueError, f"^{re.escape(repr(directory))} is no name of a directory"
      ):
        embedding_tables.open(directory)
    with self.assertRaisesRegex(ValueError, "out_of_range must be one of"):
      self.open(out_of_range="clamp")

  @parameterized.parameters(*_ENCODINGS)
  def test_native_encoder_has_the_bits_of_numpys(self, encoding):
    random = np.random.default_rng(4)
    for columns in (1, 2, 7, 64):
      rows = _random(200, columns, seed=columns)
      rows *= 10.0 ** random.integers(-40, 4, (200, 1))
      rows[::7] = rows[::7, :1]
      rows[::5, 0] = -0.0
      got, first, count = pybind_embedding_tables.encode_rows(rows, encoding)
      self.assertEqual((first, count), (-1, 0))
      np.testing.assert_array_equal(got, row_encodings.encode(encoding, rows))

  def test_rows_beyond_two_to_the_31_values_are_right(self):
    columns, last = 64, _random(64, 64)
    rows = 2**31 // columns + 1
    path = self.directory / "v000000" / "items-00001-of-00001.safetensors"
    path.parent.mkdir()
    offsets = written_tables.write_safetensors(
        path, {"items": ("F32", [0, columns], b"")}
    )
    header = {
        "items": {
            "dtype": "F32",
            "shape": [rows, columns],
            "data_offsets": [0, rows * columns * 4],
        }
    }
    text = written_tables.json.dumps(header).encode()
    begin = -(-(8 + len(text)) // 64) * 64
    self.assertEqual(offsets["items"] % 64, 0)
    with open(path, "wb") as file:
      file.write((begin - 8).to_bytes(8, "little"))
      file.write(text.ljust(begin - 8))
      file.seek(begin + (rows - 64) * columns * 4)
      file.write(last.tobytes())
    size = begin + rows * columns * 4
    entry = {
        "name": path.name,
        "first_row": 0,
        "rows": rows,
        "offset": begin,
        "bytes": size,
        "crc32": ["00000000"] * -(-size // (4 << 20)),
    }
    table = {"rows": rows, "columns": columns, "row_bytes": 4 * columns}
    table |= {"encoding": "float32", "combiner": "sum", "files": [entry]}
    written_tables.write_manifest(
        self.directory,
        written_tables._head(0, "full", "00", {"items": table}),
    )
    tables = self.open()
    ids = np.array([0, 2**25 - 1, rows - 64, rows - 1])
    got = tables.lookup("items", ids)
    np.testing.assert_array_equal(got[[0, 3]], [0 * last[0], last[-1]])
    np.testing.assert_array_equal(got[[1, 2]], [last[-2], last[0]])
    pooled = tables.lookup_pooled("items", ids, [0, 4])
    np.testing.assert_array_equal(pooled[0], (last[0] + last[-2]) + last[-1])
    with self.assertRaisesRegex(ValueError, f"id {rows} at"):
      tables.lookup("items", rows)


class WithoutJaxTest(WithTables):

  def test_opens_without_jax_and_reads_no_rows(self):
    self.write(_random(1 << 16, 64))
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_JAX, str(self.directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    _, mebibytes = map(float, done.stdout.split())
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # It has its own.
      self.assertLess(mebibytes, 32)


class ThreadsTest(WithTables):

  def test_other_threads_run_while_files_are_opened(self):
    path = self.directory / "pipe"
    os.mkfifo(path)
    messages = []

    def load():  # Opening a pipe waits for who writes to it.
      try:
        pybind_embedding_tables.Tables(
            [("items", 1, 1, "float32", "sum", [(str(path), 0, 1, 0)])],
            0,
            zero_out_of_range=False,
            copy_to_huge_pages=True,
            num_threads=1,
        )
      except ValueError as error:
        messages.append(str(error))

    # If no other thread ran, this one could not even give up.
    faulthandler.dump_traceback_later(120, exit=True)
    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    while loading.is_alive():
      try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        break
      except OSError as error:  # Nobody reads yet.
        self.assertEqual(error.errno, errno.ENXIO)
        time.sleep(0.01)
    loading.join()
    faulthandler.cancel_dump_traceback_later()
    self.assertRegex(messages[0], "pipe has 0 bytes, expected 1 rows")

  def test_other_threads_run_while_memory_is_given_back(self):
    # Many mappings, which are given back one by one: 60 ms and more.
    rows = 30_000
    path = self.directory / "row"
    path.write_bytes(b"abcd")
    parts = [(str(path), row, 1, 0) for row in range(rows)]
    description = ("items", rows, 1, "float32", "sum", parts)
    seconds = sys.getswitchinterval()
    self.addCleanup(sys.setswitchinterval, seconds)
    has_run = []
    for _ in range(20):  # The other one may wake up too late.
      tables = pybind_embedding_tables.Tables(
          [description],
          0,
          zero_out_of_range=False,
          copy_to_huge_pages=False,
          num_threads=1,
      )
      begin = threading.Lock()
      begin.acquire()

      def run(begin=begin):
        begin.acquire()
        has_run.append(True)

      other = threading.Thread(target=run)
      other.start()
      time.sleep(0.01)  # Until it waits.
      sys.setswitchinterval(60)  # It runs if this one lets it, and not before.
      begin.release()
      del tables
      ran_meanwhile = bool(has_run)
      sys.setswitchinterval(seconds)
      other.join()
      if ran_meanwhile:
        return
      has_run.clear()
    self.fail("The other thread never ran while memory was given back.")

  def test_threads_may_share_tables(self):
    values = self.write(_random(500, 16))
    tables = self.open(num_threads=2)
    wrong = []

    def look(seed):
      random = np.random.default_rng(seed)
      for _ in range(100):
        ids = random.integers(0, 500, 300)
        if not np.array_equal(tables.lookup("items", ids), values[ids]):
          wrong.append(seed)

    threads = [threading.Thread(target=look, args=(i,)) for i in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEmpty(wrong)


if __name__ == "__main__":
  absltest.main()
