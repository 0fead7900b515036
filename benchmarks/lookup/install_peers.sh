#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs what to compare with from PyPI, into two virtual environments of
# their own (their versions of NumPy and protobuf do not go together):
#
#   benchmarks/lookup/install_peers.sh [DIRECTORY]
#
# The default is where lookup.py looks for them. Removing the directory undoes
# it.
set -euo pipefail
directory=${1:-$HOME/.cache/jax_tpu_embedding/lookup_peers}

install() {  # ENVIRONMENT REQUIREMENT...
  python3 -m venv "$directory/$1"
  "$directory/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}

# PyTorch alone and first: what needs it accepts any version of it.
install torch torch==2.13.0 numpy
install torch fbgemm-gpu-cpu==1.8.0
install tensorflow tensorflow-cpu==2.21.0
echo "Installed in $directory."
