// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "nlohmann/json.hpp"

namespace jte::serving {
namespace {

// Deeper ones are nobody's, and each takes a piece of the stack when it is
// destroyed.
constexpr size_t kMaxDepth = 100;

// Puts a Json together from what the parser finds. Functions return whether to
// go on.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Json root;
  Error error = InvalidArgument("").error();

  bool null() override { return Add({JsonNull()}); }
  bool boolean(bool value) override { return Add({value}); }
  bool number_integer(int64_t value) override { return Add({value}); }
  bool number_unsigned(uint64_t value) override {
    if (std::in_range<int64_t>(value))
      return Add({static_cast<int64_t>(value)});
    return Add({static_cast<double>(value)});
  }
  bool number_float(double value, const std::string&) override {
    return Add({value});
  }
  bool string(std::string& value) override { return Add({std::move(value)}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }

  bool start_object(size_t) override { return Open({JsonObject()}); }
  bool start_array(size_t) override { return Open({JsonArray()}); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    auto& object = std::get<JsonObject>(open_.back()->value);
    if (Find(object, key) != nullptr) {
      error =
          InvalidArgument("an object has the key '", key, "' twice").error();
      return false;
    }
    object.emplace_back().first = std::move(key);
    return true;
  }

  bool parse_error(size_t, const std::string&,
                   const nlohmann::json::exception& exception) override {
    // Behind "[json.exception.parse_error.101] ".
    const std::string_view text = exception.what();
    error = InvalidArgument(text.substr(text.find(' ') + 1)).error();
    return false;
  }

 private:
  // Where the next value goes.
  Json& Place() {
    if (open_.empty()) return root;
    if (auto* array = std::get_if<JsonArray>(&open_.back()->value)) {
      return array->emplace_back();
    }
    return std::get<JsonObject>(open_.back()->value).back().second;
  }

  bool Add(Json value) {
    Place() = std::move(value);
    return true;
  }

  bool Open(Json value) {
    if (open_.size() == kMaxDepth) {
      error =
          InvalidArgument("it has more than ", kMaxDepth, " levels").error();
      return false;
    }
    Json& place = Place();
    place = std::move(value);
    open_.push_back(&place);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // The values around the next one. A list grows at its end only while none of
  // its values is open.
  std::vector<Json*> open_;
};

}  // namespace

const Json* Find(const JsonObject& object, std::string_view key) {
  const auto found = std::ranges::find(object, key, [](const auto& field) {
    return std::string_view(field.first);
  });
  return found == object.end() ? nullptr : &found->second;
}

std::string Described(const Json* json) {
  struct Visitor {
    std::string operator()(JsonNull) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return StrCat(i); }
    std::string operator()(double d) const { return StrCat(d); }
    std::string operator()(const std::string& s) const {
      return StrCat("'", s.substr(0, 80), "'");
    }
    std::string operator()(const JsonArray& a) const {
      return StrCat("a list of ", a.size());
    }
    std::string operator()(const JsonObject& o) const {
      return StrCat("an object of ", o.size(), " fields");
    }
  };
  return json == nullptr ? "missing" : std::visit(Visitor(), json->value);
}

Result<Json> ParseJson(std::string_view text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return std::unexpected(std::move(builder.error));
  }
  return std::move(builder.root);
}

}  // namespace jte::serving
