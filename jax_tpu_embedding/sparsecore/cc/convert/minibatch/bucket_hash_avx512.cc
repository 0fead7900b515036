// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/highway_state.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

// From here on, and nothing that other files share.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw")
#endif
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash_vectors.h"

namespace jte::convert {
namespace {

// Masks. The functions without one make GCC 12 warn about its own header.
constexpr __mmask8 kAllWords = 0xff;
constexpr __mmask8 kFirstWords = 0x55;  // of each pair
constexpr __mmask8 kSecondWords = 0xaa;
constexpr __mmask16 kAllHalves = 0xffff;
constexpr __mmask64 kAllBytes = ~uint64_t{0};

struct Avx512 {
  using Words [[gnu::vector_size(64)]] = uint64_t;

  static Words Repeat(uint64_t first, uint64_t second) {
    return Words{first, second, first, second, first, second, first, second};
  }

  static Words MultiplyLowHalves(Words a, Words b) {
    return Words(_mm512_maskz_mul_epu32(kAllWords, __m512i(a), __m512i(b)));
  }

  static Words SwapHalves(Words words) {
    return Words(
        _mm512_maskz_shuffle_epi32(kAllHalves, __m512i(words), _MM_PERM_CDAB));
  }

  static Words Zip(Words words) {
    constexpr auto kWords =
        std::bit_cast<std::array<uint64_t, 2>>(kHighwayZipper);
    return Words(_mm512_maskz_shuffle_epi8(
        kAllBytes, __m512i(words), __m512i(Repeat(kWords[0], kWords[1]))));
  }
};

}  // namespace

void FindBucketsWithAvx512(std::span<const uint32_t> stack_rows,
                           std::span<uint8_t> buckets) {
  for (size_t i = 0; i < stack_rows.size(); i += kStackRowsWithAvx512) {
    const __m512i words = _mm512_maskz_cvtepu32_epi64(
        kAllWords, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(
                       stack_rows.data() + i)));
    const auto even = PairHash<Avx512>::Of(
        Avx512::Words(_mm512_maskz_mov_epi64(kFirstWords, words)));
    const auto odd = PairHash<Avx512>::Of(
        Avx512::Words(_mm512_maskz_unpackhi_epi64(kFirstWords, words, words)));
    const __m512i all = _mm512_mask_unpacklo_epi64(__m512i(even), kSecondWords,
                                                   __m512i(odd), __m512i(odd));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(buckets.data() + i),
                     _mm_and_si128(_mm512_maskz_cvtepi64_epi8(kAllWords, all),
                                   _mm_set1_epi8(kMaxMinibatches - 1)));
  }
}

}  // namespace jte::convert

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // defined(__x86_64__)
