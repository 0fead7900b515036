# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs Bazel where nobody watches a terminal, and says what it is doing.

    python3 heartbeat.py bazel test //...

Without a terminal Bazel prints its progress at longer and longer intervals, up
to minutes, so that a long test cannot be told from one that hangs. This program
hands on what Bazel prints, and after 15 silent seconds repeats the last line of
progress with the time. Exit code and signals are Bazel's. ./bazelw runs it, with
whatever python3 the machine has, so it needs no package and no recent Python.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time

# Seconds; the variable is for the test.
INTERVAL = float(os.environ.get("JTE_HEARTBEAT_SECONDS", "15"))
# "[12 / 345] 6 / 7 tests; ...", "Analyzing: ...", "Loading: ...".
_PROGRESS = re.compile(
    rb"^(?:\[[\d,]+ / [\d,]+\]|(?:Analyz|Load|Fetch)ing\b).*"
)
# What another process may send to this one alone. A key on a terminal reaches
# Bazel by itself, and twice does no harm there: it counts to three.
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def same_file(one, other):
  try:
    return os.path.samestat(os.fstat(one), os.fstat(other))
  except OSError:  # closed
    return False


def command_line(pid):
  """The words of a process's command; empty where the system has no /proc."""
  try:
    with open("/proc/{}/cmdline".format(pid), "rb") as file:
      return file.read().split(b"\0")
  except OSError:
    return []


def is_bazel(pid, command):
  """Whether a process is still Bazel: after `run` it becomes the program.

  A script that hands over to Bazel keeps the words of the command; the program
  has at most some of them.
  """
  words = command_line(pid)
  return not words or all(os.fsencode(word) in words for word in command[1:])


def write(data):
  """Writes all of it to standard error; returns whether somebody reads it."""
  try:
    while data:
      data = data[os.write(2, data) :]
  except BrokenPipeError:
    return False
  return True


class Watch:
  """What was printed last, and when."""

  def __init__(self):
    self.start = self.heard = time.monotonic()
    self.doing = b"no progress was printed yet"
    self.rest = b""  # the beginning of a line

  def hear(self, data):
    self.heard = time.monotonic()
    *lines, self.rest = (self.rest + data).split(b"\n")
    for line in lines:
      match = _PROGRESS.match(line)
      if match:
        self.doing = match.group()

  def beat(self):
    now = time.monotonic()
    if now - self.heard < INTERVAL:
      return
    self.heard = now
    write(b"(%d s, still running) %s\n" % (now - self.start, self.doing))


def run(command):
  """Runs a command to its end; returns its status as waitpid gives it."""
  process = None
  early = []  # signals that came before there was anything to hand them to

  def hand_on(number, _):
    if process is None:
      early.append(number)
    else:
      process.send_signal(number)

  for number in _SIGNALS:
    if signal.getsignal(number) is not signal.SIG_IGN:
      signal.signal(number, hand_on)
  reading, writing = os.pipe()
  # In one pipe where both go to one place: else lines would change places.
  stdout = writing if same_file(1, 2) else None
  process = subprocess.Popen(command, stdout=stdout, stderr=writing)
  os.close(writing)
  for number in early:
    process.send_signal(number)

  watch = Watch()
  ended = None
  while True:
    ready, _, _ = select.select([reading], [], [], min(1.0, INTERVAL / 4))
    if ready:
      data = os.read(reading, 65536)
      if not data or not write(data):
        break
      watch.hear(data)
      continue
    if ended is not None:
      break  # what is left of it in the background may print on, unheard
    ended = process.poll()
    if ended is None and is_bazel(process.pid, command):
      watch.beat()
  # Where nobody reads on, the next line that Bazel prints ends it, as without
  # this program.
  os.close(reading)
  return process.wait()


def main():
  if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
  status = run(sys.argv[1:])
  if status < 0:  # a signal ended it: end likewise, so that callers see it
    if -status in _SIGNALS:
      signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
  sys.exit(status)


if __name__ == "__main__":
  main()
