#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the wheel, installs it with pip into a bare virtual environment, and
# runs the quick start there, away from the checkout. Downloads the wheel's
# dependencies from the package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

JTE_WHEEL_OUTDIR=$work/dist tools/local_build_wheel.sh
wheels=("$work"/dist/*.whl)

# Every module of a library that is not for tests only: //a/b:c.py -> a/b/c.py.
libraries=//jax_tpu_embedding/...
./bazelw query "labels(srcs, kind(py_library, $libraries) except
  attr(testonly, 1, $libraries))" | sed 's|^//||; s|:|/|' >"$work/modules"

# The Python that Bazel built for: see third_party/py/python_environment.bzl.
"python${JTE_HERMETIC_PYTHON_VERSION:-${HERMETIC_PYTHON_VERSION:-3}}" \
  -m venv "$work/venv"
python=$work/venv/bin/python
echo "Installing ${wheels[0]##*/}[flax] into a bare environment (a minute)"
"$python" -m pip install --quiet --disable-pip-version-check \
  "${wheels[0]}[flax]"
"$python" -m pip check

# The libraries that the wheel carries are those of this machine's system.
if [[ $(uname -m) == x86_64 ]] && command -v objdump >/dev/null; then
  find "$work/venv" -path '*/jax_tpu_embedding*' -name '*.so*' -print0 |
    xargs -0 python3 tools/instruction_sets.py
fi

# Nothing of the checkout, of Bazel or of this machine's libraries is visible.
cd "$work"
unset PYTHONPATH LD_LIBRARY_PATH
"$python" "$checkout/tools/check_installed_wheel.py" modules
cp "$checkout/examples/quick_start.py" .
JAX_PLATFORMS=cpu "$python" quick_start.py
