// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_check_seal_cpu": fails unless the seal is
// (1, h, h * h, g, g * g). The result is the second operand, so that what needs
// it comes after the check.

#include <cstdint>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

Result<void> CheckSeal(const FloatVector& seal, const xffi::AnyBuffer& value,
                       const xffi::AnyBuffer& result,
                       std::string_view message) {
  if (seal.element_count() != 5) {
    return InvalidArgument("The seal has ", seal.element_count(),
                           " numbers, expected 5.");
  }
  if (value.untyped_data() != result.untyped_data()) {
    return FailedPrecondition(
        "The second operand and the result are different buffers. Alias them "
        "in the custom call.");
  }
  const auto numbers = ToSpan<float>(seal);
  const float h = numbers[1];
  const float g = numbers[3];
  // Not "!=" of any: NaN is no seal.
  if (numbers[0] == 1.0f && numbers[2] == h * h && numbers[4] == g * g) {
    return {};
  }
  return InvalidArgument(message, " (The seal is ", numbers[0], ", ", h, ", ",
                         numbers[2], ", ", g, ", ", numbers[4], ".)");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteCheckSealCpu, kHandler<CheckSeal>,
                              xffi::Ffi::Bind()
                                  .Arg<FloatVector>()      // seal
                                  .Arg<xffi::AnyBuffer>()  // value
                                  .Ret<xffi::AnyBuffer>()  // value
                                  .Attr<std::string_view>("message"));

}  // namespace jte::ffi
