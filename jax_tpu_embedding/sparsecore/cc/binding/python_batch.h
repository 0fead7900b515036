// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The ids of a feature that Python passes in, in any of its forms, as views
// that the converter prepares (convert/input/raw_batch.h).

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_BATCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_BATCH_H_

#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

// Reads ids, and their weights unless `weights` is None. `ids` is one of
//
//   dense      an integer array [n, valency] or [n] of any dtype, strides and
//              byte order, or what numpy.asarray makes such an array of;
//              weights: of the same shape
//   rows       an object array [n] or [n, 1] of 1-D integer arrays or lists of
//              integers; weights: the same of numbers
//   splits     a tuple of flat ids and n + 1 row splits; weights: flat, or a
//              tuple with equal row splits
//   sparse     an object with indices [entries, 2], values (ids) and
//              dense_shape, such as tf.SparseTensor; weights: flat, or such an
//              object with the same indices
//   matrix     one of scipy.sparse, [n, vocabulary_size]: columns are ids and
//              values are weights; weights: none
//   Arrow      an array of lists, in one piece or in chunks; weights: the same
//
// Weights are of any real dtype.
//
// Throws TypeError for a wrong dtype or kind of object, ValueError for a wrong
// shape and for masked arrays. Messages name the feature.
convert::RawBatch ReadPythonBatch(FeatureReader& reader, pybind11::handle ids,
                                  pybind11::handle weights);

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_PYTHON_BATCH_H_
