# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import json

from absl.testing import absltest
from absl.testing import parameterized

from tools import count_tests

PASSING = '<testcase name="a"/>'
FAILING = '<testcase name="b"><failure message="1 != 2"/></testcase>'
ERROR = '<testcase name="c"><error message="crashed"/></testcase>'
SKIPPED = '<testcase name="d" result="skipped"><skipped/></testcase>'
DISABLED = '<testcase name="e" status="notrun" result="suppressed"/>'


def finished(code: int) -> str:
  return json.dumps(
      {
          "id": {"buildFinished": {}},
          "finished": {"exitCode": {"code": code} if code else {}},
      }
  )


def completed(label: str, success: bool) -> str:
  return json.dumps(
      {
          "id": {"targetCompleted": {"label": label}},
          "completed": {"success": True} if success else {"failureDetail": {}},
      }
  )


class CountTestsTest(parameterized.TestCase):

  def result(
      self,
      *cases: str,
      label: str = "//a:test",
      status: str = "PASSED",
      attempt: int = 1,
  ) -> str:
    report = self.create_tempfile(
        content=f"<testsuites><testsuite>{''.join(cases)}"
        "</testsuite></testsuites>"
    )
    return json.dumps(
        {
            "id": {
                "testResult": {
                    "label": label,
                    "run": 1,
                    "shard": 1,
                    "attempt": attempt,
                }
            },
            "testResult": {
                "status": status,
                "testActionOutput": [
                    {"name": "test.log", "uri": "file:///nowhere/test.log"},
                    {"name": "test.xml", "uri": f"file://{report.full_path}"},
                ],
            },
        }
    )

  @parameterized.named_parameters(
      ("one_passes", [PASSING], "PASSED", 1, 0),
      ("one_of_two_fails", [PASSING, FAILING], "FAILED", 1, 1),
      ("an_error_is_a_failure", [ERROR], "FAILED", 0, 1),
      ("skipped_is_neither", [PASSING, SKIPPED, DISABLED], "PASSED", 1, 0),
      ("no_case_is_one_case", [], "PASSED", 1, 0),
      ("a_crash_fails_once", [PASSING], "FAILED", 1, 1),
      ("a_timeout_fails_once", [], "TIMEOUT", 0, 1),
      ("a_damaged_report_is_no_report", ["<testcase"], "FAILED", 0, 1),
  )
  def test_cases_of_one_target(self, cases, status, passed, failed):
    counts = count_tests.count_events(
        [
            completed("//a:test", True),
            self.result(*cases, status=status),
            finished(0 if status == "PASSED" else 3),
        ]
    )
    self.assertEqual(counts, count_tests.Counts(passed, failed))

  def test_targets_add_up(self):
    counts = count_tests.count_events(
        [
            self.result(PASSING, PASSING),
            self.result(PASSING, FAILING, label="//b:test", status="FAILED"),
            finished(3),
        ]
    )
    self.assertEqual(counts, count_tests.Counts(passed=3, failed=1))

  def test_last_attempt_counts(self):
    counts = count_tests.count_events(
        [
            self.result(FAILING, status="FAILED"),
            self.result(PASSING, attempt=2),
            finished(0),
        ]
    )
    self.assertEqual(counts, count_tests.Counts(passed=1))

  def test_missing_report_is_one_case(self):
    event = json.loads(self.result())
    event["testResult"]["testActionOutput"] = []
    counts = count_tests.count_events([json.dumps(event), finished(0)])
    self.assertEqual(counts, count_tests.Counts(passed=1))

  def test_each_unbuilt_target_fails_once(self):
    counts = count_tests.count_events(
        [
            self.result(PASSING),
            completed("//b:test", False),
            completed("//c:library", False),
            finished(1),
        ]
    )
    self.assertEqual(counts, count_tests.Counts(passed=1, failed=2))

  @parameterized.parameters(("SKIPPED", 0), ("ANALYSIS_FAILURE", 1))
  def test_targets_for_another_configuration_do_not_count(self, reason, failed):
    event = {
        "id": {"targetCompleted": {"label": "//b:test_with_asan"}},
        "aborted": {"reason": reason, "description": "was skipped."},
    }
    counts = count_tests.count_events(
        [self.result(PASSING), json.dumps(event), finished(0)]
    )
    self.assertEqual(counts, count_tests.Counts(passed=1, failed=failed))

  @parameterized.named_parameters(
      ("broken_build_file", [finished(1)]),
      ("bazel_killed", []),
  )
  def test_failed_build_without_results_is_one_failure(self, events):
    counts = count_tests.count_events(events)
    self.assertEqual(counts, count_tests.Counts(failed=1))

  @parameterized.parameters((), ("--help",), ("a.json", "b.json"))
  def test_other_arguments_than_a_file_show_the_help(self, *arguments):
    with self.assertRaisesRegex(SystemExit, "Counts the test cases"):
      count_tests.main(["count_tests.py", *arguments])


if __name__ == "__main__":
  absltest.main()
