# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Files with checksums (cc/files)."""

import numpy as np

def write_checked(path: str, values: np.ndarray, num_bytes: int) -> None: ...
def read_checked(path: str, values: np.ndarray, num_bytes: int) -> None: ...
