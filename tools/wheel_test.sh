#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the wheel, installs it with pip into bare virtual environments, one for
# each version of JAX below, and runs an example there, away from the checkout;
# then checks that type checkers know the package. Downloads the wheel's
# dependencies from the package index.
set -euo pipefail
if (($#)); then
  sed -n '5,/^set /s/^#\( \|$\)//p' "$0" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Of the JAX that pyproject.toml allows, the oldest, one between and the newest
# that each Python has.
declare -A jax_versions=(
  [3.11]="0.10.2"
  [3.12]="0.10.2 0.11.1 0.12.0.1"
  [3.13]="0.10.2 0.11.1 0.12.0.1"
  [3.14]="0.10.2 0.11.1 0.12.0.1"
  [3.15]="0.11.1 0.12.0.1"
)
# Flax needs tensorstore, which has no wheel for Python 3.15 yet: what needs no
# Flax is tried there.
declare -A extras=([3.15]="")
declare -A programs=([3.15]=stacking.py)

checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

JTE_WHEEL_OUTDIR=$work/dist tools/local_build_wheel.sh
wheels=("$work"/dist/*)
if [[ ${#wheels[@]} != 1 || ${wheels[0]} != *.whl ]]; then
  echo "Expected one wheel and nothing else, got: ${wheels[*]##*/}" >&2
  exit 1
fi

python=$(third_party/py/find_python.sh)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Every module of a library that is not for tests only: //a/b:c.py -> a/b/c.py.
libraries=//jax_tpu_embedding/...
./bazelw query "labels(srcs, kind(py_library, $libraries) except
  attr(testonly, 1, $libraries))" | sed 's|^//||; s|:|/|' >"$work/modules"
# The kernels for GPUs, unless they are left out: nvcc refuses newer compilers.
read -ra bazel_opts <<<"${JTE_BAZEL_OPTS:-}"
./bazelw cquery "${bazel_opts[@]}" \
  "filter('ffi_cuda.so$', deps(//tools:build_wheel))" |
  sed 's|^//||; s|:|/|; s| .*||' >>"$work/modules"

# The libraries that the wheel carries are those of this machine's system.
if [[ $(uname -m) == x86_64 ]] && command -v objdump >/dev/null; then
  "$python" -m zipfile -e "${wheels[0]}" "$work/unpacked"
  find "$work/unpacked" -name '*.so*' -print0 |
    xargs -0 python3 tools/instruction_sets.py
fi

# Nothing of the checkout, of Bazel or of this machine's libraries is visible.
extra=${extras[$version]-[flax]}
program=${programs[$version]-quick_start.py}
cp "examples/$program" "$work"
cd "$work"
unset PYTHONPATH LD_LIBRARY_PATH
export JAX_PLATFORMS=cpu PIP_DISABLE_PIP_VERSION_CHECK=1

for jax in ${jax_versions[$version]}; do
  environment=$work/jax_$jax
  echo "== Python $version, JAX $jax: installing ${wheels[0]##*/}$extra"
  "$python" -m venv "$environment"
  # jax.export writes programs with flatbuffers.
  "$environment/bin/pip" install --quiet "${wheels[0]}$extra" "jax==$jax" \
    flatbuffers
  "$environment/bin/pip" check
  "$environment/bin/python" "$checkout/tools/check_installed_wheel.py" modules
  "$environment/bin/python" "$program"
done

# The program that they read uses the Flax layer.
[[ $extra ]] || exit 0
echo "== Python $version: types, for mypy and pyright"
"$environment/bin/pip" install --quiet mypy "pyright[nodejs]"
"$environment/bin/python" "$checkout/tools/check_types.py"
