// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// JSON as values: manifests, and headers of safetensors.
//
//   JTE_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
//   const auto* object = std::get_if<JsonObject>(&json.value);
//
// The whole of RFC 8259, and nothing else: a file that is damaged is an error.
// nlohmann/json.hpp reads the text, into values without exceptions.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_JSON_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte::serving {

struct Json;
using JsonNull = std::monostate;
using JsonArray = std::vector<Json>;
// In the order of the text.
using JsonObject = std::vector<std::pair<std::string, Json>>;

struct Json {
  // A number is an int64_t if it is written as one and fits.
  std::variant<JsonNull, bool, int64_t, double, std::string, JsonArray,
               JsonObject>
      value;
};

// The value of a key; nullptr if there is none.
const Json* Find(const JsonObject& object, std::string_view key);

// About what a value is, in a few words, for messages.
std::string Described(const Json* json);

// Errors: InvalidArgument for what is not JSON in UTF-8, with the place, for an
// object with a key twice, and for more than 100 levels.
Result<Json> ParseJson(std::string_view text);

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_JSON_H_
