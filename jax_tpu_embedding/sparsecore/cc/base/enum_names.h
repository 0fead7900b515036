// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Names of the values of an enum, as users spell them.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_ENUM_NAMES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_ENUM_NAMES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte {

template <typename Enum, size_t n>
using EnumNames = std::array<std::pair<std::string_view, Enum>, n>;

enum class LetterCase { kRequired, kIgnored };

// ASCII only: locales have no say in how options are spelled.
constexpr char ToUpper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

// The value with the name `name`. `what` is the option, for the message.
//
// Errors: no value has the name; the message lists those that there are.
template <typename Enum, size_t n>
Result<Enum> ParseEnum(std::string_view what, const EnumNames<Enum, n>& names,
                       std::string_view name,
                       LetterCase letter_case = LetterCase::kRequired) {
  const auto same = [letter_case](char a, char b) {
    return a == b ||
           (letter_case == LetterCase::kIgnored && ToUpper(a) == ToUpper(b));
  };
  std::string choices;
  for (const auto& [choice, value] : names) {
    if (std::ranges::equal(choice, name, same)) return value;
    choices += StrCat(choices.empty() ? "'" : ", '", choice, "'");
  }
  return InvalidArgument(what, " must be one of ", choices, ", got '", name,
                         "'.");
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_ENUM_NAMES_H_
