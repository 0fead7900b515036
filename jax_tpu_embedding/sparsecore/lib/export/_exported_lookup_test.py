# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The exported program gives what training's lookup gives, with JAX alone."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import export
from jax_tpu_embedding.sparsecore.lib.export.testing import plain_reader
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_COMBINERS = ("sum", "mean", "sqrtn")
_BATCHES = (1, 7, 4096)
_TOPOLOGY = layout.Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=1
)

# Calls the program at argv[1] with the arguments in argv[2], a pickle.
_CALL = """
import pathlib, pickle, sys
sys.modules["jax_tpu_embedding"] = None  # importing it fails
from jax import export
program = export.deserialize(bytearray(pathlib.Path(sys.argv[1]).read_bytes()))
arguments = pickle.loads(pathlib.Path(sys.argv[2]).read_bytes())
outputs = [
    {name: values.__array__() for name, values in program.call(*each).items()}
    for each in arguments
]
pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(outputs))
"""


def _specs(combiners=_COMBINERS, **options):
  """A table of each combiner, in a stack of its own; one id, and several."""
  features = []
  for i, combiner in enumerate(combiners):
    table = embedding_spec.TableSpec(
        name=combiner,
        vocabulary_size=100 + i,
        embedding_dim=5 + 8 * i,
        combiner=combiner,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
        initializer=lambda key, shape: 10 * jax.random.normal(key, shape),
    )
    for suffix, valency in ("one", 1), ("many", 6):
      features.append(
          embedding_spec.FeatureSpec(
              name=f"{combiner} {suffix}",
              table_spec=table,
              input_shape=(8, valency),
              output_shape=(8, table.embedding_dim),
              **options,
          )
      )
  embedding.prepare_feature_specs_for_training(features, 1, 1)
  return features


def _variables(specs):
  sharding = jax.sharding.NamedSharding(
      jax.sharding.Mesh(jax.devices()[:1], ("x",)),
      jax.sharding.PartitionSpec("x", None),
  )
  return embedding.init_embedding_variables(
      jax.random.key(0), embedding.get_table_specs(specs), sharding, 1
  )


def _ids(specs, batch):
  rng = np.random.default_rng(batch)
  return {
      f.name: rng.integers(
          f.table_spec.vocabulary_size,
          size=(batch, f.input_shape[1]),
          dtype=np.int32,
      )
      for f in specs
  }


def _ragged(rng, specs, batch):
  """{feature: (values, row_splits)} with empty samples, and padding behind."""
  result = {}
  for feature in specs:
    lengths = rng.integers(0, 4, size=batch)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = rng.integers(
        feature.table_spec.vocabulary_size, size=splits[-1] + 3, dtype=np.int32
    )
    result[feature.name] = values, splits
  return result


def _pooled(rows, ids, combiner, weights=None):
  """The definition, in float64."""
  weights = np.ones(len(ids)) if weights is None else np.float64(weights)
  total = (rows[ids].astype(np.float64) * weights[:, None]).sum(axis=0)
  divisor = {
      "sum": 1,
      "mean": weights.sum(),
      "sqrtn": np.sqrt((weights**2).sum()),
  }[combiner]
  return total / divisor if divisor else np.zeros(rows.shape[1])


class ExportedLookupTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(self.create_tempdir().full_path)
    self.path = self.directory / "program"

  def tables(self, specs, encoding="float32"):
    """Tables as in files, and what their rows are."""
    version = export.export_tables(
        self.directory / encoding, _variables(specs), specs, encoding=encoding
    )
    encoded = plain_reader.read(self.directory / encoding)
    kind = _encodings.ENCODINGS[encoding]
    arguments = {
        name: rows.view(kind.element) for name, rows in encoded.items()
    }
    decoded = {
        name: kind.decode(rows, version.tables[name].columns)
        for name, rows in encoded.items()
    }
    return arguments, decoded

  def program(self):
    content = (self.path / "lookup.jax_export").read_bytes()
    return jax.export.deserialize(bytearray(content))

  def test_without_this_package_it_is_the_lookup_of_training(self):
    import pickle

    specs = _specs()
    export.export_lookup(self.path, specs)
    tables, decoded = self.tables(specs)
    arguments = [(tables, _ids(specs, batch)) for batch in _BATCHES]
    file = self.directory / "arguments"
    file.write_bytes(pickle.dumps(arguments))
    subprocess.run(
        [sys.executable, "-c", _CALL, self.path / "lookup.jax_export", file],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    outputs = pickle.loads(file.read_bytes())
    variables = _variables(specs)
    for batch, found in zip(_BATCHES, outputs, strict=True):
      ids = _ids(specs, batch)
      of_training = embedding.lookup_ids(
          [ids[f.name] for f in specs], None, variables, specs, _TOPOLOGY
      )
      for feature, expected in zip(specs, of_training, strict=True):
        if feature.input_shape[1] == 1:
          np.testing.assert_array_equal(found[feature.name], expected)
        terms = np.abs(decoded[feature.table_spec.name][ids[feature.name]])
        lost = np.abs(found[feature.name] - expected)
        self.assertTrue((lost <= 1e-6 * terms.sum(axis=1)).all())

  @parameterized.product(
      encoding=list(_encodings.ENCODINGS), ragged=[False, True]
  )
  def test_decodes_and_pools(self, encoding, ragged):
    specs = _specs()
    signature = export.export_lookup(
        self.path, specs, encoding=encoding, ragged=ragged
    )
    tables, decoded = self.tables(specs, encoding)
    rng = np.random.default_rng(0)
    inputs = _ragged(rng, specs, 9) if ragged else _ids(specs, 9)
    found = self.program().call(tables, inputs)
    for feature in specs:
      table = feature.table_spec
      ids = inputs[feature.name]
      if ragged:
        ids = np.split(ids[0][: ids[1][-1]], ids[1][1:-1])
      expected = [_pooled(decoded[table.name], i, table.combiner) for i in ids]
      np.testing.assert_allclose(
          found[feature.name], expected, rtol=1e-5, atol=1e-5
      )
    described = signature["tables"]["mean"]
    self.assertEqual(described["shape"], list(tables["mean"].shape))
    self.assertEqual(described["dtype"], tables["mean"].dtype.name)

  @parameterized.parameters(False, True)
  def test_weights(self, ragged):
    specs = _specs(("sqrtn", "mean"))
    export.export_lookup(self.path, specs, ragged=ragged, weights=True)
    tables, decoded = self.tables(specs)
    rng = np.random.default_rng(0)
    inputs = _ragged(rng, specs, 9)
    if not ragged:
      inputs = {name: (ids,) for name, ids in _ids(specs, 9).items()}
    weights = {
        name: rng.uniform(0.5, 2, size=parts[0].shape).astype(np.float32)
        for name, parts in inputs.items()
    }
    for name in weights:
      weights[name][0] = 0  # where the divisor may be zero, so is the result
    found = self.program().call(
        tables, {name: (*inputs[name], weights[name]) for name in inputs}
    )
    for feature in specs:
      ids, of_feature = inputs[feature.name][0], weights[feature.name]
      if ragged:
        splits = inputs[feature.name][1]
        ids = np.split(ids[: splits[-1]], splits[1:-1])
        of_feature = np.split(of_feature[: splits[-1]], splits[1:-1])
      table = feature.table_spec
      expected = [
          _pooled(decoded[table.name], *each, weights=w)
          for each, w in zip([(i, table.combiner) for i in ids], of_feature)
      ]
      np.testing.assert_allclose(
          found[feature.name], expected, rtol=1e-5, atol=1e-5
      )

  @parameterized.parameters(
      ("error", [0]), ("drop", [0]), ("clamp", [0, 99, 0]), ("modulo", [0, 1, 97])
  )  # fmt: skip
  def test_ids_that_are_no_rows(self, policy, instead):
    specs = _specs(("sum",), out_of_range_ids=policy)
    export.export_lookup(self.path, specs)
    tables, decoded = self.tables(specs)
    # One that is left out must not make others NaN.
    tables["sum"] = tables["sum"].copy()
    if policy in ("error", "drop"):
      tables["sum"][99] = np.inf
    ids = np.array([[0, 101, -3]], np.int32)
    found = self.program().call(tables, {"sum one": ids, "sum many": ids})
    expected = _pooled(decoded["sum"], instead, "sum")
    np.testing.assert_allclose(found["sum many"], expected[None], rtol=1e-6)

  @parameterized.parameters(
      ("error", [1, 0, 0]), ("drop", [1, 0, 0]),
      ("clamp", [1, 0, -np.finfo(np.float32).max]), ("keep", None),
  )  # fmt: skip
  def test_weights_that_are_no_numbers(self, policy, instead):
    specs = _specs(("sum",), non_finite_weights=policy)
    export.export_lookup(self.path, specs, weights=True)
    tables, _ = self.tables(specs)
    tables["sum"] = np.full_like(tables["sum"], 0.5)
    ids = np.array([[0, 1, 2]], np.int32)
    weights = np.array([[1, np.nan, -np.inf]], np.float32)
    found = self.program().call(
        tables, dict.fromkeys(("sum one", "sum many"), (ids, weights))
    )
    expected = np.nan if instead is None else 0.5 * np.float32(sum(instead))
    np.testing.assert_array_equal(found["sum many"], np.full((1, 5), expected))

  @parameterized.product(combiner=("mean", "sqrtn"), ragged=(False, True))
  def test_large_weights_are_those_of_training(self, combiner, ragged):
    specs = _specs((combiner,), non_finite_weights="keep")
    export.export_lookup(self.path, specs, ragged=ragged, weights=True)
    tables, _ = self.tables(specs)
    most = np.finfo(np.float32).max
    # Divisors that are the largest number, or none; products with rows, of
    # about 10, that are none.
    weights = np.array(
        [[most, 1], [most, most], [2e38, 1e38], [1e18, 1e18], [np.inf, 1]],
        np.float32,
    )
    ids = np.arange(10, dtype=np.int32).reshape(5, 2)
    of_training = embedding.lookup_ids(
        [ids] * 2, [weights] * 2, _variables(specs), specs, _TOPOLOGY
    )
    inputs = ids, weights
    if ragged:
      splits = np.arange(0, 11, 2, dtype=np.int32)
      inputs = ids.reshape(-1), splits, weights.reshape(-1)
    names = [feature.name for feature in specs]
    found = self.program().call(tables, dict.fromkeys(names, inputs))
    for name, expected in zip(names, of_training, strict=True):
      np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)

  def test_positions_are_looked_up_by_themselves(self):
    table = embedding_spec.TableSpec(
        name="words", vocabulary_size=50, embedding_dim=4,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
    )  # fmt: skip
    specs = {"text": embedding_spec.FeatureSpec(
        name="text", table_spec=table, input_shape=(8, 3),
        output_shape=(8, 3, 4),
    )}  # fmt: skip
    signature = export.export_lookup(self.path, specs)
    self.assertEqual(
        signature["features"]["text"]["inputs"],
        [{"name": "ids", "dtype": "int32", "shape": ["b", 3, "k0"]}],
    )
    rows = np.arange(200, dtype=np.float32).reshape(50, 4)
    ids = np.arange(6, dtype=np.int32).reshape(2, 3, 1)
    found = self.program().call({"words": rows}, {"text": ids})
    np.testing.assert_array_equal(found["text"], rows[ids[..., 0]])
    with self.assertRaisesRegex(ValueError, "several positions of a sample"):
      export.export_lookup(self.directory / "ragged", specs, ragged=True)

  @parameterized.parameters(("float32", False), ("int4", True))
  def test_an_output_may_have_fewer_columns_than_the_table(
      self, encoding, ragged
  ):
    specs = _specs(("sum",))
    for feature in specs:
      feature.output_shape = (8, 3)
    signature = export.export_lookup(
        self.path, specs, encoding=encoding, ragged=ragged
    )
    self.assertEqual([x["shape"] for x in signature["outputs"]], 2 * [["b", 3]])
    tables, decoded = self.tables(specs, encoding)
    ids = _ids(specs, 8)
    inputs = ids
    if ragged:
      inputs = {
          name: (x.reshape(-1), np.arange(9, dtype=np.int32) * x.shape[1])
          for name, x in ids.items()
      }
    found = self.program().call(tables, inputs)
    of_training = embedding.lookup_ids(
        [ids[f.name] for f in specs], None, _variables(specs), specs, _TOPOLOGY
    )
    for feature, expected in zip(specs, of_training, strict=True):
      self.assertEqual(found[feature.name].shape, expected.shape)
      rows = decoded["sum"][ids[feature.name]].sum(axis=1)
      np.testing.assert_allclose(found[feature.name], rows[:, :3], rtol=1e-5)
      if encoding == "float32":
        np.testing.assert_allclose(found[feature.name], expected, rtol=1e-5)

  def test_a_model_is_part_of_the_program(self):
    specs = _specs(("sum", "mean"))
    params = {"kernel": np.float32([[1], [2], [3], [4], [5]])}

    def score(params, activations):
      return activations["sum many"] @ params["kernel"]

    signature = export.export_lookup(
        self.path, specs, model=(score, params), platforms=["cpu", "tpu"]
    )
    tables, decoded = self.tables(specs)
    ids = _ids(specs, 3)
    found = self.program().call(tables, ids)
    expected = decoded["sum"][ids["sum many"]].sum(axis=1) @ params["kernel"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    self.assertEqual(
        signature["outputs"],
        [{"name": "", "dtype": "float32", "shape": ["b", 1]}],
    )
    self.assertEqual(signature["platforms"], ["cpu", "tpu"])
    self.assertEqual(
        json.loads((self.path / "signature.json").read_text()), signature
    )

  @parameterized.parameters(
      (dict(platforms=["gpu"]), r"cpu, cuda, rocm, tpu, got \['gpu'\]"),
      (dict(platforms=[]), "must be some of"),
      (dict(encoding="fp8"), "the encoding must be one of"),
  )
  def test_errors_come_before_any_file(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      export.export_lookup(self.path, _specs(("sum",)), **options)
    self.assertFalse(self.path.exists())

  @parameterized.parameters(
      (dict(ragged="no"), "ragged must be a bool, got 'no'"),
      (dict(weights=2), "weights must be a bool, got 2"),
      (dict(platforms=5), "platforms must be some of .* got 5"),
      (dict(platforms=[["cpu"]]), r"platforms must be .* got \[\['cpu'\]\]"),
      (dict(model=3), r"model must be \(function, params\), got 3"),
      (dict(model=(3, {})), r"model must be \(function, params\), got \(3, "),
      (dict(model=(print,)), r"model must be \(function, params\), got "),
  )
  def test_arguments_of_another_kind_are_named(self, options, message):
    with self.assertRaisesRegex((TypeError, ValueError), message):
      export.export_lookup(self.path, _specs(("sum",)), **options)
    self.assertFalse(self.path.exists())

  def test_a_link_to_an_empty_directory_is_one(self):
    (self.directory / "empty").mkdir()
    self.path.symlink_to("empty")
    export.export_lookup(self.path, _specs(("sum",)), platforms=["cpu"])
    self.assertCountEqual(
        os.listdir(self.directory / "empty"),
        ["lookup.jax_export", "signature.json"],
    )

  def test_names_are_of_one_feature_and_of_one_table(self):
    one, many = _specs(("sum",))
    again = _specs(("mean",))[0]
    again.name = many.name
    with self.assertRaisesRegex(
        ValueError, "Feature spec sum many is already defined"
    ):
      export.export_lookup(self.path, [one, many, again])
    again.name, again.table_spec = "again", dataclasses.replace(
        one.table_spec, vocabulary_size=101
    )
    with self.assertRaisesRegex(
        ValueError,
        "Table 'sum' has two specs with different vocabulary_size: 100 and 101",
    ):
      export.export_lookup(self.path, [one, many, again])
    self.assertFalse(self.path.exists())

  def test_files_are_on_the_disk_before_they_have_their_name(self):
    synced = []

    def fsync(descriptor):
      synced.append((os.fstat(descriptor).st_ino, self.path.exists()))

    with mock.patch.object(os, "fsync", fsync):
      export.export_lookup(self.path, _specs(("sum",)))
    self.assertEqual(
        synced,
        [
            ((self.path / "lookup.jax_export").stat().st_ino, False),
            ((self.path / "signature.json").stat().st_ino, False),
            (self.path.stat().st_ino, False),
            (self.directory.stat().st_ino, True),
        ],
    )

  def test_a_disk_that_is_full_leaves_nothing(self):
    with mock.patch.object(os, "fsync", side_effect=OSError("disk is full")):
      with self.assertRaisesRegex(OSError, "disk is full"):
        export.export_lookup(self.path, _specs(("sum",)))
    self.assertEmpty(os.listdir(self.directory))

  def test_what_an_export_that_was_killed_left_is_in_nobodys_way(self):
    specs = _specs(("sum",))
    with (
        mock.patch.object(os, "fsync", side_effect=OSError("killed")),
        mock.patch("shutil.rmtree"),
    ):
      with self.assertRaisesRegex(OSError, "killed"):
        export.export_lookup(self.path, specs)
    self.assertLen(os.listdir(self.directory), 1)
    # Of a process with the same number, as in a container.
    export.export_lookup(self.path, specs)
    self.assertTrue((self.path / "signature.json").exists())

  def test_leaves_other_directories_alone(self):
    self.path.mkdir()
    (self.path / "notes").touch()
    with self.assertRaisesRegex(ValueError, "is no empty directory"):
      export.export_lookup(self.path, _specs(("sum",)))
    self.assertEqual(os.listdir(self.path), ["notes"])


if __name__ == "__main__":
  absltest.main()
