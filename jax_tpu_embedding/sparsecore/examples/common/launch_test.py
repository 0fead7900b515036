# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import job
from jax_tpu_embedding.sparsecore.examples.common import launch


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings(command_line.Settings):
  test_count: int = command_line.setting(3, "How many.")


def setUpModule():
  os.environ.pop("PJRT_NPROC", None)
  launch.provide_devices(2)


def _raise(error: BaseException):
  raise error


class LaunchTest(parameterized.TestCase):

  def test_a_cpu_becomes_as_many_devices(self):
    self.assertEqual(jax.device_count(), 2)

  def test_there_are_more_threads_than_devices(self):
    # With as many, two steps underway may wait for each other for ever.
    self.assertEqual(os.environ["PJRT_NPROC"], "8")

  def test_fewer_devices_than_there_are_will_do(self):
    launch.provide_devices(1)

  def test_refuses_more_devices_than_there_are(self):
    with self.assertRaisesRegex(
        command_line.UsageError,
        "--num_devices is 5, but JAX has 2 cpu devices.",
    ):
      launch.provide_devices(5)

  def test_runs_with_the_settings_of_the_command_line(self):
    seen = []
    launch.main(
        command_line.parse_flags(["program"]), _Settings, run=seen.append
    )
    self.assertEqual(seen, [_Settings()])

  @parameterized.parameters(
      (command_line.UsageError("--x: no."), 1, "program: --x: no.\n"),
      (MemoryError("Too large."), 1, "program: Too large.\n"),
      (MemoryError(), 1, "program: out of memory.\n"),
      (
          jax.errors.JaxRuntimeError(
              "INTERNAL: Error: Out of memory allocating 5 bytes."
          ),
          1,
          "program: Out of memory allocating 5 bytes. Lower --batch_size, or"
          " widths of layers.\n",
      ),
      (KeyboardInterrupt(), 130, "program: interrupted.\n"),
  )
  def test_what_stops_a_run_is_one_line_and_a_code(self, error, code, line):
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
      with self.assertRaises(SystemExit) as caught:
        launch.main(
            command_line.parse_flags(["/bin/program.py"]),
            _Settings,
            lambda _: _raise(error),
        )
    self.assertEqual((caught.exception.code, stderr.getvalue()), (code, line))

  def test_what_jax_says_of_other_things_keeps_its_traceback(self):
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "NaN"):
      launch.main(
          command_line.parse_flags(["program"]),
          _Settings,
          lambda _: _raise(jax.errors.JaxRuntimeError("NaN")),
      )

  @parameterized.parameters((1, 1), (2, 2))
  def test_layers_may_need_what_is_free(self, num_devices, copies):
    devices = jax.devices()[:num_devices]
    # Parameters, gradients and two moments, in the one memory of the devices.
    needed = copies * 4 * 4 * 1024
    for free, fits in ((None, True), (needed, True), (needed - 1, False)):
      with (
          mock.patch.object(launch.free_memory, "free_bytes", lambda _: free),
          contextlib.nullcontext()
          if fits
          else self.assertRaisesRegex(
              command_line.UsageError,
              f"need {copies * 16}.0 KiB .* --test_count=3",
          ),
      ):
        launch.check_memory(1024, devices, _Settings(), "test_count")

  def test_interrupts_are_errors_again(self):
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    self.addCleanup(signal.signal, signal.SIGINT, before)
    seen = []
    launch.main(
        command_line.parse_flags(["program"]),
        _Settings,
        lambda _: seen.append(signal.getsignal(signal.SIGINT)),
    )
    self.assertEqual(seen, [signal.default_int_handler])

  def test_a_second_interrupt_ends_the_process_at_once(self):
    before = signal.getsignal(signal.SIGINT)
    self.addCleanup(signal.signal, signal.SIGINT, before)
    with contextlib.redirect_stderr(io.StringIO()):
      with self.assertRaises(SystemExit):
        launch.main(
            command_line.parse_flags(["program"]),
            _Settings,
            lambda _: _raise(KeyboardInterrupt()),
        )
    self.assertEqual(signal.getsignal(signal.SIGINT), signal.SIG_DFL)

  def test_what_stdout_cannot_encode_does_not_end_a_program(self):
    written = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(written, "latin-1")):
      launch.main(
          command_line.parse_flags(["program"]),
          _Settings,
          lambda _: print("thou\u2019rt tr\xe8s bien", flush=True),
      )
      self.assertEqual(written.getvalue(), b"thou?rt tr\xe8s bien\n")

  def test_a_mistake_in_the_program_keeps_its_traceback(self):
    with self.assertRaisesRegex(ValueError, "bug"):
      launch.main(
          command_line.parse_flags(["program"]),
          _Settings,
          lambda _: _raise(ValueError("bug")),
      )

  @parameterized.parameters(
      (ValueError("bug"), True),
      (ValueError("Gloo: Connection reset by peer"), False),
      (jax.errors.JaxRuntimeError("the collective has failed"), False),
      (RuntimeError("Reduction with sync_key 3: the host is gone"), False),
      (
          command_line.UsageError(
              "Cannot write the checkpoint of step 6 to /o: [Errno 2] No such"
              " file or directory: '/o/6.orbax-checkpoint-tmp/state/a'"
          ),
          False,
      ),
      (
          command_line.UsageError(
              "Cannot write the checkpoint of step 6 to /o: [Errno 28] No space"
              " left on device: '/o/6.orbax-checkpoint-tmp/state/a'"
          ),
          True,
      ),
  )
  def test_a_process_leaves_its_job_for_errors_of_its_own(self, error, leaves):
    with (
        mock.patch.object(job, "is_managed", return_value=True),
        mock.patch.object(job, "leave", side_effect=SystemExit) as leave,
        contextlib.redirect_stderr(io.StringIO()),
        self.assertRaises((SystemExit, type(error))),
    ):
      launch.main(
          command_line.parse_flags(["program"]),
          _Settings,
          lambda _: _raise(error),
      )
    self.assertEqual(leave.called, leaves)

  @parameterized.parameters(
      ("a.dlrm.dlrm", {}, "python -m a.dlrm [flags]"),
      ("a.dlrm.other", {}, "python -m a.dlrm.other [flags]"),
      (None, {}, "python /b/jax_tpu_embedding/r/jax_tpu_embedding/c/d.py [fl"),
      (
          None,
          {"BUILD_WORKSPACE_DIRECTORY": "/w"},
          "./bazelw run //jax_tpu_embedding/c:d -- [flags]",
      ),
  )
  def test_usage_is_how_the_program_was_started(
      self, module, environment, expected
  ):
    main = types.SimpleNamespace(
        __spec__=module and types.SimpleNamespace(name=module),
        __file__="/b/jax_tpu_embedding/r/jax_tpu_embedding/c/d.py",
    )
    with mock.patch.dict(os.environ):
      os.environ.pop("BUILD_WORKSPACE_DIRECTORY", None)
      os.environ.update(environment)
      self.assertStartsWith(launch.usage(main), expected)


if __name__ == "__main__":
  command_line.define_flags(_Settings)
  absltest.main()
