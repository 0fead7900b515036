#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the path of the Python that everything is built for and run with: that
# of JTE_HERMETIC_PYTHON_VERSION ("3.12"), else of HERMETIC_PYTHON_VERSION, else
# python3.
#
# Under pyenv, python3.12 is on the PATH whenever any 3.12 is installed, and
# fails unless that one is activated. So the first one that runs is taken, from
# the PATH and then from pyenv's versions, the newest first.
set -euo pipefail

version=${JTE_HERMETIC_PYTHON_VERSION:-${HERMETIC_PYTHON_VERSION:-}}
name=python${version:-3}
pyenv=${PYENV_ROOT:-${HOME:-}/.pyenv}

while read -r candidate; do
  if "$candidate" -c "" &>/dev/null; then
    echo "$candidate"
    exit
  fi
done < <(
  type -ap "$name"
  printf '%s\n' "$pyenv/versions/$version"*"/bin/$name" | sort --version-sort -r
)
echo "No $name that runs, neither on the PATH nor in $pyenv/versions. Install" \
  "it, or name another version in JTE_HERMETIC_PYTHON_VERSION." >&2
exit 1
