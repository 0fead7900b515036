# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import collections

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
import numpy as np

SparseTensorValue = collections.namedtuple(
    "SparseTensorValue", ["indices", "values", "dense_shape"]
)
Pair = collections.namedtuple("Pair", ["user", "item"])

_A = np.array([1])
_B = np.array([2])
_C = np.array([3])


def _flatten(tree, like):
  return _structure.flatten_like(tree, like, "features", "feature_specs")


class FlattenLikeTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("bare", _A, "x", [_A]),
      ("list", [_A, _B], ["x", "y"], [_A, _B]),
      ("tuple_like_list", (_A, _B), ["x", "y"], [_A, _B]),
      ("list_like_tuple", [_A, _B], ("x", "y"), [_A, _B]),
      ("dict_by_key", {"b": _B, "a": _A}, {"a": "x", "b": "y"}, [_A, _B]),
      ("nested", {"a": (_A, [_B])}, {"a": ["x", ("y",)]}, [_A, _B]),
      ("empty", [], (), []),
      ("named_tuple_container", Pair(_A, _B), Pair("x", "y"), [_A, _B]),
  )
  def test_arrays(self, tree, like, expected):
    self.assertSequenceEqual(
        [id(leaf) for leaf in _flatten(tree, like)],
        [id(leaf) for leaf in expected],
    )

  @parameterized.named_parameters(
      ("pair", (_A, _B)),
      ("named_tuple", SparseTensorValue(_A, _B, _C)),
  )
  def test_ids_in_several_arrays_are_one_leaf(self, leaf):
    self.assertIs(_flatten(leaf, "x")[0], leaf)
    self.assertIs(_flatten([_A, leaf], ["x", "y"])[1], leaf)
    self.assertIs(_flatten((leaf, _A), ["x", "y"])[0], leaf)
    self.assertIs(_flatten({"a": {"b": leaf}}, {"a": {"b": "x"}})[0], leaf)

  def test_a_pair_where_two_leaves_belong_is_a_container(self):
    leaves = _flatten([(_A, _B)], [["x", "y"]])
    self.assertIs(leaves[0], _A)
    self.assertIs(leaves[1], _B)

  @parameterized.named_parameters(
      ("list_of_numbers", [1, 2], "x", "Only in features: .*\\[0\\]"),
      ("list_of_numbers_in_list", [[1, 2]], ["x"], "\\[0\\]\\[1\\]"),
      ("too_few", [_A], ["x", "y"], "Only in feature_specs: ..\\[1\\]"),
      ("too_many", [_A, _B], ["x"], "Only in features: ..\\[1\\]"),
      ("other_key", {"a": _A}, {"b": "x"}, "\\['a'\\].*\\['b'\\]"),
      ("none", [None, _A], ["x", "y"], "Only in feature_specs: ..\\[0\\]"),
      ("bare_for_list", _A, ["x"], "Only in features: \\[''\\]"),
      ("list_for_bare", [_A], "x", "Only in features: ..\\[0\\]"),
      ("three_arrays", [(_A, _B, _C)], ["x"], "\\[0\\]\\[2\\]"),
      ("pair_of_containers", [([1], [2])], ["x"], "\\[0\\]\\[0\\]"),
      ("dict_as_leaf", [{"ids": _A}], ["x"], "\\['ids'\\]"),
  )
  def test_other_structures_name_both_trees(self, tree, like, where):
    with self.assertRaisesRegex(
        ValueError,
        "The structures of features and feature_specs do not match",
    ) as raised:
      _flatten(tree, like)
    message = str(raised.exception)
    self.assertRegex(message, where)
    self.assertIn(f"features: {jax.tree.structure(tree)}", message)
    self.assertIn(f"feature_specs: {jax.tree.structure(like)}", message)

  @parameterized.named_parameters(
      ("list", {"x": [[1, 2]] * 4096}, {"x": "spec"}, "features['x']"),
      ("bare_list", [1, 2], "spec", "features"),
      ("triple", [(_A, _B, _C)], ["spec"], "features[0]"),
  )
  def test_ids_in_a_container_say_what_to_pass(self, tree, like, where):
    with self.assertRaises(ValueError) as raised:
      _flatten(tree, like)
    message = str(raised.exception)
    self.assertIn(
        "A list, dict or tuple stands where one feature's array belongs:"
        f" {where}. Pass np.array(...), or ragged ids as (values, row_splits).",
        message,
    )
    self.assertLess(len(message), 5000)

  def test_weights_may_be_none_where_features_or_specs_are(self):
    specs = {"a": "x", "none": None, "pair": ["y", None, "z"]}
    structure = jax.tree.structure(specs)
    weights = {"a": None, "none": None, "pair": [_A, None, _B]}
    self.assertEqual(
        _structure.flatten_weights(weights, structure), [None, _A, _B]
    )
    weights["none"] = _C
    with self.assertRaisesRegex(ValueError, r"features_weights: ..\['none'\]"):
      _structure.flatten_weights(weights, structure)

  def test_lists_and_tuples_have_the_same_structure(self):
    _structure.assert_same_structure([_A, (_B,)], (_A, [_B]), "a", "b")
    with self.assertRaisesRegex(ValueError, "structures of a and b do not"):
      _structure.assert_same_structure([_A], [_A, _B], "a", "b")


if __name__ == "__main__":
  absltest.main()
