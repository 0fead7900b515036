# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Counts the test cases of one Bazel run.

    bazel test --build_event_json_file=events.json //...
    python3 tools/count_tests.py events.json    # prints: PASSED FAILED

Bazel reports targets; one target of ours holds up to hundreds of cases. The
event file names the targets of this run, passed from the cache or not, and the
XML report of each. Reports that earlier runs left behind do not count.

Needs nothing beyond Python: it also runs where the build did not.

Source: Bazel's Build Event Protocol (build_event_stream.proto); the JUnit XML
that GoogleTest and absltest write.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import urllib.parse
from xml.etree import ElementTree


@dataclasses.dataclass(frozen=True)
class Counts:
  """Test cases that passed and failed; skipped ones are in neither."""

  passed: int = 0
  failed: int = 0

  def __add__(self, other: Counts) -> Counts:
    return Counts(self.passed + other.passed, self.failed + other.failed)


def count_events(lines: list[str]) -> Counts:
  """Counts the cases of a build, given the lines of its event file.

  A test target without a report counts as one case, and a target that was not
  built, test or not, as one that failed. Targets that are for another
  configuration, which Bazel skips, do not count. Any other failure of the build
  counts as one.
  """
  results = {}  # (label, run, shard) -> the last attempt's result
  unbuilt = set()
  finished = False
  for line in lines:
    event = json.loads(line)
    if "testResult" in event:
      key = event["id"]["testResult"]
      results[key["label"], key.get("run"), key.get("shard")] = event[
          "testResult"
      ]
    elif "targetCompleted" in event["id"]:
      is_skipped = event.get("aborted", {}).get("reason") == "SKIPPED"
      if not is_skipped and not event.get("completed", {}).get("success"):
        unbuilt.add(event["id"]["targetCompleted"]["label"])
    elif "finished" in event:
      # Code 3: everything was built, and some tests failed.
      code = event["finished"].get("exitCode", {}).get("code", 0)
      finished = code in (0, 3)
  counts = sum(map(_count_target, results.values()), Counts())
  counts += Counts(failed=len(unbuilt))
  if not finished and not counts.failed:
    counts += Counts(failed=1)
  return counts


def _count_target(result: dict) -> Counts:
  """Counts the cases of one target, given its `testResult` event."""
  target_passed = result["status"] in ("PASSED", "FLAKY")
  counts = Counts()
  for output in result.get("testActionOutput", ()):
    if output["name"] == "test.xml":
      path = pathlib.Path(
          urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
      )
      counts = _count_report(path) if path.exists() else Counts()
  if not target_passed and not counts.failed:
    # A crash or a timeout, after which there may be no report.
    return counts + Counts(failed=1)
  if counts == Counts() and target_passed:
    return Counts(passed=1)
  return counts


def _count_report(path: pathlib.Path) -> Counts:
  try:
    cases = list(ElementTree.parse(path).iter("testcase"))
  except ElementTree.ParseError:  # cut off by a crash
    return Counts()
  ran = [case for case in cases if not _was_skipped(case)]
  failed = sum(
      case.find("failure") is not None or case.find("error") is not None
      for case in ran
  )
  return Counts(len(ran) - failed, failed)


def _was_skipped(case: ElementTree.Element) -> bool:
  return (
      case.find("skipped") is not None
      or case.get("result") in ("skipped", "suppressed")
      or case.get("status") == "notrun"
  )


def main(argv: list[str]) -> None:
  if len(argv) != 2 or argv[1].startswith("-"):
    sys.exit(__doc__)
  path = pathlib.Path(argv[1])
  lines = path.read_text().splitlines() if path.exists() else []
  counts = count_events(lines)
  print(counts.passed, counts.failed)


if __name__ == "__main__":
  main(sys.argv)
