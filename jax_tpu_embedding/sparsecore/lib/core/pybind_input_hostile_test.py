# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Objects that lie, and arrays that change meanwhile, end no process."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import sys
import threading
import types
import weakref

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_calls
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import input_forms
import numpy as np
import pyarrow as pa
import scipy.sparse


class _Schema(ctypes.Structure):
  """https://arrow.apache.org/docs/format/CDataInterface.html."""


_Schema._fields_ = [
    ("format", ctypes.c_void_p),
    ("name", ctypes.c_void_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Array(ctypes.Structure):
  pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


def _in_capsule(capsule, name: bytes, struct):
  get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
  get_pointer.restype = ctypes.c_void_p
  get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
  return struct.from_address(get_pointer(capsule, name))


@contextlib.contextmanager
def _changed(array: pa.Array, path: str, value):
  """An Arrow array of which one thing is not true, as long as the context.

  Args:
    array: the array.
    path: such as "schema.format", "array.child.length" or "array.buffers.1".
    value: what it becomes.
  """
  schema, data = array.__arrow_c_array__()
  struct, *path, field = path.split(".")
  if struct == "schema":
    holder = _in_capsule(schema, b"arrow_schema", _Schema)
  else:
    holder = _in_capsule(data, b"arrow_array", _Array)
  if path == ["child"]:
    holder = holder.children[0].contents
  if path == ["child", "buffers"] or path == ["buffers"]:
    holder = holder.children[0].contents if path[0] == "child" else holder
    address = ctypes.addressof(holder.buffers.contents) + 8 * int(field)
    holder, field = ctypes.c_void_p.from_address(address), "value"
  before = bytes(holder)
  setattr(holder, field, value)
  try:
    yield _exporting(schema, data)
  finally:
    # Of what is released with the capsules.
    ctypes.memmove(ctypes.addressof(holder), before, len(before))


def _exporting(*capsules):
  return types.SimpleNamespace(__arrow_c_array__=lambda: capsules)


_IDS = np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32)
_LISTS = pa.array(_IDS.tolist(), pa.list_(pa.int32()))
_LARGE_LISTS = pa.array(_IDS.tolist(), pa.large_list(pa.int32()))
_FIXED_LISTS = pa.array(_IDS.tolist(), pa.list_(pa.int32(), 2))
_FLAT = pa.array([1, 2, 3, 4], pa.int32())
_TEXT = ctypes.create_string_buffer(b"+w:-3")
_LARGE_SIZE = ctypes.create_string_buffer(b"+w:9223372036854775807")
_NO_SIZE = ctypes.create_string_buffer(b"+w:")
_DESCENDING = (ctypes.c_int32 * 5)(0, 2, 1, 6, 8)
_NEGATIVE = (ctypes.c_int32 * 5)(-2, 2, 4, 6, 8)
_BEYOND = (ctypes.c_int64 * 5)(0, 2, 4, 6, 2**40)


class ArrowTest(parameterized.TestCase):

  def test_what_is_not_changed_is_read(self):
    for array in (_LISTS, _LARGE_LISTS, _FIXED_LISTS, _FLAT):
      with _changed(array, "array.null_count", -1) as lie:
        converter_calls.call(features=[lie])

  @parameterized.named_parameters(
      ("no_format", _LISTS, "schema.format", None, "a type without a format"),
      (
          "no_format_of_numbers",
          _LISTS,
          "schema.child.format",
          None,
          "a type without a format",
      ),
      (
          "negative_list_size",
          _FIXED_LISTS,
          "schema.format",
          ctypes.addressof(_TEXT),
          "lists of a size that cannot be",
      ),
      (
          "no_list_size",
          _FIXED_LISTS,
          "schema.format",
          ctypes.addressof(_NO_SIZE),
          "lists of a size that cannot be",
      ),
      (
          "list_size_that_overflows",
          _FIXED_LISTS,
          "schema.format",
          ctypes.addressof(_LARGE_SIZE),
          "fewer numbers than its lists of one size need",
      ),
      *(
          (
              f"{what}_of_{kind}",
              array,
              f"{struct}.{field}",
              value,
              "a list without its numbers",
          )
          for kind, array in (
              ("lists", _LISTS),
              ("large_lists", _LARGE_LISTS),
              ("fixed_lists", _FIXED_LISTS),
          )
          for struct in ("schema", "array")
          for what, field, value in (
              (f"no_child_in_{struct}", "n_children", 0),
              (f"two_children_in_{struct}", "n_children", 2),
              (
                  f"no_children_in_{struct}",
                  "children",
                  ctypes.POINTER(
                      ctypes.POINTER(_Schema if struct == "schema" else _Array)
                  )(),
              ),
              (f"released_child_in_{struct}", "child.release", None),
          )
      ),
      *(
          (
              f"{what}_of_{kind}",
              array,
              f"{struct}.{field}",
              value,
              message,
          )
          for kind, array, struct in (
              ("lists", _LISTS, "array"),
              ("numbers", _LISTS, "array.child"),
              ("flat", _FLAT, "array"),
              ("fixed_lists", _FIXED_LISTS, "array"),
              ("fixed_numbers", _FIXED_LISTS, "array.child"),
          )
          for what, field, value, message in (
              ("negative_length", "length", -1, "a length or an offset"),
              ("length", "length", 2**62, "a length or an offset"),
              ("negative_offset", "offset", -1, "a length or an offset"),
              ("offset", "offset", 2**62, "a length or an offset"),
              ("too_few_buffers", "n_buffers", 0, "another number of buffers"),
              (
                  "no_buffers",
                  "buffers",
                  ctypes.POINTER(ctypes.c_void_p)(),
                  "another number of buffers than its type",
              ),
              ("nulls_without_bitmap", "null_count", 3, "nulls, and no bitmap"),
          )
      ),
      ("no_offsets", _LISTS, "array.buffers.1", None, "no memory for its"),
      ("no_elements", _FLAT, "array.buffers.1", None, "no memory for its"),
      (
          "no_numbers",
          _LISTS,
          "array.child.buffers.1",
          None,
          "no memory for its elements",
      ),
      (
          "offsets_that_descend",
          _LISTS,
          "array.buffers.1",
          ctypes.addressof(_DESCENDING),
          "offsets that descend, or lead beyond its numbers",
      ),
      (
          "offsets_that_are_negative",
          _LISTS,
          "array.buffers.1",
          ctypes.addressof(_NEGATIVE),
          "offsets that are negative",
      ),
      (
          "offsets_beyond_the_numbers",
          _LARGE_LISTS,
          "array.buffers.1",
          ctypes.addressof(_BEYOND),
          "offsets that descend, or lead beyond its numbers",
      ),
      (
          "fewer_numbers_than_lists",
          _FIXED_LISTS,
          "array.child.length",
          7,
          "fewer numbers than its lists of one size need",
      ),
      (
          "a_slice_beyond_the_numbers",
          _FIXED_LISTS,
          "array.offset",
          1,
          "fewer numbers than its lists of one size need",
      ),
  )
  def test_malformed(self, array, path, value, message):
    with _changed(array, path, value) as lie:
      with self.assertRaisesRegex(
          ValueError,
          f"Feature 'f': its Arrow array is malformed: it has {message}",
      ):
        converter_calls.call(features=[lie])

  def test_more_lists_than_devices_take(self):
    with _changed(_FLAT, "array.length", 2**40) as lie:
      with self.assertRaisesRegex(
          ValueError, "Feature 'f': has 1099511627776 samples"
      ):
        converter_calls.call(features=[lie])

  def test_capsules_of_something_else(self):
    schema, data = _LISTS.__arrow_c_array__()
    stream = pa.chunked_array([_LISTS]).__arrow_c_stream__()
    for capsules, message in (
        ((data, schema), "capsule named 'arrow_schema', got .*arrow_array"),
        ((schema, schema), "capsule named 'arrow_array', got .*arrow_schema"),
        ((stream, stream), "capsule named 'arrow_schema', got .*stream"),
        ((schema, 3), "capsule named 'arrow_array', got 3"),
        ((schema,), "__arrow_c_array__ must return two capsules, got"),
    ):
      with self.assertRaisesRegex(TypeError, f"Feature 'f': .*{message}"):
        converter_calls.call(features=[_exporting(*capsules)])
    not_a_stream = types.SimpleNamespace(
        __arrow_c_stream__=lambda: schema, chunks=[]
    )
    with self.assertRaisesRegex(
        TypeError, "capsule named 'arrow_array_stream', got .*arrow_schema"
    ):
      converter_calls.call(features=[not_a_stream])

  def test_what_was_released(self):
    schema, data = _LISTS.__arrow_c_array__()
    pa.Array._import_from_c_capsule(schema, data)  # It owns them now.
    with self.assertRaisesRegex(
        ValueError, "its arrow_schema was released, or used before"
    ):
      converter_calls.call(features=[_exporting(schema, data)])


def _rows(*rows):
  result = np.empty(len(rows), object)
  for i, row in enumerate(rows):
    result[i] = row
  return result


class EnormousArraysTest(parameterized.TestCase):
  """Arrays with one byte of memory, whose copies would have 2^63 and more."""

  _MANY = np.broadcast_to(np.int8(1), 2**60)

  @parameterized.named_parameters(
      (
          "dense",
          np.broadcast_to(np.int8(1), (4, 2**60)),
          "has more than 2147483647 ids, which are too many for one step",
      ),
      (
          "splits",
          (np.zeros(0, np.int32), np.broadcast_to(np.int8(0), 2**61 + 1)),
          "has 2305843009213693952 samples, outside of",
      ),
      (
          "values",
          (_MANY, np.array([0, 0, 0, 0, 2**60])),
          "has more than 2147483647 ids",
      ),
      (
          "row",
          _rows([1], _MANY, [1], [1]),
          "row 1 of its ids has 1152921504606846976 numbers, .* at most",
      ),
      (
          "rows",
          _rows(*[_MANY[: 2**30]] * 4),
          "has more than 2147483647 ids",
      ),
      (
          "objects",
          np.broadcast_to(_rows([1]), 2**59),
          "has 576460752303423488 samples, outside of",
      ),
  )
  def test_are_an_error_before_any_copy(self, ids, message):
    with self.assertRaisesRegex(ValueError, "Feature 'f': " + message):
      converter_calls.call(features=[ids])


class SparseTest(parameterized.TestCase):
  """Objects that have some of the attributes of sparse arrays."""

  def _matrix(self, **changes):
    matrix, _ = input_forms.csr(list(_IDS), list(_IDS.astype(np.float32)))
    parts = dict(
        format="csr",
        shape=matrix.shape,
        data=matrix.data,
        indices=matrix.indices,
        indptr=matrix.indptr,
        tocoo=lambda: input_forms.coo(list(_IDS), None)[0],
    )
    parts |= changes
    return types.SimpleNamespace(
        **{name: part for name, part in parts.items() if part is not None}
    )

  def test_the_baseline_is_fine(self):
    converter_calls.call(features=[self._matrix()])
    converter_calls.call(features=[self._matrix(format="bsr")])

  @parameterized.named_parameters(
      (
          "scalar_data",
          dict(data=np.float32(1)),
          ValueError,
          "weights must have one",
      ),
      (
          "scalar_bool",
          dict(data=np.bool_(1)),
          ValueError,
          "weights must have one",
      ),
      (
          "scalar_indices",
          dict(indices=np.int32(1)),
          ValueError,
          "one dimension",
      ),
      ("scalar_indptr", dict(indptr=np.int64(1)), ValueError, "one dimension"),
      (
          "no_indptr",
          dict(indptr=None),
          TypeError,
          "has no 'indptr'. Pass a whole",
      ),
      ("no_data", dict(data=None), TypeError, "has no 'data'"),
      ("no_shape", dict(shape=None), TypeError, "has no 'shape'"),
      ("shape", dict(shape=3), ValueError, "must have shape .* got 3"),
      ("text_shape", dict(shape=("a", 2)), TypeError, "must be integers, got"),
      ("no_format", dict(format=None), TypeError, "has no 'format'"),
      (
          "no_row",
          dict(format="coo", tocoo=lambda: types.SimpleNamespace(col=_IDS[0])),
          TypeError,
          "has no 'data'|has no 'row'",
      ),
      (
          "fewer_indptr_than_samples",
          dict(indptr=np.array([0, 2, 8])),
          ValueError,
          "its shape has 4 samples, and its indptr 3 numbers, expected 5",
      ),
      (
          "more_indptr_than_samples",
          dict(indptr=np.array([0, 2, 4, 6, 8, 8, 8])),
          ValueError,
          "its shape has 4 samples, and its indptr 7 numbers, expected 5",
      ),
      (
          "no_numbers_in_indptr",
          dict(indptr=np.zeros(0, np.int32)),
          ValueError,
          "its shape has 4 samples, and its indptr 0 numbers, expected 5",
      ),
      (
          "descending_indptr",
          dict(indptr=np.array([0, 6, 2, 6, 8])),
          ValueError,
          "row_splits must be 5 numbers that ascend",
      ),
  )
  def test_matrices(self, changes, error, message):
    with self.assertRaisesRegex(error, f"Feature 'f': .*({message})"):
      converter_calls.call(features=[self._matrix(**changes)])

  @parameterized.parameters("indices", "values", "dense_shape")
  def test_tensors(self, part):
    tensor = input_forms.sparse_tensor(
        input_forms.indices(list(_IDS)), _IDS.reshape(-1), 4
    )
    setattr(tensor, part, np.int64(1))
    with self.assertRaisesRegex(ValueError, "Feature 'f': its "):
      converter_calls.call(features=[tensor])
    if part != "dense_shape":  # What is not told from other objects by it.
      delattr(tensor, part)
      with self.assertRaisesRegex(
          TypeError,
          f"its sparse tensor of type SimpleNamespace has no '{part}'. Pass a",
      ):
        converter_calls.call(features=[tensor])


class RowsTest(parameterized.TestCase):

  def test_row_that_leaves_its_list_while_it_is_read(self):
    rows = np.empty(4, object)

    class Leaving:

      def __array__(self, *unused_args, **unused_kwargs):
        rows[0] = None
        return np.zeros((2, 2), np.int32)

      def __repr__(self):
        return "Leaving()"

    rows[:] = [Leaving(), [1], [2], [3]]
    with self.assertRaisesRegex(TypeError, r"row 0 of its ids .*Leaving\(\)"):
      converter_calls.call(features=[rows])
    self.assertIsNone(rows[0])

  @parameterized.named_parameters(
      ("itself", lambda numbers: numbers),
      ("a_view", lambda numbers: numbers[1:]),
      ("a_view_of_a_view", lambda numbers: numbers[1:][:1]),
  )
  def test_numbers_of_rows_that_leave_are_kept(self, row_of):
    owner = weakref.ref(numbers := np.array([1, 2]))
    rows = np.empty(4, object)
    row = row_of(numbers)
    del numbers
    was_kept = []

    class Emptying:

      def __array__(self, *unused_args, **unused_kwargs):
        rows[:2] = None
        was_kept.append(owner() is not None)
        return np.array([3])

    rows[:] = [row, row, Emptying(), [4]]
    expected = converter_calls.call(
        features=[converter_requests.ragged([row.copy(), row.copy(), [3], [4]])]
    )
    del row
    actual = converter_calls.call(features=[rows])
    self.assertEqual(set(was_kept), {True})
    self.assertIsNone(owner())
    for a, b in zip(actual[:4], expected[:4]):
      np.testing.assert_array_equal(a["s"], b["s"])


# Large enough that the thread gets to write while the converter reads.
_NUM_SAMPLES, _VALENCY = 8192, 16
_NUM_IDS = _NUM_SAMPLES * _VALENCY


def _flip_while_converting(form: str) -> None:
  """Converts while a thread writes to the input, and exits with 0."""
  sys.setswitchinterval(1e-5)
  ids = np.arange(_NUM_IDS) % 8
  splits = np.arange(0, _NUM_IDS + 1, _VALENCY)
  samples = np.repeat(np.arange(_NUM_SAMPLES), _VALENCY)
  indices = np.stack([samples, samples], axis=1)
  weights = None
  match form:
    case "ids":
      leaf, changing = ids.reshape(-1, _VALENCY), ids
    case "weights":
      weights = np.ones((_NUM_SAMPLES, _VALENCY), np.float32)
      leaf, changing = ids.reshape(-1, _VALENCY), weights.reshape(-1)
    case "row_splits":
      leaf, changing = (ids, splits), splits
    case "indptr":
      leaf = scipy.sparse.csr_array((_NUM_SAMPLES, 8))
      leaf.data, leaf.indices = np.ones(_NUM_IDS, np.float32), ids
      leaf.indptr = changing = splits
    case "indices" | "unordered_indices":
      if form == "unordered_indices":
        indices[:, 0] = indices[::-1, 0].copy()
      leaf = input_forms.sparse_tensor(indices, ids, _NUM_SAMPLES)
      changing = indices[:, 0]
    case "arrow_offsets":
      leaf = pa.LargeListArray.from_buffers(
          pa.large_list(pa.int64()),
          _NUM_SAMPLES,
          [None, pa.py_buffer(splits)],
          children=[pa.array(ids)],
      )
      changing = splits
  done = threading.Event()

  def flip():
    # Where the samples of the second SparseCore begin.
    i = changing.size // 2
    before = changing[i]
    while not done.is_set():
      for value in (2**40, before, -(2**40), before):
        changing[i] = value

  thread = threading.Thread(target=flip, daemon=True)
  thread.start()
  for _ in range(200):
    with contextlib.suppress(ValueError):
      converter_calls.call(
          features=[leaf],
          feature_weights=None if weights is None else [weights],
          feature_specs=converter_calls.spec_with(
              **{
                  "table_spec.stacked_table_spec.combiner": "mean",
                  "table_spec.stacked_table_spec.max_ids_per_partition": (
                      _NUM_IDS
                  ),
              }
          ),
      )
  done.set()
  thread.join()


class ChangingArraysTest(parameterized.TestCase):

  @parameterized.parameters(
      "ids",
      "weights",
      "row_splits",
      "indptr",
      "indices",
      "unordered_indices",
      "arrow_offsets",
  )
  def test_the_process_lives(self, form):
    # Of any values the result is any, or an error.
    process = multiprocessing.get_context("fork").Process(
        target=_flip_while_converting, args=(form,)
    )
    process.start()
    process.join(timeout=120)
    self.assertEqual(process.exitcode, 0)


if __name__ == "__main__":
  absltest.main()
