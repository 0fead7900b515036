# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lets `python -m` run the example by the name of its folder."""

import runpy

if __name__ == "__main__":
  runpy.run_module(f"{__package__}.dlrm", run_name="__main__", alter_sys=True)
