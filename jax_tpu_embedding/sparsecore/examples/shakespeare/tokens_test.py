# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.shakespeare import tokens


class TokensTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("words_and_marks", "Come, come!", ["come", ",", "come", "!"]),
      ("speaker_keeps_its_capitals", "ADAM\tYonder", ["ADAM", "yonder"]),
      ("contractions", "thou'rt o'er", ["thou'rt", "o'er"]),
      ("leading_apostrophe", "'Tis 'twas", ["'tis", "'twas"]),
      ("quotation_marks", "'old dog'", ["'", "old", "dog", "'"]),
      ("hyphen_and_dash", "half-lived--no", ["half-lived", "--", "no"]),
      ("line_break", "a\n\tb", ["a", "\n", "b"]),
      ("blank_lines_are_one_break", "a\n\n \t\n\nb", ["a", "\n\n", "b"]),
      ("not_only_ascii", "Où, là-bas?", ["où", ",", "là-bas", "?"]),
      ("nothing", " \t ", []),
  )
  def test_tokenize(self, text, expected):
    self.assertEqual(tokens.tokenize(text), expected)

  @parameterized.named_parameters(
      ("no_space_before_marks", ["come", ",", "sir", "!"], "come, sir!"),
      ("no_space_in_brackets", ["[", "exeunt", "]"], "[exeunt]"),
      ("no_space_around_breaks", ["a", "\n", "b", "\n\n", "c"], "a\nb\n\nc"),
      ("no_break_at_the_ends", ["\n\n", "a", "\n"], "a"),
  )
  def test_detokenize(self, words, expected):
    self.assertEqual(tokens.detokenize(words), expected)


if __name__ == "__main__":
  absltest.main()
