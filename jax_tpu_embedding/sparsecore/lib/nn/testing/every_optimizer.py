# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every optimizer of the library, so that a new one is in all tests."""

from __future__ import annotations

import inspect

from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

# Rule -> the class of its spec, which can be made without arguments.
SPECS: dict[str, type[embedding_spec.OptimizerSpec]] = {
    spec_class().short_name(): spec_class
    for _, spec_class in inspect.getmembers(embedding_spec, inspect.isclass)
    if issubclass(spec_class, embedding_spec.OptimizerSpec)
    and not inspect.isabstract(spec_class)
    and spec_class is not embedding_spec.CustomOptimizerSpec
}
