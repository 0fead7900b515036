# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Iterable
import re

UNKNOWN = "<unk>"
LINE_BREAK = "\n"
PARAGRAPH_BREAK = "\n\n"

_TOKEN = re.compile(
    r"\n(?:[ \t]*\n)+"  # A paragraph break, however many blank lines.
    r"|\n"
    r"|'[Tt]\w+"  # 'tis, 'twas, 'Twill
    r"|\w+(?:['’-]\w+)*"  # o'er, thou'rt, gentleman-like
    r"|--"
    r"|[^\w\s]"
)
_NO_SPACE_BEFORE = re.compile(r" +([,.;:?!)\]\n])")
_NO_SPACE_AFTER = re.compile(r"([(\[\n]) +")


def _token(match: str) -> str:
  if match.startswith("\n"):
    return LINE_BREAK if match == "\n" else PARAGRAPH_BREAK
  # A word at the start of a sentence is the same word as elsewhere. Names of
  # speakers stand in capitals and stay tokens of their own.
  return match if match.isupper() else match.lower()


def tokenize(text: str) -> list[str]:
  r"""The words, punctuation marks and line breaks of `text`.

  >>> tokenize("ORLANDO\tCome, come,\n\n\n'Tis I!")
  ['ORLANDO', 'come', ',', 'come', ',', '\n\n', "'tis", 'I', '!']
  """
  return [_token(match) for match in _TOKEN.findall(text)]


def detokenize(tokens: Iterable[str]) -> str:
  r"""The tokens as text to read; what `tokenize` dropped stays dropped.

  >>> detokenize(["ADAM", "come", ",", "\n", "sir", "[", "exit", "]"])
  'ADAM come,\nsir [exit]'
  """
  text = _NO_SPACE_BEFORE.sub(r"\1", " ".join(tokens))
  return _NO_SPACE_AFTER.sub(r"\1", text).strip()
