// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/json.h"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/crc32.h"

namespace jte::serving {
namespace {

using ::testing::HasSubstr;

template <typename T>
T Parsed(std::string_view text) {
  const auto json = ParseJson(text);
  EXPECT_TRUE(json) << text << ": " << json.error().message;
  if (!json || !std::holds_alternative<T>(json->value)) {
    ADD_FAILURE() << text << " is " << (json ? Described(&*json) : "");
    return {};
  }
  return std::get<T>(json->value);
}

std::string ErrorOf(std::string_view text) {
  const auto json = ParseJson(text);
  return json ? "" : json.error().message;
}

TEST(JsonTest, Values) {
  EXPECT_EQ(Parsed<bool>(" true\n"), true);
  EXPECT_EQ(Parsed<bool>("false"), false);
  Parsed<JsonNull>("null");
  EXPECT_EQ(Parsed<int64_t>("-0"), 0);
  EXPECT_EQ(Parsed<int64_t>("9223372036854775807"),
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Parsed<double>("9223372036854775808"), 9223372036854775808.0);
  EXPECT_EQ(Parsed<double>("-1.25e-2"), -0.0125);
  EXPECT_EQ(Parsed<double>("1E+2"), 100);
  EXPECT_EQ(Parsed<std::string>(R"("\"\\\/\b\f\n\r\t\u00e9é")"),
            "\"\\/\b\f\n\r\téé");
  EXPECT_EQ(Parsed<std::string>(R"("\ud83d\ude00\u20AC\u0041")"), "😀€A");
  EXPECT_EQ(Parsed<JsonArray>("[]").size(), 0);
  EXPECT_EQ(Parsed<JsonArray>("[1, [2], {}]").size(), 3);
  EXPECT_EQ(Parsed<JsonObject>("{ }").size(), 0);
  const JsonObject object = Parsed<JsonObject>(R"({"b": 1, "a": {"c": []}})");
  EXPECT_EQ(object[0].first, "b");
  EXPECT_EQ(std::get<int64_t>(Find(object, "b")->value), 1);
  EXPECT_EQ(Find(object, "c"), nullptr);
  Parsed<JsonArray>(std::string(100, '[') + std::string(100, ']'));
}

TEST(JsonTest, AllElseIsAnError) {
  for (const auto& [text, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"", "parse error at line 1, column 1"},
           {"NaN", "invalid literal"},
           {"01", "expected end of input"},
           {"1e999", "number overflow"},
           {"[1,]", "line 1, column 4"},
           {"[1 2]", "expected ']'"},
           {"{1: 2}", "expected string literal"},
           {"{\"a\": 1, \"a\": 2}", "an object has the key 'a' twice"},
           {"{\"a\": {\"b\": 0, \"b\": []}}", "has the key 'b' twice"},
           {"\"a", "missing closing quote"},
           {"\"\xff\"", "invalid string: ill-formed UTF-8 byte"},
           {std::string(101, '['), "it has more than 100 levels"},
           {std::string(100, '[') + "{}", "it has more than 100 levels"},
       }) {
    EXPECT_THAT(ErrorOf(text), HasSubstr(message)) << text;
  }
}

TEST(Crc32Test, IsThatOfZlib) {
  const auto of = [](std::string_view text) {
    return Crc32(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(of(""), 0);
  EXPECT_EQ(of("123456789"), 0xcbf43926);
  EXPECT_EQ(of("The quick brown fox jumps over the lazy dog"), 0x414fa339);
}

}  // namespace
}  // namespace jte::serving
