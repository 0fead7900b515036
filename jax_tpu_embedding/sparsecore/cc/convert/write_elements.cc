// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/write_elements.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

// The row of an id, without the offset of its table, and its partition: equal
// to IdTransform::Column, taken apart. A rotation moves the partition and not
// the row.
struct RowAndPartition {
  uint32_t row;
  uint32_t partition;
};

struct AnyNumberOfScs {
  Divisor divisor;
  uint32_t num_scs;
  uint32_t rotation;  // below num_scs

  [[gnu::always_inline]] RowAndPartition operator()(uint32_t id) const {
    const uint32_t row = divisor.Quotient(id);
    const uint32_t rotated = id - row * num_scs + rotation;
    // If it is too small for the subtraction, that gives a large number.
    return {row, std::min(rotated, rotated - num_scs)};
  }
};

// The same for the usual ones, in half the time.
struct PowerOfTwoScs {
  uint32_t mask;
  int shift;
  uint32_t rotation;

  [[gnu::always_inline]] RowAndPartition operator()(uint32_t id) const {
    return {id >> shift, (id + rotation) & mask};
  }
};

template <typename Locator>
struct IdToKey {
  Locator locate;
  SortKey sort_key;
  uint32_t first_row;

  [[gnu::always_inline]] uint32_t operator()(uint32_t id) const {
    const auto [row, partition] = locate(id);
    return sort_key.Key(partition, row + first_row);
  }
};

// Returns the largest id. Their type is unsigned, which makes a negative id a
// large number.
template <typename Id, typename KeyOf>
[[gnu::always_inline]] inline Id WriteAll(KeyOf key_of, const Id* ids,
                                          int64_t n, const uint32_t* payloads,
                                          uint64_t* elements) {
  Id largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    // Read once: the caller may write it meanwhile, and the key has to be that
    // of the id that is checked.
    const Id id = ids[i];
    // A flag instead would keep GCC 12 from vectorizing the loop.
    largest = std::max(largest, id);
    elements[i] =
        SortKey::Element(key_of(static_cast<uint32_t>(id)), payloads[i]);
  }
  return largest;
}

JTE_VECTOR_CLONES
uint32_t Write(IdToKey<PowerOfTwoScs> key_of, const uint32_t* ids, int64_t n,
               const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

JTE_VECTOR_CLONES
uint64_t Write(IdToKey<PowerOfTwoScs> key_of, const uint64_t* ids, int64_t n,
               const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

JTE_VECTOR_CLONES
uint32_t Write(IdToKey<AnyNumberOfScs> key_of, const uint32_t* ids, int64_t n,
               const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

JTE_VECTOR_CLONES
uint64_t Write(IdToKey<AnyNumberOfScs> key_of, const uint64_t* ids, int64_t n,
               const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

template <typename Locator>
bool WriteIds(const StackPlan& plan, const FeaturePlan& feature, Locator locate,
              const IdSpan& ids, int64_t begin, int64_t n,
              const uint32_t* payloads, uint64_t* elements) {
  const IdToKey<Locator> key_of = {locate, plan.sort_key, feature.first_row};
  return std::visit(
      [&feature, &key_of, begin, n, payloads,
       elements]<typename Id>(std::span<const Id> all) {
        const auto* const unsigned_ids =
            reinterpret_cast<const std::make_unsigned_t<Id>*>(all.data());
        return Write(key_of, unsigned_ids + begin, n, payloads, elements) <
               static_cast<uint64_t>(feature.input.vocabulary_size);
      },
      ids);
}

}  // namespace

bool WriteElements(const StackPlan& plan, const FeaturePlan& feature,
                   const IdSpan& ids, int64_t begin, int64_t n,
                   const uint32_t* payloads, uint64_t* elements) {
  const auto num_scs = static_cast<uint32_t>(plan.topology.num_scs());
  if (std::has_single_bit(num_scs)) {
    const PowerOfTwoScs locate = {.mask = num_scs - 1,
                                  .shift = std::popcount(num_scs - 1),
                                  .rotation = feature.rotation};
    return WriteIds(plan, feature, locate, ids, begin, n, payloads, elements);
  }
  const AnyNumberOfScs locate = {.divisor = plan.num_scs,
                                 .num_scs = num_scs,
                                 .rotation = feature.rotation};
  return WriteIds(plan, feature, locate, ids, begin, n, payloads, elements);
}

}  // namespace jte
