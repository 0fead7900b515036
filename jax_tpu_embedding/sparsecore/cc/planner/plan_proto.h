// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The planner as a function of messages: lib/proto/planner.proto.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLAN_PROTO_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLAN_PROTO_H_

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"
#include "jax_tpu_embedding/sparsecore/lib/proto/planner.pb.h"

namespace jte::planner {

// The plan that `request` asks for.
Result<proto::Plan> MakePlan(const proto::PlanRequest& request);

// The two conversions. A feature of a table that the request does not list is
// an error.
Result<Model> ModelFromProto(const proto::PlanRequest& request);
proto::Plan PlanToProto(const Model& model, const Plan& plan);

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLAN_PROTO_H_
