// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// x to the power of y in a form that compilers vectorize, for update rules.
//
// std::pow is a call per element, and GCC 12 makes vectors of this only if it
// may take it that floats do not trap (BUILD): FTRL of power -0.75 takes 12
// times as long as Adagrad with vectors, 67 times without (rows in a cache, Zen
// 4). The value here is within one unit in the last place of the true one. One
// y serves many x, so that what depends on y alone is computed, and checked,
// once.
//
//   const Power power(-0.75f);
//   for (int64_t d = 0; d < dim; ++d) out[d] = power(x[d]);
//
// Source: log2 m = 2 / ln 2 * artanh((m - 1) / (m + 1)), and Taylor's series of
// artanh and exp, long enough for a relative error of the result below 2^-28
// as long as it is a float.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_POWER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_POWER_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "jax_tpu_embedding/sparsecore/cc/base/host_device.h"

namespace jte::kernels {

// x^-0.5 for x >= 0, and NaN below.
struct InverseSquareRoot {
  JTE_HOST_DEVICE static bool Serves(float exponent) {
    return exponent == -0.5f;
  }
  JTE_HOST_DEVICE explicit InverseSquareRoot(float) {}

  [[gnu::always_inline]] JTE_HOST_DEVICE float operator()(float x) const {
    return 1.0f / std::sqrt(x);
  }
};

// x^0.5 for x >= 0, and NaN below.
struct SquareRoot {
  JTE_HOST_DEVICE static bool Serves(float exponent) {
    return exponent == 0.5f;
  }
  JTE_HOST_DEVICE explicit SquareRoot(float) {}

  [[gnu::always_inline]] JTE_HOST_DEVICE float operator()(float x) const {
    return std::sqrt(x);
  }
};

// x^exponent for an exponent that is finite and no integer, so that the power
// of a negative number is NaN.
class Power {
 public:
  JTE_HOST_DEVICE static bool Serves(float exponent) {
    return std::isfinite(exponent) && std::trunc(exponent) != exponent;
  }

  JTE_HOST_DEVICE explicit Power(float exponent)
      : exponent_(exponent),
        at_zero_(exponent > 0 ? 0.0f : kInfinity),
        at_infinity_(exponent > 0 ? kInfinity : 0.0f) {}

  [[gnu::always_inline]] JTE_HOST_DEVICE float operator()(float x) const {
    // Subnormal numbers, which have fewer digits, are made normal.
    const bool is_tiny = x < std::numeric_limits<float>::min();
    const auto bits = std::bit_cast<uint32_t>(is_tiny ? x * 0x1p32f : x);
    // x = m * 2^e, with m from sqrt(0.5) to sqrt(2).
    constexpr uint32_t kSqrtHalf = 0x3f3504f3;
    const auto shifted = static_cast<int32_t>(bits - kSqrtHalf);
    const int32_t e = (shifted >> 23) - (is_tiny ? 32 : 0);
    const double m = std::bit_cast<float>((shifted & 0x7fffff) + kSqrtHalf);
    const double result = Exp2(exponent_ * (e + Log2(m)));
    float power = static_cast<float>(result);
    power = x == 0 ? at_zero_ : power;
    power = x == kInfinity ? at_infinity_ : power;
    return x >= 0 ? power : std::numeric_limits<float>::quiet_NaN();
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  // For m from sqrt(0.5) to sqrt(2): |z| <= 0.172.
  [[gnu::always_inline]] JTE_HOST_DEVICE static double Log2(double m) {
    const double z = (m - 1.0) / (m + 1.0);
    const double s = z * z;
    const double series =
        1.0 +
        s * (1.0 / 3 +
             s * (1.0 / 5 + s * (1.0 / 7 + s * (1.0 / 9 + s * (1.0 / 11)))));
    constexpr double kTwoByLn2 = 2.8853900817779268;
    return kTwoByLn2 * z * series;
  }

  // Beyond the limits a float is zero or infinite.
  [[gnu::always_inline]] JTE_HOST_DEVICE static double Exp2(double t) {
    t = std::min(std::max(t, -200.0), 200.0);
    // The sum has no digits after the point, and t rounded in its lowest bits.
    constexpr double kRounding = 0x1.8p52;
    const double sum = t + kRounding;
    const double r = (t - (sum - kRounding)) * 0.69314718055994531;
    const double series =
        1.0 +
        r * (1.0 + r * (1.0 / 2 +
                        r * (1.0 / 6 +
                             r * (1.0 / 24 +
                                  r * (1.0 / 120 +
                                       r * (1.0 / 720 + r * (1.0 / 5040)))))));
    // Adds to the exponent.
    return std::bit_cast<double>(std::bit_cast<uint64_t>(series) +
                                 (std::bit_cast<uint64_t>(sum) << 52));
  }

  double exponent_;
  float at_zero_;
  float at_infinity_;
};

// x^exponent for any exponent, one element at a time.
struct AnyPower {
  JTE_HOST_DEVICE static bool Serves(float) { return true; }
  JTE_HOST_DEVICE explicit AnyPower(float exponent) : exponent(exponent) {}

  JTE_NOINLINE_ON_DEVICE JTE_HOST_DEVICE float operator()(float x) const {
#ifdef __CUDA_ARCH__
    // That of float errs by two units in the last place; the CPU's by half.
    return static_cast<float>(std::pow(double{x}, double{exponent}));
#else
    return std::pow(x, exponent);
#endif
  }

  float exponent;
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_POWER_H_
