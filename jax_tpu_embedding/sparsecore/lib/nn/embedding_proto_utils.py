# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Specs to and from protos: the public names."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.nn.wire import _optimizers_as_proto
from jax_tpu_embedding.sparsecore.lib.nn.wire import _spec_from_proto
from jax_tpu_embedding.sparsecore.lib.nn.wire import _spec_to_proto

create_proto_from_feature_specs = _spec_to_proto.create_proto_from_feature_specs
feature_specs_from_proto = _spec_from_proto.feature_specs_from_proto
table_specs_from_proto = _spec_from_proto.table_specs_from_proto

get_optimizer_class = _optimizers_as_proto.get_optimizer_class
get_optimizer_type = _optimizers_as_proto.get_optimizer_type
optimizer_spec_to_proto = _optimizers_as_proto.optimizer_spec_to_proto
proto_to_optimizer_spec = _optimizers_as_proto.proto_to_optimizer_spec
