// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The features of a preprocessing call: what Python passes in, as structs.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_FEATURES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_FEATURES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

// The features of a call, without batches, and their batches as they came.
struct PythonFeatures {
  std::vector<convert::StackedFeature> features;
  std::vector<convert::RawBatch> batches;  // refer to the names of the features
  KeptAlive kept;
};

// What is read from a list of FeatureSpecs; no batches yet. Python:
// FeatureSpecs, for callers that have the same ones in every batch: reading one
// takes 0.4 us, more than all else about a few ids of it.
struct FeatureSpecs {
  std::vector<convert::StackedFeature> features;
};

// Throws RuntimeError if a table has not been stacked, and TypeError if an
// attribute has the wrong type.
FeatureSpecs ReadFeatureSpecs(const pybind11::list& specs);

// One element of each list per feature; weights that are None are ones. A batch
// has at most max_num_samples.
//
// Throws ValueError if the lists differ in length, and what ReadPythonBatch
// throws.
PythonFeatures ReadFeatures(const pybind11::list& ids,
                            const std::optional<pybind11::list>& weights,
                            FeatureSpecs feature_specs,
                            int64_t max_num_samples);

// The same for sparse tensors, whose weights are ones.
PythonFeatures ReadSparseFeatures(const pybind11::list& indices,
                                  const pybind11::list& values,
                                  const pybind11::list& dense_shapes,
                                  FeatureSpecs feature_specs,
                                  int64_t max_num_samples);

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_FEATURES_H_
