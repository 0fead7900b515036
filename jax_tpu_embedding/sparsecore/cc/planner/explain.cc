// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/explain.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "jax_tpu_embedding/sparsecore/cc/planner/pack.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/validate.h"

namespace jte::planner {
namespace {

// All pairs of stacks are compared, in seconds.
constexpr size_t kMaxExplainedStacks = 20'000;

// What decides whether two stacks could be one.
struct Summary {
  std::string_view name;
  int64_t activation_mem_bytes_limit = 0;
  const Table* first = nullptr;
  int64_t num_tables = 0;
  int64_t width = 0;
  Load load;
};

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    return std::numeric_limits<int64_t>::max();
  }
  return sum;
}

Result<std::vector<Summary>> Summarize(const Model& model,
                                       std::span<const StackQuestion> stacks) {
  std::vector<Summary> summaries;
  std::unordered_map<std::string_view, size_t> index_of_name;
  for (const StackQuestion& stack : stacks) {
    index_of_name.emplace(stack.stack_name, summaries.size());
    summaries.push_back(
        {.name = stack.stack_name,
         .activation_mem_bytes_limit = stack.activation_mem_bytes_limit,
         .load = {}});
  }
  const std::vector<Load> loads = TableLoads(model);
  for (size_t t = 0; t < model.tables.size(); ++t) {
    const Table& table = model.tables[t];
    const auto index = index_of_name.find(table.stack_name);
    if (!table.is_stacked || index == index_of_name.end()) {
      return InvalidArgument("Table '", table.name,
                             "' is in no stack. Prepare its features first.");
    }
    Summary& stack = summaries[index->second];
    if (stack.first == nullptr) stack.first = &table;
    ++stack.num_tables;
    stack.width = std::max(stack.width, PaddedEmbeddingDim(table));
    stack.load.rows = SaturatingAdd(stack.load.rows, loads[t].rows);
    stack.load.activation_bytes =
        SaturatingAdd(stack.load.activation_bytes, loads[t].activation_bytes);
  }
  for (const Summary& stack : summaries) {
    if (stack.first == nullptr) {
      return InvalidArgument("Stack '", stack.name, "' has no tables.");
    }
  }
  return summaries;
}

// How many entries Differences would have, without their text: all pairs of
// stacks are compared.
int64_t CountDifferences(const Summary& stack, const Summary& other) {
  const Table& a = *stack.first;
  const Table& b = *other.first;
  return (other.width != stack.width) + (b.optimizer_id != a.optimizer_id) +
         (b.combiner != a.combiner) + (b.quantization != a.quantization);
}

// "16 columns instead of 8", ...: how `other` differs from `stack`.
std::vector<std::string> Differences(const Summary& stack,
                                     const Summary& other) {
  const Table& a = *stack.first;
  const Table& b = *other.first;
  std::vector<std::string> differences;
  if (other.width != stack.width) {
    differences.push_back(
        StrCat(other.width, " columns instead of ", stack.width));
  }
  if (b.optimizer_id != a.optimizer_id) {
    differences.push_back(
        StrCat("optimizer ", b.optimizer, " instead of ", a.optimizer));
  }
  if (b.combiner != a.combiner) {
    differences.push_back(
        StrCat("combiner ", b.combiner, " instead of ", a.combiner));
  }
  if (b.quantization != a.quantization) {
    differences.push_back(StrCat("quantization ", Describe(b.quantization),
                                 " instead of ", Describe(a.quantization)));
  }
  return differences;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) {
    if (!joined.empty()) joined += ", ";
    joined += part;
  }
  return joined;
}

// What `stack` and `other` would be as one.
Load Sum(const Summary& stack, const Summary& other) {
  return {.activation_bytes = SaturatingAdd(stack.load.activation_bytes,
                                            other.load.activation_bytes),
          .rows = SaturatingAdd(stack.load.rows, other.load.rows)};
}

// Whether `stack` could be one with `other`, which is alike.
bool HasRoomFor(const Summary& stack, const Summary& other) {
  const Load sum = Sum(stack, other);
  return sum.rows <= kMaxStackRows &&
         sum.activation_bytes <= stack.activation_mem_bytes_limit;
}

// Why it could not.
std::string WhyTooMuch(const Summary& stack, const Summary& other) {
  const Load sum = Sum(stack, other);
  if (sum.rows > kMaxStackRows) {
    return StrCat("With '", other.name, "' it would have ", sum.rows,
                  " rows, and ids are int32.");
  }
  return StrCat("With '", other.name, "' its activations would take ",
                sum.activation_bytes, " bytes per SparseCore, above the limit ",
                "of ", stack.activation_mem_bytes_limit, ".");
}

std::string WhyApart(std::span<const Summary> stacks, size_t index) {
  const Summary& stack = stacks[index];
  if (stacks.size() == 1) {
    return stack.num_tables == 1 ? "It is the only table."
                                 : "All tables are in it.";
  }

  const Summary* closest = nullptr;  // the first of those that differ least
  int64_t fewest = 0;
  for (size_t i = 0; i < stacks.size(); ++i) {
    if (i == index) continue;
    const Summary& other = stacks[i];
    const int64_t differences = CountDifferences(stack, other);
    if (differences == 0 && HasRoomFor(stack, other)) {
      return StrCat("It could share a stack with '", other.name,
                    "': nobody asked for that, see auto_stack_tables.");
    }
    if (closest == nullptr || differences < fewest) {
      closest = &other;
      fewest = differences;
    }
  }
  if (fewest == 0) return WhyTooMuch(stack, *closest);
  return StrCat("No other stack is alike. The closest, '", closest->name,
                "', has ", Join(Differences(stack, *closest)), ".");
}

}  // namespace

Result<std::vector<StackReport>> ExplainStacks(
    const Model& model, std::span<const StackQuestion> stacks) {
  if (stacks.size() > kMaxExplainedStacks) {
    return InvalidArgument("Cannot compare ", stacks.size(),
                           " stacks with each other, only up to ",
                           kMaxExplainedStacks,
                           ". Ask for the plan of some of the features.");
  }
  JTE_RETURN_IF_ERROR(ValidateModel(model));
  JTE_ASSIGN_OR_RETURN(std::vector<Summary> summaries,
                       Summarize(model, stacks));
  std::vector<StackReport> reports;
  for (size_t i = 0; i < summaries.size(); ++i) {
    const Summary& stack = summaries[i];
    reports.push_back({.stack_name = std::string(stack.name),
                       .activation_bytes_per_sc = stack.load.activation_bytes,
                       .why_apart = WhyApart(summaries, i)});
  }
  return reports;
}

}  // namespace jte::planner
