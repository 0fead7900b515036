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

// Everything that is read from a FeatureSpec; no batch yet.
//
// Throws RuntimeError if its table has not been stacked.
convert::StackedFeature ReadFeatureSpec(pybind11::handle spec);

// One element of each list per feature; weights that are None are ones. A batch
// has at most max_num_samples.
//
// Throws ValueError if the lists differ in length, and what ReadPythonBatch
// throws.
PythonFeatures ReadFeatures(const pybind11::list& ids,
                            const std::optional<pybind11::list>& weights,
                            const pybind11::list& feature_specs,
                            int64_t max_num_samples);

// The same for sparse tensors, whose weights are ones.
PythonFeatures ReadSparseFeatures(const pybind11::list& indices,
                                  const pybind11::list& values,
                                  const pybind11::list& dense_shapes,
                                  const pybind11::list& feature_specs,
                                  int64_t max_num_samples);

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_FEATURES_H_
