# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the commands of how_to/several_hosts.md and of the files beside it."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import small_run

program_runs.compile_once()

_HOW_TO = pathlib.Path(__file__).parent / "how_to"
_MODULE = "jax_tpu_embedding.sparsecore.examples.dlrm"
# Batches of the page's size divide among three and four devices; so do these.
_SMALL = [*small_run.FLAGS, "--batch_size=96"]

# What srun does, as far as JAX looks.
_SRUN = """#!/usr/bin/env bash
shift  # its own flag
for i in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
done
code=0
for pid in $(jobs -p); do
  wait "$pid" || code=$?
done
exit "$code"
"""


def _documents() -> dict[str, dict]:
  import yaml  # pylint: disable=g-import-not-at-top

  text = (_HOW_TO / "several_hosts" / "kubernetes.yaml").read_text()
  return {document["kind"]: document for document in yaml.safe_load_all(text)}


class SeveralHostsTest(program_runs.ProgramTest):

  def setUp(self):
    super().setUp()
    self._bin = self.create_tempdir().full_path
    self._add_program("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')

  def _add_program(self, name: str, text: str) -> None:
    path = pathlib.Path(self._bin, name)
    path.write_text(text)
    path.chmod(0o755)

  def _environment(self, **variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{self._bin}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **variables,
    }

  def test_commands_of_the_page(self):
    page = (_HOW_TO / "several_hosts.md").read_text()
    flags = [
        shlex.split(line)
        for line in re.findall(
            r"^    ./bazelw run //\S+/dlrm -- (.*)$", page, re.M
        )
    ]
    self.assertLen(flags, 3)
    one, four, three = (
        [x.replace("/tmp/", self._bin + "/") for x in line] for line in flags
    )
    (kill,) = re.findall(r"^    (kill -9 .*)$", page, re.M)
    self.assertIn("num_processes=4 | tail -1", kill)
    self.assertIn("--num_processes=4", four)

    small = [x for x in _SMALL if not x.startswith("--batch_size=96")]
    small += ["--num_samples=4140", "--heldout_samples=300"]
    # One process is what dlrm_test.py runs all the time.
    command_line.define_flags(config_lib.Config)
    command_line.parse_flags(["dlrm", *one])
    self.assertEqual(
        command_line.from_flags(config_lib.Config).num_processes, 1
    )

    job = program_runs.start(
        "-m",
        _MODULE,
        *small,
        *four,
        "--num_steps=100000",
        "--checkpoint_every=2",
    )
    checkpoints = pathlib.Path(self._bin, "four", "checkpoints")
    while not (checkpoints / "2").is_dir():
      self.assertIsNone(job.poll())
      time.sleep(0.05)
    os.kill(program_runs.children(job)[-1], signal.SIGKILL)
    _, stderr = job.communicate()
    self.assertEqual(job.returncode, 75, stderr)
    self.assertIn(f"    {stderr.splitlines()[-1]}\n", page)

    last = max(int(p.name) for p in checkpoints.iterdir() if p.name.isdigit())
    run = program_runs.start(
        "-m", _MODULE, *small, *three, f"--num_steps={last + 1}"
    )
    stdout, stderr = run.communicate()
    self.assertEqual(run.returncode, 0, stderr)
    self.assertIn(f"Resumed at step {last} ", stdout)

  def test_slurm_script(self):
    self._add_program("srun", _SRUN)
    self._add_program("scontrol", '#!/bin/sh\necho "scontrol $@"\n')

    def run(*flags, restarts=0):
      return subprocess.run(
          [
              "bash",
              _HOW_TO / "several_hosts" / "slurm.sh",
              f"{self._bin}/run",
              *_SMALL,
              *flags,
          ],
          env=self._environment(
              SLURM_JOB_ID=str(os.getpid()),
              SLURM_STEP_NODELIST="localhost",
              SLURM_NTASKS="1",
              SLURM_RESTART_COUNT=str(restarts),
          ),
          capture_output=True,
          text=True,
          check=False,
      )

    first = run("--num_steps=2")
    self.assertEqual(first.returncode, 0, first.stderr)
    self.assertIn("on 1 device(s)", first.stdout)
    self._add_program("srun", '#!/bin/sh\necho "$@"\n')
    self.assertIn(f"--output_dir={self._bin}/run --resume ", run().stdout)
    # All CPUs of the job; it does not say so by itself.
    self.assertStartsWith(run().stdout, "--cpus-per-task=8 python -m ")
    # A host died.
    self._add_program("srun", "#!/bin/sh\nexit 75\n")
    for restarts, expected in (0, f"scontrol requeue {os.getpid()}\n"), (
        10,
        "",
    ):
      died = run(restarts=restarts)
      self.assertEqual((died.returncode, died.stdout), (75, expected))
    self._add_program("srun", "#!/bin/sh\nexit 1\n")
    self.assertEqual(run().stdout, "")

  @absltest.skipIf(
      importlib.util.find_spec("yaml") is None,
      "PyYAML is not installed: pip install pyyaml.",
  )
  def test_kubernetes_manifest(self):
    documents = _documents()
    self.assertEqual(
        {kind: doc["apiVersion"] for kind, doc in documents.items()},
        {
            "Service": "v1",
            "ServiceAccount": "v1",
            "Role": "rbac.authorization.k8s.io/v1",
            "RoleBinding": "rbac.authorization.k8s.io/v1",
            "Job": "batch/v1",
        },
    )
    name = {doc["metadata"]["name"] for doc in documents.values()}
    self.assertLen(name, 1)
    (name,) = name
    job = documents["Job"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    # JAX: pods find each other by a headless service, whose name is their
    # domain; how many they are is `parallelism`.
    service = documents["Service"]["spec"]
    self.assertEqual(service["clusterIP"], "None")
    self.assertTrue(service["publishNotReadyAddresses"])
    self.assertEqual(service["selector"], {"job-name": name})
    self.assertEqual(pod["subdomain"], name)
    self.assertEqual(job["completionMode"], "Indexed")
    self.assertEqual(job["parallelism"], job["completions"])
    # What JAX asks for: pods, services and the job.
    allowed = {
        (group, resource)
        for rule in documents["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"get", "list"} <= set(rule["verbs"])
    }
    self.assertEqual(
        allowed, {("", "pods"), ("", "services"), ("batch", "jobs")}
    )
    binding = documents["RoleBinding"]
    self.assertEqual(
        binding["subjects"], [{"kind": "ServiceAccount", "name": name}]
    )
    self.assertEqual(binding["roleRef"]["name"], name)
    self.assertEqual(pod["serviceAccountName"], name)
    # A policy on failures needs pods that are not restarted in place.
    self.assertEqual(pod["restartPolicy"], "Never")
    ignored, failed = job["podFailurePolicy"]["rules"]
    self.assertEqual(ignored["action"], "Ignore")
    self.assertEqual(failed["action"], "FailJob")
    codes = failed["onExitCodes"]
    self.assertEqual(codes["containerName"], container["name"])
    self.assertEqual((codes["operator"], codes["values"]), ("In", [1, 2]))
    self.assertGreaterEqual(job["backoffLimit"], job["completions"])
    self.assertEqual(
        [mount["name"] for mount in container["volumeMounts"]],
        [volume["name"] for volume in pod["volumes"]],
    )

    # The command, with a program in place of Python that says how it is called.
    self._add_program("python", '#!/bin/sh\necho "$@"\n')
    *shell, script = container["command"]
    self.assertEqual(shell, ["bash", "-c"])
    script = script.replace("/runs/", f"{self._bin}/")

    def called_with():
      stdout = subprocess.run(
          [*shell, script],
          env=self._environment(),
          check=True,
          capture_output=True,
          text=True,
      ).stdout
      option, module, *flags = stdout.split()
      self.assertEqual((option, module), ("-m", _MODULE))
      values = dict(
          flag.removeprefix("--").partition("=")[::2] for flag in flags
      )
      config = config_lib.Config(
          num_processes=int(values.pop("num_processes")),
          num_devices=int(values.pop("num_devices")),
          output_dir=values.pop("output_dir"),
      )
      self.assertEqual(config.num_processes, 0)
      self.assertEqual(config.num_devices, job["completions"])
      return values

    self.assertEqual(called_with(), {})
    checkpoints = pathlib.Path(self._bin, "dlrm", "checkpoints")
    (checkpoints / "2.orbax-checkpoint-tmp").mkdir(parents=True)
    self.assertEqual(called_with(), {})
    (checkpoints / "2").mkdir()
    self.assertEqual(called_with(), {"resume": ""})


if __name__ == "__main__":
  absltest.main()
