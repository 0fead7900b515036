#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Packs accept.py with all that it imports of this project, random_rows and
# plans_and_moves, for a machine with a GPU and no compiler:
#
#     JTE_HERMETIC_PYTHON_VERSION=3.12 benchmarks/gpu/pack.sh accept.tar.xz
#
# The Python version is that of the machine. JAX with its CUDA plugin, NumPy and
# absl-py have to be there.
set -euo pipefail

archive=$(realpath -m "${1:?"Usage: pack.sh ARCHIVE"}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

./bazelw build //benchmarks/gpu:{accept,random_rows,plans_and_moves}
# Bazel 4 calls the folder by the name of the workspace, Bazel 7 _main. The links
# in it lead into this checkout.
built=$(./bazelw info bazel-bin)/benchmarks/gpu
runfiles=$built/accept.runfiles
name=jte
[[ -d $runfiles/jte ]] || name=_main
tar --dereference --exclude='*.runfiles_manifest' --transform="s/^$name/jte/" \
  -cJf "$archive" -C "$runfiles" "$name" -C "$built" random_rows plans_and_moves
du -h "$archive"
