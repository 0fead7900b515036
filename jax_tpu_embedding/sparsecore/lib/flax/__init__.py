# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Flax layers. Needs the extra `flax`."""

from jax_tpu_embedding.sparsecore import extras

extras.require("flax", "flax", "optax")
