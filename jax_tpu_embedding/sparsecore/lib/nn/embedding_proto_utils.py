# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Specs to and from protos: the public names."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.nn import _spec_proto

create_proto_from_feature_specs = _spec_proto.create_proto_from_feature_specs
get_optimizer_class = _spec_proto.get_optimizer_class
get_optimizer_type = _spec_proto.get_optimizer_type
optimizer_spec_to_proto = _spec_proto.optimizer_spec_to_proto
proto_to_optimizer_spec = _spec_proto.proto_to_optimizer_spec
