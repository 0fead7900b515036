# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from jax_tpu_embedding.sparsecore import extras

# Rows are read as checkpoints read them.
extras.require("export", "orbax", "tensorstore")
