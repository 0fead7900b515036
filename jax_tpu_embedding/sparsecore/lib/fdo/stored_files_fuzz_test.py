# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Damaged messages and statistics files: an error, or what they said before.

Cases are made from their numbers and run in a child process, so that a crash or
a hang is a failure that names its case. More of them, from another number on:

  ./bazelw run //jax_tpu_embedding/sparsecore/lib/fdo:stored_files_fuzz_test -- \
      --cases=20000 --first=1000
"""

import pathlib
import subprocess
import sys
import tempfile

from absl import app
from absl import flags
from absl.testing import absltest
from google.protobuf import message as protobuf
from jax_tpu_embedding.sparsecore.lib.fdo import csv_file_fdo_client
from jax_tpu_embedding.sparsecore.lib.fdo import file_fdo_client
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

_CASES = flags.DEFINE_integer("cases", 400, "How many to run.")
_FIRST = flags.DEFINE_integer("first", 0, "The number of the first.")
_CHILD = flags.DEFINE_bool("child", False, "Run them in this process.")

# For a case that should take a millisecond.
_SECONDS_PER_CASE = 0.2
_SECONDS_TO_START = 120

# SparseCores of the example.
_TOPOLOGY = (1, 2)
_INTEGERS = (0, 1, 2, 7, 8, 9, 16, 255, 2**31 - 1, 2**31, 2**40, 2**63 - 1)


def _features():
  """Three tables in two stacks; one has a program."""
  custom = embedding_spec.CustomOptimizerSpec(stablehlo="module {}")
  optimizers = [embedding_spec.AdagradOptimizerSpec(0.1)] * 2 + [custom]
  features = []
  for i, optimizer in enumerate(optimizers):
    table = embedding_spec.TableSpec(
        name=f"t{i}",
        vocabulary_size=10 + 20 * i,
        embedding_dim=3,
        optimizer=optimizer,
        max_ids_per_partition=16,
        max_unique_ids_per_partition=16,
    )
    for j in range(1 + i):
      features.append(
          embedding_spec.FeatureSpec(
              name=f"f{i}_{j}",
              table_spec=table,
              input_shape=(8, 2),
              output_shape=(8, 3),
          )
      )
  table_stacking.stack_tables(features, ["t0", "t1"], *_TOPOLOGY)
  embedding.prepare_feature_specs_for_training(features, *_TOPOLOGY)
  return features


def _damage_bytes(rng, data: bytes) -> bytes:
  data = bytearray(data)
  kind = rng.integers(4)
  at = rng.integers(len(data))
  if kind == 0:
    return bytes(data[:at])
  if kind == 1:
    del data[at : at + rng.integers(1, 20)]
  elif kind == 2:
    data[at:at] = rng.bytes(rng.integers(1, 8))
  else:
    for _ in range(rng.integers(1, 4)):
      data[rng.integers(len(data))] ^= 1 << rng.integers(8)
  return bytes(data)


def _damage_field(rng, message) -> None:
  """Changes one value somewhere in the message."""
  present = message.ListFields()
  field, value = present[rng.integers(len(present))]
  if (
      field.message_type is not None
      and field.message_type.GetOptions().map_entry
  ):
    value[rng.choice(list(value))] = float(rng.choice([np.nan, np.inf, -1, 0]))
  elif field.is_repeated:
    i = rng.integers(len(value))
    if field.message_type is not None and rng.random() < 0.9:
      _damage_field(rng, value[i])
    elif rng.random() < 0.5:
      del value[i]
    else:
      value.append(value[i])
  elif field.message_type is not None:
    _damage_field(rng, value)
  elif rng.random() < 0.2:
    message.ClearField(field.name)
  elif field.cpp_type == field.CPPTYPE_INT64:
    new = int(rng.choice([*_INTEGERS, value - 1, value + 1, 2 * value, -value]))
    setattr(message, field.name, new)
  elif field.type == field.TYPE_BYTES:
    setattr(message, field.name, _damage_bytes(rng, value))
  elif field.cpp_type == field.CPPTYPE_STRING:
    setattr(message, field.name, str(rng.choice(["", "t0", "t1", "sum", "é"])))
  elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
    setattr(message, field.name, float(rng.choice([np.nan, np.inf, 1e300, -1])))


def _check_message(rng, message) -> str:
  """Reads a message; what it says must be a layout of its tables."""
  try:
    features = embedding.feature_specs_from_proto(message, trust_programs=True)
  except ValueError as error:
    assert str(error), "no message"
    return "refused"
  rows_of_stack = {}
  for table in embedding.get_table_specs(features).values():
    stack, setting = table.stacked_table_spec, table.setting_in_stack
    # Its first and last rows and some between, as get_row_ids... finds them.
    ids = rng.integers(table.vocabulary_size, size=32)
    ids = np.unique([0, table.vocabulary_size - 1, *ids]).astype(np.int64)
    rows = table_stacking.compute_physical_row_ids(
        setting.num_shards,
        stack.stack_vocab_size,
        setting.shard_rotation,
        setting.row_offset_in_shard,
        ids,
    )
    assert 0 <= rows.min() <= rows.max() < stack.stack_vocab_size, table
    others = rows_of_stack.setdefault(stack.stack_name, set())
    assert others.isdisjoint(rows.tolist()), table
    others.update(rows.tolist())
  if rng.random() < 0.2:
    _check_preprocessing(features)
  return "accepted"


def _check_preprocessing(features) -> None:
  """Converts a batch, if its buffers are small."""
  stacks = embedding.get_stacked_table_specs(features).values()
  sizes = [s.suggested_coo_buffer_size_per_device or 0 for s in stacks]
  sizes += [s.max_ids_per_partition for s in stacks]
  sizes += [size for f in features for size in f.input_shape + f.output_shape]
  shards = {f.table_spec.setting_in_stack.num_shards for f in features}
  if max(sizes, default=0) > 1000 or shards != {2}:
    return
  ids = {f.name: np.zeros(f.input_shape, np.int32) for f in features}
  specs = {f.name: f for f in features}
  try:
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, specs, 1, 1, num_sc_per_device=2
    )
  except ValueError:
    return
  for name, found in inputs.lhs_embedding_ids.items():
    rows = {s.stack_name: s.stack_vocab_size for s in stacks}[name] // 2
    found = np.asarray(found)
    found = found[found != 2**31 - 1]
    assert found.size == 0 or 0 <= found.min() <= found.max() < rows, name


def _statistics():
  return embedding.SparseDenseMatmulInputStats(
      max_ids_per_partition={"t": np.array([1, 500])},
      max_unique_ids_per_partition={"t": np.array([3, 2]), "u": np.array([9])},
      id_drop_counters={"t": 3},
  )


def _published(client_class):
  """The bytes of a file, and what it says."""
  with tempfile.TemporaryDirectory() as folder:
    client = client_class(folder)
    client.record(_statistics())
    client.record(_statistics())
    client.publish()
    (path,) = pathlib.Path(folder).iterdir()
    return path.read_bytes(), client.load()


def _check_file(client_class, data: bytes, expected) -> str:
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / f"fdo_stats_0_1.{client_class.extension}"
    path.write_bytes(data)
    try:
      loaded = client_class(folder).load()
    except ValueError as error:
      assert str(path) in str(error)
      return "refused"
  if expected is not None:
    np.testing.assert_equal(vars(loaded), vars(expected))
  return "accepted"


def _run_cases(first: int, last: int) -> None:
  """Prints the number of each case before it runs it."""
  message = embedding.create_proto_from_feature_specs(_features(), *_TOPOLOGY)
  data = message.SerializeToString()
  npz = _published(file_fdo_client.NPZFileFDOClient)
  csv = _published(csv_file_fdo_client.CSVFileFDOClient)
  counts = {}
  for case in range(first, last):
    print(case, flush=True)
    rng = np.random.default_rng(case)
    kind = ("fields", "fields", "fields", "bytes", "npz", "csv")[case % 6]
    if kind == "fields":
      damaged = type(message)()
      damaged.CopyFrom(message)
      for _ in range(rng.integers(1, 3)):
        if damaged.ListFields():
          _damage_field(rng, damaged)
      result = _check_message(rng, damaged)
    elif kind == "bytes":
      try:
        damaged = type(message).FromString(_damage_bytes(rng, data))
      except protobuf.DecodeError:
        result = "refused"
      else:
        result = _check_message(rng, damaged)
    elif kind == "npz":
      result = _check_file(
          file_fdo_client.NPZFileFDOClient, _damage_bytes(rng, npz[0]), npz[1]
      )
    else:
      result = _check_file(
          csv_file_fdo_client.CSVFileFDOClient, _damage_bytes(rng, csv[0]), None
      )
    counts[kind, result] = counts.get((kind, result), 0) + 1
  print(counts, file=sys.stderr)


class StoredFilesFuzzTest(absltest.TestCase):

  def test_undamaged_files_are_accepted(self):
    message = embedding.create_proto_from_feature_specs(_features(), *_TOPOLOGY)
    self.assertEqual(
        _check_message(np.random.default_rng(0), message), "accepted"
    )
    _check_preprocessing(embedding.feature_specs_from_proto(message))

  def test_damaged_files_are_refused_or_say_what_they_said(self):
    last = _FIRST.value + _CASES.value
    command = [sys.executable, __file__, "--child", f"--first={_FIRST.value}"]
    command.append(f"--cases={_CASES.value}")
    seconds = _SECONDS_TO_START + _SECONDS_PER_CASE * _CASES.value
    try:
      child = subprocess.run(
          command,
          capture_output=True,
          text=True,
          check=False,
          timeout=seconds,
      )
      code, out, errors = child.returncode, child.stdout, child.stderr
    except subprocess.TimeoutExpired as hang:
      code, out, errors = "a hang", hang.stdout.decode(), ""
    case = out.split()[-1] if out.split() else "none"
    self.assertEqual(code, 0, f"Case {case}:\n{errors[-3000:]}")
    self.assertEqual(case, str(last - 1))
    print(errors.splitlines()[-1])


def _main(unused_argv) -> None:
  _run_cases(_FIRST.value, _FIRST.value + _CASES.value)


if __name__ == "__main__":
  if "--child" in sys.argv:
    app.run(_main)
  else:
    absltest.main()
