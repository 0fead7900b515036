// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/entry_reader.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/divisor.h"

namespace jte {

namespace {

JTE_VECTOR_CLONES
void ComputeSamples(std::span<const uint64_t> elements, const Divisor& valency,
                    uint64_t* __restrict with_samples) {
  const Divisor divisor = valency;  // no other name for it: not reloaded
  for (size_t i = 0; i < elements.size(); ++i) {
    with_samples[i] =
        SortKey::Element(SortKey::KeyOf(elements[i]),
                         divisor.Quotient(SortKey::PayloadOf(elements[i])));
  }
}

JTE_VECTOR_CLONES
void UnpackSamples(std::span<const uint64_t> elements, int position_bits,
                   uint64_t* __restrict with_samples) {
  for (size_t i = 0; i < elements.size(); ++i) {
    with_samples[i] =
        SortKey::Element(SortKey::KeyOf(elements[i]),
                         SortKey::PayloadOf(elements[i]) >> position_bits);
  }
}

// Lookups are left to plain loads: gather instructions take twice the time.
void LookUp(std::span<const uint64_t> elements, const float* of_payload,
            float* __restrict id_gains) {
  for (size_t i = 0; i < elements.size(); ++i) {
    id_gains[i] = of_payload[SortKey::PayloadOf(elements[i])];
  }
}

}  // namespace

void Resolve(const SampleGains& gains, std::span<const uint64_t> elements,
             uint64_t*, float* id_gains) {
  LookUp(elements, gains.gains.data(), id_gains);
}

void Resolve(const MatrixGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains) {
  ComputeSamples(elements, gains.valency, with_samples);
  LookUp(elements, gains.gains.data(), id_gains);
}

void Resolve(const PackedGains& gains, std::span<const uint64_t> elements,
             uint64_t* with_samples, float* id_gains) {
  UnpackSamples(elements, gains.position_bits, with_samples);
  const PackedGains packed = gains;  // no other name for it: not reloaded
  for (size_t i = 0; i < elements.size(); ++i) {
    id_gains[i] =
        packed.gains[packed.PositionOf(SortKey::PayloadOf(elements[i]))];
  }
}

void Resolve(const IdGains& gains, std::span<const uint64_t> elements,
             uint64_t* __restrict with_samples, float* __restrict id_gains) {
  for (size_t i = 0; i < elements.size(); ++i) {
    const WeightedId id = gains.ids[SortKey::PayloadOf(elements[i])];
    with_samples[i] = SortKey::Element(SortKey::KeyOf(elements[i]),
                                       static_cast<uint32_t>(id.sample));
    id_gains[i] = id.gain;
  }
}

}  // namespace jte
