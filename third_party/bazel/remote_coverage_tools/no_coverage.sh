#!/bin/sh
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

echo "Coverage is not supported in this workspace." >&2
exit 1
