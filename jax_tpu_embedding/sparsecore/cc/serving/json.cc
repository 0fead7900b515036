// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/json.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte::serving {
namespace {

// Deeper ones are nobody's, and each takes a piece of the stack.
constexpr int kMaxDepth = 100;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

void AppendUtf8(uint32_t code, std::string& out) {
  const auto tail = [code](int shift) {
    return static_cast<char>(0x80 | ((code >> shift) & 0x3f));
  };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xc0 | (code >> 6)), tail(0)};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xe0 | (code >> 12)), tail(6), tail(0)};
  } else {
    out += {static_cast<char>(0xf0 | (code >> 18)), tail(12), tail(6), tail(0)};
  }
}

// Whether text is UTF-8: no surrogates, nothing longer than it needs to be.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const int tails = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc0 || lead > 0xf4 || text.size() - i < size_t(tails)) {
      return false;
    }
    uint32_t code = lead & (0x3f >> tails);
    for (int k = 0; k < tails; ++k) {
      const auto tail = static_cast<unsigned char>(text[i++]);
      if ((tail & 0xc0) != 0x80) return false;
      code = code << 6 | (tail & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[tails] || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000)) {
      return false;
    }
  }
  return true;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Json> ParseAll() {
    if (!IsUtf8(text_)) return InvalidArgument("it is not UTF-8");
    JTE_ASSIGN_OR_RETURN(Json json, ParseValue(0));
    SkipSpace();
    if (at_ < text_.size()) return Expected("the end");
    return json;
  }

 private:
  std::unexpected<Error> Expected(std::string_view what) const {
    return InvalidArgument("expected ", what, " at byte ", at_);
  }

  void SkipSpace() {
    at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size());
  }

  bool Take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  Result<Json> ParseValue(int depth) {
    SkipSpace();
    if (depth > kMaxDepth) return Expected("fewer levels");
    if (Take("{")) return ParseObject(depth);
    if (Take("[")) return ParseArray(depth);
    if (Take("null")) return Json{JsonNull()};
    if (Take("true")) return Json{true};
    if (Take("false")) return Json{false};
    if (Take("\"")) {
      JTE_ASSIGN_OR_RETURN(std::string text, ParseString());
      return Json{std::move(text)};
    }
    return ParseNumber();
  }

  Result<Json> ParseObject(int depth) {
    JsonObject object;
    SkipSpace();
    if (Take("}")) return Json{std::move(object)};
    do {
      SkipSpace();
      if (!Take("\"")) return Expected("a key");
      JTE_ASSIGN_OR_RETURN(std::string key, ParseString());
      if (Find(object, key) != nullptr) return Expected("another key before");
      SkipSpace();
      if (!Take(":")) return Expected("':'");
      JTE_ASSIGN_OR_RETURN(Json value, ParseValue(depth + 1));
      object.emplace_back(std::move(key), std::move(value));
      SkipSpace();
    } while (Take(","));
    if (!Take("}")) return Expected("',' or '}'");
    return Json{std::move(object)};
  }

  Result<Json> ParseArray(int depth) {
    JsonArray array;
    SkipSpace();
    if (Take("]")) return Json{std::move(array)};
    do {
      JTE_ASSIGN_OR_RETURN(Json value, ParseValue(depth + 1));
      array.push_back(std::move(value));
      SkipSpace();
    } while (Take(","));
    if (!Take("]")) return Expected("',' or ']'");
    return Json{std::move(array)};
  }

  // After the quotation mark.
  Result<std::string> ParseString() {
    std::string result;
    while (true) {
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      result += text_.substr(begin, at_ - begin);
      if (Take("\"")) return result;
      if (!Take("\\")) return Expected("a character of a string");
      constexpr std::string_view kEscapes = "\"\\/bfnrt";
      constexpr std::string_view kEscaped = "\"\\/\b\f\n\r\t";
      if (Take("u")) {
        JTE_ASSIGN_OR_RETURN(const uint32_t code, ParseCode());
        AppendUtf8(code, result);
      } else if (const size_t i = at_ < text_.size() ? kEscapes.find(text_[at_])
                                                     : std::string_view::npos;
                 i != std::string_view::npos) {
        ++at_;
        result += kEscaped[i];
      } else {
        return Expected("an escaped character");
      }
    }
  }

  // A character after "\u", which may be two surrogates.
  Result<uint32_t> ParseCode() {
    JTE_ASSIGN_OR_RETURN(const uint32_t first, ParseHex());
    if (first < 0xd800 || first >= 0xe000) return first;
    if (first >= 0xdc00 || !Take("\\u")) return Expected("a surrogate pair");
    JTE_ASSIGN_OR_RETURN(const uint32_t second, ParseHex());
    if (second < 0xdc00 || second >= 0xe000) {
      return Expected("a surrogate pair before");
    }
    return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
  }

  Result<uint32_t> ParseHex() {
    const std::string_view digits = text_.substr(at_, 4);
    uint32_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
    if (digits.size() < 4 || stop != end || error != std::errc()) {
      return Expected("four hexadecimal digits");
    }
    at_ += 4;
    return value;
  }

  bool TakeDigits() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
    return at_ > begin;
  }

  Result<Json> ParseNumber() {
    const size_t begin = at_;
    Take("-");
    if (!Take("0") && !TakeDigits()) return Expected("a value");
    bool is_integer = true;
    if (Take(".")) {
      is_integer = false;
      if (!TakeDigits()) return Expected("a digit");
    }
    if (Take("e") || Take("E")) {
      is_integer = false;
      if (!Take("+")) Take("-");
      if (!TakeDigits()) return Expected("a digit");
    }
    const char* const first = text_.data() + begin;
    const char* const last = text_.data() + at_;
    int64_t integer = 0;
    if (is_integer && std::from_chars(first, last, integer).ec == std::errc()) {
      return Json{integer};
    }
    double number = 0;
    if (std::from_chars(first, last, number).ec != std::errc()) {
      return Expected("a smaller number before");
    }
    return Json{number};
  }

  const std::string_view text_;
  size_t at_ = 0;
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
  return Parser(text).ParseAll();
}

}  // namespace jte::serving
