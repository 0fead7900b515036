// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/highway_state.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

// From here on, and nothing that other files share.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash_vectors.h"

namespace jte::convert {
namespace {

struct Avx2 {
  using Words [[gnu::vector_size(32)]] = uint64_t;

  static Words Repeat(uint64_t first, uint64_t second) {
    return Words{first, second, first, second};
  }

  static Words MultiplyLowHalves(Words a, Words b) {
    return Words(_mm256_mul_epu32(__m256i(a), __m256i(b)));
  }

  static Words SwapHalves(Words words) {
    return Words(_mm256_shuffle_epi32(__m256i(words), _MM_SHUFFLE(2, 3, 0, 1)));
  }

  static Words Zip(Words words) {
    return Words(_mm256_shuffle_epi8(
        __m256i(words),
        _mm256_broadcastsi128_si256(_mm_loadu_si128(
            reinterpret_cast<const __m128i*>(kHighwayZipper.data())))));
  }
};

}  // namespace

void FindBucketsWithAvx2(std::span<const uint32_t> stack_rows,
                         std::span<uint8_t> buckets) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i first_halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m128i first_bytes = _mm_set1_epi32(0x0c080400);
  for (size_t i = 0; i < stack_rows.size(); i += kStackRowsWithAvx2) {
    const __m256i words = _mm256_cvtepu32_epi64(_mm_loadu_si128(
        reinterpret_cast<const __m128i*>(stack_rows.data() + i)));
    const auto even =
        PairHash<Avx2>::Of(Avx2::Words(_mm256_unpacklo_epi64(words, zero)));
    const auto odd =
        PairHash<Avx2>::Of(Avx2::Words(_mm256_unpackhi_epi64(words, zero)));
    const __m128i halves = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(
        _mm256_unpacklo_epi64(__m256i(even), __m256i(odd)), first_halves));
    const __m128i bytes = _mm_and_si128(_mm_shuffle_epi8(halves, first_bytes),
                                        _mm_set1_epi8(kMaxMinibatches - 1));
    _mm_storeu_si32(buckets.data() + i, bytes);
  }
}

}  // namespace jte::convert

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // defined(__x86_64__)
