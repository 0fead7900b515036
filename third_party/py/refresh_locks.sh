#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Resolves requirements.in anew into one lock file per supported Python version.
# Run from anywhere:   third_party/py/refresh_locks.sh
set -euo pipefail
cd "$(dirname "$0")"

environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
python3 -m venv "$environment"
"$environment/bin/pip" install --quiet uv

# The newest JAX that each Python version has. The supported range begins at the
# JAX of the oldest Python; see README.md.
declare -A jax=(
  [3.11]=0.10.2 [3.12]=0.12.0.1 [3.13]=0.12.0.1 [3.14]=0.12.0.1 [3.15]=0.12.0.1
)
# What the extra jax[tpu] of that JAX asks for.
declare -A libtpu=(
  [3.11]=0.0.42.1 [3.12]=0.0.50.1 [3.13]=0.0.50.1 [3.14]=0.0.50.1
  [3.15]=0.0.50.1
)
# Resolving needs no interpreter of that version; do not fetch one. And what has
# no wheel would have to be compiled on every machine.
export UV_PYTHON_DOWNLOADS=never
for python in "${!jax[@]}"; do
  "$environment/bin/uv" pip compile --quiet requirements.in \
    --upgrade --generate-hashes --no-emit-index-url --no-header \
    --constraint <(
      printf '%s\n' "jax==${jax[$python]}" "libtpu==${libtpu[$python]}"
    ) \
    --python-version "$python" --python-platform x86_64-manylinux_2_31 \
    --only-binary :all: --no-annotate \
    --output-file "requirements_lock_${python/./_}.txt"
  # Resolving for one platform leaves markers out, and the locks are installed on
  # others too (requirements_locks_test.py).
  sed --in-place "s/^libtpu==[^ ]*/& ; platform_machine == 'x86_64'/" \
    "requirements_lock_${python/./_}.txt"
done

# For packages_for_tests.bzl.
echo libtpu==0.0.51 | "$environment/bin/uv" pip compile --quiet - --upgrade \
  --generate-hashes --no-deps --no-emit-index-url --no-header --no-annotate \
  --python-platform x86_64-manylinux_2_31 --output-file newer_libtpu_lock.txt

for python in 3.11 3.12; do
  [[ $python == 3.11 ]] && whose="< '3.12'" || whose=">= '3.12'"
  for part in plugin pjrt; do
    echo "jax-cuda13-$part==${jax[$python]} ; python_version $whose"
  done
done | "$environment/bin/uv" pip compile --quiet - --upgrade --universal \
  --python-version 3.11 --generate-hashes --no-deps --no-emit-index-url \
  --no-header --no-annotate --output-file cuda_plugin_lock.txt

# The headers that the extension modules compile against, for every Python: those
# of the oldest JAX that pyproject.toml promises.
echo jaxlib==0.10.2 | "$environment/bin/uv" pip compile --quiet - \
  --generate-hashes --no-deps --no-emit-index-url --no-header --no-annotate \
  --python-platform x86_64-manylinux_2_31 --output-file xla_ffi_lock.txt

# For ../cuda/cuda_compiler.bzl: the parts of nvcc 13.0, and of 13.5, for systems
# that 13.0 does not know (../cuda/which_nvcc.bzl).
lock_nvcc() {
  local file=$1 nvcc=$2 runtime=$3 cccl=$4
  printf '%s\n' nvidia-{cuda-nvcc,nvvm,cuda-crt}=="$nvcc" \
    nvidia-cuda-runtime=="$runtime" nvidia-cuda-cccl=="$cccl" |
    "$environment/bin/uv" pip compile --quiet - --generate-hashes --no-deps \
      --no-emit-index-url --no-header --no-annotate \
      --python-platform x86_64-manylinux_2_31 --output-file "../cuda/$file"
}
lock_nvcc cuda_compiler_lock.txt 13.0.88 13.0.96 13.0.85
lock_nvcc newer_cuda_compiler_lock.txt 13.5.37 13.5.37 13.3.5.0.6
