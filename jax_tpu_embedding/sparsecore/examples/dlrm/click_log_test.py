# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gzip
import hashlib
import io
import pathlib
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.dlrm import click_log
from jax_tpu_embedding.sparsecore.examples.dlrm import generator
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np

_FIELDS = (
    b"1",
    *(b"5", b"", b"-2", b"0", b"7", b"8", b"9", b"10", b"11", b"12", b"13"),
    *(b"14", b"1500000"),
    *(b"%08x" % (i + 1) for i in range(25)),
    b"",
)


def _line(**fields: bytes) -> bytes:
  """A good line with some fields replaced, by position: f3=b"x"."""
  replaced = list(_FIELDS)
  for name, value in fields.items():
    replaced[int(name[1:])] = value
  return b"\t".join(replaced) + b"\n"


def _assert_equal(one: samples_lib.Samples, other: samples_lib.Samples):
  np.testing.assert_array_equal(one.labels, other.labels)
  np.testing.assert_array_equal(one.dense, other.dense)
  np.testing.assert_array_equal(one.categories, other.categories)


class ClickLogTest(parameterized.TestCase):

  def _write(self, content: bytes, name: str = "log.tsv") -> pathlib.Path:
    path = pathlib.Path(self.create_tempdir().full_path, name)
    path.write_bytes(content)
    return path

  def test_reads_a_line(self):
    (samples,) = click_log.read(self._write(_line()))
    self.assertEqual(samples.labels.tolist(), [1.0])
    np.testing.assert_array_equal(
        samples.dense,
        [[5, np.nan, -2, 0, 7, 8, 9, 10, 11, 12, 13, 14, 1500000]],
    )
    self.assertEqual(
        samples.categories.tolist(), [[*range(1, 26), samples_lib.MISSING]]
    )

  @parameterized.parameters("log.tsv", "log.tsv.gz", "log.txt")
  def test_what_is_written_is_read(self, name):
    path = pathlib.Path(self.create_tempdir().full_path, name)
    written = generator.make(3).block(0)[0][:30_000]
    click_log.write(path, [written[:10], written[10:10], written[10:]])
    is_compressed = path.read_bytes().startswith(b"\x1f\x8b")
    self.assertEqual(is_compressed, name.endswith(".gz"))
    _assert_equal(samples_lib.concatenate(list(click_log.read(path))), written)
    for line in self._lines(path)[::1000]:
      self.assertIsNone(click_log.line_problem(line))

  def _lines(self, path: pathlib.Path) -> list[bytes]:
    content = path.read_bytes()
    if path.suffix == ".gz":
      content = gzip.decompress(content)
    return content.splitlines(keepends=True)

  @hypothesis.settings(derandomize=True, deadline=None, max_examples=30)
  @hypothesis.given(data=st.data())
  def test_any_samples_are_read_as_written(self, data):
    n = data.draw(st.integers(1, 3))
    rows = st.lists(st.integers(-1, 2**32 - 1), min_size=26, max_size=26)
    number = st.one_of(st.just(np.nan), st.integers(-(2**24), 2**24))
    numbers = st.lists(number, min_size=13, max_size=13)
    samples = samples_lib.Samples(
        labels=np.array([data.draw(st.integers(0, 1)) for _ in range(n)]),
        dense=np.array([data.draw(numbers) for _ in range(n)], np.float32),
        categories=np.array([data.draw(rows) for _ in range(n)], np.int64),
    )
    path = self._write(b"")
    click_log.write(path, [samples])
    (read,) = click_log.read(path)
    _assert_equal(read, samples)

  @parameterized.parameters(
      (0, None, range(5)),
      (2, None, (2, 3, 4)),
      (1, 2, (1, 2)),
      (4, 9, (4,)),
      (5, None, ()),
      (7, None, ()),
      (0, 0, ()),
  )
  def test_reads_a_part(self, first, count, expected):
    path = self._write(b"".join(_line(f1=b"%d" % i) for i in range(5)))
    read = [
        number
        for block in click_log.read(path, first, count)
        for number in block.dense[:, 0]
    ]
    self.assertEqual(read, list(expected))
    log = click_log.index(path, lines_per_piece=3)
    # By the index, what is passed over is not read.
    start = log.starts[min(first // 3, 2)]
    path.write_bytes(b"?" * start + path.read_bytes()[start:])
    by_index = [
        number
        for block in click_log.read(path, first, count, log)
        for number in block.dense[:, 0]
    ]
    self.assertEqual(by_index, list(expected))

  @parameterized.named_parameters(
      ("the_line", _line()),
      ("no_newline_at_the_end", _line()[:-1]),
      ("the_newline_of_windows", _line()[:-1] + b"\r\n"),
      ("a_short_category", _line(f20=b"a")),
      ("capital_digits", _line(f20=b"ABCDEF01")),
      ("all_missing", b"0" + 39 * b"\t" + b"\n"),
  )
  def test_accepts(self, line):
    self.assertLen(list(click_log.read(self._write(_line() + line))), 1)
    self.assertIsNone(click_log.line_problem(line))

  @parameterized.named_parameters(
      ("a_column_too_few", _line().replace(b"\t", b"", 1), "found 39"),
      ("a_column_too_many", b"0\t" + _line(), "found 41"),
      ("an_empty_line", b"\n", "expected 40 columns .* found 1"),
      ("spaces", _line().replace(b"\t", b" "), "found 1"),
      ("no_label", _line(f0=b""), r"column 1 \(label\) must be 0 or 1, .* ''"),
      ("a_label_of_2", _line(f0=b"2"), r"column 1 \(label\) .* found '2'"),
      (
          "a_fraction",
          _line(f2=b"0.5"),
          r"column 3 \(I2\) must be a whole n.*0\.5'",
      ),
      ("text", _line(f13=b"x"), r"column 14 \(I13\) must be a whole .* 'x'"),
      ("no_digit", _line(f14=b"12g"), r"column 15 \(C1\) .* found '12g'"),
      ("nine_digits", _line(f39=b"123456789"), r"column 40 \(C26\) .*456789'"),
      ("a_return", _line()[:-1] + b"\r" + _line(), "expected 40 .* found 79"),
      ("a_quote", _line(f14=b'"ab"'), r"column 15 \(C1\) .* '\"ab\"'"),
      ("no_utf_8", _line(f14=b"\xff"), r"column 15 \(C1\) .* found '\\xff'"),
  )
  def test_refuses(self, line, message):
    for number_of_good in (0, 2, 20_000):  # Also beyond the first block.
      path = self._write(number_of_good * _line() + line + _line())
      with self.assertRaisesRegex(
          click_log.MalformedLineError,
          rf"\A{path}:{number_of_good + 1}: .*{message}\.\Z",
      ):
        list(click_log.read(path))

  def test_counts_lines_from_the_start_of_the_file(self):
    path = self._write(4 * _line() + b"\n")
    with self.assertRaisesRegex(click_log.MalformedLineError, ":5: expected"):
      list(click_log.read(path, first=3))

  @parameterized.parameters(
      # The last of them is in the first block, at its end, and in another one.
      (3, 3),
      (4, 3),
      (20_000, 3),
      (20_000, 20_000),
  )
  def test_lines_that_are_not_asked_for_may_be_malformed(self, good, count):
    for end in (b"?\n", b"?"):
      path = self._write(b"?\n" + good * _line() + end)
      self.assertEqual(sum(map(len, click_log.read(path, 1, count))), count)

  def test_reads_no_more_than_is_asked_for(self):
    # Else by a thread that may keep the process from ending.
    log = io.BufferedReader(io.BytesIO(100_000 * _line()))
    with mock.patch("builtins.open", return_value=log):
      blocks = click_log.read(pathlib.Path("log.tsv"))
      next(blocks)
      position = log.tell()
      self.assertLess(position, 5_000_000)
      time.sleep(0.2)
      self.assertEqual(log.tell(), position)

  @parameterized.parameters(0, 1, 2, 3, 4)
  def test_indexes(self, max_samples):
    lines = [_line(f1=b"%d" % i) for i in range(3)]
    lines[2] = lines[2][:-1]
    plain = self._write(b"".join(lines))
    packed = self._write(gzip.compress(b"".join(lines)), "log.tsv.gz")
    chosen = lines[:max_samples] if max_samples else lines
    for path in (plain, packed):
      log = click_log.index(path, max_samples, lines_per_piece=2)
      self.assertEqual(log.num_samples, len(chosen))
      self.assertEqual(log.sha256, hashlib.sha256(b"".join(chosen)).hexdigest())
      ends = np.cumsum([0] + [len(line) for line in chosen])
      self.assertEqual(log.starts.tolist(), [*ends[:-1:2], ends[-1]])

  @parameterized.parameters("log.tsv", "log.tsv.gz")
  def test_reads_pieces_and_no_others(self, name):
    lines = [_line(f1=b"%d" % i) for i in range(11)]
    lines[4] = b"?\n"
    lines[10] = lines[10][:-1]
    text = b"".join(lines)
    path = self._write(
        gzip.compress(text) if name.endswith(".gz") else text, name
    )
    log = click_log.index(path, lines_per_piece=2)
    with mock.patch.object(click_log, "_BLOCK_BYTES", 2 * log.starts[1]):
      blocks = [
          block.dense[:, 0].tolist()
          for block in click_log.read_pieces(path, log, (0, 1, 3, 5))
      ]
    self.assertEqual(blocks, [[0, 1, 2, 3], [6, 7, 10]])
    with self.assertRaisesRegex(
        click_log.MalformedLineError, rf"{name}:5: expected 40"
    ):
      list(click_log.read_pieces(path, log, (1, 2, 3)))

  def test_refuses_a_log_that_became_shorter(self):
    path = self._write(4 * _line())
    log = click_log.index(path, lines_per_piece=2)
    path.write_bytes(3 * _line())
    n = len(_line())
    with self.assertRaisesRegex(
        command_line.UsageError,
        rf"became shorter while .* ends at byte {3 * n}, and had {4 * n}\.",
    ):
      list(click_log.read_pieces(path, log, (0, 1)))

  def test_files_that_cannot_be_read(self):
    missing = pathlib.Path(self.create_tempdir().full_path, "none")
    packed = gzip.compress(100 * _line())
    for path, message in (
        (missing, "there is no file"),
        (missing.parent, "cannot read .*: Is a directory"),
        (self._write(_line(), "a.gz"), "cannot read .*: Not a gzipped file"),
        (
            self._write(packed[:-20], "b.gz"),
            "cannot read .*: Compressed file e",
        ),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(command_line.UsageError, message):
          click_log.index(path)
        with self.assertRaisesRegex(command_line.UsageError, message):
          list(click_log.read(path))


if __name__ == "__main__":
  absltest.main()
