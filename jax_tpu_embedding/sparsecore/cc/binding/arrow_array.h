// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The structs of the Arrow C data interface, through which Arrow arrays of any
// library can be read without that library.
//
// Source: https://arrow.apache.org/docs/format/CDataInterface.html and
// CStreamInterface.html, whose names and layouts these are.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ARROW_ARRAY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ARROW_ARRAY_H_

#include <cstdint>

namespace jte::binding {

// A type. Formats: "i" int32, "+l" list, "+w:3" list of 3 elements, ...
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

// Elements [offset, offset + length) of the buffers. The first buffer is a
// bitmap, least significant bit first, of those that are not null; it may be
// missing if all are not.
struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

// Arrays of one type. The callbacks return 0 or an errno; the end is an array
// that has no `release`.
struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema* out);
  int (*get_next)(ArrowArrayStream*, ArrowArray* out);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ARROW_ARRAY_H_
