# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""For tests: flags of a run of ten steps."""

FLAGS = (
    "--num_samples=1300",
    "--heldout_samples=300",
    "--batch_size=100",
    "--table_rows=50",
    "--embedding_dim=8",
    "--bottom_mlp=8",
    "--cross_layers=1",
    "--cross_rank=4",
    "--top_mlp=8",
    "--evaluate_every=4",
)
