#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs a Python test whose extension modules were built with --config=asan
# (asan.bzl):   tools/with_asan.sh path/to/foo_test [arguments]
set -euo pipefail

# Python itself is not instrumented, so the sanitizers have to be there before
# it, and the C++ library, whose functions they wrap, with them.
libraries=()
for library in libasan.so libubsan.so libstdc++.so; do
  libraries+=("$(gcc -print-file-name=$library)")
done
# Python never frees some of its memory, and tests ask for more than there is. Most
# of what is allocated is XLA's, while it compiles; a fifth of the time of these
# tests went into the stacks of that. What is wrong with memory is told with the
# function that allocated it (more: ASAN_OPTIONS=malloc_context_size=30).
ASAN_OPTIONS="malloc_context_size=1:${ASAN_OPTIONS:-}"
ASAN_OPTIONS+=":detect_leaks=0:allocator_may_return_null=1"
export ASAN_OPTIONS LD_PRELOAD="${libraries[*]}"
exec "$@"
