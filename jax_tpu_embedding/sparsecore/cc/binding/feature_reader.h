// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the readers of all forms of ids share: the checks of their arrays, the
// name for messages, and the list of what has to stay alive.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_FEATURE_READER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_FEATURE_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

// What the views of a call refer to. Destroy it with the interpreter lock held.
struct KeptAlive {
  std::vector<pybind11::object> objects;
  std::vector<std::shared_ptr<const void>> memory;
};

enum class NumberKind { kIds, kWeights };

class FeatureReader {
 public:
  // A batch has at most max_num_samples. The name and `kept` outlive this.
  FeatureReader(std::string_view name, int64_t max_num_samples, KeptAlive& kept)
      : name_(name), max_num_samples_(max_num_samples), kept_(kept) {}

  std::string_view name() const { return name_; }

  template <typename... Parts>
  std::string Message(const Parts&... parts) const {
    return StrCat("Feature '", name_, "': ", parts...);
  }

  // The errors of arguments that have the wrong value, or are of the wrong
  // kind.
  template <typename... Parts>
  [[noreturn]] void ThrowValueError(const Parts&... parts) const {
    throw pybind11::value_error(Message(parts...));
  }
  template <typename... Parts>
  [[noreturn]] void ThrowTypeError(const Parts&... parts) const {
    throw pybind11::type_error(Message(parts...));
  }

  // Before that many objects are kept: without, memory grows.
  void ExpectToKeep(int64_t num_objects) {
    kept_.objects.reserve(kept_.objects.size() + num_objects);
  }
  void Keep(pybind11::object object) {
    kept_.objects.push_back(std::move(object));
  }
  void Keep(std::shared_ptr<const void> memory) {
    kept_.memory.push_back(std::move(memory));
  }

  // An attribute of what is a `kind` ("sparse tensor"), for messages. Throws a
  // TypeError if it has no such attribute.
  pybind11::object ReadAttribute(pybind11::handle object, const char* name,
                                 std::string_view kind) const;

  // What numpy.asarray makes of `object`; `what` it is, for messages. The array
  // is kept alive. Throws a ValueError for a masked array, whose mask would be
  // lost.
  pybind11::array ReadArray(std::string_view what, pybind11::handle object);

  // Its elements, if they are integers (ids) or real numbers (weights).
  convert::StridedArray ReadNumbers(NumberKind kind,
                                    const pybind11::array& array);
  convert::StridedArray ReadIntegers(std::string_view what,
                                     const pybind11::array& array);
  // The same as ReadNumbers, for an array that must have one dimension.
  convert::StridedArray ReadFlat(NumberKind kind, pybind11::handle object);

  // A flat array of integers, such as row splits.
  convert::StridedArray ReadFlatIntegers(std::string_view what,
                                         pybind11::handle object);

  // Weights for ids that lie in one flat array.
  void CheckNumWeights(int64_t num_ids, int64_t num_weights) const;

  // Refuses batches so large that even one number per sample is too much.
  void CheckNumSamples(int64_t num_samples) const;

 private:
  std::string_view name_;
  int64_t max_num_samples_;
  KeptAlive& kept_;
};

// One element of an array of integers. Others may write it: what is read twice
// may differ.
int64_t IntegerAt(const convert::StridedArray& array, int64_t i);

// The first row that is not of the same length in both, in arrays of row splits
// that have one size; -1 if there is none.
int64_t FirstDifferentRow(const convert::StridedArray& splits,
                          const convert::StridedArray& other_splits);

// Whether an array has the shape [samples] or [samples, 1].
inline bool IsColumn(const pybind11::array& array) {
  return array.ndim() == 1 || (array.ndim() == 2 && array.shape(1) == 1);
}

// One function per form of the ids. Each throws TypeError or ValueError;
// `weights` may be None.
convert::RawBatch ReadRows(FeatureReader& reader, pybind11::handle ids,
                           pybind11::handle weights);
convert::RawBatch ReadSparseMatrix(FeatureReader& reader, pybind11::handle ids,
                                   pybind11::handle weights);
convert::RawBatch ReadArrow(FeatureReader& reader, pybind11::handle ids,
                            pybind11::handle weights);
convert::RawBatch ReadSparseTensor(FeatureReader& reader,
                                   pybind11::handle indices,
                                   pybind11::handle values,
                                   pybind11::handle dense_shape,
                                   pybind11::handle weights);

// Whether ReadArrow can read the object.
bool IsArrow(pybind11::handle object);

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_FEATURE_READER_H_
