// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The features of a preprocessing call: what Python passes in, as structs.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_FEATURES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_FEATURES_H_

#include <optional>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/binding/python_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "pybind11/pybind11.h"

namespace jte {

// The features of a call, and what keeps their arrays alive.
struct PythonFeatures {
  std::vector<StackedFeature> features;
  std::vector<PythonBatch> batches;
};

// Everything that is read from a FeatureSpec; no batch yet.
//
// Throws RuntimeError if its table has not been stacked.
StackedFeature ReadFeatureSpec(pybind11::handle spec);

// One element of each list per feature. Throws ValueError if they differ in
// length, or if only some weights are None; and what ReadPythonBatch throws.
PythonFeatures ReadFeatures(const pybind11::list& ids,
                            const std::optional<pybind11::list>& weights,
                            const pybind11::list& feature_specs);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_FEATURES_H_
