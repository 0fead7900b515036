#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs the package to compare with from PyPI, into a virtual environment of
# its own:
#
#   benchmarks/preprocessing/install_reference.sh [DIRECTORY]
#
# The default is where preprocessing.py looks for it. Removing the directory
# undoes it.
set -euo pipefail
directory=${1:-$HOME/.cache/jax_tpu_embedding/reference_0.1.0}

# Its wheels are for Linux with CPython 3.10 and later. It names no version of
# JAX; these two work together.
python3 -m venv "$directory"
"$directory/bin/pip" install --quiet --disable-pip-version-check \
  jax-tpu-embedding==0.1.0 jax==0.10.2
echo "Installed in $directory."
