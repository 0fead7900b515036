// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A server in C++ without a network: a request is a line, with a feature and
// the ids of one sample, and so is an answer, with a version and the
// activations. Before each request it takes over what was published.
//
//   ./bazelw run //examples/serving:lookup -- /served
//   clicked 3 7
//   0: 0.25 -1.5 0.125

#include <charconv>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/served_tables.h"

namespace {

using jte::serving::Request;
using jte::serving::ServedTables;

jte::Result<std::string> Answer(const ServedTables& served,
                                const std::string& line,
                                jte::Executor& executor) {
  std::istringstream words(line);
  std::string feature;
  words >> feature;
  std::vector<int64_t> ids;
  for (std::string word; words >> word;) {
    int64_t id = 0;
    const char* const end = word.data() + word.size();
    const auto parsed = std::from_chars(word.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return jte::InvalidArgument("Expected a feature and ids, got: ", line);
    }
    ids.push_back(id);
  }
  const auto now = served.Now();
  JTE_ASSIGN_OR_RETURN(const auto rows, now->Feature(feature));
  std::vector<float> out(rows.columns);
  const std::vector<int64_t> row_splits = {0, std::ssize(ids)};
  const Request request = {.table = rows.table,
                           .kind = Request::Kind::kSplits,
                           .ids = ids,
                           .row_splits = row_splits,
                           .columns = rows.columns,
                           .out = out};
  // The version and the rows are of one time.
  const auto held = now->rows->Hold();
  JTE_RETURN_IF_ERROR(now->rows->LookHeld({&request, 1}, executor));
  std::string answer = jte::StrCat(now->rows->version(), ":");
  for (const float value : out) answer += jte::StrCat(" ", value);
  return answer;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "Usage: lookup DIRECTORY\n";
    return 2;
  }
  jte::InlineExecutor executor;
  const auto served = ServedTables::Open(argv[1], {}, executor);
  if (!served) {
    std::cerr << served.error().message << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    // The tables stay as they are if it fails.
    if (const auto is_newer = (*served)->Refresh(executor); !is_newer) {
      std::cerr << is_newer.error().message << "\n";
    }
    const auto answer = Answer(**served, line, executor);
    std::cout << (answer ? *answer : answer.error().message) << std::endl;
  }
}
