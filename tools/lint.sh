#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Checks the format of the C++ and Python files, imports and unused names, and
# that READMEs name the files of their folders.
#   tools/lint.sh         says what is wrong
#   tools/lint.sh --fix   mends what can be mended
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  "") clang_format=(--dry-run -Werror) pyink=(--check) ruff=() ;;
  --fix) clang_format=(-i) pyink=(--quiet) ruff=(--fix) ;;
  *)
    echo "Usage: tools/lint.sh [--fix]" >&2
    exit 2
    ;;
esac

# The tools are locked with the other Python packages; a query installs them.
build=$(./bazelw query --output=location @python_env//:runtime)
bin=${build%%/BUILD:*}/venv/bin

mapfile -t cpp < <(git ls-files -co --exclude-standard '*.cc' '*.h')
mapfile -t python < <(git ls-files -co --exclude-standard '*.py')

failed=0
"$bin/clang-format" "${clang_format[@]}" "${cpp[@]}" || failed=1
"$bin/ruff" check --quiet --no-cache --output-format=concise "${ruff[@]}" \
  "${python[@]}" || failed=1
"$bin/pyink" "${pyink[@]}" "${python[@]}" || failed=1
((failed)) && echo "tools/lint.sh --fix mends the format." >&2
git ls-files -co --exclude-standard benchmarks examples jax_tpu_embedding tools |
  python3 tools/check_maps.py || failed=1
exit "$failed"
