#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the wheel for one Python version into dist/.
#
# Environment variables:
#   JTE_HERMETIC_PYTHON_VERSION  3.11 to 3.15 (else HERMETIC_PYTHON_VERSION,
#                                else that of python3)
#   JTE_RELEASE                  when set, the version has no suffix
#   JTE_VERSION_SUFFIX           the suffix (else dev<date>, as in dev20260131)
#   JTE_GIT_SHA                  the commit to record (else git's HEAD)
#   JTE_WHEEL_OUTDIR             where to write the wheel (else $PWD/dist)
#   JTE_SOURCE_URL               where the files can be read, as in
#                                https://host/project/blob/main: the links of the
#                                wheel's description lead there (else: no links)
#   JTE_BAZEL_OPTS               more options for Bazel
set -euo pipefail

if (($#)); then
  sed -n '5,/^set /s/^#\( \|$\)//p' "$0" >&2
  exit 2
fi

outdir=$(realpath -m "${JTE_WHEEL_OUTDIR:-$PWD/dist}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

git_commit=${JTE_GIT_SHA:-$(git rev-parse HEAD 2>/dev/null || true)}
default_suffix=dev$(date +%Y%m%d)
[[ -n ${JTE_RELEASE:-} ]] && default_suffix=""
read -ra bazel_opts <<<"${JTE_BAZEL_OPTS:-}"

./bazelw run "${bazel_opts[@]}" \
  --//jax_tpu_embedding/sparsecore:version_suffix="${JTE_VERSION_SUFFIX:-$default_suffix}" \
  --//jax_tpu_embedding/sparsecore:git_commit="$git_commit" \
  //tools:build_wheel -- --output_dir="$outdir" \
  --source_url="${JTE_SOURCE_URL:-}"
