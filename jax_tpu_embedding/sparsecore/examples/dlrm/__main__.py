# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lets `python -m` run the example by the name of its folder."""

import runpy
import signal

from jax_tpu_embedding.sparsecore.lib.core import tcmalloc

if __name__ == "__main__":
  # Ctrl-C while modules are imported ends the process, without a traceback.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  tcmalloc.restart()  # before JAX is imported, which takes a second
  runpy.run_module(f"{__package__}.dlrm", run_name="__main__", alter_sys=True)
