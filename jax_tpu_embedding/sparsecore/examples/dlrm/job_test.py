# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The program in several processes, started by itself or by a job manager.

../../../../docs/several_hosts_test.py kills one of those that it starts itself.
The environment variable KILLS says how often hosts of two jobs die, 12 by default;
KILLS_SEED, when and which.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
import contextlib
import os
import pathlib
import random
import re
import signal
import threading
import time

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.dlrm import small_run

program_runs.compile_once()

_PROGRAM = ("-m", "jax_tpu_embedding.sparsecore.examples.dlrm")
_KILLS = int(os.environ.get("KILLS", "12"))
_NUM_JOBS = 3
_SEED = int(os.environ.get("KILLS_SEED", "0"))
# Until processes end that wait for one that is no more.
_HEARTBEAT_SECONDS = 15
# For what JAX and the system take beside that, on a machine that has other
# work.
_SECONDS_MORE = 15
# Who imports JAX does not wait for anybody yet.
_SECONDS_TO_START = 20
# A run that somebody has to end.
_ENDLESS = (
    "--num_steps=1000000",
    "--checkpoint_every=2",
    "--evaluate_every=1000000",
)

# A job of two processes that each leave their error in a file.
_FIRST_FAILS = """
import pathlib, sys
from jax_tpu_embedding.sparsecore.examples.common import job

if not job.is_member():
  sys.exit(job.run_here("program", sys.orig_argv, 2))
job.join(2, 2, 15)
import jax
print("It\u2019s off.")
try:
  job.from_first(lambda: 1 / 0)
except Exception as error:
  path = pathlib.Path(sys.argv[1], str(jax.process_index()))
  path.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
  raise
"""


# A job of two processes that run until somebody ends them.
_ENDLESS_JOB = """
import sys, time
from jax_tpu_embedding.sparsecore.examples.common import job

if not job.is_member():
  sys.exit(job.run_here("program", sys.orig_argv, 2))
print("It runs.", flush=True)
time.sleep(1000)
"""


def _start(*arguments: str):
  return program_runs.start(*_PROGRAM, *small_run.FLAGS, *arguments)


def _start_managed(manager: str, num_processes: int, *arguments: str):
  return program_runs.start_managed(
      manager,
      num_processes,
      *_PROGRAM,
      *small_run.FLAGS,
      "--num_processes=0",
      "--num_devices=4",
      f"--heartbeat_seconds={_HEARTBEAT_SECONDS}",
      *arguments,
  )


def _run(*arguments: str) -> tuple[int, str, str]:
  process = _start(*arguments)
  stdout, stderr = process.communicate()
  return process.returncode, stdout, stderr


def _checkpoints(output_dir: str) -> list[int]:
  names = (path.name for path in pathlib.Path(output_dir).glob("checkpoints/*"))
  # Those that are being written have longer names.
  return sorted(int(name) for name in names if name.isdigit())


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
  """As subTest, in threads too: an error says that it is of `what`."""
  try:
    yield
  except Exception as error:
    error.add_note(what)
    raise


class JobTest(program_runs.ProgramTest):

  def _wait_until(self, processes, condition) -> None:
    while not condition():
      for process in processes:
        self.assertIsNone(process.poll(), process.args)
      time.sleep(0.01)

  def test_hosts_die_and_the_jobs_go_on(self):
    # Hosts wait long for one that is no more, and use no CPU: other jobs start
    # and train meanwhile, one at a time.
    turn = threading.Lock()
    with futures.ThreadPoolExecutor(_NUM_JOBS) as pool:
      jobs = [
          pool.submit(self._kill_hosts, job, turn) for job in range(_NUM_JOBS)
      ]
    for job, end in enumerate(jobs):
      with self.subTest(f"job {job}"):
        end.result()

  def _kill_hosts(self, job: int, turn: threading.Lock) -> None:
    """Kills hosts of a job, and compares what it learned with one process.

    Args:
      job: says when, and which, together with the seed.
      turn: of the job that starts and trains.
    """
    rng = random.Random(f"{_SEED} {job}")
    output_dir = self.directory()
    for i in range(len(range(job, _KILLS, _NUM_JOBS))):
      phase = ("saving", "start", "training")[(i + job) % 3]
      manager = rng.choice(sorted(program_runs.MANAGERS))
      num_processes = 4 if i % 2 == 0 else 2
      resume = ["--resume"] if _checkpoints(output_dir) else []
      with _named(f"kill {i}: {manager}, {num_processes} hosts, {phase}"):
        with turn:
          hosts = _start_managed(
              manager,
              num_processes,
              f"--output_dir={output_dir}",
              *_ENDLESS,
              *resume,
          )
          for host in hosts:
            self.addCleanup(host.kill)
          victim = rng.randrange(num_processes)
          self._wait_for_phase(phase, hosts, output_dir, rng)
          # A host is the process that the manager started, and what that
          # started.
          os.kill(hosts[victim].pid, signal.SIGKILL)
        self._check_the_others(hosts, victim, have_started=phase != "start")
    # Sometimes all have died before there was one.
    steps = _checkpoints(output_dir) or [0]
    resume = ["--resume"] if steps[-1] else []
    last = steps[-1] + 2
    num_steps = f"--num_steps={last}"
    # The steps that four processes took, and two, are those of one.
    straight = self.directory()
    with turn:
      hosts = _start_managed(
          "slurm", 2, f"--output_dir={output_dir}", num_steps, *resume
      )
      one = _start("--num_devices=4", f"--output_dir={straight}", num_steps)
      outputs = [host.communicate() for host in hosts]
      alone, stderr = one.communicate()
    self.assertEqual([host.returncode for host in hosts], [0, 0], outputs)
    (stdout, _), others = outputs
    self.assertEqual(others, ("", ""))
    self.assertEqual(one.returncode, 0, stderr)

    def result(stdout):
      return re.findall("Held-out .*|Log.*AUC .*|Log: [^/]*|Tables: .*", stdout)

    self.assertLen(result(alone), 4)
    self.assertEqual(result(stdout), result(alone))
    self.assertTrue(pathlib.Path(output_dir, "training.png").is_file())
    self.assert_same_checkpoint(straight, output_dir, last)

  def _wait_for_phase(self, phase, hosts, output_dir, rng) -> None:
    before = _checkpoints(output_dir)
    if phase == "start":
      time.sleep(rng.uniform(0, 4))
      return
    self._wait_until(hosts, lambda: _checkpoints(output_dir) != before)
    if phase == "training":
      time.sleep(rng.uniform(0, 1))
      return
    # Orbax renames a directory when all is written.
    checkpoints = pathlib.Path(output_dir, "checkpoints")
    self._wait_until(
        hosts, lambda: list(checkpoints.glob("*.orbax-checkpoint-tmp*"))
    )

  def _check_the_others(self, hosts, victim, have_started) -> None:
    end = time.monotonic() + _HEARTBEAT_SECONDS + _SECONDS_MORE
    if not have_started:
      end += _SECONDS_TO_START
    for i, host in enumerate(hosts):
      _, stderr = host.communicate(timeout=max(1, end - time.monotonic()))
      if i == victim:
        continue
      self.assertEqual(host.returncode, 75, stderr)
      line = stderr.splitlines()[-1]
      self.assertRegex(line, r"\Adlrm: .*; --resume continues")
      if have_started:
        self.assertRegex(
            line,
            rf"process {victim} of {len(hosts)}, on \S+, gives no sign of life",
        )

  def test_ids_may_be_converted_on_the_hosts(self):
    # Limits grow in both processes at once, and the bits are those of one.
    directories = [self.directory() for _ in range(2)]
    runs = [
        _start(
            "--num_devices=2",
            f"--num_processes={num_processes}",
            "--preprocess=host",
            "--num_steps=5",
            f"--output_dir={output_dir}",
        )
        for num_processes, output_dir in enumerate(directories, start=1)
    ]
    for run in runs:
      _, stderr = run.communicate()
      self.assertEqual(run.returncode, 0, stderr)
    self.assert_same_checkpoint(*directories, 5)

  def test_what_is_wrong_is_said_once(self):
    code, stdout, stderr = _run(
        "--num_devices=2",
        "--num_processes=2",
        f"--output_dir={self.directory()}",
        "--data=/nowhere.tsv",
    )
    self.assertEqual((code, stdout), (1, ""))
    self.assertEqual(stderr.count("dlrm: --data: there is no file"), 1)

  def test_a_full_disk_while_the_log_is_made_is_said_once(self):
    output_dir = pathlib.Path(self.directory())
    (output_dir / "partial_clicks.tsv").symlink_to("/dev/full")
    code, _, stderr = _run(
        "--num_devices=2", "--num_processes=2", f"--output_dir={output_dir}"
    )
    self.assertEqual(code, 1, stderr)
    self.assertEqual(
        re.findall("dlrm: .*", stderr),
        [
            f"dlrm: --output_dir: cannot write {output_dir}/clicks.tsv: No"
            " space left on device."
        ],
    )

  def test_all_processes_learn_what_went_wrong_in_the_first(self):
    output_dir = pathlib.Path(self.directory())
    process = program_runs.start(
        "-c", _FIRST_FAILS, output_dir, PYTHONIOENCODING="ascii:replace"
    )
    stdout, stderr = process.communicate()
    self.assertEqual(process.returncode, 1, stderr)
    self.assertEqual(
        [(output_dir / f"{i}").read_text(encoding="utf-8") for i in range(2)],
        [
            "ZeroDivisionError: division by zero",
            "RuntimeError: The first process of the job failed with"
            " ZeroDivisionError: division by zero",
        ],
    )
    # What is printed is in the encoding that was asked for.
    self.assertEqual(stdout, "It?s off.\n")

  def test_an_interrupt_that_reaches_only_who_started_them_ends_all(self):
    process = program_runs.start("-c", _ENDLESS_JOB)
    process.stdout.readline()
    members = program_runs.children(process)
    self.assertLen(members, 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    self.assertEqual(process.returncode, 130)
    self.assert_is_one_line(stderr, "program", "interrupted; --resume")
    for member in members:
      self.assertFalse(pathlib.Path(f"/proc/{member}").exists())

  def test_an_error_of_one_process_is_its_own(self):
    # A log that the second host does not have.
    output_dir = self.directory()
    log = pathlib.Path(output_dir, "log.tsv")
    log.write_text(
        1300 * ("\t".join(["0"] + 39 * [""]) + "\n"), encoding="utf-8"
    )
    hosts = _start_managed(
        "slurm",
        2,
        f"--output_dir={output_dir}",
        lambda i: f"--data={log if i == 0 else '/nowhere'}",
        "--heartbeat_seconds=5",
    )
    _, stderr = hosts[1].communicate()
    self.assertEqual(hosts[1].returncode, 1, stderr)
    self.assert_is_one_line(stderr, "dlrm", "there is no file /nowhere")
    _, stderr = hosts[0].communicate()
    self.assertEqual(hosts[0].returncode, 75, stderr)
    self.assertRegex(
        stderr.splitlines()[-1], "process 1 of 2, on .*, gives no sign of life"
    )

  def test_without_a_manager_there_is_no_job(self):
    code, _, stderr = _run(
        "--num_processes=0", f"--output_dir={self.directory()}"
    )
    self.assertEqual(code, 1)
    self.assert_is_one_line(
        stderr, "dlrm", "a job manager has started, and JAX"
    )


if __name__ == "__main__":
  absltest.main()
