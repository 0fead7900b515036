// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Arrays that Python passes in, as the views that the converter reads.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_BATCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/input_batch.h"
#include "pybind11/pybind11.h"

namespace jte {

// Owns, or keeps alive, what `batch` points to. Destroy it with the
// interpreter lock held.
struct PythonBatch {
  InputBatch batch;
  std::vector<pybind11::object> arrays;
  std::unique_ptr<int64_t[]> row_splits;
};

// Reads the ids of one feature, and their weights unless `weights` is None.
//
// ids, dense: an integer array [n, valency] or [n] of any dtype, strides and
// byte order; or what numpy.asarray makes such an array of. Contiguous int32
// and int64 are not copied, all others are converted here, once.
// ids, ragged: an object array [n] of 1-D integer arrays or lists of integers.
// weights: shaped like the ids, of any real dtype; float32 is not copied.
//
// Throws TypeError for a wrong dtype or kind of object, ValueError for a wrong
// shape. Messages name the feature.
PythonBatch ReadPythonBatch(const std::string& feature_name,
                            pybind11::handle ids, pybind11::handle weights);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_BATCH_H_
